"""No tick of the engine takes long, however much has gathered."""

from __future__ import annotations

from typing import Any

import msgspec

from raftkv.config import Limits, RaftTimes
from raftkv.logclock import LogClock
from raftkv.outbox import Outbox
from raftkv.raft import leading, wire
from raftkv.raft.engine import APPLY_S_PER_TICK, INBOX_S_PER_TICK
from raftkv.reading import Reader
from raftkv.replica import Replica
from raftkv.state.machine import StateMachine
from tests.raft.harness import MAX_S, A, B, Bench, C, accepted, append, batch


class SlowClock:
    """The clock of a bench, which goes on by so much whenever it is looked at."""

    def __init__(self, bench: Bench, step_s: float) -> None:
        self.step_s = step_s
        self._runtime = bench.runtime
        bench.runtime.monotonic = self.look  # type: ignore[method-assign]

    def look(self) -> float:
        self._runtime.now += self.step_s
        return self._runtime.now


def test_applying_ends_when_its_time_is_over() -> None:
    log = [(1, batch(str(number))) for number in range(3, 33)]
    bench = Bench(B, log=log)
    SlowClock(bench, APPLY_S_PER_TICK / 2)
    bench.engine.receive(bench.links[A], append(1, 32, 1, commit=32))  # type: ignore[arg-type]
    bench.engine._run_tick()
    assert 2 <= bench.engine.applied <= 5
    bench.runtime.run()
    assert bench.engine.applied == 32


def test_messages_that_are_left_come_in_the_next_tick_and_the_deadline_waits_for_them() -> None:
    """Rule 27: what has arrived is looked at before this node decides to campaign."""
    bench = Bench(B, log=[(1, batch(str(number))) for number in range(3, 13)])
    clock = SlowClock(bench, 2 * INBOX_S_PER_TICK)
    peers: Any = bench.links
    # The first one says nothing of a leader.
    bench.engine.receive(peers[C], wire.VoteReply(1, 0, 0, True, False))
    for prev in range(2, 12):
        entry = (1, batch(str(prev + 1)))
        bench.engine.receive(peers[A], append(1, prev, 1, [entry], commit=prev))
    bench.runtime.now += 2 * MAX_S
    bench.engine._run_tick()
    assert len(bench.engine._inbox) == 10, "one message was handled"
    assert bench.engine.role == 0, "it campaigns although its leader's messages wait"
    bench.runtime.settle()
    assert bench.engine.commit == 11
    assert bench.engine.role == 0
    clock.step_s = 0.0


def test_one_message_holds_a_bounded_number_of_entries_and_bytes() -> None:
    size = leading.MESSAGE_BYTES_MAX // 8
    log = [(1, b"\0" + bytes(size)) for _ in range(20)]
    log += [(1, batch(str(number))) for number in range(2000)]
    bench = Bench(A, log=log)
    term = bench.elect()
    last = bench.wal.last_index
    bench.take(B), bench.take(C)
    bench.receive(B, wire.AppendReply(term, False, last - 1, 0, 0, 3))
    match, messages = 2, []
    while match < last:
        appends = [message for message in bench.take(B, wire.Append) if message.entries]
        assert appends, "nothing more is sent"
        for message in appends:
            messages.append(message)
            match = max(match, message.prev_index + len(message.entries))
            bench.receive(B, accepted(term, match))
    assert max(len(message.entries) for message in messages) <= leading.MESSAGE_ENTRIES_MAX
    sizes = [sum(len(payload) for _, payload in message.entries) for message in messages]
    assert max(sizes) <= leading.MESSAGE_BYTES_MAX


def test_one_entry_holds_a_bounded_number_of_commands() -> None:
    bench = Bench(A, limits=Limits())
    bench.lead()
    first = bench.wal.last_index + 1
    bench.engine.propose([b"x"] * (2 * leading.BATCH_COMMANDS_MAX + 1))
    bench.runtime.settle()
    counts = [entry.payload.count(b"x") for entry in bench.wal.entries(first)]
    assert counts == [leading.BATCH_COMMANDS_MAX, leading.BATCH_COMMANDS_MAX, 1]


def test_a_new_leaders_clock_needs_only_the_newest_batch() -> None:
    """The stamps of a log never fall: a long tail is not read at an election (rule 19)."""
    stamp = 1_900_000_000_000
    body = msgspec.msgpack.encode((stamp, []))
    bench = Bench(A, log=[(1, b"not read"), (1, b"\0" + body), (1, b"\x01")])
    runtime = bench.runtime
    clock = LogClock(runtime)  # type: ignore[arg-type]
    outbox = Outbox(runtime, Limits(), RaftTimes(), lambda commands: True)  # type: ignore[arg-type]
    reader = Reader(runtime, RaftTimes(), lambda number: True)  # type: ignore[arg-type]
    Replica(StateMachine([]), clock, outbox, reader).elected(bench.wal)
    assert clock.now_ms() >= stamp
    assert [entry.index for entry in bench.wal.newest_first(4)] == [5, 4]
    assert [entry.index for entry in bench.wal.newest_first(1)] == [5, 4, 3, 2]
