"""A run ends well while a walk for digests goes on that outlasts the wait for the others' end."""

from __future__ import annotations

import pytest

from raftkv import corruption_check
from raftkv.testing.simulated import SimulatedCluster
from raftkv.testing.workload import Heavy

FEW = Heavy(keys=2_000, large_share=0.0, compare_share=0.0, compared_keys=0)


def test_a_walk_for_digests_that_outlasts_the_wait_is_no_leak(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # 2,000 rows then need 40 s, and the next walk begins 4 s after that.
    monkeypatch.setattr(corruption_check, "LOOP_PART", 1e-4)
    with SimulatedCluster(seed=1, heavy=FEW) as cluster:
        cluster.run(8.0)
        assert all(cluster.nodes[name].machine._sessions.walks for name in cluster.names)
        cluster.settle()
        assert all(cluster.nodes[name].machine._sessions.walks for name in cluster.names)
