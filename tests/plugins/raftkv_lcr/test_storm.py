"""Connect storms, a handful of seeds: that they find nothing, what they find, and the command.

`tools/simulate-lcr --seeds 0:500` runs many, `tools/simulate-lcr --planted` all planted bugs.
"""

from __future__ import annotations

import re

import pytest

from raftkv.testing.simulated import SimulatedCluster
from raftkv.testing.storms import main
from raftkv_lcr.testing.__main__ import STORM
from raftkv_lcr.testing.planted import BUGS, planted
from raftkv_lcr.testing.storm import run_storm
from raftkv_lcr.testing.storm_plan import draw
from tests.plugins import storm_checks

SECONDS = 6.0
SEEDS = (0, 5, 6, 7)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_storm_finds_nothing(seed: int) -> None:
    storm_checks.finds_nothing(run_storm, seed, SECONDS, "registered", operations=10)


def test_links_that_have_swallowed_calls_are_replaced_before_the_last_connects() -> None:
    """Seed 0 with 3 s of faults heals such a link, and an `end` may be answered within 0.3 s."""
    result = run_storm(0, seconds=3)
    assert not result.check, result.message


def test_a_seed_takes_the_same_steps_again() -> None:
    storm_checks.takes_the_same_steps(run_storm, 5, 3)


def test_a_node_that_stops_after_the_healing_is_started_again() -> None:
    """As one does whose disk failed at the very end: a write was under way, and tells it late."""

    def prepare(cluster: SimulatedCluster) -> None:
        settle, crashed = cluster.settle_members, False

        def and_then_crash(timeout_s: float = 30.0) -> None:
            nonlocal crashed
            settle(timeout_s)
            if not crashed:
                crashed = True
                cluster.world.crash(cluster.names[0])

        cluster.settle_members = and_then_crash  # type: ignore[method-assign]

    result = run_storm(0, seconds=2, prepare=prepare)
    assert not result.check, result.message


def test_every_seed_draws_a_plan_of_its_own() -> None:
    drawn = [draw(seed, SECONDS) for seed in range(200)]
    assert {plan.final for plan in drawn} == {"disabled", "dual", "migration", "enabled"}
    assert {len(plan.modes) for plan in drawn} == {0, 1, 2, 4}
    back = [plan for plan in drawn if any(mode == "disabled" for _, mode in plan.modes)]
    assert back
    assert {plan.final for plan in back} == {"enabled"}
    assert not any(plan.never_disabled for plan in back)
    standing = {plan.modes[0][1]: plan.never_disabled for plan in drawn if len(plan.modes) == 1}
    assert standing == {"enabled": True, "dual": True, "migration": False}
    assert any(plan.settings.get("policy") == "refuse" for plan in drawn)
    assert any(plan.settings.get("history_ms") for plan in drawn)
    assert not any(plan.scenario.disaster for plan in drawn)
    returning = [plan for plan in drawn if plan.away]
    assert 20 < len(returning) < 100
    assert {plan.scenario.raft.node_down_ms for plan in returning} == {2_000}
    assert min(plan.scenario.cores for plan in returning) == 3
    assert str(draw(7, SECONDS)) == str(draw(7, SECONDS))
    assert len({str(plan) for plan in drawn}) > 100
    for plan in drawn:
        options = plan.options()
        assert options.begin_ttl_s > 0
        assert {each.key for each in plan.plugin_settings()} >= set(plan.settings)


# The bug, the seeds that find it in a short storm, and the check that sees it.
QUICK = {
    "unregister-by-client": "lcr: the log decides rightly",
    "begin-unregisters": "lcr: rows of live channels stay",
    "claims-not-kept": "lcr: the log decides rightly",
}


@pytest.mark.parametrize("bug", QUICK)
def test_a_planted_bug_is_found_within_a_few_short_storms(bug: str) -> None:
    storm_checks.sees(run_storm, bug, QUICK[bug], (5, 7, 6, 0), SECONDS)


def test_a_node_that_goes_on_as_before_it_was_declared_dead_is_found() -> None:
    check = "lcr: returned nodes enter their channels"
    storm_checks.sees(run_storm, "returned-as-before", check, (0,), 20.0)


def test_there_are_at_least_eight_bugs_and_each_can_be_planted() -> None:
    storm_checks.each_can_be_planted(BUGS, planted, QUICK, 8)


def test_the_command_ends_with_a_summary(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(STORM, ["--seeds", "7:8", "--seconds", "2", "--jobs", "1"]) == 0
    last = capfd.readouterr().out.splitlines()[-1]
    assert last.startswith("1 seed, 0 violations, ")
    assert re.search(r"\d+ connects; faults: ", last)
    assert "never seen: " in last


def test_the_command_tells_a_violation_and_how_to_see_it_again(
    capfd: pytest.CaptureFixture[str],
) -> None:
    given = ["--seeds", "5:6", "--seconds", "6", "--jobs", "1", "--bug", "unregister-by-client"]
    assert main(STORM, given) == 1
    out, err = capfd.readouterr()
    assert out.splitlines()[-1].startswith("1 seed, 1 violation, ")
    again = "again: tools/simulate-lcr --replay 5 --seconds 6 --bug unregister-by-client"
    assert again in err


def test_a_replay_shows_a_line_per_event(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(STORM, ["--replay", "0", "--seconds", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("seed 0: ")
    assert any(line.split()[:2] == ["time", "s"] for line in lines)
    assert any(line.startswith("fingerprint ") for line in lines)
