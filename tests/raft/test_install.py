"""Taking a snapshot over in steps, and whatever may happen between two of them (rule 7)."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftkv.raft import wire
from raftkv.raft.installing import CHUNKS_WAITING_MAX
from raftkv.raft.recovery import recover
from tests.raft.harness import DIRECTORY, MIN_S, A, B, Bench, C, append, batch, chunk
from tests.raft.rule_tools import snapshot_file

LOG = tuple((1, batch(str(number))) for number in range(3, 11))  # entries 3 to 10


def whole(index: int, term: int = 1, sent_in: int = 1, text: bytes = b"") -> wire.SnapshotChunk:
    """A snapshot at `index` in one chunk; its state says which one it is."""
    name, data = snapshot_file(index, term, [b"state", text or b"at %d" % index])
    return chunk(sent_in, data, data, 0, index=index, snapshot_term=term, name=name)


def step(bench: Bench) -> bool:
    """One piece of blocking work ends. False if there is none."""
    if bench.runtime.disk:
        bench.runtime.finish_disk()
    elif bench.runtime.bulk:
        bench.runtime.finish_bulk()
    else:
        return False
    return True


def test_heartbeats_and_pre_votes_are_answered_at_every_step() -> None:
    bench = Bench(B)
    bench.receive(A, whole(50))
    steps = 0
    while bench.application.restored == []:
        assert bench.application.state == [], "local reads see the new state before all of it"
        bench.take(A), bench.take(C)
        bench.receive(A, append(1, 2, 1, round_number=7))
        bench.receive(C, wire.Vote(2, 1, 60, 1, True, False))
        assert [reply.round for reply in bench.take(A, wire.AppendReply)] == [7]
        assert [reply.granted for reply in bench.take(C, wire.VoteReply)] == [False]
        assert step(bench)
        steps += 1
    assert steps >= 3, "written, read, read to its end: that takes several steps"
    assert bench.application.state == [b"at 50"]


def test_entries_that_came_by_another_way_win() -> None:
    bench = Bench(B, log=LOG)
    bench.receive(A, whole(8))
    bench.runtime.finish_bulk()
    (reply,) = bench.deliver(A, append(1, 10, 1, commit=10))[-1:]
    assert isinstance(reply, wire.SnapshotReply)
    assert (reply.index, reply.done) == (8, True)
    assert bench.application.restored == []
    assert bench.application.discarded == 1
    assert bench.application.state == [b"%d" % number for number in range(3, 11)]


def test_a_newer_snapshot_waits_and_comes_next() -> None:
    bench = Bench(B)
    bench.receive(A, whole(50))
    bench.runtime.finish_bulk()
    bench.receive(A, whole(80))
    bench.runtime.settle()
    assert bench.application.restored == [50, 80]
    done = [reply for reply in bench.take(A, wire.SnapshotReply) if reply.done]
    assert [reply.index for reply in done] == [50, 80]
    assert bench.application.faults == []


def test_the_leader_that_asked_last_is_answered() -> None:
    bench = Bench(B)
    bench.receive(A, whole(50))
    bench.runtime.finish_bulk()
    bench.receive(C, whole(50, sent_in=3))
    bench.runtime.finish_disk()  # the new term
    (there,) = bench.take(C, wire.SnapshotReply)
    assert (there.offset, there.done) == (whole(50).size_bytes, False)
    bench.runtime.settle()
    (done,) = bench.take(C, wire.SnapshotReply)
    assert (done.index, done.done, done.term) == (50, True, 3)
    assert bench.take(A, wire.SnapshotReply) == []
    assert bench.application.restored == [50]


def test_an_elected_node_takes_nothing_over() -> None:
    """Its own log holds what is committed; it only has to say so."""
    bench = Bench(B, log=LOG)
    bench.receive(A, whole(8))
    bench.runtime.finish_bulk()
    bench.runtime.advance(3 * MIN_S)
    waiting = list(bench.runtime.bulk)
    bench.runtime.bulk.clear()
    bench.elect()
    bench.runtime.bulk.extend(waiting)
    bench.runtime.settle()
    assert bench.engine.leading is not None
    assert bench.application.restored == []
    bench.receive(A, wire.AppendReply(bench.engine.term, True, bench.wal.last_index, 0, 0, 0))
    bench.runtime.settle()
    bench.tick()
    assert bench.engine.commit == bench.wal.last_index
    assert bench.application.restored == []
    assert bench.application.discarded == 1


def test_what_waits_is_bounded() -> None:
    bench = Bench(B)
    name, data = snapshot_file(50, 1, [b"state", b"x" * 500])
    for _ in range(3 * CHUNKS_WAITING_MAX):
        piece = chunk(1, data[:10], data, 0, index=50, snapshot_term=1, name=name)
        bench.receive(A, piece)
    assert len(bench.engine.installing._chunks) == CHUNKS_WAITING_MAX
    bench.runtime.settle()
    assert {reply.offset for reply in bench.take(A, wire.SnapshotReply)} == {10}


@pytest.mark.parametrize("keep", [True, False], ids=["matching log", "short log"])
def test_a_power_cut_at_any_step_leaves_the_old_or_the_new_state(keep: bool) -> None:
    steps, seen = 0, set()
    while True:
        for seed in range(3):
            bench = Bench(B, log=LOG if keep else LOG[:2])
            bench.receive(A, whole(8))
            ended = any(not step(bench) for _ in range(steps))
            bench.disk._rng = random.Random(seed)
            bench.disk.crash()
            acknowledged = any(reply.done for reply in bench.take(A, wire.SnapshotReply))
            found = recover(bench.disk, DIRECTORY, bench.limits, fsync=True, belongs=False)
            assert found.applied in (1, 8)
            assert found.applied == 8 or not acknowledged
            assert found.wal.base_index <= found.applied
            # What the log held behind the snapshot was acknowledged, too.
            assert found.wal.last_index == (10 if keep else max(4, found.applied))
            seen.add(found.applied)
        if ended:
            break
        steps += 1
    assert seen == {1, 8}


ACTIONS = st.sampled_from(
    ("disk", "bulk", "append", "old", "new", "newest", "other leader", "beat", "wait")
)


@settings(max_examples=150)
@given(st.lists(ACTIONS, max_size=40))
def test_any_order_of_steps_messages_and_leaders(actions: list[str]) -> None:
    bench = Bench(B, log=LOG)
    term, leader, commit = 1, A, bench.engine.commit
    indexes = {"old": 8, "new": 30, "newest": 45}
    for action in actions:
        if action == "disk" and bench.runtime.disk:
            bench.runtime.finish_disk()
        elif action == "bulk" and bench.runtime.bulk:
            bench.runtime.finish_bulk()
        elif action == "append":
            bench.receive(leader, append(term, 10, 1, commit=10))
        elif action in indexes:
            bench.receive(leader, whole(indexes[action], sent_in=term))
        elif action == "other leader":
            term, leader = term + 1, C if leader == A else A
        elif action == "beat":
            bench.receive(leader, append(term, 0, 0))
        elif action == "wait":
            bench.runtime.advance(0.01)
        _check(bench, commit)
        commit = bench.engine.commit
    bench.runtime.settle()
    # Whatever happened, the newest snapshot arrives when it is sent once more.
    bench.receive(leader, whole(60, sent_in=term + 1))
    bench.runtime.settle()
    _check(bench, commit)
    assert bench.application.state == [b"at 60"]


def _check(bench: Bench, commit: int) -> None:
    engine: Any = bench.engine
    application = bench.application
    assert application.faults == []
    assert bench.runtime.loop.errors == []
    assert engine.commit >= commit, "the commit index went back"
    assert application.restored == sorted(set(application.restored))
    assert engine.applied == application.index
    assert bench.wal.base_index <= engine.applied <= engine.commit <= bench.wal.last_index
