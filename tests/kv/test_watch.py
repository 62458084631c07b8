"""What a watch gives: what, in which order, in which pieces, and how it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest
from msgspec.structs import replace

from raftkv.errors import WatchCancelled
from raftkv.kv import watch as watch_module
from raftkv.kv.commands import Event, KeyValue
from raftkv.kv.watch import BATCH_EVENTS_MAX, Watch, WatchBatch
from raftkv.kv.watch_hub import BUFFER_BYTES_MAX, BUFFER_EVENTS_MAX
from raftkv.kv.watch_walk import UNITS_PER_TURN
from tests.kv.watch_fakes import FakeNode, shown, taken

T = TypeVar("T")


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(coroutine)


@pytest.fixture
def node() -> FakeNode:
    return FakeNode()


def ended(watch: Watch) -> WatchCancelled:
    with pytest.raises(WatchCancelled) as cancelled:
        watch.take()
    return cancelled.value


# What is watched ---------------------------------------------------------------------------------


def test_from_now_gives_what_comes_later(node: FakeNode) -> None:
    node.put(b"a")
    watch = node.watch()
    assert run(watch.created()) == 2
    assert watch.take() is None
    node.put(b"a", b"1")
    node.delete(b"a")
    assert taken(watch) == [
        (
            4,
            (
                Event(KeyValue(b"a", b"1", 2, 3, 2)),
                Event(KeyValue(b"a", b"", 0, 4, 0)),
            ),
        )
    ]


@pytest.mark.parametrize(
    ("key", "range_end", "expected"),
    [
        (b"b", b"", [b"b"]),
        (b"b", b"c", [b"b", b"b\0", b"b1"]),
        (b"b", b"\0", [b"b", b"b\0", b"b1", b"c"]),
        (b"\0", b"\0", [b"a", b"b", b"b\0", b"b1", b"c"]),
        (b"b0", b"b2", [b"b1"]),
    ],
)
def test_one_key_a_range_or_all_from_a_key(
    node: FakeNode, key: bytes, range_end: bytes, expected: list[bytes]
) -> None:
    live = node.watch(key, range_end)
    for name in (b"a", b"b", b"b\0", b"b1", b"c"):
        node.put(name)
    late = node.watch(key, range_end, start_revision=1)
    node.run()
    assert [name for _, name in shown(live)] == expected
    assert [name for _, name in shown(late)] == expected


def test_the_former_value_comes_if_it_is_asked_for(node: FakeNode) -> None:
    watch = node.watch(prev_kv=True)
    node.put(b"a", b"1")
    node.put(b"a", b"2")
    node.delete(b"a")
    ((_, events),) = taken(watch)
    assert [event.prev and event.prev.value for event in events] == [None, b"1", b"2"]


def test_puts_or_deletions_can_be_left_out(node: FakeNode) -> None:
    no_puts, no_deletes = node.watch(put=False), node.watch(delete=False)
    nothing = node.watch(put=False, delete=False)
    node.commit((b"a", b"1"), (b"b", b"1"))
    node.commit((b"a", None), (b"c", b"1"))
    assert shown(no_puts) == [(3, b"a")]
    assert shown(no_deletes) == [(2, b"a"), (2, b"b"), (3, b"c")]
    assert shown(nothing) == []


def test_an_event_that_is_filtered_out_wakes_nobody(node: FakeNode) -> None:
    watch = node.watch(put=False)
    woken: list[int] = []
    watch.on_ready = lambda: woken.append(1)
    node.put(b"a")
    assert not woken
    node.delete(b"a")
    assert woken


# From when ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("start", "first"), [(1, 2), (2, 2), (5, 5), (11, 11)])
def test_from_a_revision_of_the_past(node: FakeNode, start: int, first: int) -> None:
    for _ in range(10):
        node.put(b"a")
    watch = node.watch(start_revision=start)
    node.put(b"a")
    node.run()
    node.put(b"a")
    assert [revision for revision, _ in shown(watch)] == list(range(first, 14))


def test_a_watch_from_a_future_revision_waits_for_it(node: FakeNode) -> None:
    watch = node.watch(start_revision=5)
    for _ in range(6):
        node.put(b"a")
    assert [revision for revision, _ in shown(watch)] == [5, 6, 7]


def test_a_watch_from_a_compacted_revision_is_refused_with_the_lowest_one(node: FakeNode) -> None:
    for _ in range(10):
        node.put(b"a")
    node.compact(6)
    watch = node.watch(start_revision=5)
    assert run(watch.created()) == 11
    cancelled = ended(watch)
    assert (cancelled.reason, cancelled.compact_revision) == ("compacted", 6)
    assert cancelled.resume_revision == 0
    watch = node.watch(start_revision=6)
    node.run()
    assert len(shown(watch)) == 6


def test_revision_1_is_before_everything_and_never_compacted_away(node: FakeNode) -> None:
    node.put(b"a")
    node.tables["meta"]["compacted"] = 2
    watch = node.watch(start_revision=1)
    node.run()
    assert shown(watch) == [(2, b"a")]


def test_changes_from_before_there_was_a_history_end_the_watch(node: FakeNode) -> None:
    """An upgraded cluster goes on without a history until all its nodes keep one."""
    node.put(b"a")
    old, now = node.watch(start_revision=2), node.watch()
    future = node.watch(start_revision=9)
    node.tables["history"].clear()
    node.tables["meta"]["revision"] = 4
    node.hub.progressed()
    node.run()
    assert [ended(watch).compact_revision for watch in (old, now)] == [5, 5]
    for _ in range(6):
        node.put(b"a")
    assert [revision for revision, _ in shown(future)] == [9, 10]


# Whole revisions ---------------------------------------------------------------------------------


def test_a_transaction_is_one_piece(node: FakeNode) -> None:
    watch = node.watch(b"a", b"c")
    node.commit((b"b", b"1"), (b"a", b"1"), (b"c", b"1"))
    node.put(b"c")
    assert [(revision, [e.kv.key for e in events]) for revision, events in taken(watch)] == [
        (2, [b"b", b"a"])
    ]


def test_batches_are_cut_between_revisions_only(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch_module, "BATCH_EVENTS_MAX", 4)
    monkeypatch.setattr(watch_module, "BATCH_BYTES_MAX", 100)
    watch = node.watch()
    for count in (2, 2, 3, 1, 9, 1):
        node.commit(*((b"%d" % number, b"v") for number in range(count)))
    node.put(b"large", bytes(200))
    node.put(b"small")
    batches = taken(watch)
    assert [(revision, len(events)) for revision, events in batches] == [
        (3, 4),
        (5, 4),
        (6, 9),
        (7, 1),
        (8, 1),
        (9, 1),
    ]


def test_a_large_revision_is_handed_out_over_several_turns_and_stays_whole(node: FakeNode) -> None:
    size = 5 * UNITS_PER_TURN
    keys = [b"%05d" % number for number in range(size)]
    watch, part = node.watch(), node.watch(b"00000", b"00010")
    deletes = node.watch(put=False)
    node.commit(*((key, b"v") for key in keys), told=False)
    node.put(b"z", told=False)
    node.hub.progressed()
    assert watch.take() is None
    assert watch.revision == 1
    joined = node.watch(start_revision=2)
    node.run()
    assert node.runtime.turns > 3
    for each in (watch, joined):
        (revision, events), *rest = taken(each)
        assert (revision, [e.kv.key for e in events]) == (2, keys)
        assert [revision for revision, _ in rest] == [3]
    assert len(shown(part)) == 10
    assert shown(deletes) == []


def test_a_revision_for_very_many_watches_is_handed_out_over_several_turns(node: FakeNode) -> None:
    watches = [node.watch() for _ in range(3 * UNITS_PER_TURN)]
    node.put(b"a")
    assert sum(watch._queue is not None for watch in watches) <= 2 * UNITS_PER_TURN
    watches[-1].close()
    late = node.watch()
    node.put(b"b")
    node.run()
    assert [shown(watch) for watch in watches[:-1]] == [[(2, b"a"), (3, b"b")]] * (len(watches) - 1)
    assert shown(late) == [(3, b"b")]


# The iterator ------------------------------------------------------------------------------------


def test_the_iterator_waits_and_is_woken(node: FakeNode) -> None:
    async def story() -> None:
        async with node.watch() as watch:
            waiting = asyncio.create_task(anext(watch))
            await asyncio.sleep(0)
            with pytest.raises(RuntimeError, match="one consumer"):
                await anext(watch)
            node.put(b"a")
            assert await waiting == WatchBatch(2, (Event(KeyValue(b"a", b"v", 2, 2, 1)),))
            waiting = asyncio.create_task(anext(watch))
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            node.put(b"b")
            assert (await anext(watch)).revision == 3
            assert node.hub.count == 1
        assert node.hub.count == 0
        assert [batch async for batch in watch] == []

    run(story())


def test_a_cancelled_consumer_loses_nothing(node: FakeNode) -> None:
    async def story() -> None:
        watch = node.watch()
        waiting = asyncio.create_task(anext(watch))
        await asyncio.sleep(0)
        node.put(b"a")  # the waiter is woken, and cancelled before it runs
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert shown(watch) == [(2, b"a")]

    run(story())


def test_closing_ends_the_iteration(node: FakeNode) -> None:
    async def story() -> None:
        watch = node.watch()
        waiting = asyncio.create_task(anext(watch))
        await asyncio.sleep(0)
        watch.close()
        watch.close()
        with pytest.raises(StopAsyncIteration):
            await waiting
        assert watch.cancelled is None

    run(story())


# Slow users --------------------------------------------------------------------------------------


def test_a_slow_user_is_cut_off_and_resumes_without_a_gap_or_a_double(node: FakeNode) -> None:
    watch = node.watch()
    node.put(b"a")
    assert shown(watch) == [(2, b"a")]
    for _ in range(BUFFER_EVENTS_MAX):
        node.put(b"a")
    assert watch.cancelled is None
    node.put(b"a")
    cancelled = ended(watch)
    assert (cancelled.reason, cancelled.resume_revision) == ("slow", 3)
    assert node.hub.count == 0
    again = node.watch(start_revision=cancelled.resume_revision)
    found: list[int] = []
    for _ in range(100):
        node.run()
        found += [revision for revision, _ in shown(again)]
    assert found == list(range(3, node.revision + 1))


def test_a_slow_watch_resumes_behind_all_that_it_was_shown_while_it_was_idle(
    node: FakeNode,
) -> None:
    node.hub.bound_buffers(2, 1000)
    watch = node.watch(b"a")
    for _ in range(3):
        node.put(b"b")
    node.run()
    assert watch.revision == 4
    for _ in range(3):
        node.put(b"a")
    node.run()
    assert (ended(watch).reason, ended(watch).resume_revision) == ("slow", 5)


def test_bytes_count_too_and_an_empty_buffer_takes_anything(node: FakeNode) -> None:
    watch = node.watch()
    node.put(b"a", bytes(BUFFER_BYTES_MAX + 1))
    assert watch.cancelled is None
    assert len(shown(watch)) == 1
    node.put(b"a", bytes(BUFFER_BYTES_MAX - 10))
    node.put(b"a", bytes(100))
    assert ended(watch).resume_revision == 3


def test_a_slow_user_who_is_caught_up_is_waited_for(node: FakeNode) -> None:
    for _ in range(BUFFER_EVENTS_MAX * 3):
        node.put(b"a", told=False)
    node.hub.progressed()
    watch = node.watch(start_revision=1)
    quick = node.watch(b"b", start_revision=1)
    node.run()
    assert (watch._buffered_events, node.hub.behind_count) == (BUFFER_EVENTS_MAX // 2, 1)
    node.put(b"b")
    assert shown(quick) == [(node.revision, b"b")]
    first = watch.take()
    assert first is not None
    assert len(first.events) == BATCH_EVENTS_MAX
    assert node.hub.behind_count == 1
    node.compact(BUFFER_EVENTS_MAX)
    rest = shown(watch)
    assert rest[-1][0] == 1 + BUFFER_EVENTS_MAX // 2  # what was in the buffer is still given
    node.run()
    assert ended(watch).compact_revision == BUFFER_EVENTS_MAX


def test_a_watch_that_waits_for_its_user_needs_only_what_it_has_not_looked_at(
    node: FakeNode,
) -> None:
    node.hub.bound_buffers(4, 1000)
    for _ in range(4):
        node.put(b"a")
    for _ in range(10):
        node.put(b"b")
    node.put(b"a")
    watch = node.watch(b"a", start_revision=2)
    node.run()
    node.compact(16)  # all but the last
    assert [revision for revision, _ in shown(watch)] == [2, 3]
    node.run()
    assert ended(watch).compact_revision == 16  # the third and fourth are gone
    node.hub.bound_buffers(8, 1000)
    node.delete(b"a")
    node.compact(17)
    watch = node.watch(b"a", start_revision=17)
    node.run()
    assert shown(watch) == [(17, b"a")]


def test_a_stalled_watch_is_not_ended_for_revisions_that_did_not_concern_it(
    node: FakeNode,
) -> None:
    node.hub.bound_buffers(4, 1000)
    for number in range(20):
        node.put(b"a" if number in (0, 1, 19) else b"b")
    watch = node.watch(b"a", start_revision=2)
    node.run()
    node.compact(21)  # the one that found no room
    assert [revision for revision, _ in shown(watch)] == [2, 3]
    node.run()
    assert [revision for revision, _ in shown(watch)] == [21]


# Marks -------------------------------------------------------------------------------------------


def test_a_mark_on_request_comes_behind_everything(node: FakeNode) -> None:
    watch = node.watch(b"a")
    node.put(b"a")
    node.put(b"b", told=False)
    watch.request_progress()
    node.run()
    assert [(revision, len(events)) for revision, events in taken(watch)] == [(2, 1), (3, 0)]
    assert watch.revision == 3
    assert taken(watch) == []


def test_a_mark_waits_for_all_that_was_applied_when_it_was_asked_for(node: FakeNode) -> None:
    watch = node.watch(b"b")
    for _ in range(3 * UNITS_PER_TURN):
        node.put(b"a", told=False)
    watch.request_progress()
    node.runtime.turn()
    assert 1 < node.hub.revision < node.revision
    assert taken(watch) == []
    node.run()
    assert taken(watch) == [(node.revision, ())]


def test_a_mark_of_a_watch_that_is_behind_comes_when_it_is_not(node: FakeNode) -> None:
    for _ in range(3 * UNITS_PER_TURN):
        node.put(b"a", told=False)
    node.hub.progressed()
    watch = node.watch(b"b", start_revision=1)
    watch.request_progress()
    node.runtime.turn()
    assert watch.take() is None
    node.run()
    assert [(batch, len(events)) for batch, events in taken(watch)] == [(node.revision, 0)]


def test_a_watch_from_the_future_gets_no_mark_before_its_time(node: FakeNode) -> None:
    watch = node.watch(start_revision=4)
    watch.request_progress()
    node.put(b"a")
    node.run()
    assert taken(watch) == []
    node.put(b"a")
    node.run()
    assert taken(watch) == [(3, ())]


def test_an_idle_watch_gets_marks_by_itself_if_it_wishes(node: FakeNode) -> None:
    watch, other = node.watch(b"a", progress_s=10), node.watch(b"a")
    node.put(b"b")
    node.runtime.advance(9)
    assert taken(watch) == []
    node.runtime.advance(1)
    assert taken(watch) == [(2, ())]
    node.put(b"a")
    assert len(shown(watch)) == 1
    node.runtime.advance(10)  # it was busy
    assert taken(watch) == []
    node.runtime.advance(10)
    assert taken(watch) == [(3, ())]
    assert len(shown(other)) == 1
    watch.close()
    assert not any(timer.callback for timer in node.runtime.timers)


def test_a_mark_wakes_the_iterator(node: FakeNode) -> None:
    async def story() -> None:
        watch = node.watch()
        waiting = asyncio.create_task(anext(watch))
        await asyncio.sleep(0)
        watch.request_progress()
        node.run()
        assert await waiting == WatchBatch(1, ())

    run(story())


# Snapshots, starts, ends -------------------------------------------------------------------------


def test_a_snapshot_is_no_gap(node: FakeNode) -> None:
    ahead = FakeNode()
    for number in range(20):
        for each in (node, ahead) if number < 5 else (ahead,):
            each.put(b"%d" % number)
    watch, behind = node.watch(), node.watch(start_revision=2)
    node.load(ahead)
    node.run()
    assert [revision for revision, _ in shown(watch)] == list(range(7, 22))
    assert [revision for revision, _ in shown(behind)] == list(range(2, 22))


def test_a_snapshot_without_the_history_that_is_needed_ends_the_watch(node: FakeNode) -> None:
    ahead = FakeNode()
    for _ in range(20):
        ahead.put(b"a")
    ahead.compact(10)
    watch, future = node.watch(), node.watch(start_revision=15)
    node.load(ahead)
    node.run()
    assert ended(watch).compact_revision == 10
    assert [revision for revision, _ in shown(future)] == list(range(15, 22))


def test_a_watch_that_gets_company_within_a_revision_gets_all_of_it(node: FakeNode) -> None:
    """One key is put and deleted in one revision, with much in between; then somebody comes."""
    node.put(b"z", b"old")
    watch = node.watch(b"z")
    others = [(b"a%04d" % number, b"") for number in range(2 * UNITS_PER_TURN)]
    revision = node.commit((b"z", b"new"), *others, told=False)
    row = node.tables["history"][revision]
    gone = Event(KeyValue(b"z", b"", 0, revision, 0), row.kv)
    node.tables["history"][revision] = replace(row, more=(*row.more, gone))
    node.hub.progressed()
    assert watch.take() is None, "it is being matched"
    late = node.watch(b"z")
    node.run()
    assert [(at, len(events)) for at, events in taken(watch)] == [(revision, 2)]
    assert late.take() is None
    node.put(b"z", b"anew")
    assert [[len(events) for _, events in taken(each)] for each in (watch, late)] == [[1], [1]]


def test_a_compaction_in_the_same_turn_ends_no_live_watch_while_the_rows_are_there(
    node: FakeNode,
) -> None:
    watch = node.watch()
    for _ in range(3):
        node.commit((b"a", b""), told=False)
    node.tables["meta"]["compacted"] = node.revision  # its rows are freed later
    behind = node.watch(start_revision=2)
    node.hub.progressed()
    node.run()
    assert [revision for revision, _ in shown(watch)] == [2, 3, 4]
    assert ended(behind).compact_revision == 4


@pytest.mark.parametrize(("compacted", "goes_on"), [(6, True), (7, True), (8, False)])
def test_exactly_what_a_watch_needs_must_be_there(
    node: FakeNode, compacted: int, goes_on: bool
) -> None:
    ahead = FakeNode()
    for number in range(10):
        for each in (node, ahead) if number < 5 else (ahead,):
            each.put(b"a")
    ahead.compact(compacted)
    live, same, later = node.watch(), node.watch(start_revision=7), node.watch(start_revision=8)
    node.load(ahead)
    node.run()
    for watch in (live, same):
        assert (watch.cancelled is None) is goes_on
    assert [revision for revision, _ in shown(later)] == list(range(8, 12))
    if goes_on:
        assert [revision for revision, _ in shown(live)] == list(range(7, 12))


def test_rows_below_the_compacted_revision_are_not_shown_although_they_are_there(
    node: FakeNode,
) -> None:
    for _ in range(3 * UNITS_PER_TURN):
        node.put(b"a", told=False)
    node.hub.progressed()
    watch = node.watch(start_revision=2)
    node.runtime.turn()
    node.compact(3 * UNITS_PER_TURN, free=False)
    node.run()
    assert ended(watch).compact_revision == 3 * UNITS_PER_TURN


def test_a_history_that_is_given_up_ends_all_watches(node: FakeNode) -> None:
    for _ in range(5):
        node.put(b"a")
    watches = [node.watch(), node.watch(start_revision=2), node.watch(start_revision=99)]
    node.load(FakeNode())
    assert [ended(watch).reason for watch in watches] == ["given_up"] * 3
    assert [ended(watch).resume_revision for watch in watches] == [0] * 3
    new = node.watch()
    node.put(b"b")
    assert new.take() is None  # the node is not ready yet
    node.hub.node_ready()
    node.put(b"c")
    node.run()
    assert shown(new) == [(3, b"c")]


def test_from_now_on_a_starting_node_is_from_when_it_is_ready() -> None:
    node = FakeNode(incarnation=0)
    watch, old = node.watch(), node.watch(start_revision=2)
    node.put(b"a")
    node.run()
    assert shown(old) == [(2, b"a")]

    async def story() -> None:
        created = asyncio.create_task(watch.created())
        other = asyncio.create_task(watch.created())
        await asyncio.sleep(0)
        other.cancel()
        node.hub.node_ready()
        assert await created == 2
        node.put(b"a")
        assert shown(watch) == [(3, b"a")]

    run(story())


def test_the_end_of_the_node_ends_the_watches(node: FakeNode) -> None:
    node.put(b"a")
    watch, behind = node.watch(), node.watch(start_revision=2)
    node.hub.stop()
    assert (ended(watch).reason, ended(watch).resume_revision) == ("stopped", 3)
    assert ended(behind).resume_revision == 2
    assert ended(node.watch()).reason == "stopped"
    assert node.hub.count == 0


def test_an_idle_watch_is_resumed_behind_all_that_its_node_has_shown(node: FakeNode) -> None:
    # Else a quiet key would be watched anew from a revision that was compacted long ago.
    quiet, read = node.watch(b"quiet"), node.watch(b"a")
    for _ in range(10):
        node.put(b"a")
    assert quiet.revision == 11
    node.hub.stop()
    assert (ended(quiet).reason, ended(quiet).resume_revision) == ("stopped", 12)
    assert quiet.revision == 11
    assert ended(read).resume_revision == 2, "what was in the buffer was not given"


@pytest.mark.parametrize(("start", "resume"), [(0, 0), (1, 2), (5, 5)])
def test_a_watch_that_a_stopped_node_does_not_take_resumes_where_it_was_to_start(
    node: FakeNode, start: int, resume: int
) -> None:
    node.hub.stop()
    assert ended(node.watch(start_revision=start)).resume_revision == resume


def test_who_waits_for_the_beginning_hears_of_the_end() -> None:
    async def story() -> None:
        node = FakeNode(incarnation=0)
        for stop in (True, False):
            watch = node.watch()
            created = asyncio.create_task(watch.created())
            await asyncio.sleep(0)
            if stop:
                watch.close()
            else:
                node.hub.stop()
            with pytest.raises(WatchCancelled):
                await created

    run(story())


def test_metrics_tell_how_many_and_why(node: FakeNode) -> None:
    node.watch()
    node.watch(start_revision=99).close()
    node.put(b"a")
    found = {(m.name, *m.labels.values()): m.value for m in node.hub.metrics()}
    assert found["watches",] == 1
    assert found["watch_revisions",] == 1
    assert found["watches_ended", "slow"] == 0
