"""The check that frozen states are let go, checked."""

from __future__ import annotations

from raftkv.testing.frozen_check import LetGo, frozen_views
from raftkv.testing.simulated import SimulatedCluster


def test_a_walk_under_way_may_hold_its_views_and_nothing_else_may() -> None:
    with SimulatedCluster(seed=1, cores=1, rate_per_s=20, deliveries=False) as cluster:
        cluster.run(0.5)
        node = cluster.nodes["core1"]
        assert frozen_views(node) == 0
        with cluster.judging():
            node.corruption.point()
            assert sum(len(table._frozen) for table in node.machine._tables) > 0
            assert frozen_views(node) == 0
            forgotten = node.machine.freeze()
            assert frozen_views(node) > 1
            node.corruption.point()  # ends the walk before it
            assert frozen_views(node) > 1
            forgotten.close()
            assert frozen_views(node) == 0
            walk = node.corruption._walking
            assert walk is not None
            walk.cancel()
        cluster.run(0.5)
        assert walk.done()
        assert frozen_views(node) > 0  # cancelled before its first step: nothing has closed them


def test_a_walk_under_way_must_go_on() -> None:
    with SimulatedCluster(seed=1, cores=1, rate_per_s=20, deliveries=False) as cluster:
        cluster.run(0.5)
        nodes = [cluster.nodes["core1"]]
        assert LetGo().all(nodes)  # nothing is frozen
        with cluster.judging():
            nodes[0].corruption.point()
            let_go = LetGo()
            assert not let_go.all(nodes)  # it may have forgotten what it holds
            assert not let_go.all(nodes)
            nodes[0].corruption.rows += 1
            assert let_go.all(nodes)
            forgotten = nodes[0].machine.freeze()
            assert not let_go.all(nodes)
            forgotten.close()
        from_now = LetGo()
        assert not from_now.all(nodes)
        cluster.world.wait(lambda: from_now.all(nodes), 30, "the walk")
