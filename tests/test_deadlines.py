"""deadlines.py: every deadline is met, what is over costs nothing and is dropped."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftkv.deadlines import ALARM_GRAIN_S, OVER_KEPT, Deadlines
from tests.fakes import FakeRuntime


class Call:
    def __init__(self, at: float) -> None:
        self.at = at
        self.over = False


class Bench:
    def __init__(self) -> None:
        self.runtime = FakeRuntime()
        self.expired: list[tuple[float, Call]] = []
        self.asked = 0
        self.deadlines: Deadlines[Call] = Deadlines(
            self.runtime,  # type: ignore[arg-type]
            self.is_over,
            self.expire,
        )

    def is_over(self, call: Call) -> bool:
        self.asked += 1
        return call.over

    def expire(self, calls: list[Call], now: float) -> None:
        for call in calls:
            call.over = True
            self.expired.append((now, call))

    def add(self, seconds: float) -> Call:
        call = Call(self.runtime.now + seconds)
        self.deadlines.add(call.at, call)
        return call


@given(st.lists(st.tuples(st.floats(0, 3), st.floats(0, 1), st.booleans()), max_size=40))
def test_each_deadline_is_met_unless_the_call_is_over(
    script: list[tuple[float, float, bool]],
) -> None:
    bench = Bench()
    answered, waiting = [], []
    for timeout_s, pause_s, answer in script:
        call = bench.add(timeout_s)
        if answer:
            call.over = True
        (answered if answer else waiting).append(call)
        bench.runtime.advance(pause_s)
    bench.runtime.advance(5.0)
    assert {id(call) for _, call in bench.expired} == {id(call) for call in waiting}
    assert len(bench.expired) == len(waiting), "once each"
    for now, call in bench.expired:
        assert -ALARM_GRAIN_S <= now - call.at <= ALARM_GRAIN_S
    assert len(bench.deadlines) == 0


def test_what_is_over_is_dropped_before_it_outweighs_the_rest() -> None:
    bench = Bench()
    for _ in range(50_000):
        bench.add(60.0).over = True
        assert len(bench.deadlines) <= OVER_KEPT + 2
    assert bench.asked <= 100_000
    assert bench.runtime.timers_set == 1


def test_many_distinct_deadlines_that_pass_are_looked_at_once_each() -> None:
    bench = Bench()
    for number in range(5_000):
        bench.add(1.0 + 0.002 * number)
    bench.runtime.advance(20.0)
    assert len(bench.expired) == 5_000
    assert bench.asked <= 6 * 5_000


def test_after_a_failure_in_one_call_the_next_deadline_is_still_met() -> None:
    bench = Bench()
    bench.add(1.0)
    later = bench.add(2.0)
    good, bench.deadlines._expire = bench.deadlines._expire, fail
    with pytest.raises(RuntimeError):
        bench.runtime.advance(1.5)
    bench.deadlines._expire = good
    bench.runtime.advance(1.0)
    assert [call for _, call in bench.expired] == [later]


def fail(calls: list[Call], now: float) -> None:
    raise RuntimeError("a caller's callback failed")


def test_nothing_expires_after_the_end() -> None:
    bench = Bench()
    bench.add(1.0)
    bench.deadlines.stop()
    bench.add(1.0)
    bench.runtime.advance(5.0)
    assert bench.expired == []


def test_what_is_due_together_comes_earliest_first_whatever_the_order_of_the_additions() -> None:
    bench = Bench()
    order = [3.0, 5.0, 1.0, 5.0, 4.0, 2.0, 6.0, 5.0]
    calls = [bench.add(seconds) for seconds in order]
    calls[1].over = True
    # As if the process had stood still.
    bench.runtime.now += 10.0
    bench.runtime.advance(0.0)
    expected = sorted((call for call in calls if call is not calls[1]), key=lambda call: call.at)
    assert [call for _, call in bench.expired] == expected


def test_answered_calls_are_let_go_soon_although_others_wait() -> None:
    bench = Bench()
    waiting = [bench.add(60.0) for _ in range(10)]
    for number in range(2_000):
        bench.add(60.0 if number % 3 else 30.0).over = True
        assert len(bench.deadlines) <= 2 * len(waiting) + 2 * OVER_KEPT
    assert not any(call.over for call in waiting)


@given(
    st.lists(st.lists(st.sampled_from([0.5, 1.0, 1.0, 2.0, 3.0]), max_size=5), max_size=8),
    st.lists(st.booleans(), min_size=40, max_size=40),
)
def test_many_added_at_once_are_as_many_added_one_by_one(
    turns: list[list[float]], answered: list[bool]
) -> None:
    one_by_one, at_once = Bench(), Bench()
    found = []
    for bench in (one_by_one, at_once):
        calls: list[Call] = []
        for turn in turns:
            new = [Call(bench.runtime.now + seconds) for seconds in turn]
            if bench is at_once:
                bench.deadlines.add_all([call.at for call in new], new)
            else:
                for call in new:
                    bench.deadlines.add(call.at, call)
            calls += new
            bench.runtime.advance(0.1)
        for call, over in zip(calls, answered, strict=False):
            call.over = call.over or over
        bench.runtime.advance(5.0)
        assert len(bench.deadlines) == 0
        found.append([(now, calls.index(call)) for now, call in bench.expired])
    assert found[0] == found[1]
