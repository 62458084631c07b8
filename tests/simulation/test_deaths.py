"""The checks of death verdicts checked: each injected bug is seen, and only the bug.

docs/internals/planted-bugs.md has the seeds that each needs at full length.
"""

from __future__ import annotations

import dataclasses
import random

import pytest

from raftkv.config import RaftTimes
from raftkv.testing import death_drill
from raftkv.testing.death_check import CHECK, DeathCheck
from raftkv.testing.death_drill import LATE, bound_s
from raftkv.testing.planted import BUGS
from raftkv.testing.scenario import Scenario, plain, run_seed
from raftkv.testing.simulated import SimulatedCluster

SECONDS = 1.0

# The bug; cores, seed and drill that show it after a short storm; the check that sees it.
FOUND = {
    "verdict-alone": (3, 4, "drill: apart", CHECK),
    "verdict-known-leader-only": (3, 1, "drill: disk hangs", LATE),
    "verdict-missing-report": (3, 4, "drill: apart", CHECK),
    "verdict-open-stream": (1, 8, "drill: gone", LATE),
    "verdict-own-absence": (1, 0, "drill: paused", CHECK),
    "verdict-right-after-election": (3, 0, "drill: paused", CHECK),
    "verdict-sent-again": (3, 3, "drill: overtaken", CHECK),
}


def scenario(seed: int, cores: int) -> Scenario:
    return dataclasses.replace(
        plain(seed),
        cores=cores,
        replicants=2,
        rate_per_s=30.0,
        raft=RaftTimes(node_down_ms=2_000),
        drill=True,
    )


@pytest.mark.parametrize("bug", FOUND)
def test_an_injected_bug_is_found(bug: str) -> None:
    cores, seed, drill, check = FOUND[bug]
    found = run_seed(seed, seconds=SECONDS, bug=bug, scenario=scenario(seed, cores))
    assert found.check == check, found.message
    assert found.marks[drill] == 1


@pytest.mark.parametrize(("cores", "seed", "drill"), sorted({run[:3] for run in FOUND.values()}))
def test_without_a_bug_the_same_runs_find_nothing(cores: int, seed: int, drill: str) -> None:
    result = run_seed(seed, seconds=SECONDS, scenario=scenario(seed, cores))
    assert not result.check, result.message
    assert result.marks[drill] == 1


def test_every_injected_bug_of_verdicts_has_a_run_here() -> None:
    assert {bug for bug in BUGS if bug.startswith("verdict-")} == set(FOUND)


def test_the_bound_counts_from_the_shortest_time_that_is_taken_at_its_word() -> None:
    assert bound_s(10_000, silent=False) == 13.0
    assert bound_s(2_000, silent=True) == 6.0


def test_a_program_that_takes_its_first_step_later_is_not_up_yet() -> None:
    """Its forerunner's node must not be taken for it, as if it were ready."""
    with SimulatedCluster(1, 3, 1, rate_per_s=20.0, deliveries=False) as cluster:
        former = cluster.nodes["replicant1"]
        cluster.world.crash("replicant1", power_cut=False)
        cluster.world.restart("replicant1")
        assert not cluster.is_up("replicant1")
        cluster.settle()
        assert cluster.is_up("replicant1")
        assert cluster.nodes["replicant1"] is not former


def test_a_drill_waits_for_a_replicant_whose_session_has_ended() -> None:
    """A replicant that no core feeds does not know that, and looks as ready as before."""
    with SimulatedCluster(1, 3, 1, rate_per_s=20.0, deliveries=False) as cluster:
        world = cluster.world
        world.network.isolate("replicant1")
        world.wait(
            lambda: not cluster.nodes["core1"].machine.members["replicant1"].up,
            20.0,
            "the end of the replicant's incarnation",
        )
        assert cluster.nodes["replicant1"].session
        assert death_drill._leader(cluster) is None
        world.network.heal()
        world.wait(lambda: death_drill._leader(cluster), 10.0, "a leader that knows it again")


def test_a_replicant_that_was_promoted_is_a_voter_for_a_drill() -> None:
    """Otherwise a drill could let it end while it is the core whose disk hangs."""
    with SimulatedCluster(1, 3, 1, rate_per_s=20.0, deliveries=False) as cluster:
        cluster.settle()
        drill = death_drill._Drill(cluster, DeathCheck(cluster), random.Random(1))
        assert drill._replicants() == ["replicant1"]
        drill._voters.append("replicant1")
        assert drill._replicants() == []
