"""What a node logs of its leader: losing and finding one, with the reason, and no line more."""

from __future__ import annotations

import logging

import pytest

from raftkv.leader_log import AGAIN_MAX_S, AGAIN_MIN_S, LeaderLog
from raftkv.testing.local_cluster import LocalCluster
from tests.raft.harness import MAX_S, A, B, Bench, C, append
from tests.test_node import in_loop, until


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_losing_and_finding_a_leader_are_warnings(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    clock = Clock()
    log = LeaderLog("core1", clock)
    log.changed("core2", 3, "")
    log.changed("core2", 4, "")
    log.changed(None, 4, "the connection to it ended")
    clock.now += 2.5
    log.changed("core3", 5, "")
    log.changed("core2", 6, "")
    assert [(each.levelname, each.getMessage()) for each in caplog.records] == [
        ("INFO", "core1: core2 leads term 3"),
        ("WARNING", "core1: lost the leader core2 of term 4: the connection to it ended"),
        ("WARNING", "core1: core3 leads term 5, after 2.5 s without a leader"),
        ("WARNING", "core1: core2 leads term 6, after core3"),
    ]


def test_a_leader_that_stays_away_is_logged_at_growing_intervals(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Clock()
    log = LeaderLog("r1", clock)
    for _ in range(36_000):  # an hour, ten times a second
        log.missing("core1 knows no leader")
        clock.now += 0.1
    times = [each.getMessage() for each in caplog.records]
    assert times[0] == "r1: knows no leader: core1 knows no leader"
    assert times[1] == f"r1: still no leader, for {AGAIN_MIN_S:.0f} s: core1 knows no leader"
    assert 8 <= len(times) <= 3600 / AGAIN_MAX_S + 8
    caplog.clear()
    log.changed("core1", 2, "")
    log.changed(None, 2, "its stream ended")
    log.missing("core1 knows no leader")
    assert len(caplog.records) == 2, "a new loss is one line"


def test_a_leader_without_a_majority_has_the_reason() -> None:
    bench = Bench(A)
    bench.lead()
    for _ in range(40):
        bench.runtime.advance(MAX_S / 10)
        bench.runtime.settle()
    assert bench.engine.leading is None
    assert "election time-out" in bench.engine.leader_lost


def test_a_follower_has_the_reason() -> None:
    bench = Bench(A)
    bench.receive(B, append(2, bench.wal.last_index, bench.wal.last_term))
    bench.runtime.settle()
    assert bench.engine.leader == B
    bench.receive(C, append(5, bench.wal.last_index, bench.wal.last_term))
    bench.runtime.settle()
    assert bench.engine.leader == C
    bench.runtime.advance(2 * MAX_S)
    bench.runtime.settle()
    assert bench.engine.leader is None
    assert bench.engine.leader_lost == "nothing was received from it within the election time-out"


@in_loop
async def test_the_nodes_of_a_cluster_log_it_once(caplog: pytest.LogCaptureFixture) -> None:
    async with LocalCluster(cores=3, replicants=1) as cluster:
        await cluster.wait_ready()
        await until(cluster.leader)
        leader = cluster.leader()
        assert leader is not None
        left = [node for node in cluster.nodes if node is not leader]
        caplog.clear()
        await cluster.kill(leader.name)
        await until(lambda: all(node.leader not in (None, leader.name) for node in left))
        lines = [each.getMessage() for each in caplog.records if each.name == "raftkv.leader"]
        for node in left:
            own = [line for line in lines if line.startswith(f"{node.name}: ")]
            assert any(f"lost the leader {leader.name}" in line for line in own), own
            assert any("leads term" in line for line in own), own
            assert len(own) <= 6, own
