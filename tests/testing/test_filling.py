"""What a heavy load begins with: the first keys, snapshots of them, and the sizes of its values."""

from __future__ import annotations

import dataclasses

import pytest

from raftkv.config import Limits
from raftkv.testing.scenario import FILLED_SHARE, heavy
from raftkv.testing.simulated import (
    DIGEST_EVERY,
    DIGEST_EVERY_MANY_KEYS,
    MANY_KEYS,
    SimulatedCluster,
)
from raftkv.testing.workload import Heavy

KEYS, FILL_KEYS = 400, 10
FEW = Heavy(keys=KEYS, fill_keys=FILL_KEYS, large_share=0.0, compare_share=0.0, compared_keys=50)


def replayed(few: Heavy) -> int:
    """How many entries a core applies again that is stopped after the fill and started."""
    with SimulatedCluster(seed=1, rate_per_s=5, deliveries=False, heavy=few) as cluster:
        cluster.run(0.5)
        applied = cluster.nodes["core1"].machine.index
        cluster.world.crash("core1", power_cut=False)
        cluster.run(0.5)
        cluster.start("core1")
        with cluster.judging():
            cluster.world.wait(cluster.all_ready, 10, "core1")
        part = cluster.part("core1")
        assert part is not None
        assert sum(1 for _ in cluster.nodes["core1"].machine.view("kv").table("keys").scan()) > KEYS
        return applied - part.engine.snapshotting.last_index


def test_a_snapshot_of_the_first_keys_spares_a_restart_their_replay() -> None:
    entries = KEYS // FILL_KEYS
    assert replayed(FEW) >= entries
    assert replayed(dataclasses.replace(FEW, snapshots=True)) < entries


def test_most_seeds_have_the_snapshots_and_the_others_do_not() -> None:
    loads = [heavy(seed).heavy for seed in range(400)]
    shares = sum(load.snapshots for load in loads if load is not None) / len(loads)
    assert shares == pytest.approx(FILLED_SHARE, abs=0.07)


def test_some_values_are_as_large_as_a_value_may_be_and_none_is_refused_for_its_size() -> None:
    load = heavy(1).heavy
    assert load is not None
    cluster = SimulatedCluster(seed=1, heavy=load)
    often = dataclasses.replace(load, largest_share=0.1)
    sizes = [cluster.load._value_bytes(often) for _ in range(20_000)]
    larger = [size for size in sizes if size > load.value_bytes_max]
    assert len(larger) / len(sizes) == pytest.approx(0.1, abs=0.02)
    assert 0.95 * Limits().value_bytes_max < max(sizes) < Limits().value_bytes_max
    assert cluster.marks.counts["value near the limit"] > 0


@pytest.mark.parametrize(
    ("keys", "every"), [(MANY_KEYS - 1, DIGEST_EVERY), (MANY_KEYS, DIGEST_EVERY_MANY_KEYS)]
)
def test_states_of_many_keys_are_compared_at_fewer_indexes(keys: int, every: int) -> None:
    assert SimulatedCluster(seed=1, heavy=Heavy(keys=keys))._digest_every == every
