"""The quota of the keyspace is used up in the simulated world."""

from __future__ import annotations

import dataclasses

import pytest
from msgspec import structs

from raftkv.config import Limits
from raftkv.testing.scenario import Result, plain, run_seed

SECONDS = 12.0
# What finds them: what the client sees, or what follows when nodes have decided otherwise.
DIVERGED = {"equal digests", "exactly once", "linearizable", "the quota holds", "watch promises"}
BUGS = {
    "quota-from-configuration": DIVERGED,
    "count-not-restored": DIVERGED,
    "nospace-by-itself": {"the quota holds"},
    "deletions-judged": {"the quota holds"},
}
SEEDS = {
    "quota-from-configuration": 3,
    "count-not-restored": 4,
    "nospace-by-itself": 1,
    "deletions-judged": 1,
}


def run(seed: int, bug: str | None = None) -> Result:
    scenario = dataclasses.replace(
        plain(seed),
        rate_per_s=60.0,
        spender=True,
        limits=structs.replace(Limits(), snapshot_log_entries=150),
    )
    return run_seed(seed, seconds=SECONDS, scenario=scenario, bug=bug)


def test_it_is_kept_by_all_nodes_alike_and_deletions_work() -> None:
    result = run(1)
    assert not result.check, result.message
    assert result.marks["quota used up"] > 1
    assert result.marks["deletion beyond the quota"] > 0


@pytest.mark.parametrize("bug", list(BUGS))
def test_an_injected_bug_is_found(bug: str) -> None:
    assert run(SEEDS[bug], bug).check in BUGS[bug]
