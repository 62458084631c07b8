"""Storms of the limbo, a handful of seeds: that they find nothing, and what they find.

`tools/simulate-limbo --seeds 0:500` runs many, `tools/simulate-limbo --planted` all planted bugs.
"""

from __future__ import annotations

import pytest

from raftkv.testing.storms import main
from raftkv_limbo.testing.__main__ import STORM
from raftkv_limbo.testing.planted import BUGS, planted
from raftkv_limbo.testing.storm import run_storm
from raftkv_limbo.testing.storm_plan import EXPECTED, draw
from raftkv_limbo.testing.storm_quorum import QUORUMS
from tests.plugins import storm_checks

SECONDS = 3.0
SEEDS = (0, 1, 2, 3)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_storm_finds_nothing(seed: int) -> None:
    storm_checks.finds_nothing(run_storm, seed, SECONDS, "answered confirmed")


def test_a_seed_takes_the_same_steps_again() -> None:
    storm_checks.takes_the_same_steps(run_storm, 2, 2)


def test_every_seed_draws_a_plan_of_its_own() -> None:
    drawn = [draw(seed, SECONDS) for seed in range(300)]
    assert {plan.scenario.cores for plan in drawn} == {3, 4, 5}
    assert {plan.scenario.replicants for plan in drawn} == {0, 1, 2, 3}
    assert {len(plan.validators) for plan in drawn} == {0, 1, 2}
    assert {plan.settings.get("quorum") for plan in drawn} == {*QUORUMS, None}
    for key in ("quorum_zones", "quorum_validators", "leader_promotes", "rollback_after_ms"):
        assert any(plan.settings.get(key) for plan in drawn), key
    assert any(not plan.verbs for plan in drawn)
    assert not any(plan.scenario.disaster for plan in drawn)
    assert str(draw(7, SECONDS)) == str(draw(7, SECONDS))
    assert len({str(plan) for plan in drawn}) > 200
    for plan in drawn:
        assert {each.key for each in plan.plugin_settings()} >= set(plan.settings)
        named = set(plan.settings.get("quorum_validators", {}))
        assert named <= set(plan.validators)
    assert len(set(EXPECTED)) == len(EXPECTED)


# The bug, and the check that sees it in a short storm.
QUICK = {
    "one-ack-is-enough": "limbo: one verdict for each position",
    "newest-confirmed-first": "limbo: rows are what was confirmed",
    "time-out-decides": "limbo: answers are true",
    "stale-owner-writes": "limbo: the log decides rightly",
    "nobody-is-asked": "limbo: validators were asked",
    "hooks-newest-first": "limbo: hooks are told each verdict once, in order",
}


@pytest.mark.parametrize("bug", QUICK)
def test_a_planted_bug_is_found_within_a_few_short_storms(bug: str) -> None:
    storm_checks.sees(run_storm, bug, QUICK[bug], range(12), SECONDS)


def test_there_are_at_least_sixteen_bugs_and_each_can_be_planted() -> None:
    storm_checks.each_can_be_planted(BUGS, planted, QUICK, 16)


def test_the_command_takes_the_storms_own_length(capfd: pytest.CaptureFixture[str]) -> None:
    given = ["--seeds", "2:3", "--jobs", "1", "--bug", "one-ack-is-enough"]
    assert main(STORM, given) == 1
    out, err = capfd.readouterr()
    assert out.splitlines()[-1].startswith("1 seed, 1 violation, ")
    assert "again: tools/simulate-limbo --replay 2 --bug one-ack-is-enough" in err
