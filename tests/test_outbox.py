"""outbox.py: numbers, sending again, deadlines, and what may be called not applied."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftkv.config import Limits, RaftTimes
from raftkv.errors import (
    DiskFailed,
    NoLeader,
    OutcomeExpired,
    Overloaded,
    Refused,
    SequenceTooFar,
    SessionExpired,
    Stopped,
    Timeout,
    TooLarge,
)
from raftkv.outbox import (
    ABANDONED_KEPT_S,
    CORE_RESERVE,
    CORE_RESERVE_BYTES,
    ENVELOPE_BYTES,
    SETTLING_MAX,
    SWEEP_S,
    Outbox,
)
from raftkv.state.core import MemberRemoved, OutcomeReport, SetSetting, SettleOutcome
from raftkv.state.sessions import SESSION_WINDOW
from tests.fakes import FakeRuntime

RESEND_S = RaftTimes().resend_ms / 1000


class Say(msgspec.Struct, frozen=True, array_like=True, tag="say"):
    text: str


class Sent(NamedTuple):
    session: int
    seq: int
    floor: int
    text: Any


class Bench:
    """An outbox whose way to the leader is open, or shut, or opens for so many messages only."""

    def __init__(self, session: int = 7, window: int = SESSION_WINDOW, **limits: int) -> None:
        self.runtime = FakeRuntime()
        self.all_sent: list[Sent] = []
        self.inquiries: dict[int, tuple[int, int]] = {}
        self.messages: list[list[Sent]] = []
        self.way_open: bool | int = True
        self.outbox = Outbox(
            self.runtime,  # type: ignore[arg-type]
            Limits(**limits),
            RaftTimes(),
            self.send,
            window,
        )
        if session:
            self.outbox.open(session)

    def send(self, commands: Sequence[bytes]) -> bool:
        if not self.way_open:
            return False
        if self.way_open is not True:
            self.way_open -= 1
        decoded = [msgspec.msgpack.decode(command) for command in commands]
        self.messages.append(
            [Sent(s, q, f, msgspec.msgpack.decode(c)[-1]) for s, q, f, _, c in decoded]
        )
        self.inquiries |= {
            q: tuple(msgspec.msgpack.decode(c)[1:]) for _, q, _, p, c in decoded if p == "core"
        }
        self.all_sent += self.messages[-1]
        return True

    def settling(self) -> dict[int, tuple[int, int]]:
        """The log is asked, under these numbers, about these numbers of sessions."""
        self.runtime.run()
        return self.inquiries

    def submit(self, text: str, timeout_s: float = 5.0) -> asyncio.Future[Any]:
        return self.outbox.submit("talk", Say(text), timeout_s)

    def take(self) -> list[Sent]:
        """What was sent since the last call, flat."""
        self.runtime.run()
        messages, self.messages = self.messages, []
        return [command for message in messages for command in message]


def test_what_one_turn_submits_leaves_as_one_message_in_order() -> None:
    bench = Bench()
    for text in "abc":
        bench.submit(text)
    assert bench.messages == []
    bench.runtime.run()
    assert [[sent.text for sent in message] for message in bench.messages] == [["a", "b", "c"]]
    assert [sent.seq for sent in bench.take()] == [1, 2, 3]


def test_nothing_leaves_before_there_is_a_session() -> None:
    bench = Bench(session=0)
    future = bench.submit("early")
    assert bench.take() == []
    bench.outbox.open(9)
    assert bench.take() == [Sent(9, 1, 1, "early")]
    bench.outbox.settle(1, "done")
    assert future.result() == "done"


def test_the_floor_is_the_lowest_unanswered_number() -> None:
    bench = Bench()
    for text in "abc":
        bench.submit(text)
        bench.runtime.run()
    bench.outbox.settle(2, None)
    bench.submit("d")
    assert bench.take()[-1].floor == 1
    bench.outbox.settle(1, None)
    bench.submit("e")
    assert bench.take()[-1] == Sent(7, 5, 3, "e")


class Unkind(Refused):
    code = "unkind"


def test_answers_reach_their_own_callers_once() -> None:
    bench = Bench()
    good, bad = bench.submit("good"), bench.submit("bad")
    bench.runtime.run()
    verdict = Unkind("no", 3)
    bench.outbox.settle(2, verdict)
    bench.outbox.settle(1, 5)
    bench.outbox.settle(1, 6)
    bench.outbox.settle(99, 7)
    assert good.result() == 5
    error = bad.exception()
    assert type(error) is Unkind
    assert error.args == verdict.args
    assert error is not verdict, "each caller raises an exception of its own"
    assert (len(bench.outbox), bench.outbox.size_bytes) == (0, 0)


# Limits ------------------------------------------------------------------------------------------


def test_a_command_beyond_the_limit_is_too_large() -> None:
    bench = Bench(command_bytes_max=ENVELOPE_BYTES + 100)
    bench.submit("x" * 90)
    with pytest.raises(TooLarge, match=r"limits\.command_bytes_max is"):
        bench.submit("x" * 101)


def test_the_outbox_is_bounded_in_number_and_bytes() -> None:
    bench = Bench(outbox_commands_max=2)
    futures = [bench.submit("a"), bench.submit("b")]
    with pytest.raises(Overloaded, match="wait for some to finish"):
        bench.submit("c")
    bench.runtime.run()
    bench.outbox.settle(1, None)
    assert futures[0].done()
    bench.submit("c")
    bench = Bench(outbox_bytes_max=100)
    bench.submit("x" * 60)
    size = bench.outbox.size_bytes
    with pytest.raises(Overloaded):
        bench.submit("x" * 60)
    assert bench.outbox.size_bytes == size


def test_commands_of_the_core_find_room_behind_those_of_callers() -> None:
    """The verdict that a node is dead must not wait until callers are answered."""
    bench = Bench(outbox_commands_max=3)
    for text in "abc":
        bench.submit(text)
    # Those callers may propose as often as they like: it is the reserve of the core alone.
    for command in (SettleOutcome(1, 1), SetSetting("talk", "key", None)):
        with pytest.raises(Overloaded):
            bench.outbox.submit("core", command, 5.0)
    for number in range(CORE_RESERVE):
        bench.outbox.submit("core", MemberRemoved(f"old-{number}"), 5.0)
    with pytest.raises(Overloaded):
        bench.outbox.submit("core", MemberRemoved("old"), 5.0)
    with pytest.raises(Overloaded):
        bench.submit("d")
    assert len(bench.take()) == 3 + CORE_RESERVE


def given_up(count: int, **limits: int) -> Bench:
    """As many commands have left, and their callers have received Timeout."""
    bench = Bench(**limits)
    for number in range(count):
        bench.submit(str(number), timeout_s=1.0)
    bench.take()
    bench.runtime.advance(1.0 + 2 * SWEEP_S)
    return bench


def test_questions_about_what_was_given_up_leave_the_reserve_of_the_core() -> None:
    bench = given_up(300, outbox_commands_max=300)
    assert len(bench.settling()) == SETTLING_MAX
    for number in range(CORE_RESERVE):
        bench.outbox.submit("core", MemberRemoved(f"old-{number}"), 5.0)
    with pytest.raises(Overloaded):
        bench.outbox.submit("core", MemberRemoved("old"), 5.0)


def test_a_question_that_begins_in_a_sweep_begins_no_second_row_of_sweeps() -> None:
    bench = given_up(1_500, outbox_commands_max=2_000)
    answered: set[int] = set()
    for _ in range(4):
        for number in bench.settling().keys() - answered:
            answered.add(number)
            bench.outbox.settle(number, NOT_APPLIED)
        bench.runtime.advance(SWEEP_S)
    assert len(bench.outbox) < 1_000
    before = bench.runtime.timers_set
    bench.runtime.advance(10 * SWEEP_S)
    assert bench.runtime.timers_set - before <= 11


@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("session", [7, 0])
def test_what_was_cancelled_holds_no_bytes_until_its_deadline(left: bool, session: int) -> None:
    """A call with a time-out of an hour may have been cancelled after a second."""
    bench = Bench(session, outbox_bytes_max=100)
    bench.way_open = left
    lost = bench.submit("x" * 80, timeout_s=3_600.0)
    bench.take()
    lost.cancel()
    bench.submit("y" * 80)
    sent = int(left and session != 0)
    assert (len(bench.outbox), bench.outbox.fates.cancelled) == (1 + sent, 1 - sent)


def test_a_command_of_the_core_is_bounded_in_bytes_too() -> None:
    bench = Bench(outbox_bytes_max=100)
    bench.submit("x" * 80)
    bench.outbox.submit("core", Say("y" * 1_000), 5.0)
    with pytest.raises(Overloaded):
        bench.outbox.submit("core", Say("y" * CORE_RESERVE_BYTES), 5.0)
    with pytest.raises(Overloaded):
        bench.submit("d")


def test_what_is_given_up_holds_no_bytes() -> None:
    bench = Bench(outbox_bytes_max=100)
    lost = bench.submit("x" * 80, timeout_s=1.0)
    with pytest.raises(Overloaded):
        bench.submit("y" * 80)
    bench.take()
    bench.runtime.advance(1.1)
    assert isinstance(lost.exception(), Timeout)
    assert (len(bench.outbox), bench.outbox.size_bytes) == (1, 0)
    bench.submit("y" * 80)


@pytest.mark.parametrize("cancelled", [False, True])
def test_what_is_given_up_does_not_fill_the_queue(cancelled: bool) -> None:
    """Their outcomes can be asked for, but not at the price of all further commands."""
    bench = Bench(outbox_commands_max=8)
    futures = [bench.submit(str(number), timeout_s=1.0) for number in range(8)]
    bench.take()
    if cancelled:
        for future in futures:
            future.cancel()
    bench.runtime.advance(1.1)
    for _ in range(3):
        for number in bench.settling():
            bench.outbox.settle(number, NOT_APPLIED)
        bench.runtime.advance(2 * SWEEP_S)
    assert len(bench.outbox) == 0
    bench.submit("next")
    assert bench.take()[-1].floor > 8


def test_a_large_turn_leaves_in_pieces_that_fit() -> None:
    bench = Bench(batch_bytes_max=1000)
    for number in range(10):
        bench.submit(f"{number}" + "x" * 250)
    bench.runtime.run()
    assert [len(message) for message in bench.messages] == [3, 3, 3, 1]


# Sending again -----------------------------------------------------------------------------------


def test_silence_makes_it_send_again_ever_more_slowly() -> None:
    bench = Bench()
    bench.submit("a", timeout_s=100.0)
    times = []
    for _ in range(400):
        bench.runtime.advance(SWEEP_S)
        times += [bench.runtime.now - 1000.0 for _ in bench.take()]
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert gaps == pytest.approx([2 * RESEND_S, 4 * RESEND_S, 8 * RESEND_S], abs=0.1)
    assert bench.outbox.resends == 3


def test_another_leader_makes_it_send_everything_unanswered() -> None:
    bench = Bench()
    for text in "abc":
        bench.submit(text)
    bench.take()
    bench.outbox.settle(2, None)
    bench.outbox.office_changed()
    assert [sent.text for sent in bench.take()] == ["a", "c"]
    assert [sent.seq for sent in bench.take()] == []


def test_what_could_not_leave_leaves_when_the_way_opens() -> None:
    bench = Bench()
    bench.way_open = False
    bench.submit("a")
    assert bench.take() == []
    bench.way_open = True
    bench.runtime.advance(2 * SWEEP_S)
    assert [sent.text for sent in bench.take()] == ["a"]
    assert bench.outbox.resends == 0


# Deadlines ---------------------------------------------------------------------------------------


def test_what_never_left_is_not_applied() -> None:
    bench = Bench()
    bench.way_open = False
    future = bench.submit("a", timeout_s=1.0)
    bench.runtime.advance(1.0 + 2 * SWEEP_S)
    assert type(future.exception()) is NoLeader
    bench.way_open = True
    bench.outbox.office_changed()
    assert bench.take() == [], "it must never leave after that"


@pytest.mark.parametrize("timeout_s", [0.01, 0.4, 0.9, 3.0])
def test_a_deadline_is_met_to_the_grain_of_the_clock(timeout_s: float) -> None:
    bench = Bench()
    later, future = bench.submit("later", timeout_s + 0.1), bench.submit("it", timeout_s)
    bench.runtime.advance(timeout_s - 0.002)
    assert not future.done()
    bench.runtime.advance(0.003)
    assert isinstance(future.exception(), Timeout)
    assert not later.done()


@pytest.mark.parametrize("verdict", ["not_applied", "none"])
def test_a_process_that_stood_still_answers_its_callers_and_sends_nothing_late(
    verdict: str,
) -> None:
    bench = Bench()
    future = bench.submit("a", timeout_s=5.0)
    bench.take()
    bench.runtime.now += 5.0 + ABANDONED_KEPT_S + 1.0
    bench.runtime.advance(SWEEP_S)
    assert type(future.exception()) is Timeout
    ((question, about),) = bench.settling().items()
    assert about == (7, 1)
    bench.take()
    if verdict == "not_applied":
        bench.outbox.settle(question, OutcomeReport("not_applied"))
        bench.runtime.run()
        assert len(bench.outbox) == bench.outbox.size_bytes == 0
    bench.runtime.advance(10.0)
    assert {sent.seq for sent in bench.take()} <= {question}


def test_a_time_out_that_is_no_number_is_refused() -> None:
    """It would stand in the way of the deadlines of others, and never pass itself."""
    bench = Bench()
    bench.submit("long", timeout_s=100.0)
    with pytest.raises(ValueError, match="timeout_s"):
        bench.submit("none", timeout_s=math.nan)
    assert len(bench.outbox) == 1
    bench.take()
    short = bench.submit("short", timeout_s=1.0)
    bench.take()
    bench.runtime.advance(1.0)
    assert type(short.exception()) is Timeout


def test_after_the_end_of_a_history_nothing_of_its_session_is_sent_or_answered() -> None:
    bench = Bench()
    sent = bench.submit("a", timeout_s=60.0)
    bench.take()
    bench.way_open = False
    unsent = bench.submit("b", timeout_s=60.0)
    bench.runtime.run()
    bench.outbox.open(0)
    bench.way_open = True
    assert type(sent.exception()) is Timeout
    bench.outbox.office_changed()
    bench.runtime.advance(10.0)
    assert bench.take() == []
    assert bench.outbox.waiting() == []
    bench.outbox.open(9)
    assert [(each.session, each.seq, each.text) for each in bench.take()] == [(9, 1, "b")]
    bench.outbox.settle(1, "done")
    assert unsent.result() == "done"


def test_without_a_session_the_deadline_passes_too() -> None:
    bench = Bench(session=0)
    future = bench.submit("a", timeout_s=1.0)
    bench.runtime.advance(1.0 + 2 * SWEEP_S)
    assert type(future.exception()) is NoLeader
    bench.outbox.open(8)
    assert bench.take() == []
    assert (len(bench.outbox), bench.outbox.size_bytes) == (0, 0)


def test_what_has_left_is_unknown_and_named() -> None:
    bench = Bench()
    future = bench.submit("a", timeout_s=1.0)
    bench.runtime.advance(1.0 + 2 * SWEEP_S)
    error = future.exception()
    assert type(error) is Timeout
    assert (error.session, error.seq) == (7, 1)


def test_of_a_turn_that_left_in_part_only_the_rest_is_not_applied() -> None:
    bench = Bench(batch_bytes_max=600)
    bench.way_open = 1
    first, second = (bench.submit("x" * 500, timeout_s=0.2) for _ in range(2))
    bench.runtime.run()
    assert [len(message) for message in bench.messages] == [1]
    bench.runtime.advance(1.0)
    assert type(first.exception()) is Timeout, "it has left: nobody knows what became of it"
    assert type(second.exception()) is NoLeader


def test_an_abandoned_number_holds_the_floor_for_a_bounded_time() -> None:
    bench = Bench()
    future = bench.submit("a", timeout_s=1.0)
    bench.runtime.advance(1.0 + 2 * SWEEP_S)
    assert future.done()
    bench.outbox.settle(1, "applied at last")
    bench.submit("b")
    assert bench.take()[-1].floor == 1, "its outcome may still be asked for"
    assert bench.outbox.kind_of(1) is Say
    bench.outbox.settle(2, None)
    bench.runtime.advance(ABANDONED_KEPT_S + 2 * SWEEP_S)
    bench.submit("c")
    assert bench.take()[-1].floor == 3
    bench.outbox.settle(3, None)
    assert (len(bench.outbox), bench.outbox.size_bytes) == (0, 0)


NOT_APPLIED = OutcomeReport("not_applied")


@pytest.mark.parametrize("cancelled", [False, True])
def test_the_floor_passes_a_lost_number_only_once_the_log_has_settled_it(cancelled: bool) -> None:
    bench = Bench()
    lost = bench.submit("lost", timeout_s=0.5)
    bench.submit("other", timeout_s=0.5)
    bench.take()
    if cancelled:
        lost.cancel()
    bench.outbox.settle(2, None)
    bench.runtime.advance(0.5 + ABANDONED_KEPT_S - 0.1)
    bench.take()
    bench.runtime.advance(0.2)
    asked = bench.settling()
    assert asked == {3: (7, 1)}, "it asks the log what became of number 1"
    bench.submit("next")
    assert bench.take()[-1].floor == 1
    bench.outbox.settle(4, None)
    bench.outbox.settle(3, NOT_APPLIED)
    bench.runtime.run()
    bench.submit("last")
    assert bench.take()[-1].floor == 5
    bench.outbox.settle(5, None)
    assert (len(bench.outbox), bench.outbox.size_bytes) == (0, 0)
    bench.runtime.advance(60.0)
    assert bench.take() == []


# The window of a session -------------------------------------------------------------------------

WINDOW = 64


def flood(bench: Bench, count: int) -> list[str]:
    """Submit that many, each answered at once; the errors of those that were not taken."""
    errors = []
    for _ in range(count):
        try:
            bench.submit("x")
        except Overloaded as error:
            errors.append(str(error))
        for sent in bench.take():
            if sent.text == "x":
                bench.outbox.settle(sent.seq, None)
    return errors


def test_a_number_that_was_given_up_and_applied_does_not_fill_the_window() -> None:
    bench = Bench(window=WINDOW)
    bench.submit("slow", timeout_s=0.01)
    bench.runtime.advance(0.1)
    bench.outbox.settle(1, "applied at last")
    assert flood(bench, 5 * WINDOW) == []


def test_a_number_that_was_given_up_and_lost_is_settled_before_the_window_is_full() -> None:
    bench = Bench(window=WINDOW)
    bench.submit("lost", timeout_s=0.01)
    bench.runtime.advance(0.1)
    bench.take()
    assert flood(bench, WINDOW // 2) == []
    ((inquiry, about),) = bench.settling().items()
    assert about == (7, 1)
    bench.outbox.settle(inquiry, NOT_APPLIED)
    bench.runtime.run()
    assert flood(bench, 5 * WINDOW) == []


def test_a_full_window_is_overload_and_no_verdict() -> None:
    """The log answers everything but number 1 and what it is asked about that."""
    bench = Bench(window=WINDOW)
    slow = bench.submit("slow", timeout_s=60.0)
    bench.take()
    errors = flood(bench, 2 * WINDOW)
    assert len(errors) > WINDOW // 2
    assert "outcome of number 1 is not known yet" in errors[0]
    assert all(sent.seq - sent.floor < WINDOW for sent in bench.all_sent)
    assert bench.outbox.fates.over_window == len(errors)
    bench.outbox.settle(1, None)
    assert slow.done()
    ((question, about),) = bench.settling().items()
    assert about == (7, 1)
    bench.outbox.settle(question, OutcomeReport("applied"))
    bench.runtime.run()
    assert flood(bench, WINDOW) == []


def test_what_is_on_its_way_with_all_others_is_not_asked_about() -> None:
    bench = Bench(window=WINDOW)
    for _ in range(WINDOW - WINDOW // 8):
        bench.submit("x")
    bench.take()
    assert bench.settling() == {}
    with pytest.raises(Overloaded):
        bench.submit("x")


def test_a_number_that_later_ones_have_overtaken_is_settled_and_goes_on_under_another() -> None:
    bench = Bench(window=WINDOW)
    slow = bench.submit("slow", timeout_s=60.0)
    bench.take()
    assert flood(bench, WINDOW // 2) == []
    ((question, about),) = bench.settling().items()
    assert about == (7, 1)
    late_copy = OutcomeExpired("settled as not applied before the command arrived")
    bench.outbox.settle(question, NOT_APPLIED)
    bench.outbox.settle(1, late_copy)
    assert not slow.done()
    (again,) = [sent for sent in bench.take() if sent.text == "slow"]
    assert again.seq > WINDOW // 2
    bench.outbox.settle(1, late_copy)
    bench.outbox.settle(again.seq, "applied")
    assert slow.result() == "applied"
    assert flood(bench, 5 * WINDOW) == []
    assert (len(bench.outbox), bench.outbox.size_bytes) == (0, 0)


def test_numbers_that_were_lost_together_are_settled_together() -> None:
    bench = Bench(window=WINDOW)
    for _ in range(WINDOW // 2):
        bench.submit("lost", timeout_s=0.01)
    bench.runtime.advance(0.1)
    bench.take()
    flood(bench, 1)
    assert len(bench.settling()) == WINDOW // 8, "bounded, and more than one"


def test_what_was_not_judged_is_no_answer() -> None:
    bench = Bench()
    future = bench.submit("a")
    bench.take()
    bench.outbox.settle(1, SequenceTooFar("seq 1 is too far"))
    assert not future.done()
    bench.outbox.office_changed()
    assert [sent.seq for sent in bench.take()] == [1]
    bench.outbox.settle(1, "applied")
    assert future.result() == "applied"


# The end of a session, the end of the node -------------------------------------------------------


class CountedTime(float):
    """A point in time, or a duration, that counts how often it is compared."""

    compared = 0

    def __radd__(self, other: float) -> CountedTime:
        return CountedTime(float(other) + float(self))

    def __lt__(self, other: float) -> bool:
        CountedTime.compared += 1
        return float(self) < float(other)

    def __le__(self, other: float) -> bool:
        CountedTime.compared += 1
        return float(self) <= float(other)

    def __gt__(self, other: float) -> bool:
        CountedTime.compared += 1
        return float(self) > float(other)

    def __ge__(self, other: float) -> bool:
        CountedTime.compared += 1
        return float(self) >= float(other)


class Untouched(dict[Any, Any]):
    """Whose keys and values must not be gone through."""

    def values(self) -> Any:
        raise AssertionError("a look at everything that is under way")

    items = __iter__ = values  # type: ignore[assignment]


@pytest.mark.parametrize("way_open", [True, False])
def test_a_sweep_costs_no_step_for_each_command_under_way(way_open: bool) -> None:
    bench, messages = Bench(batch_bytes_max=1000, command_bytes_max=1000), 0
    bench.way_open = way_open
    for _ in range(2_000):
        bench.submit("x", timeout_s=500.0)
    bench.take()

    def send(commands: Sequence[bytes]) -> bool:
        nonlocal messages
        messages += 1
        return way_open

    bench.outbox._resending._send = send
    bench.outbox._sent = Untouched(bench.outbox._sent)
    bench.runtime.advance(0.9 * RESEND_S)
    assert messages <= (0 if way_open else 1.0 * RESEND_S / SWEEP_S), "one attempt in a sweep"


@pytest.mark.parametrize("timeout_s", [0.4, 5.0])
def test_short_deadlines_cost_each_command_a_constant_number_of_steps(timeout_s: float) -> None:
    """500 commands always wait and each is answered in time: timers and comparisons are counted."""
    bench, count, in_flight = Bench(), 5_000, 500
    CountedTime.compared = 0
    before = bench.runtime.timers_set
    for number in range(1, count + 1):
        bench.submit("x", timeout_s=CountedTime(timeout_s))
        bench.take()
        if number > in_flight:
            bench.outbox.settle(number - in_flight, None)
        bench.runtime.advance(0.0002)
    assert bench.runtime.timers_set - before < 100, "one timer for all deadlines"
    assert CountedTime.compared < 20 * count, "no command looks at all that wait"
    assert bench.outbox.fates.failures == 0


def test_a_command_sent_once_moves_to_the_new_session() -> None:
    bench = Bench()
    future = bench.submit("a")
    bench.take()
    bench.outbox.settle(1, SessionExpired("gone"))
    assert not future.done()
    bench.outbox.open(8)
    assert bench.take() == [Sent(8, 1, 1, "a")]
    bench.outbox.settle(1, "done")
    assert future.result() == "done"


def test_a_command_sent_twice_may_have_been_applied_under_the_old_session() -> None:
    """SessionExpired is a verdict ("it will be refused again"); this one is unknown."""
    bench = Bench()
    future = bench.submit("a")
    bench.take()
    bench.outbox.office_changed()
    bench.take()
    bench.outbox.settle(1, SessionExpired("gone"))
    error = future.exception()
    assert type(error) is Timeout
    assert (error.session, error.seq) == (7, 1)


def test_a_new_session_leaves_what_was_on_its_way_unknown() -> None:
    bench = Bench()
    sent = bench.submit("sent")
    bench.take()
    bench.way_open = False
    kept = bench.submit("kept")
    bench.runtime.run()
    bench.way_open = True
    bench.outbox.open(8)
    error = sent.exception()
    assert type(error) is Timeout
    assert (error.session, error.seq) == (7, 1)
    assert bench.take() == [Sent(8, 1, 1, "kept")]
    assert not kept.done()


def test_stopping_answers_everybody() -> None:
    bench = Bench()
    sent = bench.submit("sent")
    bench.take()
    bench.way_open = False
    stuck = bench.submit("stuck")
    bench.runtime.run()
    fresh = bench.submit("fresh")
    bench.outbox.stop()
    assert [type(f.exception()) for f in (sent, stuck, fresh)] == [Timeout, Stopped, Stopped]
    with pytest.raises(Stopped):
        bench.submit("late")
    bench.runtime.advance(10.0)
    assert bench.take() == []


def test_d3_a_fault_answers_everybody_with_its_cause() -> None:
    bench = Bench()
    sent = bench.submit("sent")
    bench.take()
    bench.way_open = False
    unsent = [bench.submit("stuck"), bench.submit("too")]
    fault = DiskFailed("a disk of this test")
    bench.outbox.stop(fault)
    unknown = sent.exception()
    assert type(unknown) is Timeout
    assert "a disk of this test" in str(unknown)
    assert unknown.__cause__ is fault
    errors = [future.exception() for future in unsent]
    assert [type(error) for error in errors] == [DiskFailed] * 2
    assert len({id(error) for error in (fault, *errors)}) == 3, "each has one of its own"


def test_a_caller_who_went_away_holds_no_room() -> None:
    bench = Bench()
    unsent, sent = Bench(session=0), bench.submit("a")
    unsent.submit("b").cancel()
    unsent.outbox.open(3)
    assert unsent.take() == []
    assert unsent.outbox.size_bytes == 0
    bench.take()
    sent.cancel()
    bench.outbox.settle(1, None)
    assert (len(bench.outbox), bench.outbox.size_bytes) == (0, 0)


# Any order of events -----------------------------------------------------------------------------

EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), st.integers(0, 3)),
        st.tuples(st.just("way"), st.sampled_from([True, False, 1])),
        st.tuples(st.just("wait"), st.floats(0.01, 1.5)),
        st.tuples(st.just("apply"), st.integers(0, 20)),
        st.tuples(st.just("office"), st.just(0)),
    ),
    max_size=30,
)


@given(EVENTS)
def test_nothing_is_lost_doubled_or_wrongly_called_not_applied(
    events: list[tuple[str, Any]],
) -> None:
    bench = Bench(batch_bytes_max=300)
    futures: dict[str, asyncio.Future[Any]] = {}
    left: set[str] = set()
    applied: dict[str, int] = {}
    for kind, argument in [*events, ("way", True), ("wait", 60.0)]:
        if kind == "submit":
            text = f"{len(futures)}" + "x" * 60 * argument
            futures[text] = bench.submit(text, timeout_s=1.0 + argument)
        elif kind == "way":
            bench.way_open = argument
        elif kind == "wait":
            bench.runtime.advance(argument)
        elif kind == "office":
            bench.outbox.office_changed()
        messages = [sent for sent in bench.take() if isinstance(sent.text, str)]
        assert all(sent.floor <= sent.seq for sent in messages)
        for sent in messages:
            assert applied.setdefault(sent.text, sent.seq) == sent.seq, "one command, two numbers"
        left |= {sent.text for sent in messages}
        if kind == "apply" and left:
            text = sorted(left)[argument % len(left)]
            bench.outbox.settle(applied[text], text)
    while bench.inquiries:
        bench.outbox.settle(bench.inquiries.popitem()[0], NOT_APPLIED)
        bench.runtime.advance(2.0)
    for text, future in futures.items():
        error = future.exception()
        if error is None:
            assert future.result() == text
        else:
            assert type(error) is (Timeout if text in left else NoLeader)
    assert (len(bench.outbox), bench.outbox.size_bytes) == (0, 0)


def test_settling_leaves_the_last_numbers_of_the_window_to_what_holds_the_floor() -> None:
    bench = Bench(window=64)
    bench.outbox.submit("talk", Say("never taken"), 200.0)
    bench.runtime.run()
    settled: set[int] = set()

    def answer() -> None:
        for number, (_, seq) in list(bench.settling().items()):
            if number not in settled:
                settled.add(number)
                bench.outbox.settle(number, OutcomeReport("not_applied"))
                if seq != 1:
                    bench.outbox.settle(seq, None)
        bench.runtime.run()

    for number in range(54):
        bench.outbox.submit("talk", Say(f"s{number}"), 1.0)
    bench.runtime.run()
    for _ in range(400):
        bench.runtime.advance(1.0)
        answer()
    bench.outbox.submit("talk", Say("again"), 1.0)


def test_a_question_about_a_number_beyond_the_window_is_answered() -> None:
    bench = Bench()
    asked = bench.outbox.submit("core", SettleOutcome(7, 10**6), 5.0)
    bench.runtime.run()
    bench.outbox.settle(1, SequenceTooFar("seq 1000000 is 1000000 above the floor"))
    assert isinstance(asked.exception(), SequenceTooFar)
