"""The keyspace against etcd's model."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftkv.errors import Refused, UnknownCommand
from raftkv.kv import (
    FROM_KEY,
    KV,
    Compare,
    DeleteRange,
    DeleteRangeOp,
    DeleteRangeResult,
    DuplicateKey,
    EmptyKey,
    KeyValue,
    LimitExceeded,
    Put,
    PutOp,
    PutResult,
    RangeOp,
    RangeResult,
    Txn,
    TxnOutcome,
    prefix_end,
)
from tests.kv.fake_host import FakeHost


@pytest.fixture
def host() -> FakeHost:
    return FakeHost()


def rows(host: FakeHost) -> dict[bytes, KeyValue]:
    assert host.machine.invariants() == []
    return dict(host.machine.view("kv").table("keys").scan())


def revision(host: FakeHost) -> int:
    found: int = host.machine.view("kv").table("meta").get("revision", 1)
    return found


def test_put(host: FakeHost) -> None:
    assert revision(host) == 1
    assert host.apply(Put(b"a", b"1")) == PutResult(2)
    assert host.apply(Put(b"a", b"2", True)) == PutResult(3, KeyValue(b"a", b"1", 2, 2, 1))
    assert host.apply(Put(b"b", b"3", True)) == PutResult(4, None)
    assert rows(host) == {
        b"a": KeyValue(b"a", b"2", 2, 3, 2),
        b"b": KeyValue(b"b", b"3", 4, 4, 1),
    }


def test_delete(host: FakeHost) -> None:
    for key in (b"a", b"b", b"c"):
        host.apply(Put(key, b""))
    assert host.apply(DeleteRange(b"x")) == DeleteRangeResult(4, 0)
    assert host.apply(DeleteRange(b"b")) == DeleteRangeResult(5, 1)
    prev = (KeyValue(b"a", b"", 2, 2, 1), KeyValue(b"c", b"", 4, 4, 1))
    assert host.apply(DeleteRange(b"\0", FROM_KEY, True)) == DeleteRangeResult(6, 2, prev)
    host.apply(Put(b"b", b"again"))
    assert rows(host) == {b"b": KeyValue(b"b", b"again", 7, 7, 1)}


@pytest.mark.parametrize(
    ("key", "end", "expected"),
    [
        (b"b", b"", [b"b"]),
        (b"bb", b"", []),
        (b"b", b"c", [b"b", b"ba"]),
        (b"b", FROM_KEY, [b"b", b"ba", b"c"]),
        (b"\0", FROM_KEY, [b"a", b"b", b"ba", b"c"]),
        (b"c", b"b", []),
        (b"b", prefix_end(b"b"), [b"b", b"ba"]),
    ],
)
def test_ranges(host: FakeHost, key: bytes, end: bytes, expected: list[bytes]) -> None:
    for name in (b"c", b"a", b"ba", b"b"):
        host.apply(Put(name, b"v"))
    result = host.apply(Txn(success=(RangeOp(key, end),))).results[0]
    assert [kv.key for kv in result.kvs] == expected
    assert (result.count, result.more, result.revision) == (len(expected), False, 5)
    assert host.apply(DeleteRange(key, end)).deleted == len(expected)
    assert set(rows(host)) == {b"a", b"b", b"ba", b"c"} - set(expected)


def test_range_limits(host: FakeHost) -> None:
    for name in (b"a", b"b", b"c"):
        host.apply(Put(name, b"v"))
    ops = (
        RangeOp(b"\0", FROM_KEY, limit=2),
        RangeOp(b"\0", FROM_KEY, limit=3),
        RangeOp(b"\0", FROM_KEY, count_only=True),
        RangeOp(b"a", keys_only=True),
    )
    limited, full, counted, keys = host.apply(Txn(success=ops)).results
    assert ([kv.key for kv in limited.kvs], limited.count, limited.more) == ([b"a", b"b"], 3, True)
    assert (len(full.kvs), full.more) == (3, False)
    assert counted == RangeResult(4, (), 3, False)
    assert keys.kvs == (KeyValue(b"a", b"", 2, 2, 1),)
    assert isinstance(host.apply(Txn(success=(RangeOp(b"a", limit=-1),))), LimitExceeded)


@pytest.mark.parametrize(
    ("prefix", "end"),
    [(b"a", b"b"), (b"a\xff", b"b"), (b"a\xff\xff", b"b"), (b"\xff", FROM_KEY), (b"", FROM_KEY)],
)
def test_prefix_end(prefix: bytes, end: bytes) -> None:
    assert prefix_end(prefix) == end


@given(st.binary(max_size=3), st.binary(max_size=4))
def test_prefix_end_bounds_just_the_prefix(prefix: bytes, key: bytes) -> None:
    end = prefix_end(prefix)
    assert key.startswith(prefix) == (key >= prefix and (end == FROM_KEY or key < end))


@pytest.mark.parametrize(
    ("compare", "holds"),
    [
        (Compare(b"a", "value", "=", b"2"), True),
        (Compare(b"a", "value", "!=", b"2"), False),
        (Compare(b"a", "value", ">", b"1"), True),
        (Compare(b"a", "value", "<", b"1"), False),
        (Compare(b"a", "version", "=", 2), True),
        (Compare(b"a", "create", "=", 2), True),
        (Compare(b"a", "mod", "=", 3), True),
        (Compare(b"a", "mod", ">", 3), False),
        (Compare(b"x", "version", "=", 0), True),
        (Compare(b"x", "create", "<", 1), True),
        (Compare(b"x", "mod", ">", 0), False),
        (Compare(b"x", "value", "=", b""), False),
        (Compare(b"x", "value", "!=", b""), False),
        (Compare(b"a", "version", ">", 0, range_end=b"c"), True),
        (Compare(b"a", "version", "=", 1, range_end=b"c"), False),
        (Compare(b"x", "version", "=", 0, range_end=b"z"), True),
        (Compare(b"x", "version", ">", 0, range_end=b"z"), False),
    ],
)
def test_compare(host: FakeHost, compare: Compare, holds: bool) -> None:
    host.apply(Put(b"a", b"1"))
    host.apply(Put(b"a", b"2"))
    host.apply(Put(b"b", b"1"))
    result = host.apply(Txn((compare,), (PutOp(b"yes", b""),), (PutOp(b"no", b""),)))
    assert result == TxnOutcome(5, holds, (PutResult(5),))
    assert (b"yes" in rows(host), b"no" in rows(host)) == (holds, not holds)


def test_all_comparisons_must_hold(host: FakeHost) -> None:
    absent = Compare(b"a", "version", "=", 0)
    present = Compare(b"a", "version", ">", 0)
    assert host.apply(Txn((absent, present))).succeeded is False
    assert host.apply(Txn((absent, absent))).succeeded is True
    assert host.apply(Txn()) == TxnOutcome(1, True, ())


def test_a_txn_takes_one_revision_and_reads_its_own_writes(host: FakeHost) -> None:
    host.apply(Put(b"old", b"1"))
    result = host.apply(
        Txn(
            success=(
                RangeOp(b"\0", FROM_KEY),
                PutOp(b"a", b"1"),
                PutOp(b"old", b"2", prev_kv=True),
                DeleteRangeOp(b"x", b"z"),
                RangeOp(b"\0", FROM_KEY),
            )
        )
    )
    before, put, replaced, deleted, after = result.results
    assert (before.revision, [kv.key for kv in before.kvs]) == (2, [b"old"])
    assert (put, deleted) == (PutResult(3), DeleteRangeResult(3, 0))
    assert replaced == PutResult(3, KeyValue(b"old", b"1", 2, 2, 1))
    assert after.kvs == (KeyValue(b"a", b"1", 3, 3, 1), KeyValue(b"old", b"2", 2, 3, 2))
    assert result.revision == revision(host) == 3


def test_a_txn_that_changes_nothing_takes_no_revision(host: FakeHost) -> None:
    host.apply(Put(b"a", b"1"))
    assert host.apply(Txn(success=(RangeOp(b"a"), DeleteRangeOp(b"x")))).revision == 2
    assert revision(host) == 2


@pytest.mark.parametrize(
    "branch",
    [
        (PutOp(b"a", b""), PutOp(b"a", b"")),
        (PutOp(b"a", b""), DeleteRangeOp(b"a")),
        (DeleteRangeOp(b"a", b"c"), PutOp(b"b", b"")),
        (DeleteRangeOp(b"a", FROM_KEY), PutOp(b"b", b"")),
    ],
)
def test_a_branch_may_not_change_a_key_twice(host: FakeHost, branch: Any) -> None:
    assert isinstance(host.apply(Txn(success=branch)), DuplicateKey)
    assert isinstance(host.apply(Txn(failure=branch)), DuplicateKey)
    assert revision(host) == 1


def test_two_deletions_of_one_key_are_allowed(host: FakeHost) -> None:
    host.apply(Put(b"a", b""))
    result = host.apply(Txn(success=(DeleteRangeOp(b"a"), DeleteRangeOp(b"a", b"c"))))
    assert [part.deleted for part in result.results] == [1, 0]
    ok = host.apply(Txn(success=(DeleteRangeOp(b"a", b"c"), PutOp(b"c", b""))))
    assert ok.succeeded


def test_empty_keys_are_refused(host: FakeHost) -> None:
    commands = [
        Put(b"", b""),
        DeleteRange(b"", FROM_KEY),
        Txn(success=(RangeOp(b""),)),
        Txn(success=(PutOp(b"", b""),)),
        Txn((Compare(b"", "version", "=", 0),)),
    ]
    for command in commands:
        assert isinstance(host.apply(command), EmptyKey)
    assert revision(host) == 1


def test_operands_must_fit_their_target(host: FakeHost) -> None:
    for compare in (Compare(b"a", "value", "=", 1), Compare(b"a", "mod", "=", b"1")):
        assert type(host.apply(Txn((compare,)))) is Refused
    nonsense = Compare(b"a", "what", "=", 1)  # type: ignore[arg-type]
    assert isinstance(host.apply(Txn((nonsense,))), UnknownCommand)


def test_sizes_are_limited(host: FakeHost) -> None:
    host.set("key_bytes_max", 2000)
    host.set("value_bytes_max", 3000)
    assert host.apply(Put(b"k" * 2000, b"v" * 3000)) == PutResult(2)
    for put in (Put(b"k" * 2001, b""), Put(b"k", b"v" * 3001)):
        assert isinstance(host.apply(put), LimitExceeded)
        txn = Txn(success=(PutOp(b"first", b""), PutOp(put.key, put.value)))
        assert isinstance(host.apply(txn), LimitExceeded)
    assert len(rows(host)) == 1


def test_the_settings_have_bounds(host: FakeHost) -> None:
    with pytest.raises(AssertionError):
        host.set("key_bytes_max", 10)
    assert host.settings["key_bytes_max"] == 65_536


@pytest.mark.parametrize("version", [3, KV.version])
def test_operations_rows_and_results_are_limited(version: int) -> None:
    host = FakeHost(version)
    host.set("txn_ops_max", 3)
    host.set("rows_max", 5)
    for number in range(6):
        host.apply(Put(b"%d" % number, b"v" * 40_000))
    four = tuple(RangeOp(b"0") for _ in range(4))
    too_many = [
        Txn(success=four),
        Txn(failure=four),
        Txn(tuple(Compare(b"a", "mod", "=", 0) for _ in range(4))),
        Txn(success=(RangeOp(b"\0", FROM_KEY),)),
        Txn((Compare(b"\0", "mod", ">", 0, FROM_KEY),)),
    ]
    if version == 3:  # deletions have a limit as well
        too_many += [
            DeleteRange(b"\0", FROM_KEY),
            Txn(success=(RangeOp(b"0", b"3"), DeleteRangeOp(b"0", b"3"))),
        ]
    for command in too_many:
        assert isinstance(host.apply(command), LimitExceeded), command
    assert len(rows(host)) == 6
    host.set("result_bytes_max", 100_000)
    big = [DeleteRange(b"0", b"3", True), Txn(success=(RangeOp(b"0", b"3"),))]
    for command in big:
        assert isinstance(host.apply(command), LimitExceeded), command
    assert host.apply(Txn(success=(RangeOp(b"0", FROM_KEY, count_only=True),))).succeeded
    assert host.apply(Txn(success=(RangeOp(b"0", FROM_KEY, limit=2),))).succeeded
    assert host.apply(DeleteRange(b"0", b"3")).deleted == 3


def test_invariants_see_a_bad_row(host: FakeHost) -> None:
    host.apply(Put(b"a", b""))
    keys = host.machine._all["kv"].tables["keys"]
    keys.put(b"b", KeyValue(b"c", b"", 9, 5, 0))
    assert len(host.machine.invariants()) == 4
