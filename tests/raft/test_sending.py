"""A leader sends a snapshot: off the loop, windowed, at a bounded rate, never a damaged one."""

from __future__ import annotations

from raftkv.config import Limits
from raftkv.errors import DamagedSnapshot
from raftkv.raft import wire
from raftkv.raft.free_space import LOOK_S
from raftkv.raft.sending import DAMAGED_MAX, RETRY_MIN_S, SILENT_MAX_S
from raftkv.runtime import Space
from tests.raft.harness import BEAT_S, MAX_S, A, B, Bench, C, accepted

LIMITS = Limits(snapshot_chunk_bytes=40, snapshot_inflight_bytes_max=120)


def leader(limits: Limits = LIMITS, state: bytes = b"x" * 400) -> Bench:
    """It leads C; B needs entries that only a snapshot holds."""
    bench = Bench(A, limits=limits)
    bench.receive(C, accepted(bench.elect(), 3))
    bench.runtime.settle()
    bench.application.state = [state]
    bench.engine.snapshotting.begin()
    bench.runtime.settle()
    bench.wal.compact(3, bench.engine.term)
    bench.tick()
    bench.runtime.settle()
    return bench


def alive(bench: Bench, seconds: float) -> None:
    """Let time pass; C goes on answering, so that A stays in office."""
    for _ in range(round(seconds / BEAT_S)):
        bench.runtime.advance(BEAT_S)
        bench.receive(C, accepted(bench.engine.term, bench.wal.last_index))
        bench.runtime.settle()


def sent(bench: Bench) -> list[wire.SnapshotChunk]:
    bench.runtime.settle()
    return bench.take(B, wire.SnapshotChunk)


def reply(bench: Bench, chunk: wire.SnapshotChunk, offset: int, *, done: bool = False) -> None:
    bench.receive(
        B, wire.SnapshotReply(bench.engine.term, chunk.snapshot_id, chunk.index, offset, done)
    )


def begun(bench: Bench) -> wire.SnapshotChunk:
    bench.tick(2 * BEAT_S)
    (first,) = sent(bench)
    return first


def test_the_logs_tail_is_bounded_by_bytes_too() -> None:
    bench = Bench(A, voters=[A], limits=Limits(log_tail_bytes=250))
    bench.elect()
    bench.runtime.settle()
    for _ in range(10):
        bench.engine.propose([b"x" * 99])
        bench.runtime.settle()
    bench.engine.snapshotting.begin()
    bench.runtime.settle()
    kept = bench.wal.entries(bench.wal.first_index)
    assert [len(entry.payload) for entry in kept] == [100, 100]
    assert bench.wal.first_index == bench.wal.last_index - 1


def test_the_loop_reads_no_file() -> None:
    bench = leader()
    bench.tick(2 * BEAT_S)
    assert bench.take(B, wire.SnapshotChunk) == []
    assert len(bench.runtime.bulk) == 1
    bench.runtime.finish_bulk()
    assert bench.take(B, wire.SnapshotChunk) == [], "opened and verified, but not yet read"
    bench.runtime.finish_bulk()
    assert [chunk.offset for chunk in bench.take(B, wire.SnapshotChunk)] == [0]


def test_the_first_chunk_goes_alone_then_the_window_is_kept() -> None:
    bench = leader()
    first = begun(bench)
    reply(bench, first, 40)
    assert [chunk.offset for chunk in sent(bench)] == [40, 80, 120]
    reply(bench, first, 80)
    assert [chunk.offset for chunk in sent(bench)] == [160]
    assert sent(bench) == []


def test_it_resumes_where_the_receiver_is() -> None:
    bench = leader()
    reply(bench, begun(bench), 40)
    sent(bench)
    bench.disconnect(B)
    bench.connect(B)
    first = begun(bench)
    assert first.offset == 0
    reply(bench, first, 160)
    assert [chunk.offset for chunk in sent(bench)] == [160, 200, 240]


def test_not_faster_than_the_rate() -> None:
    limits = Limits(
        snapshot_chunk_bytes=40, snapshot_inflight_bytes_max=4000, snapshot_send_bytes_per_s=400
    )
    bench = leader(limits)
    first = begun(bench)
    bench.runtime.advance(0.2)
    reply(bench, first, 40)
    began = bench.runtime.now
    offsets = [chunk.offset for chunk in sent(bench)]
    for _ in range(5):
        bench.runtime.advance(0.1)
        offsets += [chunk.offset for chunk in sent(bench)]
    assert offsets == [40, 80, 120, 160, 200, 240]
    assert bench.runtime.now - began < 0.51


def test_a_heartbeat_does_not_wait_for_the_transfer() -> None:
    bench = leader()
    reply(bench, begun(bench), 40)
    bench.take(B)
    for _ in range(5):
        bench.runtime.advance(BEAT_S)
        assert bench.take(B, wire.Append), "the heartbeat is late"


def test_what_is_not_answered_is_sent_again() -> None:
    bench = leader()
    first = begun(bench)
    reply(bench, first, 40)
    assert [chunk.offset for chunk in sent(bench)] == [40, 80, 120]
    alive(bench, MAX_S / 2)
    assert sent(bench) == []
    alive(bench, MAX_S)
    assert [chunk.offset for chunk in sent(bench)][:3] == [40, 80, 120]


def test_a_receiver_that_does_not_answer_is_asked_ever_more_seldom() -> None:
    """It has no room for the snapshot, perhaps for hours (installing.py)."""
    bench = leader()
    first = begun(bench)
    alive(bench, 10 * MAX_S)
    assert len(sent(bench)) >= 3, "a lost message is repeated soon"
    alive(bench, 8 * SILENT_MAX_S)
    sent(bench)
    alive(bench, 20 * SILENT_MAX_S)
    again = sent(bench)
    assert 19 <= len(again) <= 21
    assert {chunk.offset for chunk in again} == {0}
    reply(bench, first, 40)
    assert [chunk.offset for chunk in sent(bench)] == [40, 80, 120]


def test_when_all_is_there_only_a_question_is_asked() -> None:
    bench = leader()
    first = begun(bench)
    reply(bench, first, first.size_bytes)
    assert sent(bench) == []
    alive(bench, 1.5 * MAX_S)
    (question,) = sent(bench)
    assert (question.offset, question.data) == (first.size_bytes, b"")
    reply(bench, first, first.size_bytes, done=True)
    assert bench.engine.leading is not None
    assert bench.engine.leading.in_transit() == []


def test_a_withheld_snapshot_is_not_begun_and_the_leader_goes_on() -> None:
    bench = leader()
    bench.engine.snapshotting.withhold()
    alive(bench, 4 * BEAT_S)
    messages = bench.take(B)
    assert any(isinstance(message, wire.Append) for message in messages), "heartbeats go on"
    assert not any(isinstance(message, wire.SnapshotChunk) for message in messages)
    assert bench.engine.leading is not None
    assert bench.engine.leading.snapshots_on_their_way() == []
    assert not bench.runtime.bulk


def test_a_snapshot_on_its_way_ends_when_it_is_withheld() -> None:
    bench = leader()
    first = begun(bench)
    reply(bench, first, 40)
    assert sent(bench)
    bench.engine.snapshotting.withhold()
    reply(bench, first, 80)
    alive(bench, 3 * MAX_S)
    messages = bench.take(B)
    assert any(isinstance(message, wire.Append) for message in messages), "heartbeats go on"
    assert not any(isinstance(message, wire.SnapshotChunk) for message in messages)
    bench.disconnect(B)
    bench.connect(B)
    alive(bench, 3 * MAX_S)
    assert sent(bench) == []


def test_one_that_is_being_opened_is_not_sent_when_it_is_withheld() -> None:
    bench = leader()
    bench.tick(2 * BEAT_S)
    assert len(bench.runtime.bulk) == 1
    bench.engine.snapshotting.withhold()
    alive(bench, 4 * BEAT_S)
    assert sent(bench) == []


def test_a_damaged_file_is_replaced_and_never_sent() -> None:
    bench = leader()
    snapshot = bench.recovered.store.latest()
    assert snapshot is not None
    bench.disk.flip_bit(snapshot.path, snapshot.size_bytes - 60)
    bench.tick(2 * BEAT_S)
    assert sent(bench) == []
    assert bench.application.faults == []
    alive(bench, 1.1 * RETRY_MIN_S)
    (first,) = sent(bench)
    assert first.offset == 0
    newest = bench.recovered.store.latest()
    assert newest is not None
    newest.verify()


def test_a_node_whose_disk_damages_every_snapshot_stops() -> None:
    bench = leader()
    bench.tick(2 * BEAT_S)
    bench.take(B)
    damaged = None
    for _ in range(200):
        snapshot = bench.recovered.store.latest()
        assert snapshot is not None
        if snapshot is not damaged:
            bench.disk.flip_bit(snapshot.path, snapshot.size_bytes - 60)
            damaged = snapshot
        alive(bench, BEAT_S)
        if bench.application.faults:
            break
    assert [type(fault) for fault in bench.application.faults] == [DamagedSnapshot]
    assert bench.engine.snapshotting.damaged() == DAMAGED_MAX + 1


def test_who_refuses_a_good_file_gets_it_again_later_and_later() -> None:
    bench = leader()
    waits = []
    first = begun(bench)
    for _ in range(3):
        reply(bench, first, 40)
        while first.size_bytes - 40 > 0 and (chunks := sent(bench)):
            last = chunks[-1]
            reply(bench, first, last.offset + len(last.data))
        reply(bench, first, 0)
        began = bench.runtime.now
        while not (chunks := sent(bench)):
            alive(bench, BEAT_S)
        (first,) = chunks
        assert first.offset == 0
        waits.append(bench.runtime.now - began)
    assert [round(wait) for wait in waits] == [1, 2, 4]


def test_a_damaged_file_that_cannot_be_replaced_for_lack_of_room_stops_no_node() -> None:
    bench = leader()
    bench.disk.fail_snapshots = True
    bench.disk.space_of_snapshots = Space(0, 1 << 40)
    alive(bench, 2 * LOOK_S)
    snapshot = bench.recovered.store.latest()
    assert snapshot is not None
    bench.disk.flip_bit(snapshot.path, snapshot.size_bytes - 60)
    bench.disconnect(B)
    bench.connect(B)
    alive(bench, 30 * RETRY_MIN_S)
    assert bench.engine.counts.snapshots_damaged > DAMAGED_MAX
    assert bench.application.faults == []
    bench.disk.fail_snapshots = False
    bench.take(B)
    alive(bench, 80 * RETRY_MIN_S)
    newest = bench.recovered.store.latest()
    assert newest is not None
    newest.verify()
    assert sent(bench)
