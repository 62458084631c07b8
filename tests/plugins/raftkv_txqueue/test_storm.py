"""Storms of queues, a handful of seeds: that they find nothing, and what they find.

`tools/simulate-txqueue --seeds 0:500` runs many, `tools/simulate-txqueue --planted` all planted
bugs.
"""

from __future__ import annotations

import pytest

from raftkv.testing.storms import main
from raftkv_txqueue.testing.__main__ import STORM
from raftkv_txqueue.testing.planted import BUGS, planted
from raftkv_txqueue.testing.storm import run_storm
from raftkv_txqueue.testing.storm_plan import EXPECTED, draw
from tests.plugins import storm_checks

SECONDS = 2.5
SEEDS = (0, 1, 2, 3)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_storm_finds_nothing(seed: int) -> None:
    storm_checks.finds_nothing(run_storm, seed, SECONDS, "answered committed")


def test_a_seed_takes_the_same_steps_again() -> None:
    storm_checks.takes_the_same_steps(run_storm, 2, 2)


def test_every_seed_draws_a_plan_of_its_own() -> None:
    drawn = [draw(seed, SECONDS) for seed in range(300)]
    assert {plan.scenario.cores for plan in drawn} == {1, 3, 4, 5}
    assert {plan.scenario.replicants for plan in drawn} == {0, 1, 2}
    assert {plan.entry_rows for plan in drawn} == {0, 1, 2, 5}
    assert {plan.observe_share for plan in drawn} == {0.0, 0.3, 0.7, 1.0}
    assert any(not plan.verbs for plan in drawn)
    assert not any(plan.scenario.disaster for plan in drawn)
    assert str(draw(7, SECONDS)) == str(draw(7, SECONDS))
    assert len({str(plan) for plan in drawn}) > 200
    for plan in drawn:
        assert {each.key for each in plan.plugin_settings()} >= set(plan.settings)
    assert len(set(EXPECTED)) == len(EXPECTED)


# The bug, and the check that sees it in a short storm.
QUICK = {
    "span-hides-content": "txqueue: all of a transaction or nothing",
    "commit-backwards": "txqueue: order is kept",
    "deliveries-forgotten": "txqueue: sessions own what they hold",
    "prepared-dies-with-a-node": "txqueue: prepared is a promise",
    "first-yes-decides": "txqueue: transactions are decided by those who may",
    "observers-are-not-asked": "txqueue: participants are asked",
    "repeated-commit-executes": "txqueue: answers are true",
    "prepare-does-not-reserve": "txqueue: invariants",
    "ack-timeout-too-early": "txqueue: sessions end when they must",
    "operator-ends-another": "txqueue: sessions end when they must",
    "holder-is-the-next": "txqueue: sessions own what they hold",
    "content-hides-accepts": "txqueue: all of a transaction or nothing",
    "busy-is-prepared": "txqueue: the log decides rightly",
    "delivered-before-due": "txqueue: sessions own what they hold",
    "delivered-after-expiry": "txqueue: counters are right",
    "queue-ttl-forgotten": "txqueue: all of a transaction or nothing",
    "lost-on-return": "txqueue: all of a transaction or nothing",
    "participant-may-go": "txqueue: transactions are decided by those who may",
}


@pytest.mark.parametrize("bug", QUICK)
def test_a_planted_bug_is_found_within_a_few_short_storms(bug: str) -> None:
    storm_checks.sees(run_storm, bug, QUICK[bug], range(20), SECONDS)


def test_there_are_at_least_twenty_five_bugs_and_each_can_be_planted() -> None:
    storm_checks.each_can_be_planted(BUGS, planted, QUICK, 25)


def test_the_command_takes_the_storms_own_length(capfd: pytest.CaptureFixture[str]) -> None:
    given = ["--seeds", "3:4", "--jobs", "1", "--bug", "half-a-transaction"]
    assert main(STORM, given) == 1
    out, err = capfd.readouterr()
    assert out.splitlines()[-1].startswith("1 seed, 1 violation, ")
    assert "again: tools/simulate-txqueue --replay 3 --bug half-a-transaction" in err
