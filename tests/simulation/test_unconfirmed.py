"""Outcomes that no client confirms, and deadlines that pass, in the simulated world."""

from __future__ import annotations

import dataclasses

import pytest

from raftkv.testing.scenario import Result, plain, run_seed

SECONDS = 8.0
# The check that finds each.
BUGS = {
    "outcomes-of-a-session-unbounded": "outcomes are bounded",
    "outcomes-of-all-unbounded": "outcomes are bounded",
    "dropped-outcome-forgotten": "a number has one answer",
    "deadline-looks-at-all": "deadlines cost a bounded number of steps",
}


def run(seed: int, bug: str | None = None) -> Result:
    scenario = dataclasses.replace(plain(seed), unconfirmed=True)
    return run_seed(seed, seconds=SECONDS, scenario=scenario, bug=bug)


def test_outcomes_are_dropped_and_nothing_is_executed_twice() -> None:
    result = run(1)
    assert not result.check, result.message
    assert result.marks["outcome dropped"] > 3


@pytest.mark.parametrize("bug", list(BUGS))
def test_an_injected_bug_is_found(bug: str) -> None:
    assert run(1, bug).check == BUGS[bug]
