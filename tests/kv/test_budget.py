"""What a transaction that writes may look at, and deletions of any size."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftkv.errors import Refused
from raftkv.kv import (
    FROM_KEY,
    Compare,
    DeleteRange,
    DeleteRangeOp,
    DuplicateKey,
    Grant,
    KVApi,
    LimitExceeded,
    Operation,
    Put,
    PutOp,
    PutWith,
    RangeOp,
    TxnOp,
    TxnTooCostly,
)
from raftkv.kv.budget import ROW_BYTES
from raftkv.kv.changing import Changing
from raftkv.kv.service import KVService
from raftkv.kv.transactions import flatten
from raftkv.plugin import Host
from tests.kv.fake_host import FakeHost

KEYS = 100
WRITE = PutOp(b"w", b"")
ALL = RangeOp(b"\0", FROM_KEY)
BARE = RangeOp(b"\0", FROM_KEY, keys_only=True)
DELETE_ALL = DeleteRangeOp(b"\0", FROM_KEY)
ANY = Compare(b"\0", "version", ">", 0, FROM_KEY)


@pytest.fixture
def host() -> FakeHost:
    """A hundred keys of ten bytes each, and a limit of 250 rows."""
    return made()


def made(version: int = 4) -> FakeHost:
    host = FakeHost(version)
    for number in range(KEYS):
        host.apply(Put(b"%03d" % number, b"v" * 10))
    host.set("rows_max", 250)
    return host


def txn(
    host: FakeHost,
    success: Sequence[Operation],
    compare: Sequence[Compare] = (),
    failure: Sequence[Operation] = (),
) -> Any:
    return host.apply(flatten(compare, success, failure))


def tables(host: FakeHost) -> list[Any]:
    names = ("keys", "meta", "history", "leases", "attached", "due")
    return [list(host.view().table(name).scan()) for name in names]


def refused(host: FakeHost, success: Sequence[Operation], compare: Sequence[Compare] = ()) -> str:
    """The text of the refusal, which changed nothing and took no more than the limit."""
    before = tables(host)
    outcome = txn(host, success, compare)
    assert isinstance(outcome, TxnTooCostly), outcome
    assert outcome.args[1] == host.settings["rows_max"]
    assert tables(host) == before
    # Rows, and bytes for as many rows.
    assert host.machine.cost_applied <= 1 + 2 * host.settings["rows_max"]
    return str(outcome)


def test_comparisons_and_ranges_share_a_limit_of_rows(host: FakeHost) -> None:
    assert txn(host, [WRITE], [ANY, ANY]).succeeded
    assert txn(host, [WRITE, BARE], [ANY]).succeeded  # 101 + 102 rows
    text = refused(host, [WRITE], [ANY, ANY, ANY])
    assert "250 rows" in text
    assert "smaller ranges" in text
    refused(host, [WRITE, BARE], [ANY, ANY])
    refused(host, [TxnOp((ANY,), (BARE,)), WRITE], [ANY])
    assert txn(host, [WRITE, RangeOp(b"\0", FROM_KEY, limit=40)], [ANY, ANY]).succeeded
    refused(host, [WRITE, RangeOp(b"\0", FROM_KEY, limit=40, descending=True)], [ANY, ANY])
    assert txn(host, [WRITE, RangeOp(b"\0", FROM_KEY, count_only=True)], [ANY, ANY]).succeeded


def test_the_branch_that_is_not_taken_costs_nothing(host: FakeHost) -> None:
    none = Compare(b"\0", "version", "<", 0, FROM_KEY)
    assert not txn(host, [BARE, BARE, BARE], [none], [WRITE]).succeeded


def test_ranges_are_counted_before_anything_is_done(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    def scanned(*arguments: Any) -> Iterator[Any]:
        raise AssertionError("nothing is read for a transaction that is refused")

    for where in ("budget", "changing", "ranges"):
        monkeypatch.setattr(f"raftkv.kv.{where}.scan_range", scanned)
    refused(host, [DELETE_ALL, BARE, BARE, BARE])


def test_compared_values_have_a_limit_of_bytes(host: FakeHost) -> None:
    value = b"x" * (20 * ROW_BYTES)
    for number in range(10):
        host.apply(Put(b"big%d" % number, value))
    equal = Compare(b"big", "value", "=", value, b"bih")
    assert txn(host, [WRITE], [equal]).succeeded  # 200 rows' worth of bytes
    assert host.machine.cost_applied == 1 + 20 + 10 + 200 + 1
    text = refused(host, [WRITE], [equal, equal])
    assert f"{250 * ROW_BYTES} bytes" in text
    # A short operand ends the comparison early, and so does the first key that fails it.
    short = Compare(b"big", "value", ">", b"x", b"bih")
    assert txn(host, [WRITE], [short] * 20).succeeded
    other = Compare(b"big", "value", "!=", value, b"bih")
    assert not txn(host, [WRITE], [other] * 20).succeeded
    assert txn(host, [WRITE], [Compare(b"big0", "value", "=", value)] * 20).succeeded


def test_sorting_by_value_counts_the_bytes_that_it_may_compare(host: FakeHost) -> None:
    for number in range(6):
        host.apply(Put(b"big%d" % number, b"x" * (10 * ROW_BYTES) + b"%d" % number))
    first = RangeOp(b"big", b"bih", limit=1, sort_by="value", keys_only=True)
    assert txn(host, [WRITE, first]).results[1].kvs[0].key == b"big0"  # 60 * 3 rows' worth
    refused(host, [WRITE, first, first])
    refused(host, [PutOp(b"x", b"x" * 30 * ROW_BYTES), first])


def test_a_former_revision_costs_every_change_since(host: FakeHost) -> None:
    begin = host.view().table("meta")["revision"]
    for _ in range(3):
        assert txn(host, [PutOp(b"%03d" % number, b"") for number in range(60)]).succeeded
    one = RangeOp(b"000", revision=begin)
    assert txn(host, [WRITE, one]).results[1].kvs[0].value == b"v" * 10
    refused(host, [WRITE, one, one])  # three revisions, of sixty changes each
    # The changes of the transaction itself count as well.
    now = host.view().table("meta")["revision"]
    assert txn(host, [DELETE_ALL, RangeOp(b"000", revision=now)]).results[1].count == 1
    for number in range(90):
        host.apply(Put(b"%03d" % number, b""))
    now = host.view().table("meta")["revision"]
    refused(host, [DELETE_ALL, *[RangeOp(b"000", revision=now)] * 3])


def test_a_former_revision_costs_the_bytes_of_the_changed_keys(host: FakeHost) -> None:
    host.set("key_bytes_max", 1024 * 1024)
    begin = host.view().table("meta")["revision"]
    host.apply(Put(b"k" * (130 * ROW_BYTES), b""))
    one = RangeOp(b"000", revision=begin)
    assert txn(host, [WRITE, one]).succeeded
    refused(host, [WRITE, one, one])


def test_deletions_and_puts_have_no_limit_of_rows(host: FakeHost) -> None:
    host.set("rows_max", 3)
    host.set("txn_ops_max", 128)
    assert txn(host, [PutOp(b"p%02d" % number, b"") for number in range(50)]).succeeded
    deleted = txn(host, [DeleteRangeOp(b"p", b"q"), WRITE], [Compare(b"000", "mod", ">", 0)])
    assert deleted.results[0].deleted == 50
    assert host.apply(DeleteRange(b"\0", FROM_KEY)).deleted == KEYS + 1
    assert host.machine.cost_applied == 1 + KEYS + 1


def test_what_a_deletion_gives_back_is_refused_before_it_deletes(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(10):
        host.apply(Put(b"big%d" % number, b"x" * 20_000))
    host.set("result_bytes_max", 64 * 1024)
    deleted = []
    monkeypatch.setattr(Changing, "_delete", lambda change, kv: deleted.append(kv.key))
    assert isinstance(host.apply(DeleteRange(b"big", b"bih", True)), LimitExceeded)
    assert deleted == []


class TestLargeDeletions:
    """Nothing refuses a transaction after a deletion of more than `rows_max` keys."""

    @pytest.fixture
    def host(self) -> FakeHost:
        host = made()
        for number in range(6):
            host.apply(Put(b"big%d" % number, b"x" * 20_000))
        host.set("result_bytes_max", 64 * 1024)
        host.set("rows_max", 50)
        return host

    @pytest.fixture(autouse=True)
    def none_is_deleted_in_vain(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        """Every command that deletes is applied."""
        delete = Changing._delete
        deleting = []

        def counted(change: Changing, kv: Any) -> None:
            deleting[:] = [change]
            delete(change, kv)

        finishing = Changing.finishing

        def finished(change: Changing) -> Any:
            deleting.clear()
            return finishing(change)

        monkeypatch.setattr(Changing, "_delete", counted)
        monkeypatch.setattr(Changing, "finishing", finished)
        yield
        assert deleting == []

    def test_they_may_be_followed_by_others(self, host: FakeHost) -> None:
        after = RangeOp(b"0", b"a", limit=10)
        assert txn(host, [DeleteRangeOp(b"0", b"1"), WRITE, after]).results[0].deleted == 100

    @pytest.mark.parametrize(
        "operation",
        [
            RangeOp(b"big", b"bih"),
            DeleteRangeOp(b"big", b"bih", prev_kv=True),
            RangeOp(b"big0", revision=105),
        ],
    )
    def test_a_result_that_may_be_too_large(self, host: FakeHost, operation: Operation) -> None:
        host.apply(Put(b"big4", b"x" * 60_000))
        assert isinstance(txn(host, [DeleteRangeOp(b"0", b"1"), operation]), TxnTooCostly)

    def test_small_results(self, host: FakeHost) -> None:
        operations = [
            DeleteRangeOp(b"0", b"1"),
            RangeOp(b"big", b"bih", keys_only=True),
            RangeOp(b"big", b"bih", limit=2),
            DeleteRangeOp(b"big0", prev_kv=True),
        ]
        assert txn(host, operations).succeeded

    def test_a_value_that_is_too_large(self, host: FakeHost) -> None:
        host.set("value_bytes_max", 2000)
        for put in (PutOp(b"y", b"x" * 2001), PutOp(b"big0", b"", ignore_value=True)):
            assert isinstance(txn(host, [DeleteRangeOp(b"0", b"1"), put]), LimitExceeded)

    def test_a_lease_without_room(self, host: FakeHost) -> None:
        host.apply(Grant(60, 7))
        host.set("lease_keys_max", 2)
        for key in (b"y0", b"y1"):
            host.apply(PutWith(key, b"", lease=7))
        outcome = txn(host, [DeleteRangeOp(b"0", b"1"), PutOp(b"y2", b"", lease=7)])
        assert isinstance(outcome, LimitExceeded)
        again = [DeleteRangeOp(b"0", b"1"), PutOp(b"y1", b"", lease=7)]
        assert txn(host, again).succeeded


def test_the_node_counts_what_its_callers_were_refused(host: FakeHost) -> None:
    kv = KVApi(cast(Host, host))
    charged = host.machine.rows_charged
    host.apply(DeleteRange(b"000", b"010"))
    assert host.machine.rows_charged == charged + 10
    for success in ([WRITE], []):  # through the log, and beside it
        with pytest.raises(TxnTooCostly):
            asyncio.run(kv.txn([ANY, ANY, ANY], success))
    with pytest.raises(DuplicateKey):
        asyncio.run(kv.txn([], [WRITE, WRITE]))
    assert kv.too_costly == 2
    (shown,) = [m for m in KVService(cast(Host, host), kv).metrics() if "costly" in m.name]
    assert (shown.name, shown.value) == ("txn_too_costly_total", 2)


def test_before_format_4_all_counts_by_rows() -> None:
    host = made(version=3)
    host.set("rows_max", 99)
    assert type(host.apply(DeleteRange(b"\0", FROM_KEY))) is LimitExceeded
    outcome = txn(host, [WRITE], [ANY])
    assert type(outcome) is LimitExceeded
    assert str(outcome) == "the command touches more than rows_max = 99 keys: split it"
    host.set("rows_max", 250)
    value = b"x" * (200 * ROW_BYTES)
    for number in range(3):
        host.apply(Put(b"big%d" % number, value))
    assert txn(host, [WRITE], [Compare(b"big", "value", "=", value, b"bih")]).succeeded


names = st.sampled_from([b"%03d" % number for number in range(0, KEYS, 7)])
ends = st.sampled_from([b"", FROM_KEY, b"050", b"099"])
compares = st.builds(
    Compare, names, st.sampled_from(["version", "mod"]), st.just(">"), st.integers(0, 3), ends
)
ranges = st.builds(
    RangeOp,
    names,
    ends,
    limit=st.sampled_from([0, 3]),
    keys_only=st.booleans(),
    revision=st.sampled_from([0, 0, 60, 100, 101]),
    descending=st.booleans(),
)
deletions = st.builds(DeleteRangeOp, names, ends)
operations = st.lists(st.one_of(ranges, ranges, deletions), max_size=6)
txns = st.builds(TxnOp, st.lists(compares, max_size=2), operations, operations)


@settings(max_examples=150, deadline=None)
@given(st.lists(compares, max_size=2), operations, txns, st.sampled_from([20, 150, 400]))
def test_the_work_done_is_never_more_than_the_limit(
    compare: list[Compare], before: list[Operation], inner: TxnOp, rows_max: int
) -> None:
    """All rows that are read, one by one, against what was charged for them."""
    host = made()
    host.set("rows_max", rows_max)
    looked = 0
    with pytest.MonkeyPatch.context() as patch:
        for where in ("changing", "ranges", "history"):
            original = __import__(f"raftkv.kv.{where}", fromlist=["x"]).scan_range

            def counted(*arguments: Any, original: Any = original) -> Iterator[Any]:
                nonlocal looked
                for row in original(*arguments):
                    looked += 1
                    yield row

            patch.setattr(f"raftkv.kv.{where}.scan_range", counted)
        outcome = txn(host, [*before, inner, WRITE], compare)
    charged = host.machine.cost_applied - 1
    assert looked <= charged
    if isinstance(outcome, Refused):
        assert charged <= 2 * rows_max
