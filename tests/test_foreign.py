"""foreign.py: clients' commands at one node, what may be called not applied, and the bounds."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import pytest

from raftkv.config import Limits, RaftTimes
from raftkv.errors import (
    DiskFailed,
    InvalidSetting,
    NoLeader,
    NumberReused,
    Overloaded,
    Refused,
    SequenceTooFar,
    SessionExpired,
    Stopped,
    Timeout,
    TooLarge,
)
from raftkv.foreign import Foreign, Ticket
from raftkv.outbox import SWEEP_S
from raftkv.state.core import OpenSessionResult
from raftkv.state.tables import ABSENT
from tests.fakes import FakeRuntime
from tests.test_outbox import CountedTime, Untouched

RESEND_S = RaftTimes().resend_ms / 1000


class Said(msgspec.Struct, frozen=True, array_like=True, tag="said"):
    text: str


class Say(msgspec.Struct, frozen=True, array_like=True, tag="say"):
    Result = Said
    text: str


class Note(msgspec.Struct, frozen=True, array_like=True, tag="note"):
    Result = None
    text: str


class Sent(NamedTuple):
    session: int
    seq: int
    floor: int
    text: str


class FakeMachine:
    """What a snapshot has put in the place of the state."""

    def __init__(self) -> None:
        self.outcomes: dict[tuple[int, int], Any] = {}
        self.sessions: dict[int, int] = {}  # nonce -> session

    def recall(self, session: int, seq: int, kind: Any) -> Any:
        return self.outcomes.get((session, seq), ABSENT)

    def client_session(self, nonce: int) -> OpenSessionResult | None:
        session = self.sessions.get(nonce)
        return None if session is None else OpenSessionResult(session)

    def client_nonce(self, session: int) -> int | None:
        return next((n for n, each in self.sessions.items() if each == session), None)


class Bench:
    """Clients' commands at a node whose way to the leader is open or shut."""

    def __init__(self, **limits: int) -> None:
        self.runtime = FakeRuntime()
        self.machine = FakeMachine()
        self.messages: list[list[Sent]] = []
        self.way_open = True
        self.foreign = Foreign(
            self.runtime,  # type: ignore[arg-type]
            Limits(**limits),
            RaftTimes(),
            self.machine,  # type: ignore[arg-type]
            self.send,
        )

    def send(self, commands: Sequence[bytes]) -> bool:
        if not self.way_open:
            return False
        decoded = [msgspec.msgpack.decode(command) for command in commands]
        self.messages.append(
            [Sent(s, q, f, msgspec.msgpack.decode(c)[1]) for s, q, f, _, c in decoded]
        )
        return True

    def submit(
        self, seq: int = 1, text: str = "a", timeout_s: float = 5.0, kind: Any = Say
    ) -> asyncio.Future[Any]:
        return self.foreign.submit(Ticket(7, seq, 1), "talk", kind(text), timeout_s)

    def take(self) -> list[Sent]:
        """What was sent since the last call, flat."""
        self.runtime.run()
        messages, self.messages = self.messages, []
        return [command for message in messages for command in message]


def test_what_one_turn_submits_leaves_as_one_message_under_the_clients_numbers() -> None:
    bench = Bench()
    futures = [bench.submit(seq, text) for seq, text in ((9, "a"), (4, "b"))]
    bench.runtime.run()
    assert bench.messages == [[Sent(7, 9, 1, "a"), Sent(7, 4, 1, "b")]]
    bench.foreign.settle(7, 4, Said("b"))
    bench.foreign.settle(7, 5, Said("nobody waits"))
    bench.foreign.settle(8, 9, Said("another session"))
    assert futures[1].result() == Said("b")
    assert not futures[0].done()
    assert len(bench.foreign) == 1


def test_a_repetition_joins_the_one_that_waits() -> None:
    bench = Bench()
    first, second = bench.submit(), bench.submit()
    assert len(bench.take()) == 1
    bench.foreign.settle(7, 1, Said("a"))
    assert first.result() == second.result() == Said("a")
    assert bench.foreign.size_bytes == 0


def test_another_command_does_not_join_the_one_that_waits() -> None:
    bench = Bench()
    first = bench.submit()
    with pytest.raises(NumberReused):
        bench.submit(kind=Note)
    with pytest.raises(NumberReused):
        bench.submit(text="b")
    bench.foreign.settle(7, 1, Said("a"))
    assert first.result() == Said("a")


def test_a_ticket_is_for_one_command() -> None:
    bench = Bench()
    ticket = Ticket(7, 1, 1)
    bench.foreign.submit(ticket, "talk", Say("a"), 5)
    with pytest.raises(RuntimeError):
        bench.foreign.submit(ticket, "talk", Say("b"), 5)


def test_each_caller_gets_a_refusal_of_its_own() -> None:
    bench = Bench()
    first, second = bench.submit(), bench.submit()
    bench.foreign.settle(7, 1, SequenceTooFar("too far"))
    errors = [first.exception(), second.exception()]
    assert all(isinstance(each, SequenceTooFar) and each.args == ("too far",) for each in errors)
    assert errors[0] is not errors[1]


@pytest.mark.parametrize(
    ("kind", "outcome", "fits"),
    [
        (Say, Said("x"), True),
        (Say, None, False),
        (Say, ["plain", "data"], False),
        (Note, None, True),
        (Note, Said("x"), False),
    ],
)
def test_an_outcome_of_another_command_is_not_taken_for_the_answer(
    kind: Any, outcome: Any, fits: bool
) -> None:
    bench = Bench()
    future = bench.submit(kind=kind)
    bench.foreign.settle(7, 1, outcome)
    assert isinstance(future.exception(), NumberReused) is not fits


def test_what_is_unanswered_is_sent_again_and_at_once_to_a_new_leader() -> None:
    bench = Bench()
    bench.submit(timeout_s=60)
    assert len(bench.take()) == 1
    bench.runtime.advance(RESEND_S)
    assert bench.take() == []
    bench.runtime.advance(RESEND_S + SWEEP_S)
    assert len(bench.take()) == 1
    bench.foreign.office_changed()
    assert len(bench.take()) == 1
    assert bench.foreign.resends == 2


def test_a_deadline_tells_whether_the_command_has_left() -> None:
    bench = Bench()
    sent = bench.submit(1, timeout_s=1.0)
    bench.runtime.run()
    bench.way_open = False
    kept = bench.submit(2, timeout_s=1.0)
    longer = bench.submit(1, timeout_s=60)
    bench.runtime.advance(1.0 + SWEEP_S)
    assert type(sent.exception()) is Timeout
    assert type(kept.exception()) is NoLeader
    assert not longer.done()
    bench.way_open = True
    bench.take()
    bench.foreign.settle(7, 1, Said("a"))
    assert longer.result() == Said("a")
    assert len(bench.foreign) == 0


def test_a_caller_that_has_left_is_forgotten() -> None:
    bench = Bench()
    bench.submit(timeout_s=60).cancel()
    bench.runtime.advance(2 * SWEEP_S)
    assert len(bench.foreign) == bench.foreign.size_bytes == 0
    assert bench.foreign.fates.cancelled == 1


def test_a_caller_that_leaves_while_its_command_is_on_its_way_is_forgotten_too() -> None:
    bench = Bench()
    future = bench.submit(timeout_s=60)
    bench.take()
    future.cancel()
    bench.runtime.advance(2 * RESEND_S + 2 * SWEEP_S)
    assert bench.take() == []
    assert len(bench.foreign) == bench.foreign.size_bytes == 0
    assert bench.foreign.fates.cancelled == 1


def test_a_sweep_costs_no_step_for_each_command_that_waits() -> None:
    """As in the proposal queue of the node itself: times are counted when they are compared."""
    bench, count = Bench(), 2_000
    for seq in range(1, count + 1):
        bench.submit(seq, timeout_s=CountedTime(500.0))
    bench.take()
    bench.runtime.advance(0.9 * RESEND_S)
    CountedTime.compared = 0
    bench.foreign.waiting = Untouched(bench.foreign.waiting)
    bench.runtime.advance(0.9 * RESEND_S)
    assert CountedTime.compared == 0
    assert bench.take() == []


def test_commands_are_bounded_by_number_and_size() -> None:
    bench = Bench(outbox_commands_max=2)
    bench.submit(1)
    bench.submit(2)
    with pytest.raises(Overloaded):
        bench.submit(3)
    bench.submit(2)  # joins
    small = Bench(outbox_bytes_max=1000, command_bytes_max=1000, batch_bytes_max=1000)
    small.submit(1, "x" * 500)
    with pytest.raises(Overloaded):
        small.submit(2, "x" * 500)
    with pytest.raises(TooLarge):
        small.submit(3, "x" * 900)
    assert bench.foreign.fates.over_commands_max == small.foreign.fates.over_bytes_max == 1
    assert small.foreign.fates.too_large == 1


def test_messages_between_nodes_are_bounded() -> None:
    bench = Bench(batch_bytes_max=2000, command_bytes_max=2000)
    for seq in range(1, 6):
        bench.submit(seq, "x" * 700)
    bench.runtime.run()
    assert [len(message) for message in bench.messages] == [2, 2, 1]


def test_a_snapshot_settles_what_it_has_jumped_over() -> None:
    bench = Bench()
    futures = [bench.submit(seq) for seq in range(1, 7)]
    bench.take()
    bench.machine.outcomes = {
        # Of a floor that has risen since the snapshot was taken: no verdict.
        (7, 6): SequenceTooFar("not judged"),
        (7, 1): Said("applied"),
        (7, 2): InvalidSetting("refused"),
        # It may have been applied before the session ended, in what was jumped over.
        (7, 3): SessionExpired("gone"),
    }
    bench.foreign.restored()
    assert futures[0].result() == Said("applied")
    assert isinstance(futures[1].exception(), InvalidSetting)
    assert not futures[5].done()
    assert type(futures[2].exception()) is Timeout
    assert not futures[3].done()
    # An entry says so: then it certainly was not applied.
    bench.foreign.settle(7, 4, SessionExpired("gone"))
    assert isinstance(futures[3].exception(), SessionExpired)
    assert not futures[4].done()


def test_very_many_are_settled_in_slices() -> None:
    bench = Bench()
    futures = [bench.submit(seq) for seq in range(1, 5001)]
    bench.take()
    bench.machine.outcomes = {(7, seq): Said("x") for seq in range(1, 5001)}
    bench.foreign.restored()
    assert sum(future.done() for future in futures) == 2000
    bench.foreign.settle(7, 4999, Said("meanwhile"))
    bench.runtime.run()
    assert all(future.done() for future in futures)


def test_what_was_not_looked_up_yet_may_have_been_applied_under_an_ended_session() -> None:
    bench = Bench()
    twice = [bench.submit(seq) for seq in range(1, 2002)]
    bench.take()
    bench.foreign.office_changed()
    once = bench.submit(2002)
    bench.take()
    bench.foreign.restored()
    for seq in (2001, 2002):
        bench.foreign.settle(7, seq, SessionExpired("gone"))
    # A first copy may be in the entries that the snapshot has jumped over.
    assert type(twice[-1].exception()) is Timeout
    assert type(once.exception()) is SessionExpired
    bench.runtime.run()
    bench.foreign.settle(7, 1, SessionExpired("gone"))
    assert type(twice[0].exception()) is SessionExpired


def test_the_end_says_what_may_have_happened() -> None:
    bench = Bench()
    sent = bench.submit(1)
    bench.take()
    bench.way_open = False
    kept = bench.submit(2)
    bench.foreign.stop()
    assert type(sent.exception()) is Timeout
    assert type(kept.exception()) is Stopped
    with pytest.raises(Stopped):
        bench.submit(3)
    other = Bench()
    lost = other.submit(1)
    other.take()
    other.foreign.history_ended()
    assert type(lost.exception()) is Timeout
    assert len(other.foreign) == other.foreign.size_bytes == 0


def test_d3_a_fault_is_named_by_what_it_cuts_off() -> None:
    bench = Bench()
    sent = bench.submit(1)
    bench.take()
    bench.way_open = False
    kept = bench.submit(2)
    bench.foreign.stop(DiskFailed("a disk of this test"))
    assert type(sent.exception()) is Timeout
    assert "a disk of this test" in str(sent.exception())
    assert type(kept.exception()) is DiskFailed


@pytest.mark.parametrize("restored", [False, True])
def test_a_session_is_opened_under_a_nonce_that_its_handle_shows(restored: bool) -> None:
    bench = Bench()
    opening = bench.runtime.spawn(bench.foreign.open_session(5), "open")
    ((session, nonce, _, sent_nonce),) = bench.take()
    assert session == 0
    assert str(nonce) == str(sent_nonce)
    if restored:
        bench.foreign.restored()
        bench.runtime.run()
        assert not opening.done()
        bench.machine.sessions[nonce] = 41
        bench.foreign.restored()
    else:
        bench.machine.sessions[nonce] = 41
        bench.foreign.settle(0, nonce, OpenSessionResult(41))
    bench.runtime.run()
    assert opening.result() == f"41-{nonce:016x}"
    assert bench.foreign.knows(41, nonce)
    assert not bench.foreign.knows(41, nonce + 1)
    assert not bench.foreign.knows(40, nonce)


def test_number_reused_is_a_refusal() -> None:
    assert issubclass(NumberReused, Refused)
