"""The watchers of a simulated cluster, checked: they reach the end, if their watches do."""

from __future__ import annotations

import pytest

from raftkv.config import Limits
from raftkv.kv.watch_hub import WatchHub
from raftkv.testing.simulated import SafetyViolation, SimulatedCluster
from raftkv.testing.watchers import LOOK_S, TINY_BUFFER
from raftkv.testing.workload import Heavy

# Every revision fills a small buffer by itself, so a watch gives one at a time.
EVENTS = TINY_BUFFER[0] + 10
REVISIONS = 200


def one_far_behind() -> SimulatedCluster:
    """One watcher starts at the first of so many revisions, and its buffer holds one of them."""
    heavy = Heavy(keys=REVISIONS * EVENTS, fill_keys=EVENTS, large_share=0, compare_share=0)
    limits = Limits(outbox_commands_max=60_000)
    return SimulatedCluster(seed=1, cores=1, rate_per_s=20, limits=limits, heavy=heavy)


def test_a_watcher_that_is_far_behind_reaches_the_end() -> None:
    assert REVISIONS * sum(LOOK_S) / 2 > 60  # at the pace of a storm it would not
    with one_far_behind() as cluster:
        cluster.watchers.finishing = True  # from the first look on; nothing is compacted
        cluster.settle()
        assert cluster.watchers.reached(cluster.nodes["core1"].kv.revision)


def test_a_watch_that_stays_behind_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WatchHub, "drained", lambda hub, watch: None)  # it stays stalled for ever
    with one_far_behind() as cluster:
        cluster.watchers.finishing = True
        with pytest.raises(SafetyViolation, match="every watcher at the last revision"):
            cluster.settle()
