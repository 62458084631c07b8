"""Transactions: trees and flat rows, etcd's rule about keys that are put once, limits, order."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftkv.errors import Refused
from raftkv.kv import (
    FROM_KEY,
    KV,
    Compare,
    DeleteRangeOp,
    DuplicateKey,
    EmptyKey,
    KeyNotFound,
    LeaseNotFound,
    LimitExceeded,
    Put,
    PutOp,
    PutResult,
    RangeOp,
    Txn,
    TxnOp,
    TxnOutcome,
    TxnResult,
    ValueGiven,
    events_of,
)
from raftkv.kv.commands import FlatTxn, FlatTxnResult, NestedResult, NestedTxn
from raftkv.kv.meeting import COMPARED_MAX
from raftkv.kv.ranges import scan_range
from raftkv.kv.transactions import (
    TXN_DEPTH_MAX,
    _Deletions,
    flatten,
    too_many,
    unflatten,
)
from tests.kv.fake_host import FakeHost

A, B = PutOp(b"a", b""), PutOp(b"b", b"")
DEL_A, DEL_ALL = DeleteRangeOp(b"a"), DeleteRangeOp(b"a", b"z")
NEVER = (Compare(b"a", "version", "<", 0),)


@pytest.fixture
def host() -> FakeHost:
    return FakeHost()


def txn(host: FakeHost, *operations: Any) -> Any:
    return host.apply(flatten((), operations, ()))


def inner(*then: Any, other: tuple[Any, ...] = ()) -> TxnOp:
    return TxnOp((), then, other)


def test_flat_and_back() -> None:
    deep = TxnOp(NEVER, (), (A,))
    flat = flatten((), (B, inner(deep, A), inner()), (inner(B),))
    assert flat.success == (B, NestedTxn(0), NestedTxn(1))
    assert flat.failure == (NestedTxn(2),)
    assert flat.nested == (
        FlatTxn((), (NestedTxn(3), A)),
        FlatTxn(),
        FlatTxn((), (B,)),
        FlatTxn(NEVER, (), (A,)),
    )
    assert flatten([], [A], []) == Txn((), (A,), ())
    put = PutResult(7)
    outcome = TxnOutcome(
        7,
        True,
        (put, NestedResult(0), NestedResult(2)),
        (
            FlatTxnResult(False, (NestedResult(1), put)),
            FlatTxnResult(True, (put,)),
            FlatTxnResult(True, ()),
        ),
    )
    assert unflatten(outcome) == TxnResult(
        7,
        True,
        (
            put,
            TxnResult(7, False, (TxnResult(7, True, (put,)), put)),
            TxnResult(7, True, ()),
        ),
    )


def test_one_revision_and_operations_in_order(host: FakeHost) -> None:
    host.apply(Put(b"x", b"old"))
    outcome = txn(
        host,
        A,
        inner(RangeOp(b"a"), PutOp(b"x", b"new"), inner(RangeOp(b"x"))),
        RangeOp(b"\0", FROM_KEY),
    )
    result = unflatten(outcome)
    assert result.revision == 3
    first: Any = result.results[1]
    assert [kv.key for kv in first.results[0].kvs] == [b"a"]
    assert first.results[2].results[0].kvs[0].value == b"new"
    last: Any = result.results[2]
    assert {kv.mod_revision for kv in last.kvs} == {3}
    row = host.machine.view("kv").table("history")[3]
    assert [event.kv.key for event in events_of(row)] == [b"a", b"x"]


def test_all_comparisons_see_the_keyspace_as_it_was_before(host: FakeHost) -> None:
    absent = Compare(b"a", "version", "=", 0)
    outcome = txn(host, A, TxnOp((absent,), (B,), ()))
    assert unflatten(outcome).results[1].succeeded is True  # type: ignore[union-attr]
    # A branch that is not taken is not compared, nor is what stands in it.
    assert txn(host, TxnOp(NEVER, (PutOp(b"c", b"", lease=9),), ())).succeeded


@pytest.mark.parametrize(
    "operations",
    [
        (A, inner(A)),
        (inner(A), A),
        (inner(A), inner(A)),
        (inner(A), inner(B, other=(A,))),
        (inner(B, other=(A,)), inner(A)),
        (DEL_A, inner(A)),
        (inner(A), DEL_A),
        (A, inner(DEL_ALL)),
        (inner(DEL_A), A),
        (inner(DEL_A), inner(A)),
        (inner(A), inner(DEL_A)),
        (inner(inner(A)), inner(B, other=(DEL_ALL,))),
        (inner(A), inner(DeleteRangeOp(b"\0", FROM_KEY))),
        (inner(B, other=(DEL_A,)), inner(B, other=(A,))),
        (inner(inner(A)), A),
        (inner(inner(DEL_ALL)), A),
        (inner(A, A),),
        (inner(DEL_A, A),),
        (inner(DeleteRangeOp(b"\0", FROM_KEY)), A),
    ],
)
def test_a_key_that_could_be_changed_twice_is_refused(
    host: FakeHost, operations: tuple[Any, ...]
) -> None:
    refused = txn(host, *operations)
    assert isinstance(refused, DuplicateKey)
    assert " puts it" in str(refused), "two operations are named"
    assert isinstance(host.apply(flatten((), (), operations)), DuplicateKey)
    assert host.machine.view("kv").table("meta").get("revision", 1) == 1


def test_a9_the_refusal_names_the_two_operations(host: FakeHost) -> None:
    for operations, text in (
        ((A, B, A), "puts b'a' twice, in one revision: success[0] puts it, success[2] puts it"),
        (
            (inner(), inner(B, other=(inner(DEL_ALL),)), inner(inner(A))),
            "success[1].failure[0].success[0] deletes it, success[2].success[0].success[0] puts it",
        ),
        (
            # Those of opposite branches do not meet.
            (inner(A, other=(A,)), inner(B, other=(DEL_A,))),
            "success[0].success[0] puts it, success[1].failure[0] deletes it",
        ),
    ):
        refused = txn(host, *operations)
        assert isinstance(refused, DuplicateKey)
        assert str(refused).endswith(text), str(refused)
    # Among very many operations on the key none is named: the search is bounded.
    many = [inner(A, other=(inner(*[DEL_A] * COMPARED_MAX),)), inner(A)]
    assert str(txn(host, *many)).endswith("in one revision")
    # The text of a refusal is a part of the state until then.
    former = FakeHost(version=3)
    assert str(txn(former, A, A)) == "the transaction puts b'a' twice, in one revision"


@pytest.mark.parametrize(
    "operations",
    [
        (inner(A, other=(A,)),),
        (inner(A, other=(DEL_A,)),),
        (inner(A), DeleteRangeOp(b"b")),
        (inner(A, other=(A,)), B),
        (DEL_A, DEL_ALL, inner(DEL_A)),
    ],
)
def test_what_no_execution_changes_twice_is_let_pass(
    host: FakeHost, operations: tuple[Any, ...]
) -> None:
    assert txn(host, *operations).succeeded
    assert host.machine.invariants() == []


def test_before_format_4_one_inner_txn_puts_what_a_later_one_deletes() -> None:
    """Then one revision has two events of a key, which stay in the history after the raise."""
    host = FakeHost(version=3)
    host.apply(Put(b"a", b"old"))
    assert txn(host, inner(A), inner(DEL_A)).succeeded
    view = host.machine.view("kv")
    assert view.table("keys").get(b"a") is None
    first, second = events_of(view.table("history")[3])
    assert (first.kv.version, second.kv.version) == (2, 0)
    assert second.prev == first.kv
    assert host.machine.invariants() == []


def test_what_must_exist_is_looked_for_before_anything_is_done(host: FakeHost) -> None:
    missing = PutOp(b"b", b"", ignore_value=True)
    assert isinstance(txn(host, B, inner(missing)), DuplicateKey)
    assert isinstance(txn(host, A, missing), KeyNotFound)
    assert isinstance(txn(host, A, inner(missing)), KeyNotFound)
    assert isinstance(txn(host, A, PutOp(b"b", b"", lease=5)), LeaseNotFound)
    given_twice = PutOp(b"b", b"x", ignore_value=True)
    assert isinstance(txn(host, A, TxnOp(NEVER, (given_twice,), ())), ValueGiven)
    assert isinstance(txn(host, A, TxnOp(NEVER, (RangeOp(b""),), ())), EmptyKey)
    assert host.machine.view("kv").table("meta").get("revision", 1) == 1


def test_operations_are_counted_per_level(host: FakeHost) -> None:
    host.set("txn_ops_max", 4)
    a, b, c, d = (PutOp(key, b"") for key in (b"a", b"b", b"c", b"d"))
    # Two operations here leave two for the level inside of it.
    assert txn(host, inner(a, b), c).succeeded
    refused = txn(host, inner(a, b, c), d)
    assert isinstance(refused, LimitExceeded)
    assert "txn_ops_max = 4" in str(refused)
    assert isinstance(txn(host, inner(inner(inner(inner(a))))), LimitExceeded)
    assert txn(host, inner(inner(inner(a)))).succeeded


def test_depth_is_bounded(host: FakeHost) -> None:
    nested = inner(A)
    for _ in range(TXN_DEPTH_MAX - 1):
        nested = inner(nested)
    assert txn(host, nested).succeeded
    refused = txn(host, inner(nested))
    assert isinstance(refused, LimitExceeded)
    assert "deep" in str(refused)


@pytest.mark.parametrize(
    "command",
    [
        Txn(success=(NestedTxn(0),)),
        Txn(success=(NestedTxn(-1),), nested=(FlatTxn(),)),
        Txn(nested=(FlatTxn(),)),
        Txn(success=(NestedTxn(0), NestedTxn(0)), nested=(FlatTxn(),)),
        Txn(success=(NestedTxn(1),), nested=(FlatTxn(), FlatTxn((), (NestedTxn(0),)))),
        Txn(success=(NestedTxn(0),), nested=(FlatTxn((), (NestedTxn(0),)),)),
    ],
)
def test_a_malformed_txn_is_refused(host: FakeHost, command: Txn) -> None:
    outcome = host.apply(command)
    assert type(outcome) is Refused
    assert "malformed" in str(outcome)
    with pytest.raises(Refused):
        too_many(command, 128)


@pytest.mark.parametrize("version", [3, KV.version])
def test_rows_are_counted_over_all_levels(version: int) -> None:
    host = FakeHost(version)
    host.set("rows_max", 3)
    assert txn(host, PutOp(b"a", b""), inner(PutOp(b"b", b""), PutOp(b"c", b""))).succeeded
    refused = txn(host, RangeOp(b"a", b"z"), inner(RangeOp(b"a")))
    assert isinstance(refused, LimitExceeded)


def test_the_shape_of_a_deep_txn_is_checked_without_copying_it_at_each_level(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    added: list[bytes] = []
    add = _Deletions.add

    def counted(union: _Deletions, start: bytes, end: bytes | None) -> None:
        added.append(start)
        add(union, start, end)

    monkeypatch.setattr(_Deletions, "add", counted)
    deep = inner(*(DeleteRangeOp(b"%03d" % number) for number in range(0, 90, 2)))
    for level in range(TXN_DEPTH_MAX - 1):
        deep = inner(DeleteRangeOp(b"x%03d" % level), deep)
    assert txn(host, deep, DeleteRangeOp(b"y")).succeeded
    assert len(added) < 3 * (45 + TXN_DEPTH_MAX)
    # It is still known, at every level, what those inside delete.
    assert isinstance(txn(host, deep, PutOp(b"044", b"")), DuplicateKey)
    assert txn(host, deep, PutOp(b"045", b"")).succeeded


@given(
    st.lists(st.tuples(st.binary(max_size=2), st.one_of(st.none(), st.binary(max_size=2)))),
    st.lists(st.binary(max_size=3), min_size=1),
)
def test_a_union_of_ranges(ranges: list[tuple[bytes, bytes | None]], keys: list[bytes]) -> None:
    union = _Deletions()
    for start, end in ranges:
        union.add(start, end)
    for key in keys:
        expected = any(start <= key and (end is None or key < end) for start, end in ranges)
        assert (key in union) == expected
    assert len(union._starts) <= len(ranges)


@pytest.mark.parametrize("version", [3, KV.version])
def test_a_range_costs_no_more_than_it_must(version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused before it is read, and a comparison ends with the first key that fails it."""
    host = FakeHost(version)
    for number in range(20):
        host.apply(Put(b"%02d" % number, b""))
    read = 0

    def counted(*arguments: Any) -> Any:
        nonlocal read
        for row in scan_range(*arguments):
            read += 1
            yield row

    monkeypatch.setattr("raftkv.kv.changing.scan_range", counted)
    everything, write = RangeOp(b"\0", FROM_KEY), (PutOp(b"x", b""),)
    fails = Compare(b"\0", "version", ">", 1, FROM_KEY)
    assert not host.apply(flatten([fails], write, ())).succeeded
    assert read == 1
    host.set("rows_max", 19)
    for command in (flatten([fails], write, ()), flatten((), [everything, *write], ())):
        assert isinstance(host.apply(command), LimitExceeded)
    assert read == 1
