"""Storms of regions, a handful of seeds: that they find nothing, and what they find.

`tools/simulate-subscriptions --seeds 0:300` runs many, `tools/simulate-subscriptions --planted` all
planted bugs.
"""

from __future__ import annotations

import pytest

from raftkv.testing.storms import main
from raftkv_subscriptions.testing.__main__ import STORM
from raftkv_subscriptions.testing.planted import BUGS, planted
from raftkv_subscriptions.testing.storm import run_storm
from raftkv_subscriptions.testing.storm_marks import EXPECTED
from raftkv_subscriptions.testing.storm_plan import MODES, draw
from tests.plugins import storm_checks

SECONDS = 2.0
# Short ones: a ring, and meshes in all modes.
SEEDS = (3, 10, 14, 17)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_storm_finds_nothing(seed: int) -> None:
    storm_checks.finds_nothing(run_storm, seed, SECONDS, "drained")


def test_a_seed_takes_the_same_steps_again() -> None:
    storm_checks.takes_the_same_steps(run_storm, 10, 1.0)


def test_every_seed_draws_a_plan_of_its_own() -> None:
    drawn = [draw(seed, SECONDS) for seed in range(300)]
    assert {plan.links for plan in drawn} == {"mesh", "ring", "chain"}
    assert {plan.mode for plan in drawn} == set(MODES)
    assert {len(plan.regions) for plan in drawn} == {2, 3}
    assert {cores for plan in drawn for cores, _ in plan.regions.values()} == {1, 3}
    assert all(plan.mode == "vector" for plan in drawn if plan.links != "mesh")
    assert str(draw(7, SECONDS)) == str(draw(7, SECONDS))
    assert len({str(plan) for plan in drawn}) > 250
    for plan in drawn:
        assert {each.key for each in plan.plugin_settings()} >= set(plan.settings)
        for region in plan.regions:
            # Whoever fetches is known where it fetches from.
            assert all(plan.known(source)[region] for source in plan.wants(region))
    assert len(set(EXPECTED)) == len(EXPECTED)


# The bug, and the check that sees it in a short storm; from which seed on, if not from 0.
FROM = {
    "retention-forgets-marks": 4,
    "position-at-the-start": 1,
    "any-answer-counts": 1,
    "backlog-is-all-that-is-kept": 4,
}
QUICK = {
    "foreign-content": "subscriptions: each message once, in order",
    "retention-forgets-marks": "subscriptions: retention waits",
    "ack-loses-one": "subscriptions: acknowledged is acknowledged",
    "base-is-acknowledged": "subscriptions: only what was acknowledged",
    "mark-too-far": "subscriptions: marks are true",
    "earliest-is-latest": "subscriptions: beginnings are right",
    "position-at-the-start": "subscriptions: snapshots are consistent",
    "any-answer-counts": "subscriptions: snapshots are consistent",
    "deliveries-forgotten": "subscriptions: one pair of hands",
    "backlog-is-all-that-is-kept": "subscriptions: full is what is waited for",
}


@pytest.mark.parametrize("bug", QUICK)
def test_a_planted_bug_is_found_within_a_few_short_storms(bug: str) -> None:
    storm_checks.sees(run_storm, bug, QUICK[bug], range(FROM.get(bug, 0), 12), SECONDS)


def test_there_are_at_least_twenty_five_bugs_and_each_can_be_planted() -> None:
    storm_checks.each_can_be_planted(BUGS, planted, QUICK, 25)


def test_the_command_takes_the_storms_own_length(capfd: pytest.CaptureFixture[str]) -> None:
    given = ["--seeds", "3:4", "--jobs", "1", "--bug", "earliest-is-latest"]
    assert main(STORM, given) == 1
    out, err = capfd.readouterr()
    assert out.splitlines()[-1].startswith("1 seed, 1 violation, ")
    assert "again: tools/simulate-subscriptions --replay 3 --bug earliest-is-latest" in err
