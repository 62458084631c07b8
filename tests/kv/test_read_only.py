"""Transactions that change nothing: answered as by `apply`, in slices, without the log."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from raftkv.errors import Overloaded, ReadTimeout, Refused
from raftkv.kv import (
    FROM_KEY,
    Compacted,
    Compare,
    DeleteRangeOp,
    FutureRevision,
    KVApi,
    LimitExceeded,
    PutOp,
    RangeOp,
    Revoke,
    TxnOp,
    TxnResult,
)
from raftkv.kv import read_only as module
from raftkv.kv.arguments import reads_only
from raftkv.kv.commands import TxnTooCostly
from raftkv.kv.read_only import LargeReads, ReadOnlyTxn
from raftkv.kv.transactions import flatten, unflatten
from raftkv.plugin import Host
from tests.kv.fake_host import FakeHost

T = TypeVar("T")
NAMES = [b"%c" % code for code in range(ord("a"), ord("q"))]
ALL = RangeOp(b"\0", FROM_KEY)
ANY = Compare(b"\0", "version", ">", 0, FROM_KEY)


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(coroutine)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slice of three keys, a run of four."""
    for name in ("raftkv.kv.large", "raftkv.kv.read_only", "raftkv.kv.api"):
        monkeypatch.setattr(f"{name}.SLICE_KEYS", 3)
    monkeypatch.setattr(ReadOnlyTxn.__init__, "__defaults__", (3,))
    for name in ("raftkv.kv.read_only", "raftkv.kv.api"):
        monkeypatch.setattr(f"{name}.UNITS_MAX", 6)
    monkeypatch.setattr("raftkv.kv.api.FEW_UNITS", 2)
    monkeypatch.setattr("raftkv.kv.large.RUN_KEYS", 4)
    monkeypatch.setattr("raftkv.kv.walk.PAST_EVENTS", 2)
    monkeypatch.setattr("raftkv.kv.work_budget.WORK_MAX", 2)


def api(host: FakeHost) -> KVApi:
    return KVApi(cast(Host, host))


def through_the_log(host: FakeHost, txn: TxnOp) -> TxnResult | Refused:
    """The answer as the state machine gives it."""
    outcome = host.apply(flatten(txn.compare, txn.success, txn.failure))
    return outcome if isinstance(outcome, Refused) else unflatten(outcome)


async def beside_it(kv: KVApi, txn: TxnOp) -> TxnResult | Refused:
    try:
        return await kv.txn(txn.compare, txn.success, txn.failure)
    except Refused as refused:
        return refused


def same(one: TxnResult | Refused, other: TxnResult | Refused) -> bool:
    if isinstance(one, Refused):
        return type(one) is type(other) and str(one) == str(other)
    return one == other


compares = st.one_of(
    st.builds(
        Compare,
        st.sampled_from(NAMES),
        st.sampled_from(["version", "create", "mod", "lease"]),
        st.sampled_from(["=", "!=", "<", ">"]),
        st.integers(0, 6),
        st.sampled_from([b"", b"", FROM_KEY, *NAMES[::3]]),
    ),
    st.builds(
        Compare,
        st.sampled_from(NAMES),
        st.just("value"),
        st.sampled_from(["=", "!=", "<", ">"]),
        st.sampled_from([b"0", b"2"]),
        st.sampled_from([b"", FROM_KEY]),
    ),
)
ranges = st.builds(
    RangeOp,
    st.sampled_from([b"\0", *NAMES[::2]]),
    st.sampled_from([FROM_KEY, FROM_KEY, b"", *NAMES[::3]]),
    limit=st.sampled_from([0, 0, 1, 2, 5]),
    keys_only=st.booleans(),
    count_only=st.sampled_from([False] * 5 + [True]),
    revision=st.sampled_from([*[0] * 12, -1, 3, 9, 20, 20, 1000]),
    sort_by=st.sampled_from(["key", "key", "version", "create", "mod", "value"]),
    descending=st.booleans(),
    min_mod_revision=st.sampled_from([0, 0, 0, 5]),
    max_mod_revision=st.sampled_from([0, 0, 0, 25]),
    min_create_revision=st.sampled_from([0, 0, 0, 7]),
    max_create_revision=st.sampled_from([0, 0, 0, 12]),
)
some_compares = st.lists(compares, max_size=2).map(tuple)


def transactions(inner: Any) -> Any:
    operations = st.lists(st.one_of(ranges, inner), min_size=1, max_size=3).map(tuple)
    return st.builds(TxnOp, some_compares, operations, operations)


txns = transactions(st.recursive(st.builds(TxnOp, some_compares), transactions, max_leaves=6))
steps = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(NAMES), st.integers(0, 3)),
        st.tuples(st.sampled_from(NAMES), st.none()),
    ),
    max_size=40,
)


async def change(kv: KVApi, name: bytes, value: int | None) -> None:
    if value is None:
        await kv.delete(name)
    else:
        await kv.put(name, b"%d" % value)


# The sizes are the same for all examples.
@settings(
    max_examples=200,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(steps, txns, st.sampled_from([0, 0, 4]), st.sampled_from([100_000, 100_000, 30]))
def test_the_answer_is_that_of_the_log(
    small: None, changes: Any, txn: TxnOp, compacted: int, rows_max: int
) -> None:
    host = FakeHost()
    kv = api(host)
    host.set("rows_max", rows_max)

    async def story() -> None:
        for name in NAMES:
            await kv.put(name, b"%d" % (name[0] % 4))
        for name, value in changes:
            await change(kv, name, value)
        if compacted and kv.revision > compacted:
            await kv.compact(compacted)
        expected, proposed = through_the_log(host, txn), host.proposed
        assert same(await beside_it(kv, txn), expected)
        # And as of the revision at which it began, while the keyspace goes on.
        reading = asyncio.ensure_future(beside_it(kv, txn))
        await asyncio.sleep(0)
        for name in NAMES:
            await kv.put(name, b"other")
            await asyncio.sleep(0)
            await kv.delete(name)
        assert same(await reading, expected)
        assert host.proposed == proposed + 2 * len(NAMES), "no entry of the log"

    run(story())


def test_it_is_a_read_of_one_state_after_a_barrier(kv: KVApi, host: FakeHost) -> None:
    run(kv.put(b"a", b"1"))
    index = host.machine.index
    done = run(kv.txn([Compare(b"a", "value", "=", b"1")], [RangeOp(b"a")], timeout_s=3.0))
    assert done.succeeded
    assert done.revision == 2
    assert host.machine.index == index
    assert host.barriers[-1] == ("linearizable", 3.0)


def test_what_could_change_something_goes_through_the_log(kv: KVApi, host: FakeHost) -> None:
    writes: tuple[Any, ...] = (PutOp(b"a", b""), DeleteRangeOp(b"nothing"))
    for write in (*writes, TxnOp((), (), (TxnOp((), (), writes),))):
        assert not reads_only([ALL], [write])
        proposed = host.proposed
        run(kv.txn([ANY], [RangeOp(b"a")], [write]))
        assert host.proposed == proposed + 1
    assert reads_only([ALL, TxnOp((), (ALL,), (TxnOp(),))], [])


@pytest.mark.parametrize(
    ("compare", "operations", "error"),
    [
        ([], [RangeOp(b"a", revision=99)], FutureRevision),
        ([], [RangeOp(b"a", revision=2)], Compacted),
    ],
)
def test_refusals_are_those_of_the_log(
    kv: KVApi, host: FakeHost, compare: Any, operations: Any, error: type[Exception]
) -> None:
    for _ in range(5):
        run(kv.put(b"a", b""))
    run(kv.compact(4))
    with pytest.raises(error) as raised:
        run(kv.txn(compare, operations))
    outcome = host.apply(flatten(compare, operations, ()))
    assert (type(raised.value), raised.value.args) == (type(outcome), outcome.args)


def test_limits_count_as_in_the_log(kv: KVApi, host: FakeHost) -> None:
    for number in range(300):
        run(kv.put(b"%03d" % number, b"x" * 1000))
    host.set("rows_max", 600)
    host.set("result_bytes_max", 64 * 1024)
    bare = RangeOp(b"\0", FROM_KEY, keys_only=True)
    assert run(kv.txn([ANY, ANY])).succeeded
    assert len(run(kv.txn([ANY], [bare])).results) == 1
    for compare, operations, limit in (
        ([ANY, ANY, ANY], [], "rows_max"),
        ([ANY], [bare, bare], "rows_max"),
        ([], [ALL], "result_bytes_max"),
    ):
        with pytest.raises(LimitExceeded, match=limit):
            run(kv.txn(compare, operations))
        assert isinstance(host.apply(flatten(compare, operations, ())), LimitExceeded)


def test_a_keyspace_without_a_history_asks_the_log() -> None:
    """Under format 1 of the commands nothing tells what is changed between two slices."""
    host = FakeHost(version=1)
    kv = api(host)
    run(kv.put(b"a", b"1"))
    proposed = host.proposed
    assert run(kv.txn([ANY], [ALL])).results[0].count == 1  # type: ignore[union-attr]
    assert host.proposed == proposed + 1


class LoopShare:
    """Counts turns of the loop while something runs, and the keys looked at in each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.most = self.now = 0
        whole = module.Past.scan

        def scan(past: Any, keys: Any, key: bytes, end: bytes, limit: int = 0) -> Any:
            for kv in whole(past, keys, key, end, limit):
                self.now += 1
                self.most = max(self.most, self.now)
                yield kv

        monkeypatch.setattr(module.Past, "scan", scan)

    async def count(self, *work: Coroutine[Any, Any, Any]) -> tuple[int, list[Any]]:
        tasks = [asyncio.ensure_future(each) for each in work]
        turns = 0
        while not all(task.done() for task in tasks):
            self.now = 0
            await asyncio.sleep(0)
            turns += 1
        return turns, [task.result() for task in tasks]


def test_a_turn_of_the_loop_has_a_bounded_share_of_it(
    small: None, kv: KVApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        for name in NAMES:
            await kv.put(name, name)
        share = LoopShare(monkeypatch)
        poison = [kv.txn([ANY] * 4, [RangeOp(b"\0", FROM_KEY, sort_by="value")]) for _ in range(40)]
        taken, results = await share.count(*poison)
        assert all(result.succeeded for result in results)
        assert taken >= 40 * len(NAMES) * 5 / (3 * module.READS_AT_ONCE)
        assert share.most <= 2 * 3 * module.READS_AT_ONCE

    run(story())


def test_the_line_of_large_ones_is_bounded(
    small: None, kv: KVApi, host: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "READS_WAITING_MAX", 2)
    kv._large_reads = LargeReads()

    async def story() -> None:
        for name in NAMES:
            await kv.put(name, name)
        large = [asyncio.ensure_future(kv.txn([ANY])) for _ in range(module.READS_AT_ONCE + 2)]
        await asyncio.sleep(0)
        with pytest.raises(Overloaded, match="wait in this node"):
            await kv.txn([ANY])
        # Small ones do not stand in line.
        assert (await kv.txn([Compare(b"a", "version", ">", 0)])).succeeded
        large[-1].cancel()
        large[0].cancel()
        found = await asyncio.gather(*large, return_exceptions=True)
        assert [type(each) for each in found].count(TxnResult) == module.READS_AT_ONCE
        # All places are free again.
        assert (await kv.txn([ANY])).succeeded

    run(story())


def test_a_place_is_given_back_by_a_failure() -> None:
    async def story() -> None:
        places, now = LargeReads(), asyncio.get_running_loop().time()
        for _ in range(2 * module.READS_AT_ONCE):
            with pytest.raises(ValueError, match="x"):
                async with places.of(now):
                    raise ValueError("x")

    run(story())


def test_the_wait_for_a_place_ends_with_the_time_out() -> None:
    """Although no place is ever given back."""

    async def story() -> None:
        places, now = LargeReads(), asyncio.get_running_loop().time()
        held = [places.of(now) for _ in range(module.READS_AT_ONCE)]
        for place in held:
            await place.__aenter__()
        for _ in range(2 * module.READS_WAITING_MAX):
            with pytest.raises(ReadTimeout, match="before this one"):
                async with places.of(now):
                    raise AssertionError("a place that is taken")
        await held.pop().__aexit__(None, None, None)
        async with places.of(now):
            pass

    run(story())


def test_leases_are_compared_as_of_the_same_state(small: None, kv: KVApi, host: FakeHost) -> None:
    async def story() -> None:
        lease = (await kv.leases.grant(60)).id
        for name in NAMES:
            await kv.put(name, name, lease=lease)
        attached = Compare(b"\0", "lease", "=", lease, FROM_KEY)
        reading = asyncio.ensure_future(kv.txn([attached], [ALL]))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        host.apply(Revoke(lease))
        done = await reading
        assert done.succeeded
        assert done.results[0].count == len(NAMES)  # type: ignore[union-attr]

    run(story())


def test_a_state_that_is_discarded_while_it_is_read_is_no_answer() -> None:
    """As a replicant does at a newer epoch: its view goes back to the first revision."""

    async def play() -> None:
        host = FakeHost()
        kv = KVApi(cast(Any, host))
        for number in range(3000):
            await kv.put(b"%06d" % number, b"x")
        compares = [
            Compare(b"000000", "version", ">", 0, b"002900"),
            Compare(b"002950", "version", "=", 0),
        ]
        reading = asyncio.ensure_future(kv.txn(compares, [RangeOp(b"002950")], timeout_s=5))
        await asyncio.sleep(0)
        host.machine.reset()
        with pytest.raises(ReadTimeout, match="discarded"):
            await reading

    asyncio.run(play())


def test_a_part_of_a_node_shares_its_limits_of_work(
    small: None, kv: KVApi, host: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the writes under a client session do, each of which has an API of its own."""
    monkeypatch.setattr(module, "READS_WAITING_MAX", 1)
    kv._large_reads = LargeReads()

    async def story() -> None:
        for name in NAMES:
            await kv.put(name, name)
        parts = [KVApi(cast(Host, host), kv) for _ in range(module.READS_AT_ONCE + 2)]
        assert {id(part.budget) for part in parts} == {id(kv.budget)}
        reads = [part.txn([ANY]) for part in parts]
        found = await asyncio.gather(*reads, return_exceptions=True)
        assert sum(isinstance(each, Overloaded) for each in found) == 1
        host.set("rows_max", 1)
        with pytest.raises(TxnTooCostly):
            await parts[0].txn([ANY])
        assert kv.too_costly == 1

    run(story())
