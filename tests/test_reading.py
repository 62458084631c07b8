"""reading.py: readers share questions, and any answer to their own question will do."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftkv.config import RaftTimes
from raftkv.errors import DiskFailed, ReadTimeout, Stopped
from raftkv.reading import ASK_AGAIN_S, LAPSED_KEPT, Reader
from tests.fakes import FakeRuntime


class Bench:
    def __init__(self) -> None:
        self.runtime = FakeRuntime()
        self.asked: list[int] = []
        self.reader = Reader(self.runtime, RaftTimes(), self.ask)  # type: ignore[arg-type]

    def ask(self, number: int) -> bool:
        self.asked.append(number)
        return True

    def read(self, timeout_s: float = 5.0) -> asyncio.Future[None]:
        future = self.reader.barrier(timeout_s)
        self.runtime.run()
        return future

    def timers(self) -> int:
        return sum(not timer.cancelled for *_, timer in self.runtime._timers)

    def answer(self, number: int, index: int) -> None:
        self.reader.answered(number, index)
        self.runtime.run()


def test_a_reader_waits_for_the_answer_and_for_its_own_state() -> None:
    bench = Bench()
    reading = bench.read()
    assert bench.asked == [1]
    bench.answer(1, 5)
    assert not reading.done()
    bench.reader.applied(4)
    bench.runtime.run()
    assert not reading.done()
    bench.reader.applied(5)
    bench.runtime.run()
    assert reading.done()
    reading = bench.read()
    bench.answer(2, 5)
    assert reading.done(), "the state is there already"


def test_readers_of_one_turn_share_a_question() -> None:
    bench = Bench()
    reading = [bench.reader.barrier(5.0) for _ in range(50)]
    bench.runtime.run()
    assert bench.asked == [1]
    bench.reader.applied(9)
    bench.answer(1, 9)
    assert all(task.done() for task in reading)


def test_who_comes_during_a_question_waits_for_the_next() -> None:
    """The answer under way may have been fixed before the newcomer's own write."""
    bench = Bench()
    bench.reader.applied(9)
    early, late = bench.read(), bench.read()
    assert bench.asked == [1]
    bench.answer(1, 5)
    assert early.done()
    assert not late.done()
    assert bench.asked == [1, 2]
    bench.answer(1, 6)
    assert not late.done(), "an answer to the first question says nothing to the second's readers"
    bench.answer(2, 6)
    assert late.done()


def test_silence_makes_it_ask_again() -> None:
    bench = Bench()
    bench.read()
    bench.runtime.advance(ASK_AGAIN_S * 3.5)
    assert bench.asked == [1, 2, 3, 4]


def test_a_slow_answer_counts_although_the_question_was_repeated() -> None:
    """Else a cluster whose disks need longer than one repetition could never read."""
    bench = Bench()
    bench.reader.applied(9)
    reading = bench.read()
    bench.runtime.advance(ASK_AGAIN_S * 1.5)
    assert bench.asked == [1, 2]
    bench.answer(1, 9)
    assert reading.done()


def test_changes_of_leader_do_not_multiply_the_questions() -> None:
    bench = Bench()
    bench.read()
    for _ in range(5):
        bench.reader.office_changed()
    before = len(bench.asked)
    bench.runtime.advance(ASK_AGAIN_S * 4.5)
    assert len(bench.asked) - before == 4


def test_no_for_an_answer_means_asking_again() -> None:
    bench = Bench()
    reading = bench.read()
    bench.answer(1, 0)
    assert not reading.done()
    bench.runtime.advance(ASK_AGAIN_S * 1.1)
    bench.reader.applied(3)
    bench.answer(bench.asked[-1], 3)
    assert reading.done()


def test_a_deadline_ends_one_reader_and_not_the_others() -> None:
    bench = Bench()
    short, long = bench.read(0.25), bench.read(10.0)
    bench.runtime.advance(0.3)
    assert isinstance(short.exception(), ReadTimeout)
    assert not long.done()
    bench.runtime.advance(ASK_AGAIN_S)
    bench.reader.applied(3)
    bench.answer(bench.asked[-1], 3)
    assert long.done()
    before = len(bench.asked)
    bench.runtime.advance(5.0)
    assert len(bench.asked) == before, "nobody waits, nobody asks"


def test_a_deadline_counts_while_the_state_is_behind() -> None:
    bench = Bench()
    reading = bench.read(0.5)
    bench.answer(1, 100)
    bench.runtime.advance(0.6)
    assert isinstance(reading.exception(), ReadTimeout)
    bench.reader.applied(100)
    bench.runtime.run()


def test_every_deadline_is_met_in_whatever_order_they_come() -> None:
    """One alarm stands for all readers: at the earliest deadline of those who still wait."""
    bench = Bench()
    reading = {timeout_s: bench.read(timeout_s) for timeout_s in (3.0, 0.5, 9.0, 1.5)}
    behind = bench.runtime.spawn(bench.reader.reach(7, 2.5), "reach")
    for ended, timeout_s in enumerate((0.5, 1.5, 3.0, 9.0), start=1):
        bench.runtime.advance(timeout_s - 0.01 - (bench.runtime.now - 1000.0))
        assert sum(future.done() for future in reading.values()) == ended - 1
        bench.runtime.advance(0.02)
        assert isinstance(reading[timeout_s].exception(), ReadTimeout)
    assert isinstance(behind.exception(), ReadTimeout)


def test_a_reader_that_goes_away_holds_up_nobody() -> None:
    bench = Bench()
    gone, stays = bench.read(0.5), bench.read(0.6)
    gone.cancel()
    bench.runtime.advance(0.7)
    assert isinstance(stays.exception(), ReadTimeout)
    bench.answer(bench.asked[-1], 3)
    assert gone.cancelled()


def test_answered_readers_leave_no_alarms_behind() -> None:
    """A timer for each of the reads of five seconds would be a million timers."""
    bench = Bench()
    bench.reader.applied(9)
    for _ in range(100):
        reading = bench.read(5.0)
        bench.answer(bench.asked[-1], 9)
        assert reading.done()
    assert bench.timers() == 1
    bench.runtime.advance(11.0)
    assert bench.timers() == 0


class CountedFuture(asyncio.Future[None]):
    """A future that counts how often it is looked at."""

    looked = 0

    def done(self) -> bool:
        CountedFuture.looked += 1
        return super().done()


@pytest.mark.parametrize("behind", [False, True])
def test_readers_that_time_out_one_by_one_do_not_look_at_all_the_others(
    behind: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a quorum all of them wait until their deadlines, each its own."""
    bench, count = Bench(), 2_000
    monkeypatch.setattr(bench.runtime, "future", lambda: CountedFuture(loop=bench.runtime.loop))
    readers = [bench.reader.barrier(1.0 + 0.002 * number) for number in range(count)]
    bench.runtime.run()
    if behind:
        bench.answer(bench.asked[-1], 100)
    CountedFuture.looked = 0
    bench.runtime.advance(10.0)
    assert all(isinstance(reader.exception(), ReadTimeout) for reader in readers)
    # Repeating the question looks at all that still wait, ten times a second.
    repeats = 0 if behind else count * (len(bench.asked) + 1)
    assert CountedFuture.looked < 40 * count + repeats


@pytest.mark.parametrize("cancelled", [True, False])
def test_readers_that_are_over_do_not_gather_behind_an_unanswered_question(
    cancelled: bool,
) -> None:
    bench = Bench()
    bench.reader.barrier(1000.0)
    bench.runtime.run()
    for _ in range(20 * LAPSED_KEPT):
        future = bench.reader.barrier(0.05)
        if cancelled:
            future.cancel()
        bench.runtime.advance(0.01)
    assert len(bench.reader._waiting) <= 2 * LAPSED_KEPT


def test_stopping_answers_everybody() -> None:
    bench = Bench()
    behind = bench.read()
    bench.answer(1, 100)
    asking, waiting = bench.read(), bench.read()
    bench.reader.stop()
    bench.runtime.run()
    for task in (behind, asking, waiting):
        assert isinstance(task.exception(), Stopped)
    with pytest.raises(Stopped):
        bench.read()


def test_d4_a_fault_answers_each_read_with_an_error_of_its_own() -> None:
    bench = Bench()
    tasks = [bench.read() for _ in range(3)]
    fault = DiskFailed("a disk of this test")
    bench.reader.stop(fault)
    bench.runtime.run()
    errors = [task.exception() for task in tasks]
    assert {type(error) for error in errors} == {DiskFailed}
    assert {error.__cause__ for error in errors if error} == {fault}
    assert len({id(error) for error in (fault, *errors)}) == 4


KINDS = ("read", "commit", "office", "answer", "late answer", "refuse", "apply", "wait")
STEPS = st.tuples(st.sampled_from(KINDS), st.integers(0, 5))


@settings(max_examples=400)
@given(st.lists(STEPS, max_size=80))
def test_whoever_is_answered_reads_all_that_was_committed_before_he_asked(
    steps: list[tuple[str, int]],
) -> None:
    """Answers come in any order, late or never; leaders change; the state trails the log.

    A leader answers with what was committed when the question was asked, or later.
    """
    bench = Bench()
    committed, applied, asked_at = 1, 1, dict[int, int]()
    reads: list[tuple[asyncio.Future[None], int]] = []
    bench.reader.applied(applied)
    for step, chance in steps:
        if step == "read":
            reads.append((bench.read(1e6), committed))
        elif step == "commit":
            committed += 1
        elif step == "office":
            bench.reader.office_changed()
        elif step == "apply":
            applied = min(committed, applied + chance % 4)
            bench.reader.applied(applied)
        elif step == "wait":
            bench.runtime.advance(chance % 3 * ASK_AGAIN_S)
        elif bench.asked:
            number = bench.asked[-1] if step == "answer" else bench.asked[chance % len(bench.asked)]
            low = asked_at[number]
            index = 0 if step == "refuse" else low + chance % (committed - low + 1)
            bench.reader.answered(number, index)
        bench.runtime.run()
        for number in bench.asked:
            asked_at.setdefault(number, committed)
        for future, needed in reads:
            assert not future.done() or applied >= needed
    bench.reader.applied(committed)
    while any(not future.done() for future, _ in reads):
        bench.answer(bench.asked[-1], committed)
