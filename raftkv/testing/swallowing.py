"""A connection between two cores of a simulated cluster swallows what is sent on it.

    cluster.storm(10)
    cluster.settle_members()
    swallow_one(cluster, random.Random(7))
    cluster.settle()

Everything else is healthy, so the two must have a new consensus link within a bound
(raftkv/link_renewal.py), and hear each other on it. TCP would give up long after the run.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

from raftkv.detector import FORMAT_PRESENCE, PERIOD_S
from raftkv.link_renewal import LESSER_PERIODS, SILENT_PERIODS
from raftkv.raft.link import HELLO_TIMEOUT_S
from raftkv.raft.membership import name_of
from raftkv.testing.world import NotReached

if TYPE_CHECKING:
    from raftkv.raft.transport import Link
    from raftkv.testing.simulated import SimulatedCluster

__all__ = ["CHECK", "swallow_one"]

#: The name of the check.
CHECK: Final = "a link that carries nothing is replaced"
# A healed cluster has all its links within it.
READY_S: Final = 20.0
# Looks, then a dial at each of a few addresses, of which only the last may be the right one.
BOUND_S: Final = (SILENT_PERIODS + LESSER_PERIODS + 2) * PERIOD_S + 3 * HELLO_TIMEOUT_S


def swallow_one(cluster: SimulatedCluster, rng: random.Random) -> None:
    """See the module's text. Does nothing before core format 2, or with fewer than two voters."""
    with cluster.judging():
        world = cluster.world
        configuration = cluster.observer.possible_configurations()[-1]
        voters = sorted(name_of(voter) for voter in configuration.voters)
        up = [name for name in voters if cluster.is_up(name)]
        known = [cluster.nodes[name].machine.core_format for name in up]
        if len(up) < 2 or min(known) < FORMAT_PRESENCE:
            return
        a, b = rng.sample(up, 2)
        world.wait(lambda: _both(cluster, a, b), READY_S, "a link between two cores")
        before = _both(cluster, a, b)
        if not world.network.swallow(a, b):
            return
        try:
            world.wait(lambda: _are_new(cluster, a, b, before), BOUND_S, "a new link")
        except NotReached:
            cluster.violated(CHECK, f"{a} and {b} have no new link within {BOUND_S:g} s")
        cluster.marks.hit("silent link replaced")


def _are_new(cluster: SimulatedCluster, a: str, b: str, before: list[Link]) -> bool:
    links = _both(cluster, a, b)
    return bool(links) and not any(link in before for link in links)


def _both(cluster: SimulatedCluster, a: str, b: str) -> list[Link]:
    """The link between the two as each of them has it; empty until both have heard on it."""
    found = [_heard(cluster, a, b), _heard(cluster, b, a)]
    return [link for link in found if link is not None] if None not in found else []


def _heard(cluster: SimulatedCluster, name: str, other: str) -> Link | None:
    part = cluster.part(name)
    if part is None:
        return None
    links = part.engine.links.values()
    return next((x for x in links if x.peer_name == other and part.detector.spoke(x)), None)
