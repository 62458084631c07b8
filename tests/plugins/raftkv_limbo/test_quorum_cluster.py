"""Quorums on real nodes that Raft does not have: replicants, named zones, validators; and its own.

Words: a node that is *held* has not said what it would say (cluster.py).
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from raftkv.errors import Refused
from raftkv_limbo.commands import Ack, Condition, Write
from raftkv_limbo.errors import RolledBack, StillPending
from raftkv_limbo.submission import Receipt
from raftkv_limbo.validators import Proposal, Veto
from tests.plugins.raftkv_limbo.cluster import DEADLINE_S, LimboCluster, play, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

THREE = ["core1", "core2", "core3"]
ZONES = {"core1": "eu", "core2": "eu", "core3": "us", "replicant1": "asia"}
# Long enough that the node has looked, short enough to wait for.
SHORT_S = 1.0


# --- the fast path --------------------------------------------------------------------------------


def test_with_and_without_acknowledgements_the_same_is_seen() -> None:
    """One story where Raft's commit is the quorum, and one where the same nodes have to say so."""

    async def story(cluster: LimboCluster) -> list[object]:
        limbo = cluster.limbo("core1")
        seen: list[object] = []

        async def submit(*writes: Write, **more: Any) -> None:
            try:
                receipt = await limbo.submit(writes, **more)
            except Refused as error:
                seen.append((type(error).__name__, str(error)))
            else:
                assert isinstance(receipt, Receipt)
                seen.append((receipt.position, receipt.state, receipt.term))

        one, other = Write("sync", b"a", b"1"), Write("async", b"a", b"2")
        await submit(one, other)
        await submit(
            Write("sync", b"a", None), conditions=[Condition("sync", b"a", "exists", None, 1)]
        )
        await submit(one, conditions=[Condition("sync", b"a", "value", b"1")])
        await submit(other, order="independent")
        await submit(one, order="independent")
        await submit(one, one)
        await submit(Write("nowhere", b"a", b"1"))
        await asyncio.gather(*(submit(Write("sync", b"%d" % n, b"v")) for n in range(20)))
        promoted = await cluster.limbo("core2").promote(DEADLINE_S)
        seen.append((promoted.term, promoted.confirmed, promoted.rolled_back))
        await submit(one)
        await cluster.converge()
        state = cluster.state()
        seen.append((state.last, state.confirmed, state.confirms, state.rollbacks, state.head))
        for node in cluster.nodes:
            rows = await cluster.limbo(node.name).range("sync", view="linearizable")
            seen += [(key, row.value, row.position) for key, row in rows]
            seen += [type(event).__name__ for event in cluster.seats[node.name].events]
            seen += cluster.seats[node.name].confirmed
        return seen

    stories: list[list[object]] = []

    async def body(cluster: LimboCluster) -> None:
        stories.append(await story(cluster))
        assert bool(cluster.acks()) == (len(stories) == 2)

    play(body, zones=dict.fromkeys(THREE, "z"), quorum="2")
    play(body, zones=dict.fromkeys(THREE, "z"), quorum="2", quorum_zones={"z": 1})
    assert stories[0] == stories[1]
    assert len(stories[0]) > 100


# --- quorums that Raft does not have --------------------------------------------------------------


def test_replicants_in_the_quorum() -> None:
    async def body(cluster: LimboCluster) -> None:
        release = cluster.hold(Ack, "replicant1", "replicant2")
        waiting = await cluster.hand("core1", b"1")
        await cluster.acked_upto(1, *THREE)
        for name in ("replicant1", "replicant2"):
            await cluster.is_held(Ack, name)
        assert cluster.limbo("core1").status().quorum.n == 5
        # One that does not answer is waited for as long as it counts as alive: it may have gone
        # for good, and nobody removes a replicant.
        await cluster.kill("replicant1")
        assert cluster.limbo("core1").status().quorum.n == 5
        await cluster.is_down("replicant1")
        assert (cluster.limbo("core1").status().quorum.n, cluster.fates(1)) == (4, ["pending"])
        release()
        assert (await waiting.verdict(DEADLINE_S)).state == "confirmed"
        # Back in another life it counts again, and what it said in the former one does not.
        cluster.hold(Ack, "replicant1")
        await cluster.restart("replicant1")
        again = await cluster.hand("core1", b"2")
        await cluster.acked_upto(2, *THREE, "replicant2")
        await cluster.is_held(Ack, "replicant1")
        assert (cluster.limbo("core1").status().quorum.n, cluster.fates(2)) == (5, ["pending"])
        cluster.open_gates()
        assert (await again.verdict(DEADLINE_S)).state == "confirmed"
        # A replicant may own the queue, too.
        assert (await cluster.limbo("replicant2").promote(DEADLINE_S)).term == 2
        assert (await cluster.put("replicant2", b"3")).state == "confirmed"

    play(body, replicants=2, quorum="N", quorum_over="members")


def test_zones() -> None:
    """A node of each named zone must have it, besides Raft's majority; a replicant may be that."""

    async def body(cluster: LimboCluster) -> None:
        release = cluster.hold(Ack, "replicant1")
        waiting = await cluster.hand("core1", b"1")
        await cluster.acked_upto(1, "core1", "core2")
        assert cluster.fates(1) == ["pending"]
        await until(
            lambda: (
                {node.name: node.zone for node in cluster.limbo("core3").status().nodes} == ZONES
            ),
            "all have declared their zones",
        )
        status = cluster.limbo("core3").status()
        assert not status.quorum.fast
        release()
        assert (await waiting.verdict(DEADLINE_S)).state == "confirmed"
        await cluster.kill("replicant1")
        with pytest.raises(StillPending):
            await cluster.put("core1", b"2", timeout_s=SHORT_S)
        # Without that zone it is Raft's own quorum again, for what waits as well.
        await cluster.configure(quorum_zones={})
        assert (await cluster.limbo("core2").wait_verdict(2, DEADLINE_S)).fate == "confirmed"
        await cluster.restart("replicant1")

    play(
        body,
        replicants=1,
        zones=ZONES,
        quorum_zones={"eu": 2, "asia": 1},
    )


def test_validators_approve_and_veto() -> None:
    """A validator runs on each node that has it; one objection is a rollback with its reason."""
    seen: dict[str, list[int]] = {"core2": [], "core3": []}
    broken = {"core3"}

    def prepare(cluster: LimboCluster) -> None:
        for name in seen:

            async def limits(proposal: Proposal, name: str = name) -> None:
                seen[name].append(proposal.position)
                if name in broken:
                    raise ValueError("this validator is broken")
                if any(write.value == b"too much" for write in proposal.writes):
                    raise Veto("more than there is")

            cluster.seats[name].validators["limits"] = limits

    async def body(cluster: LimboCluster) -> None:
        # A broken one decides nothing, and is asked again.
        with pytest.raises(StillPending):
            await cluster.put("core1", b"1", timeout_s=SHORT_S)
        await until(lambda: seen["core3"].count(1) > 1, "the broken one is asked again")
        assert cluster.fates(1) == ["pending"]
        broken.clear()
        assert (await cluster.limbo("core1").wait_verdict(1, DEADLINE_S)).fate == "confirmed"
        assert (await cluster.put("core1", b"2")).state == "confirmed"
        answers = await asyncio.gather(
            cluster.put("core1", b"3", b"too much"),
            cluster.put("core1", b"4"),
            return_exceptions=True,
        )
        for vetoed in answers:
            assert isinstance(vetoed, RolledBack)
            assert vetoed.by in ("core2", "core3")
            assert vetoed.reason == f"vetoed by limits on {vetoed.by}: more than there is"
        assert (await cluster.put("core1", b"5")).state == "confirmed"
        await cluster.converge()
        assert cluster.fates_everywhere(1, 2, 3, 4, 5) == [
            "confirmed",
            "confirmed",
            "rolled back",
            "rolled back",
            "confirmed",
        ]
        assert cluster.row("core3", b"3") is None

    play(body, prepare=prepare, quorum_validators={"limits": 2})
