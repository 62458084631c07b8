"""What is counted where it happens: the outbox, the reader, the engine, a replicant's follower."""

from __future__ import annotations

import asyncio
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftkv.config import Limits, NodeConfig, RaftTimes
from raftkv.errors import Overloaded, TooLarge
from raftkv.kv import KV
from raftkv.node import Node
from raftkv.outbox import ABANDONED_KEPT_S
from raftkv.raft import wire
from raftkv.raft.counts import Counts
from raftkv.state.machine import StateMachine
from raftkv.state.sessions import Sessions
from tests.raft.harness import MAX_S, A, B, Bench, C, accepted, append, batch
from tests.raft.rule_tools import snapshot_file
from tests.test_outbox import Bench as OutboxBench
from tests.test_outbox import Unkind
from tests.test_reading import Bench as ReaderBench
from tests.test_rules_node import Replicant


def fates(bench: OutboxBench) -> dict[str, int]:
    return {name: count for name, count in vars(bench.outbox.fates).items() if count}


# The outbox --------------------------------------------------------------------------------------


def test_every_way_to_end_has_its_counter() -> None:
    bench = OutboxBench()
    good, bad, left, late = (bench.submit(text) for text in ("good", "bad", "left", "late"))
    bench.runtime.run()
    left.cancel()
    bench.outbox.settle(1, "done")
    bench.outbox.settle(2, Unkind("no", 1))
    bench.outbox.settle(3, "done")
    bench.runtime.advance(6)
    bench.way_open = False
    unsent = bench.submit("unsent", 0.5)
    bench.runtime.advance(1)
    kept = bench.submit("kept")
    bench.runtime.run()
    bench.outbox.stop()
    assert fates(bench) == {
        "refused": 1,
        "cancelled": 1,
        "unknown": 1,
        "no_leader": 1,
        "stopped": 1,
    }
    assert bench.outbox.submitted == 6
    assert bench.outbox.applied == 1
    assert all(future.done() for future in (good, bad, left, late, unsent, kept))
    for future in (bad, late, unsent, kept):
        future.exception()


def test_each_limit_has_its_counter() -> None:
    bench = OutboxBench(outbox_commands_max=2, outbox_bytes_max=100)
    bench.submit("a")
    with pytest.raises(Overloaded):
        bench.submit("b" * 200)
    bench.submit("c")
    with pytest.raises(Overloaded):
        bench.submit("d")
    with pytest.raises(TooLarge):
        bench.submit("e" * Limits().command_bytes_max)
    counted = {"over_bytes_max": 1, "over_commands_max": 1, "too_large": 1}
    assert fates(bench) == counted
    assert bench.outbox.submitted == 2


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), st.sampled_from([0.2, 5.0])),
        st.tuples(st.just("settle"), st.integers(1, 12)),
        st.tuples(st.just("refuse"), st.integers(1, 12)),
        st.tuples(st.just("cancel"), st.integers(0, 11)),
        st.tuples(st.just("wait"), st.sampled_from([0.0, 0.3, 6.0, ABANDONED_KEPT_S])),
        st.tuples(st.just("way"), st.booleans()),
        st.tuples(st.just("session"), st.integers(7, 9)),
    ),
    max_size=30,
)


@settings(max_examples=150)
@given(STEPS)
def test_what_was_taken_has_ended_once_or_is_in_flight(steps: list[tuple[str, Any]]) -> None:
    bench = OutboxBench()
    # Those of its own questions to the log, too.
    futures: list[asyncio.Future[Any]] = []
    make = bench.runtime.future

    def noted() -> asyncio.Future[Any]:
        futures.append(make())
        return futures[-1]

    setattr(bench.runtime, "future", noted)  # noqa: B010
    for what, value in steps:
        if what == "submit":
            bench.submit("x", value)
        elif what == "settle":
            bench.outbox.settle(value, "done")
        elif what == "refuse":
            bench.outbox.settle(value, Unkind("no", 1))
        elif what == "cancel" and futures:
            futures[value % len(futures)].cancel()
        elif what == "wait":
            bench.runtime.advance(value)
        elif what == "way":
            bench.way_open = value
        elif what == "session":
            bench.outbox.open(value)
        bench.outbox.landed()
        assert len(bench.outbox._flights) <= len(futures)
    bench.runtime.run()
    answered = sum(_has_result(future) for future in futures)
    assert bench.outbox.applied == answered
    bench.outbox.stop()
    ended = bench.outbox.fates
    bench.runtime.run()
    results = [f.cancelled() or f.exception() or "done" for f in futures]
    assert bench.outbox.submitted == len(futures) == ended.failures + results.count("done")
    assert bench.outbox.applied == answered == results.count("done")
    assert ended.cancelled == results.count(True)
    assert ended.refused == sum(isinstance(result, Unkind) for result in results)


def _has_result(future: asyncio.Future[Any]) -> bool:
    return future.done() and not future.cancelled() and future.exception() is None


def test_the_commands_of_a_message_count_with_the_time_of_the_last() -> None:
    bench = OutboxBench()
    for text in "abc":
        bench.submit(text)
    bench.runtime.run()
    bench.runtime.advance(0.02)
    bench.outbox.settle(1, None)
    bench.outbox.settle(2, None)
    bench.outbox.landed()
    assert bench.outbox.latency_s.count == 0
    bench.runtime.advance(0.02)
    bench.outbox.settle(3, None)
    bench.outbox.landed()
    assert bench.outbox.latency_s.count == 3
    assert bench.outbox.latency_s.total == pytest.approx(3 * 0.04)


def test_a_command_that_was_given_up_does_not_hide_the_times_of_those_behind_it() -> None:
    bench = OutboxBench()
    lost = bench.submit("lost", 0.5)
    bench.runtime.advance(1)
    lost.exception()
    bench.submit("next")
    bench.runtime.run()
    bench.runtime.advance(0.01)
    bench.outbox.settle(2, None)
    bench.outbox.landed()
    assert bench.outbox.latency_s.count == 1
    assert bench.outbox.latency_s.total == pytest.approx(0.01)


def test_messages_of_a_session_that_ended_have_no_time() -> None:
    """Its numbers are used again by the next one."""
    bench = OutboxBench()
    lost = [bench.submit(text) for text in "abc"]
    bench.runtime.run()
    bench.outbox.open(8)
    bench.submit("next")
    bench.runtime.run()
    bench.runtime.advance(0.01)
    bench.outbox.settle(1, None)
    bench.outbox.landed()
    assert bench.outbox.latency_s.count == 1
    assert all(future.exception() for future in lost)


# Reads -------------------------------------------------------------------------------------------


def test_readers_questions_and_those_who_gave_up_are_counted() -> None:
    bench = ReaderBench()
    reading = [bench.reader.barrier(0.25) for _ in range(5)]
    bench.runtime.run()
    assert (len(bench.reader), bench.reader.reads, bench.reader.questions) == (5, 5, 1)
    bench.runtime.advance(0.12)
    assert bench.reader.questions == 2, "it was asked again"
    bench.answer(2, 3)
    assert bench.reader.latency_s.count == 5
    assert bench.reader.latency_s.total == pytest.approx(5 * 0.12)
    assert len(bench.reader) == 5, "confirmed, but not applied"
    bench.runtime.advance(0.2)
    assert (bench.reader.timeouts, len(bench.reader)) == (5, 0)
    for future in reading:
        future.exception()


# Consensus ---------------------------------------------------------------------------------------


def test_an_election_and_its_end_are_counted() -> None:
    bench = Bench(A)
    bench.lead()
    counts = bench.engine.counts
    assert (counts.elections, counts.elections_won, counts.step_downs) == (1, 1, 0)
    assert counts.pre_votes >= 1
    assert counts.leader_changes == 1
    bench.receive(B, append(bench.engine.term + 1, 2, 1))
    bench.runtime.settle()
    assert (counts.step_downs, counts.leader_changes) == (1, 2)


def test_losing_sight_of_a_leader_is_no_change() -> None:
    counts = Counts()
    for term, leader in ((2, A), (2, A), (3, A), (4, B)):
        counts.led_by(term, leader)
    assert counts.leader_changes == 3


def test_entries_are_counted_from_their_making_to_their_commit() -> None:
    bench = Bench(A)
    term = bench.lead()
    counts = bench.engine.counts
    assert bench.engine.propose([b"x" * 100, b"y" * 100])
    bench.runtime.settle()
    assert counts.batch_commands.total == 2
    assert counts.commit_s.count == 0
    assert bench.engine.leading is not None
    assert bench.engine.leading.uncommitted_bytes == 202
    bench.runtime.advance(0.03)
    bench.receive(B, accepted(term, bench.wal.last_index))
    bench.runtime.settle()
    assert counts.commit_s.count == 1
    assert counts.commit_s.total == pytest.approx(0.03)
    assert counts.apply_s.count == len(bench.application.applied)
    assert bench.engine.leading.uncommitted_bytes == 0


def test_writes_to_the_log_are_timed_in_the_disks_thread() -> None:
    bench = Bench(A)
    bench.lead()
    before, written = bench.engine.counts.fsync_s.count, bench.wal.written_bytes
    bench.engine.propose([b"x" * 1000])
    bench.runtime.run()
    assert bench.engine.counts.fsync_s.count == before
    bench.runtime.finish_disk()
    assert bench.engine.counts.fsync_s.count == before + 1
    assert bench.wal.written_bytes > written + 1000


def test_what_a_leader_cannot_take_is_counted() -> None:
    bench = Bench(A, limits=Limits(uncommitted_bytes_max=1000), connected=[B, C])
    bench.lead()
    assert bench.engine.propose([b"x" * 600])
    bench.runtime.settle()
    assert bench.engine.propose([b"x" * 600])
    bench.runtime.settle()
    assert bench.engine.propose([b"x" * 1200])
    assert not bench.engine.propose([b"y", b"z"])
    assert bench.engine.counts.commands_refused == 2
    assert bench.engine.leading is not None
    assert bench.engine.leading.waiting == (1, 1200)


def test_a_heartbeat_that_a_busy_disk_held_up_is_late() -> None:
    bench = Bench(A)
    bench.lead()
    counts = bench.engine.counts
    for _ in range(5):
        bench.runtime.advance(RaftTimes().heartbeat_ms / 1000)
        bench.runtime.settle()
    assert counts.heartbeats_late == 0
    bench.runtime.now += 3 * RaftTimes().heartbeat_ms / 1000
    bench.runtime.advance(0.01)
    assert counts.heartbeats_late == 1


def test_the_round_trip_is_from_the_message_to_its_answer() -> None:
    bench = Bench(A)
    term = bench.lead()
    bench.runtime.advance(RaftTimes().heartbeat_ms / 1000)
    bench.runtime.settle()
    *_, last = bench.take(B, wire.Append)
    bench.runtime.advance(0.007)
    bench.receive(B, accepted(term, bench.wal.last_index, last.round))
    assert bench.engine.leading is not None
    assert bench.engine.leading.round_trips() == {B: pytest.approx(0.007)}


def test_rounds_of_reads_are_counted_not_questions() -> None:
    bench = Bench(A)
    bench.lead()
    for token in range(4):
        assert bench.engine.read_index(token)
    bench.runtime.settle()
    assert bench.engine.counts.read_rounds == 1


def test_snapshots_written_and_taken_over_are_counted() -> None:
    log = tuple((1, batch(str(number))) for number in range(3, 11))
    bench = Bench(B, log=log)
    counts = bench.engine.counts
    bench.deliver(A, append(1, 10, 1, commit=10))
    bench.engine.snapshotting.begin()
    bench.runtime.settle()
    known = bench.engine.snapshotting.store.known
    assert known is not None
    assert (counts.snapshots_written, counts.snapshot_write_s.count) == (1, 1)
    assert counts.snapshot_written_bytes == known.size_bytes
    name, data = snapshot_file(50, 1, [b"state", b"at 50"])
    chunk = wire.SnapshotChunk(1, name, 50, 1, len(data), 0, zlib.crc32(data), data)
    bench.deliver(A, chunk)
    bench.runtime.advance(MAX_S / 10)
    bench.runtime.settle()
    assert counts.snapshots_installed == 1
    assert counts.snapshot_received_bytes == len(data)


def test_a_damaged_snapshot_is_counted() -> None:
    bench = Bench(B)
    name, data = snapshot_file(50, 1, [b"state", b"at 50"])
    broken = data[:-1] + bytes([data[-1] ^ 1])
    bench.deliver(A, wire.SnapshotChunk(1, name, 50, 1, len(data), 0, zlib.crc32(broken), broken))
    assert bench.engine.counts.snapshots_damaged == 1
    assert bench.engine.counts.snapshots_installed == 0


# A replicant -------------------------------------------------------------------------------------


def test_a_replicants_lag_is_what_has_come_and_is_not_applied() -> None:
    replicant = Replicant()
    follower = replicant.follower
    assert follower.lag == (0, 0.0)
    replicant.feed(1, 0, [(1, batch("x"))])
    assert follower.lag == (0, 0.0)
    assert follower.apply_s.count == 1
    follower.lag_s = 60.0
    replicant.feed(2, 1, [(1, batch("y")), (1, batch("z"))])
    replicant.runtime.advance(2.5)
    assert follower.lag == (2, pytest.approx(2.5))
    assert follower.silence_s == pytest.approx(2.5)
    replicant.moves_to("b")
    assert follower.upstream_changes == 2


def test_a_replicants_snapshots_are_counted() -> None:
    replicant = Replicant()
    replicant.snapshot(9, 1, b"state")
    assert replicant.follower.snapshots_installed == 1
    assert replicant.follower.snapshot_received_bytes == len(b"state")


# The node, and the state that it shares -----------------------------------------------------------


def test_sessions_that_made_room_and_idle_ones_are_told_apart() -> None:
    sessions = Sessions(clients_max=2, client_idle_ms=1000)
    for number in range(3):
        sessions.open_client(number, nonce=number, now=0, keeps=False)
    assert (sessions.evicted, sessions.expired) == (1, 0)
    sessions.expire(now=2000)
    assert (sessions.evicted, sessions.expired) == (1, 2)


def test_outcomes_and_rows_are_counted_as_they_stand() -> None:
    machine = StateMachine([KV()])
    machine.skip(1)
    assert machine.outcome_count == 0
    assert machine.row_counts()["kv", "keys"] == 0
    assert ("core", "members") in machine.row_counts()


def test_a_node_that_was_not_started_stands_nowhere(tmp_path: Path) -> None:
    config = NodeConfig(
        name="a", dir=str(tmp_path), peer_address="127.0.0.1:1", cores={"a": "127.0.0.1:1"}
    )
    assert Node(config, plugins=()).standing == ("starting", 0, 0)
