"""Transactions about as large as they may be, in the simulated world."""

from __future__ import annotations

import dataclasses

import pytest

from raftkv.testing.scenario import Result, plain, run_seed

SECONDS = 8.0
BUGS = ("limit-from-configuration", "ranges-not-counted", "deletions-counted")


def run(seed: int, bug: str | None = None) -> Result:
    scenario = dataclasses.replace(plain(seed), rate_per_s=60.0, costly=True)
    return run_seed(seed, seconds=SECONDS, scenario=scenario, bug=bug)


def test_they_are_refused_alike_and_deletions_are_not() -> None:
    result = run(1)
    assert not result.check, result.message
    assert result.marks["transaction too costly"] > 10
    assert result.marks["deletion beyond the limit of rows"] > 3


@pytest.mark.parametrize("bug", BUGS)
def test_an_injected_bug_is_found(bug: str) -> None:
    expected = {"only the setting limits what a transaction looks at", "equal digests"}
    assert run(1, bug).check in expected
