"""Bursts of load: when they come, what they bring, and that the rest of a storm is ordinary."""

from __future__ import annotations

import dataclasses
import random

import pytest

from raftkv.testing.bursts import BURSTS_S, LONG_BURST_S, drawn_bursts
from raftkv.testing.scenario import heavy, run_seed, steady
from raftkv.testing.simulate import Totals
from raftkv.testing.workload import Heavy

FEW = Heavy(keys=100, large_share=0.0, compare_share=0.0, compared_keys=50)


@pytest.mark.parametrize("seconds", [1.0, 4.0, 30.0])
def test_bursts_lie_apart_within_the_storm_and_last_as_long_as_they_are_to(seconds: float) -> None:
    kinds = set()
    for seed in range(200):
        bursts = drawn_bursts(random.Random(seed), seconds)
        times = [moment for burst in bursts for moment in burst]
        assert times == sorted(times)
        assert times[0] >= 0
        assert times[-1] <= seconds + 1e-9
        longest = LONG_BURST_S if len(bursts) == 1 else BURSTS_S
        lasting = sum(end - begin for begin, end in bursts)
        assert lasting == pytest.approx(min(longest, seconds / 2))
        kinds.add(len(bursts))
    assert kinds == {1, 2, 3}


def test_faults_fall_into_bursts_and_the_load_between_them_is_ordinary() -> None:
    laden = dataclasses.replace(heavy(1), heavy=FEW, burst_times=10.0)
    # The storm's own faults are not due within these seconds.
    laden = dataclasses.replace(laden, interval_s=(60.0, 60.0))
    ordinary = dataclasses.replace(laden, burst_times=1.0)
    result, rest = (
        run_seed(1, seconds=6.0, scenario=laden),
        run_seed(1, scenario=ordinary, seconds=6.0),
    )
    assert not result.check, result.message
    assert not rest.check, rest.message
    assert sum(rest.faults.values()) == rest.marks["fault within a burst"] == 0
    assert result.marks["several faults within a burst"] > 0
    assert result.marks["fault within a burst"] == sum(result.faults.values())
    # 2 s or 3 s at 2,000 operations/s, beside 6 s and the healing at 200; half of it at the least.
    assert result.operations - rest.operations > BURSTS_S * 9 * laden.rate_per_s / 2


def test_the_steady_profile_has_the_load_of_a_burst_all_the_time() -> None:
    bursts, always = heavy(3), steady(3)
    assert always.burst_times == 1.0
    assert bursts.rate_per_s * bursts.burst_times == always.rate_per_s
    assert dataclasses.replace(bursts, rate_per_s=always.rate_per_s, burst_times=1.0) == always


def test_a_run_names_the_marks_of_its_profile_that_it_never_saw() -> None:
    totals = Totals(of_profile=("fault within a burst", "several faults within a burst"))
    totals.marks["fault within a burst"] = 2
    assert totals.unmarked() == ["several faults within a burst"]
    assert totals.summary().endswith("several faults within a burst")
