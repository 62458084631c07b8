"""Storms of calls, a handful of seeds: that they find nothing, what they find, and the command.

`tools/simulate-calls --seeds 0:500` runs many, `tools/simulate-calls --planted` all planted bugs.
"""

from __future__ import annotations

import re

import pytest

from raftkv.testing.storms import main
from raftkv_cluster_call.testing.__main__ import STORM
from raftkv_cluster_call.testing.planted import BUGS, planted
from raftkv_cluster_call.testing.storm import run_storm
from raftkv_cluster_call.testing.storm_plan import FUNCTIONS, draw
from tests.plugins import storm_checks

SECONDS = 6.0
SEEDS = (0, 1, 2, 3)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_storm_finds_nothing(seed: int) -> None:
    storm_checks.finds_nothing(run_storm, seed, SECONDS, "committed")


def test_a_seed_takes_the_same_steps_again() -> None:
    storm_checks.takes_the_same_steps(run_storm, 2, 3)


def test_every_seed_draws_a_plan_of_its_own() -> None:
    drawn = [draw(seed, SECONDS) for seed in range(200)]
    assert {plan.memory for plan in drawn} == {"kept", "lost", "none"}
    assert {bool(plan.settings.get("replicants_take_part")) for plan in drawn} == {True, False}
    assert any(not plan.verbs for plan in drawn)
    assert any("reset" in plan.verbs for plan in drawn)
    assert any(plan.settings.get("history_hard_max") for plan in drawn)
    assert not any(plan.scenario.disaster for plan in drawn)
    assert {name for plan in drawn for name in plan.functions} == set(FUNCTIONS)
    assert str(draw(7, SECONDS)) == str(draw(7, SECONDS))
    assert len({str(plan) for plan in drawn}) > 100
    for plan in drawn:
        assert {each.key for each in plan.plugin_settings()} >= set(plan.settings)


# The bug, and the check that sees it in a short storm.
QUICK = {
    "abort-forgets-cursors": "calls: the log decides rightly",
    "cursor-first": "calls: runs are right",
    "nobody-is-waited-for": "calls: required nodes have executed it",
}


@pytest.mark.parametrize("bug", QUICK)
def test_a_planted_bug_is_found_within_a_few_short_storms(bug: str) -> None:
    storm_checks.sees(run_storm, bug, QUICK[bug], SEEDS, SECONDS)


def test_there_are_at_least_twelve_bugs_and_each_can_be_planted() -> None:
    storm_checks.each_can_be_planted(BUGS, planted, QUICK, 12)


def test_the_command_ends_with_a_summary(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(STORM, ["--seeds", "2:3", "--seconds", "2", "--jobs", "1"]) == 0
    last = capfd.readouterr().out.splitlines()[-1]
    assert last.startswith("1 seed, 0 violations, ")
    assert re.search(r"\d+ calls; faults: ", last)
    assert "never seen: " in last


def test_the_command_tells_a_violation_and_how_to_see_it_again(
    capfd: pytest.CaptureFixture[str],
) -> None:
    given = ["--seeds", "2:3", "--seconds", "6", "--jobs", "1", "--bug", "cursor-first"]
    assert main(STORM, given) == 1
    out, err = capfd.readouterr()
    assert out.splitlines()[-1].startswith("1 seed, 1 violation, ")
    again = "again: tools/simulate-calls --replay 2 --seconds 6 --bug cursor-first"
    assert again in err


def test_a_replay_shows_a_line_per_event(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(STORM, ["--replay", "2", "--seconds", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("seed 2: ")
    assert any(line.split()[:2] == ["time", "s"] for line in lines)
    assert any(line.startswith("fingerprint ") for line in lines)
