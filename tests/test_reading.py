"""reading.py: readers share questions, and any answer to their own question will do."""

from __future__ import annotations

import asyncio

import pytest

from raftkv.config import RaftTimes
from raftkv.errors import ReadTimeout, Stopped
from raftkv.reading import ASK_AGAIN_S, Reader
from tests.fakes import FakeRuntime


class Bench:
    def __init__(self) -> None:
        self.runtime = FakeRuntime()
        self.asked: list[int] = []
        self.reader = Reader(self.runtime, RaftTimes(), self.ask)  # type: ignore[arg-type]

    def ask(self, number: int) -> bool:
        self.asked.append(number)
        return True

    def read(self, timeout_s: float = 5.0) -> asyncio.Task[None]:
        task = self.runtime.spawn(self.reader.barrier(timeout_s), "read")
        self.runtime.run()
        return task

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
    reading = [bench.runtime.spawn(bench.reader.barrier(5.0), "read") for _ in range(50)]
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


def test_stopping_answers_everybody() -> None:
    bench = Bench()
    behind = bench.read()
    bench.answer(1, 100)
    asking, waiting = bench.read(), bench.read()
    bench.reader.stop()
    bench.runtime.run()
    for task in (behind, asking, waiting):
        assert isinstance(task.exception(), Stopped)
    late = bench.read()
    with pytest.raises(Stopped):
        late.result()
