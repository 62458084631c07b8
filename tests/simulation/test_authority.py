"""Injected bugs of authority that does not come from the log, each found by a few hostile seeds."""

from __future__ import annotations

import pytest

from raftkv.testing.planted import planted
from raftkv.testing.scenario import draw, run_seed
from raftkv.testing.simulated import SafetyViolation, SimulatedCluster
from raftkv.testing.variations import Variations

SEEDS = [seed for seed in range(100) if draw(seed).hostile][:6]

# The bug, and what the first violation may be.
FOUND = {
    # A forged command may also take the number of one of the node's own.
    "commands-not-judged": {"announced voters do vote", "no exception escapes"},
    "consensus-from-a-replicant": {
        "state-machine safety",
        "leader completeness",
        "log matching",
        "election safety",
    },
}


@pytest.mark.parametrize("bug", FOUND)
def test_what_the_table_of_permissions_keeps_out_is_seen(bug: str) -> None:
    for seed in SEEDS:
        result = run_seed(seed, seconds=10.0, bug=bug)
        if result.check:
            assert result.check in FOUND[bug], result.message
            return
    pytest.fail(f"{bug} was not found")


def test_a_bootstrap_with_whatever_claims_to_be_a_core_is_seen() -> None:
    """Files that disagree leave the hostile program the time to come before the cores."""
    drawn = [draw(seed) for seed in range(200)]
    for seed in [each.seed for each in drawn if each.hostile and each.more.disagreeing]:
        result = run_seed(seed, seconds=5.0, bug="bootstrap-counts-accepted-links")
        if result.check:
            checks = {"one cluster", "nodes stop for a reason", "log matching"}
            assert result.check in checks, result.message
            return
    pytest.fail("it was not found")


def early(seed: int, cores: int, **more: bool) -> SimulatedCluster:
    return SimulatedCluster(
        seed, cores, 1, rate_per_s=20.0, deliveries=False, early=True, more=Variations(**more)
    )


@pytest.mark.parametrize("seed", range(4))
def test_two_replicants_that_start_at_once_under_one_name(seed: int) -> None:
    """Both streams begin before the log has either of the nodes."""
    with early(seed, 3, namesake=True) as cluster:
        cluster.storm(6.0, {"jump_wall": 1.0})
        cluster.settle()


def test_a_second_node_that_is_not_refused_is_seen() -> None:
    with (
        planted("two-nodes-under-one-name"),
        early(1, 1, namesake=True) as cluster,
        pytest.raises(SafetyViolation, match="one node under a name"),
    ):
        cluster.storm(10.0, {"reset": 1.0})


def test_files_that_disagree_are_corrected_after_a_short_storm() -> None:
    """The storm of a seed may end before the file would have been corrected in it."""
    seed = next(seed for seed in range(200) if draw(seed).more.disagreeing)
    assert run_seed(seed, seconds=0.2).check == ""


def test_files_that_disagree_and_are_not_compared_are_seen() -> None:
    seeds = [seed for seed in range(200) if draw(seed).more.disagreeing]
    assert len(seeds) > 4
    bug = "bootstrap-compares-nothing"
    found = {run_seed(seed, seconds=2.0, bug=bug).check for seed in seeds[:6]}
    assert "one cluster" in found
