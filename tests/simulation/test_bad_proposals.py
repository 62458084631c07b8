"""A bad proposal costs no stream: the node that passes it on is not the node that made it."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from raftkv.config import Limits
from raftkv.errors import TooLarge
from raftkv.parts import ReplicantPart
from raftkv.raft import wire
from raftkv.raft.engine import Engine
from raftkv.raft.transport import Link
from raftkv.testing.patching import around
from raftkv.testing.simulated import SimulatedCluster

LIMITS = Limits(
    key_bytes_max=512,
    value_bytes_max=1024,
    command_bytes_max=64 * 1024,
    batch_bytes_max=128 * 1024,
)


class Streams:
    """Counts the consensus links that end, on any core."""

    def __init__(self) -> None:
        self.broken = 0
        self.counting = around(Engine, "link_down", self._wrap)

    def _wrap(self, link_down: Callable[..., None]) -> Callable[..., None]:
        def counted(engine: Engine, link: Link) -> None:
            self.broken += 1
            link_down(engine, link)

        return counted


def leader_of(cluster: SimulatedCluster) -> str:
    return next(name for name in cluster.cores if cluster.nodes[name].leader == name)


def rejected(cluster: SimulatedCluster) -> int:
    parts = [cluster.part(name) for name in cluster.cores]
    return sum(part.proposals.rejected for part in parts if part is not None)


@pytest.mark.parametrize("rubbish", [b"garbage", b"", b"x" * (2 << 20)])
def test_rubbish_from_replicants_breaks_no_stream_between_cores(rubbish: bytes) -> None:
    streams = Streams()
    with streams.counting, SimulatedCluster(2, cores=3, replicants=2, rate_per_s=50.0) as cluster:
        cluster.run(4.0)
        term = max(cluster.nodes[name].term for name in cluster.cores)
        acknowledged, streams.broken = len(cluster.acknowledged), 0
        for _ in range(40):
            for name in ("replicant1", "replicant2"):
                part = cluster.nodes[name]._part
                assert isinstance(part, ReplicantPart)
                link = part.follower.link
                if link is not None:
                    message = wire.Propose([rubbish])
                    cluster.world.host(name).inside(lambda link=link, m=message: link.send(m))
            cluster.run(0.05)
        assert streams.broken == 0
        assert max(cluster.nodes[name].term for name in cluster.cores) == term
        assert len(cluster.acknowledged) > acknowledged + 20
        assert rejected(cluster) > 40
        cluster.settle()


@pytest.mark.parametrize("role", ["core", "replicant"])
def test_a_command_above_the_limit_of_the_leader_breaks_no_stream(role: str) -> None:
    """`limits.command_bytes_max` is being raised node by node, and the leader has the old one."""
    streams = Streams()
    cluster = SimulatedCluster(2, cores=3, replicants=1, rate_per_s=20.0, limits=LIMITS)
    small = msgspec.structs.replace(LIMITS, command_bytes_max=2 * 1024)
    cluster.configs["core1"] = msgspec.structs.replace(cluster.configs["core1"], limits=small)
    with streams.counting, cluster:
        cluster.run(3.0)
        assert leader_of(cluster) == "core1", "choose a seed in which core1 leads"
        term, streams.broken = cluster.nodes["core1"].term, 0
        name = "core2" if role == "core" else "replicant1"
        node = cluster.nodes[name]
        put = cluster.world.call(name, node.kv.put(b"big", b"x" * 10_000, timeout_s=30.0))
        cluster.world.wait(put.done, 1, "the end of the put, long before its deadline")
        assert type(put.exception()) is TooLarge
        assert "limits.command_bytes_max of this node, 2048 bytes" in str(put.exception())
        before = rejected(cluster)
        cluster.run(10.0)
        assert rejected(cluster) == before, "it is not sent again"
        assert streams.broken == 0
        assert cluster.nodes["core1"].term == term
        assert rejected(cluster) > 0
