"""logclock.py: the log's clock never goes back, whatever the wall clocks of its leaders say."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from raftkv.logclock import STEP_MAX_MS, LogClock
from tests.fakes import FakeRuntime

WALL = 1_700_000_000_000


def bench() -> tuple[FakeRuntime, LogClock]:
    runtime = FakeRuntime()
    runtime.wall = WALL
    return runtime, LogClock(runtime)  # type: ignore[arg-type]


def test_a_new_cluster_starts_at_the_wall_clock() -> None:
    _, clock = bench()
    clock.elected(0)
    assert clock.now_ms() == WALL


def test_a_leader_whose_wall_clock_lags_starts_at_the_largest_stamp() -> None:
    _, clock = bench()
    clock.elected(WALL + 5000)
    assert clock.now_ms() == WALL + 5000


def test_a_leader_whose_wall_clock_is_years_ahead_moves_it_by_a_bounded_step() -> None:
    runtime, clock = bench()
    runtime.wall = WALL + 100 * STEP_MAX_MS
    clock.elected(WALL)
    assert clock.now_ms() == WALL + STEP_MAX_MS


def test_between_elections_only_the_monotonic_clock_counts() -> None:
    runtime, clock = bench()
    clock.elected(WALL)
    runtime.wall += 3_600_000
    assert clock.now_ms() == WALL
    runtime.wall -= 7_200_000
    runtime.advance(1.5)
    assert clock.now_ms() == WALL + 1500


def test_an_observed_stamp_moves_it_forward_only() -> None:
    runtime, clock = bench()
    clock.observed(WALL)
    runtime.advance(2.0)
    clock.observed(WALL + 1)
    assert clock.now_ms() == WALL + 2000
    clock.observed(WALL + 9000)
    assert clock.now_ms() == WALL + 9000


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["elected", "wait", "observed"]),
            st.integers(-10 * STEP_MAX_MS, 10 * STEP_MAX_MS),
        ),
        max_size=20,
    )
)
def test_stamps_of_successive_leaders_never_go_back(events: list[tuple[str, int]]) -> None:
    """Every leader stamps as the replica does: not below what the log holds."""
    stamp = WALL
    runtime, clock = bench()
    clock.elected(stamp)
    for kind, amount in events:
        before = clock.now_ms()
        if kind == "elected":
            runtime, clock = bench()
            runtime.wall = WALL + amount
            clock.elected(stamp)
            before = stamp
            assert clock.now_ms() <= stamp + STEP_MAX_MS
        elif kind == "wait":
            runtime.advance(abs(amount) / 1000)
        else:
            clock.observed(stamp + amount)
        assert clock.now_ms() >= before
        stamp = max(stamp, clock.now_ms())
