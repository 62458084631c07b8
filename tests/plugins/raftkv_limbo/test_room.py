"""Room in the queue: waiting for it in order, being refused, limits that change."""

from __future__ import annotations

import asyncio

import pytest

from raftkv.errors import Overloaded
from raftkv_limbo.commands import SPAN_FACTOR, Transaction, Write
from raftkv_limbo.errors import NotSubmitted, RolledBack, SubmitUnknown
from raftkv_limbo.options import LimboOptions
from raftkv_limbo.refusals import QueueFull
from raftkv_limbo.room import Load
from raftkv_limbo.submission import Submission
from tests.plugins.raftkv_limbo.fakes import Cluster, asynchronous, story, sync, until


def submission(*writes: Write, independent: bool = False) -> Submission:
    size = sum(len(one.key) + len(one.value or b"") for one in writes)
    transaction = Transaction(writes, (), independent)
    return Submission(transaction, size, len(writes), "none", 0.0, 1, None)


@story(quorum="N", queue_bytes_max=1)
async def test_a_limit_of_one_byte_lets_one_in(cluster: Cluster) -> None:
    limbo = await cluster.own("core1")
    cluster.isolate("core3")
    first = await limbo.submit(sync("a", "v" * 1000), wait="submit")
    with pytest.raises(QueueFull) as caught:
        await limbo.submit(sync("b"), wait="none")
    assert (caught.value.what, caught.value.limit) == ("bytes", 1)
    assert cluster.state.pending == 1
    waits = asyncio.ensure_future(limbo.submit(sync("c"), timeout_s=60))
    await asyncio.sleep(1)
    assert limbo.status().queue.waiting_for_room == 1
    cluster.heal("core3")
    assert (await waits).position == first.position + 1
    assert limbo.status().queue.waiting_for_room == 0


@story(quorum="N", queue_entries_max=3)
async def test_room_is_given_in_the_order_of_the_calls(cluster: Cluster) -> None:
    limbo = await cluster.own("core1")
    cluster.isolate("core3")
    waits = [asyncio.ensure_future(limbo.submit(sync(f"k{n}"), timeout_s=99)) for n in range(20)]
    await asyncio.sleep(1)
    assert cluster.state.pending == 3
    with pytest.raises(QueueFull):
        await limbo.submit(sync("at once"), wait="none")
    cluster.heal("core3")
    assert [(await one).position for one in waits] == list(range(1, 21))
    assert [cluster.value("core2", "s", b"k%d" % n) for n in range(20)] == [b"x"] * 20


@story(quorum="N", queue_bytes_max=100)
async def test_a_small_one_does_not_overtake_a_large_one(cluster: Cluster) -> None:
    limbo = await cluster.own("core1")
    cluster.isolate("core3")
    await limbo.submit(sync("a", "v" * 50), wait="submit")
    large = asyncio.ensure_future(limbo.submit(sync("b", "v" * 90), wait="submit", timeout_s=60))
    await asyncio.sleep(0)
    small = asyncio.ensure_future(limbo.submit(sync("c", ""), wait="submit", timeout_s=60))
    await asyncio.sleep(1)
    assert not large.done()
    assert not small.done()
    cluster.heal("core3")
    assert [(await large).position, (await small).position] == [2, 3]


@story(quorum="N", queue_entries_max=1)
async def test_independent_ones_pass_those_that_wait(cluster: Cluster) -> None:
    limbo = await cluster.own("core1")
    cluster.isolate("core3")
    await limbo.submit(sync("a"), wait="submit")
    ordered = asyncio.ensure_future(limbo.submit(asynchronous("b"), timeout_s=60))
    await asyncio.sleep(0.1)
    done = await limbo.submit(asynchronous("c"), order="independent", timeout_s=1)
    assert done.state == "confirmed"
    handle = await limbo.submit(asynchronous("d"), order="independent", wait="none")
    assert (await handle.verdict()).state == "confirmed"
    assert not ordered.done()
    cluster.heal("core3")
    assert (await ordered).position == 4


@story(quorum="N", queue_entries_max=2)
async def test_limits_that_are_raised_and_lowered_count_at_once(cluster: Cluster) -> None:
    limbo = await cluster.own("core1")
    cluster.isolate("core3")
    waits = [
        asyncio.ensure_future(limbo.submit(sync(f"k{n}"), wait="submit", timeout_s=99))
        for n in range(10)
    ]
    await asyncio.sleep(2)
    assert cluster.state.pending == 2
    cluster.configure(queue_entries_max=5)
    await until(lambda: cluster.state.pending == 5, 2)
    cluster.configure(queue_entries_max=1)
    await asyncio.sleep(2)
    assert cluster.state.pending == 5
    cluster.heal("core3")
    assert [(await one).position for one in waits] == list(range(1, 11))


@story(quorum="N")
async def test_a_limit_lowered_while_a_batch_is_under_way(cluster: Cluster) -> None:
    """The log refuses what this node thought had room: it waits after all, and in its order."""
    limbo = await cluster.own("core1")
    cluster.isolate("core3")
    await limbo.submit(sync("a"), wait="submit")
    release = cluster.hold("core1", "submit")
    waits = [
        asyncio.ensure_future(limbo.submit(sync(f"k{n}"), wait="submit", timeout_s=99))
        for n in range(5)
    ]
    await asyncio.sleep(0)
    impatient = await limbo.submit(sync("impatient"), wait="none")
    await asyncio.sleep(0.1)
    cluster.configure(queue_entries_max=3)
    release()
    with pytest.raises(QueueFull):
        await impatient.receipt()
    await asyncio.sleep(3)
    assert cluster.state.pending == 3
    assert len(limbo.submitting.room) == 3
    cluster.heal("core3")
    assert [(await one).position for one in waits] == [2, 3, 4, 5, 6]


@story(quorum="N")
async def test_who_was_told_that_it_is_unknown_does_not_wait_for_room(cluster: Cluster) -> None:
    limbo = await cluster.own("core1")
    cluster.isolate("core3")
    await limbo.submit(sync("a"), wait="submit")
    release = cluster.hold("core1", "submit")
    with pytest.raises(SubmitUnknown) as caught:
        await limbo.submit(sync("b"), timeout_s=0.5)
    cluster.configure(queue_entries_max=1)
    release()
    assert caught.value.submission is not None
    with pytest.raises(QueueFull):
        await caught.value.submission.receipt()
    assert len(limbo.submitting) == 0
    cluster.heal("core3")


@story(quorum="N", queue_entries_max=1)
async def test_who_is_cancelled_makes_way(cluster: Cluster) -> None:
    limbo = await cluster.own("core1")
    cluster.isolate("core3")
    await limbo.submit(sync("a"), wait="submit")
    gone = asyncio.ensure_future(limbo.submit(sync("gone"), timeout_s=60))
    next_ = asyncio.ensure_future(limbo.submit(sync("next"), timeout_s=60))
    await asyncio.sleep(0.1)
    assert len(limbo.submitting.room) == 2
    gone.cancel()
    await asyncio.sleep(0.1)
    cluster.heal("core3")
    assert (await next_).position == 2
    assert cluster.value("core1", "s", b"gone") is None


@story(quorum="N", queue_entries_max=1)
async def test_time_is_over_before_there_is_room(cluster: Cluster) -> None:
    limbo = await cluster.own("core1")
    cluster.isolate("core3")
    await limbo.submit(sync("a"), wait="submit")
    with pytest.raises(NotSubmitted):
        await limbo.submit(sync("b"), timeout_s=1)
    assert len(limbo.submitting) == 0
    assert limbo.counters["waited_for_room"] == 1
    cluster.heal("core3")
    await asyncio.sleep(1)
    assert cluster.state.last == 1


@story(quorum="N", queue_entries_max=1)
async def test_a_rollback_makes_room(cluster: Cluster) -> None:
    limbo = await cluster.own("core1")
    cluster.isolate("core3")
    first = asyncio.ensure_future(limbo.submit(sync("a"), timeout_s=60))
    second = asyncio.ensure_future(limbo.submit(sync("b"), timeout_s=60))
    await asyncio.sleep(0.1)
    await limbo.rollback(1, "no more")
    with pytest.raises(RolledBack):
        await first
    await until(lambda: cluster.state.last == 2)
    assert not second.done()
    cluster.heal("core3")
    assert (await second).position == 2


@story(quorum="N", queue_entries_max=1)
async def test_flush_waits_for_those_that_wait_for_room(cluster: Cluster) -> None:
    limbo = await cluster.own("core1")
    cluster.isolate("core3")
    waits = [asyncio.ensure_future(limbo.submit(sync(f"k{n}"), timeout_s=60)) for n in range(3)]
    await asyncio.sleep(0.1)
    flushed = asyncio.ensure_future(limbo.flush(60))
    await asyncio.sleep(1)
    assert not flushed.done()
    cluster.heal("core3")
    await flushed
    assert cluster.state.last == 3
    await asyncio.gather(*waits)


@story(queue_entries_max=1, queue_bytes_max=1, queue_writes_max=1)
async def test_nothing_needs_room_while_raft_is_the_quorum(cluster: Cluster) -> None:
    limbo = await cluster.own("core1")
    handles = [await limbo.submit(sync(f"k{n}"), wait="none") for n in range(50)]
    assert [(await one.verdict()).position for one in handles] == list(range(1, 51))


@story(quorum="N")
async def test_a_load_counts_as_the_log_does(cluster: Cluster) -> None:
    limbo = await cluster.own("core1")
    cluster.configure(queue_entries_max=3, queue_writes_max=5, queue_bytes_max=100)
    sync_write, async_write = Write("s", b"k", b"v"), Write("a", b"k", b"v")
    view = cluster.nodes["core1"].view()
    load = Load(view, mine=True)
    # Async ones need no room before the first sync one.
    assert [load.refuse(submission(async_write)) for _ in range(9)] == [None] * 9
    assert load.refuse(submission(*[sync_write] * 4)) is None
    assert load.refuse(submission(async_write)) is None
    full = load.refuse(submission(async_write))
    assert full is not None
    assert full.what == "writes"
    assert load.refuse(submission(async_write, independent=True)) is None
    full = load.refuse(submission(Write("s", b"k", b"v" * 99)))
    assert full is not None
    assert full.what == "bytes"
    load = Load(view, mine=True)
    assert [load.refuse(submission(Write("s", b"", b""))) for _ in range(3)] == [None] * 3
    full = load.refuse(submission(Write("s", b"", b"")))
    assert full is not None
    assert full.what == "entries"
    assert len(limbo.submitting) == 0


@story(quorum="N", queue_entries_max=1)
async def test_an_independent_one_that_finds_no_room_is_told_so(cluster: Cluster) -> None:
    """It waits for nothing, so not for room either; and it is not submitted again and again."""
    limbo = await cluster.own("core1")
    cluster.isolate("core3")
    await limbo.submit(sync("a"), wait="submit")
    for n in range(SPAN_FACTOR - 1):
        await limbo.submit(asynchronous(f"k{n}"), order="independent")
    before = cluster.proposals("submit")
    with pytest.raises(QueueFull):
        await limbo.submit(asynchronous("one more"), order="independent", timeout_s=3)
    assert cluster.proposals("submit") == before + 1
    cluster.heal("core3")


@story(quorum="N", queue_entries_max=1)
async def test_those_who_left_take_no_place(cluster: Cluster) -> None:
    """The first one waits without a deadline; behind it callers come and go."""
    limbo = await cluster.own("core1")
    cluster.isolate("core3")
    await limbo.submit(sync("a"), wait="submit", timeout_s=None)
    first = asyncio.ensure_future(limbo.submit(sync("first"), timeout_s=None))
    for n in range(200):
        leaving = asyncio.ensure_future(limbo.submit(sync(f"k{n}"), timeout_s=None))
        await asyncio.sleep(0.01)
        leaving.cancel()
        await asyncio.sleep(0)
        assert limbo.status().queue.waiting_for_room == 1
        assert len(limbo.submitting) <= 3
    cluster.heal("core3")
    assert (await first).position == 2


@story(quorum="N", queue_entries_max=1)
async def test_what_waits_for_room_is_bounded_in_bytes(cluster: Cluster) -> None:
    limbo = await cluster.own("core1")
    limbo.submitting._options = LimboOptions(waiting_bytes_max=10_000)
    cluster.isolate("core3")
    await limbo.submit(sync("a"), wait="submit", timeout_s=None)
    waits = []
    for n in range(10):
        waits.append(asyncio.ensure_future(limbo.submit(sync(f"k{n}", "v" * 1000), timeout_s=99)))
        await asyncio.sleep(0.01)
    with pytest.raises(Overloaded):
        await limbo.submit(sync("z"))
    waits.pop().cancel()
    waits.pop().cancel()
    await asyncio.sleep(0.01)
    waits.append(asyncio.ensure_future(limbo.submit(sync("z"), timeout_s=99)))
    await asyncio.sleep(0.01)
    cluster.heal("core3")
    assert [(await one).position for one in waits] == list(range(2, 11))
    assert limbo.submitting._gathering.held_bytes == 0


@story(quorum="N", queue_entries_max=4)
async def test_what_has_just_been_applied_is_not_counted_twice(cluster: Cluster) -> None:
    """Between the entry and its answer, a batch is in the tables, and still under way here."""
    limbo = await cluster.own("core1")
    cluster.isolate("core3")
    handles: list[Submission] = []

    service = cluster.nodes["core1"].service
    progress = service.on_progress

    def at_once(index: int) -> None:
        progress(index)
        if len(handles) < 4 and cluster.state.last == 3:
            service.on_progress = progress  # type: ignore[method-assign]
            handles.append(limbo.submitting.enter(sync("last"), (), "ordered", "none", 60))

    service.on_progress = at_once  # type: ignore[method-assign]
    handles += [await limbo.submit(sync(f"k{n}"), wait="none", timeout_s=60) for n in range(3)]
    await asyncio.sleep(0.1)
    assert [one.now.position for one in handles] == [1, 2, 3, 4]
    cluster.heal("core3")


@story(quorum="N", queue_bytes_max=10)
async def test_who_is_refused_behind_others_is_told_what_is_full(cluster: Cluster) -> None:
    limbo = await cluster.own("core1")
    cluster.isolate("core3")
    await limbo.submit(sync("a"), wait="submit")
    waits = asyncio.ensure_future(limbo.submit(sync("b", "v" * 50), timeout_s=60))
    await asyncio.sleep(0)
    # In one turn with the one that will wait, and when that one waits already.
    for _ in range(2):
        with pytest.raises(QueueFull) as caught:
            await (await limbo.submit(sync("c"), wait="none")).receipt()
        assert (caught.value.what, caught.value.limit) == ("bytes", 10)
        await asyncio.sleep(0.1)
    cluster.heal("core3")
    await waits
