"""A hostile program that is no member: nodes refuse what it claims, and go on."""

from __future__ import annotations

import pytest

from raftkv.testing.scenario import draw, run_seed
from raftkv.testing.simulated import SimulatedCluster

SECONDS = 8.0
SEEDS = [seed for seed in range(20) if draw(seed).hostile][:3]


def test_some_seeds_have_a_hostile_stranger_and_most_have_none() -> None:
    count = sum(draw(seed).hostile for seed in range(200))
    assert 20 <= count <= 60


@pytest.mark.parametrize("seed", SEEDS)
def test_a_hostile_stranger_breaks_no_promise(seed: int) -> None:
    result = run_seed(seed, seconds=SECONDS)
    assert not result.check, result.message
    for mark in ("stranger refused", "newer epoch not believed", "hostile replicant let in"):
        assert result.marks[mark] > 0, mark


@pytest.mark.parametrize("seed", SEEDS)
def test_a_core_that_believes_any_epoch_is_found(seed: int) -> None:
    result = run_seed(seed, seconds=SECONDS, bug="believe-any-epoch")
    assert result.check == "nodes stop for a reason", result.message
    assert "forged" in result.message


def test_a_hostile_stranger_troubles_a_cluster_of_one_core() -> None:
    """Whose file names no other core that it could claim to be."""
    with SimulatedCluster(1, 1, 1, deliveries=False, early=True, hostile=True) as cluster:
        cluster.storm(3.0, {"jump_wall": 1.0})
        assert cluster.hostile.connections > 0
