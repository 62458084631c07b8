"""Reads in slices give what a read in one go gives, and let the loop run in between."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from raftkv.errors import TooLarge
from raftkv.kv import FROM_KEY, KVApi, RangeOp, RangeResult
from raftkv.kv.history import revision_of
from raftkv.kv.ranges import read_range
from raftkv.plugin import Host
from tests.kv.fake_host import FakeHost

T = TypeVar("T")
NAMES = [b"%c" % code for code in range(ord("a"), ord("q"))]


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(coroutine)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slice of three keys, as many in a turn of the loop, a run of four."""
    monkeypatch.setattr("raftkv.kv.large.SLICE_KEYS", 3)
    monkeypatch.setattr("raftkv.kv.large.RUN_KEYS", 4)
    monkeypatch.setattr("raftkv.kv.work_budget.WORK_MAX", 3)


def in_one_go(host: FakeHost, operation: RangeOp) -> RangeResult:
    view = host.machine.view("kv")
    return read_range(view.table("keys"), operation, revision_of(view))


operations = st.builds(
    RangeOp,
    st.sampled_from(NAMES),
    st.sampled_from([*NAMES, FROM_KEY]),
    limit=st.integers(0, 12),
    keys_only=st.booleans(),
    count_only=st.sampled_from([False] * 5 + [True]),
    sort_by=st.sampled_from(["key", "version", "create", "mod", "value"]),
    descending=st.booleans(),
    min_mod_revision=st.sampled_from([0, 0, 0, 5, 20]),
    max_mod_revision=st.sampled_from([0, 0, 0, 25]),
    min_create_revision=st.sampled_from([0, 0, 0, 7]),
    max_create_revision=st.sampled_from([0, 0, 0, 12]),
)


# The sizes are the same for all examples.
@settings(
    max_examples=200,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, 3)), max_size=40), operations)
def test_slices_make_no_difference(puts: list[tuple[bytes, int]], operation: RangeOp) -> None:
    host = FakeHost()
    kv = KVApi(cast(Host, host))

    async def whole() -> None:
        for name, value in puts:
            await kv.put(name, b"%d" % value)
        expected = in_one_go(host, operation)
        assert await kv.read(operation) == expected
        if kv.revision > 1:
            # And as it was, while the keyspace goes on.
            reading = asyncio.ensure_future(kv.read(replace(operation, revision=kv.revision)))
            for name, gone in zip(NAMES[::2], NAMES[1::2], strict=True):
                await asyncio.sleep(0)
                await kv.put(name, b"other")
                await kv.delete(gone)
            found = await reading
            assert replace(found, revision=expected.revision) == expected

    run(whole())


@pytest.mark.parametrize("how", [{}, {"sort_by": "mod"}, {"descending": True, "limit": 1}])
def test_the_loop_runs_between_the_slices(kv: KVApi, how: dict[str, Any]) -> None:
    async def turns() -> int:
        for number in range(30):
            await kv.put(b"%02d" % number, b"")
        reading = asyncio.ensure_future(kv.range(**how))
        count = 0
        while not reading.done():
            await asyncio.sleep(0)
            count += 1
        await reading
        return count

    assert run(turns()) >= 10


def test_what_is_small_is_read_at_once(kv: KVApi) -> None:
    async def read(**how: Any) -> RangeResult:
        reading = kv.range(**how)
        with pytest.raises(StopIteration) as ended:
            reading.send(None)
        result: RangeResult = ended.value.value
        return result

    for number in range(30):
        run(kv.put(b"%02d" % number, b""))
    for how in ({"limit": 3}, {"count_only": True}, {"prefix": b"1", "limit": 2, "revision": 31}):
        assert run(read(**how)).count >= 10
    assert run(read(first=b"00", last=b"03", sort_by="version")).count == 3


def test_the_answer_has_the_newest_revision_when_an_old_one_is_read(kv: KVApi) -> None:
    for number in range(30):
        run(kv.put(b"%02d" % number, b""))
    found = run(kv.range(revision=11))
    assert (len(found.kvs), found.count, found.revision) == (10, 10, 31)
    assert run(kv.range()).revision == 31


SORTED_MAX = 1_000


@pytest.fixture
def bounded(monkeypatch: pytest.MonkeyPatch, kv: KVApi) -> KVApi:
    """16 keys with values of 100 bytes, and room for 9 of them."""
    monkeypatch.setattr("raftkv.kv.large.SORTED_BYTES_MAX", SORTED_MAX)
    for number, name in enumerate(NAMES):
        run(kv.put(name, b"%02d" % (7 * number % 16) + bytes(98)))
    return kv


@pytest.mark.parametrize(
    "how", [{"sort_by": "value"}, {"descending": True}, {"sort_by": "version", "limit": 12}]
)
def test_what_is_sorted_is_bounded_in_bytes(bounded: KVApi, how: dict[str, Any]) -> None:
    with pytest.raises(TooLarge, match="1000 bytes of keys and values: give a limit"):
        run(bounded.read(RangeOp(b"a", FROM_KEY, **how)))


def test_a_few_of_many_are_sorted_within_the_bound(bounded: KVApi) -> None:
    operation = RangeOp(b"a", FROM_KEY, limit=4, sort_by="value")
    values = [kv.value[:2] for kv in run(bounded.read(operation)).kvs]
    assert values == [b"00", b"01", b"02", b"03"]


@pytest.mark.parametrize("how", [{"descending": True}, {"sort_by": "version"}])
def test_of_keys_alone_only_the_keys_are_held(bounded: KVApi, how: dict[str, Any]) -> None:
    found = run(bounded.read(RangeOp(b"a", FROM_KEY, keys_only=True, **how)))
    assert len(found.kvs) == len(NAMES)


def test_in_key_order_a_read_has_no_bound_but_its_callers(bounded: KVApi) -> None:
    assert len(run(bounded.read(RangeOp(b"a", FROM_KEY))).kvs) == len(NAMES)
