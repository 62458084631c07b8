"""Acknowledgements, declarations and validators of a node."""

from __future__ import annotations

import asyncio

import pytest

from raftkv_limbo.commands import VALIDATORS_MAX
from raftkv_limbo.errors import RolledBack
from raftkv_limbo.validators import Proposal, Veto
from tests.plugins.raftkv_limbo.fakes import Cluster, asynchronous, story, sync, until

# --- acks -----------------------------------------------------------------------------------------


@story()
async def test_a_fast_quorum_needs_no_acks(cluster: Cluster) -> None:
    limbo = await cluster.own("core1")
    await asyncio.gather(*(limbo.submit(sync(f"k{n}")) for n in range(100)))
    await asyncio.sleep(1)
    assert cluster.proposals("ack") == 0
    assert cluster.proposals("declare") == 0


@story(quorum="N")
async def test_one_ack_of_a_node_stands_for_a_batch(cluster: Cluster) -> None:
    limbo = await cluster.own("core1")
    await asyncio.gather(*(limbo.submit(sync(f"k{n}")) for n in range(200)))
    assert [node.proposals.count("ack") for node in cluster.nodes.values()] == [1, 1, 1]


@story(quorum="N")
async def test_a_core_acknowledges_what_its_own_disk_has(cluster: Cluster) -> None:
    """Entries are applied once a majority has them, which need not be this node."""
    limbo, disk, asked = await cluster.own("core1"), asyncio.Event(), []

    async def stored(index: int) -> None:
        asked.append(index)
        await disk.wait()

    cluster.nodes["core3"].stored = stored  # type: ignore[method-assign]
    first = await limbo.submit(sync("a"), wait="submit")
    second = await limbo.submit(sync("b"), wait="submit")
    await asyncio.sleep(5)
    assert limbo.verdict(first.position).fate == "pending"
    assert "ack" not in cluster.nodes["core3"].proposals
    assert asked == [first.index]
    disk.set()
    await until(lambda: limbo.verdict(second.position).fate == "confirmed")


@story(quorum="N")
async def test_what_was_rolled_back_while_the_disk_was_slow_is_not_acknowledged(
    cluster: Cluster,
) -> None:
    limbo, disk = await cluster.own("core1"), asyncio.Event()

    async def stored(index: int) -> None:
        await disk.wait()

    cluster.nodes["core3"].stored = stored  # type: ignore[method-assign]
    done = await limbo.submit(sync("a"), wait="submit")
    await limbo.rollback(done.position, "no longer wanted")
    disk.set()
    await asyncio.sleep(5)
    assert "ack" not in cluster.nodes["core3"].proposals


@story(quorum="N")
async def test_async_ones_are_not_acknowledged(cluster: Cluster) -> None:
    limbo = await cluster.own("core1")
    await limbo.submit(asynchronous("a"))
    cluster.isolate("core3")
    await limbo.submit(sync("b"), wait="submit")
    await asyncio.sleep(0.1)
    before = cluster.proposals("ack")
    await limbo.submit(asynchronous("c"), wait="submit")
    await asyncio.sleep(0.1)
    assert cluster.proposals("ack") == before == 2
    cluster.heal("core3")
    await until(lambda: cluster.state.confirmed == 3)


@story(2, replicants=1, quorum="2")
async def test_only_those_who_count_acknowledge(cluster: Cluster) -> None:
    limbo = await cluster.own("core1")
    cluster.configure(quorum="N", quorum_zones={"moon": 1})
    waits = asyncio.ensure_future(limbo.submit(sync("k"), timeout_s=60))
    await asyncio.sleep(3)
    assert not waits.done()
    assert cluster.nodes["rep1"].proposals.count("ack") == 0
    cluster.configure(quorum_over="members", quorum_zones={})
    # Nobody tells a node of a setting: it looks once a second.
    await waits
    assert cluster.nodes["rep1"].proposals.count("ack") == 1


@story(2, replicants=2, zones={"rep2": "eu"}, quorum_zones={"eu": 1})
async def test_a_zone_is_declared_and_asked(cluster: Cluster) -> None:
    limbo = await cluster.own("core1")
    await limbo.submit(sync("k"))
    assert [node.proposals.count("declare") for node in cluster.nodes.values()] == [0, 0, 0, 1]
    assert [node.proposals.count("ack") for node in cluster.nodes.values()] == [1, 1, 0, 1]
    cluster.isolate("rep2")
    waits = asyncio.ensure_future(limbo.submit(sync("k2"), timeout_s=60))
    await asyncio.sleep(2)
    assert not waits.done()
    # A new life declares its zone anew, and acknowledges anew.
    cluster.declare_dead("rep2")
    cluster.rejoin("rep2")
    await waits
    assert cluster.nodes["rep2"].proposals.count("declare") == 2


@story(quorum="N")
async def test_a_lost_ack_is_repeated(cluster: Cluster) -> None:
    limbo = await cluster.own("core1")
    cluster.filter = lambda node, envelope: node.name != "core2"
    waits = asyncio.ensure_future(limbo.submit(sync("k"), timeout_s=60))
    await asyncio.sleep(2)
    assert not waits.done()
    cluster.filter = lambda node, envelope: True
    await waits
    assert cluster.nodes["core2"].proposals.count("ack") >= 2
    # A lost answer is no reason to repeat it: it was applied.
    cluster.lose_answers("core3", "ack")
    await limbo.submit(sync("k"), timeout_s=60)


@story(quorum="N")
async def test_a_new_life_acknowledges_anew(cluster: Cluster) -> None:
    limbo = await cluster.own("core1")
    cluster.isolate("core3")
    waits = asyncio.ensure_future(limbo.submit(sync("k"), timeout_s=60))
    await until(lambda: cluster.table("nodes").keys() == {"core1", "core2"})
    await cluster.restart("core2")
    assert cluster.table("nodes").keys() == {"core1"}
    await until(lambda: cluster.table("nodes").keys() == {"core1", "core2"})
    assert not waits.done()
    cluster.heal("core3")
    await waits


@story(quorum="N")
async def test_a_snapshot_is_acknowledged(cluster: Cluster) -> None:
    limbo = await cluster.own("core1")
    cluster.pause("core3")
    waits = asyncio.ensure_future(limbo.submit(sync("k"), timeout_s=60))
    await until(lambda: cluster.state.pending == 1)
    cluster.jump("core3")
    await waits


# --- validators -----------------------------------------------------------------------------------


@story(quorum_validators={"audit": 2})
async def test_validators_are_asked_in_order(cluster: Cluster) -> None:
    seen: dict[str, list[Proposal]] = {}
    for name in ("core1", "core2"):

        async def audit(proposal: Proposal, name: str = name) -> None:
            await asyncio.sleep(0.01)
            seen.setdefault(name, []).append(proposal)

        cluster.limbo(name).validator("audit", audit)
    limbo = await cluster.own("core1")
    await asyncio.gather(*(limbo.submit(sync(f"k{n}", str(n))) for n in range(5)))
    await limbo.submit(asynchronous("not asked about"))
    for proposals in seen.values():
        assert [one.position for one in proposals] == [1, 2, 3, 4, 5]
        assert [one.writes[0].value for one in proposals] == [b"0", b"1", b"2", b"3", b"4"]
        assert {one.term for one in proposals} == {1}
    assert seen.keys() == {"core1", "core2"}


@story(quorum_validators={"limits": 1})
async def test_a_veto_rolls_back_and_says_why(cluster: Cluster) -> None:
    limbo = await cluster.own("core1")
    others = cluster.limbo("core2")

    @others.validator("limits")
    def limits(proposal: Proposal) -> None:
        if proposal.writes[0].value == b"too much":
            raise Veto("more than there is")

    answers = await asyncio.gather(
        limbo.submit(sync("a", "fine")),
        limbo.submit(sync("b", "too much")),
        limbo.submit(sync("c", "behind it")),
        return_exceptions=True,
    )
    assert answers[0].state == "confirmed"
    for at in (1, 2):
        assert isinstance(answers[at], RolledBack)
        assert answers[at].reason == "vetoed by limits on core2: more than there is"
        assert answers[at].by == "core2"
    assert (await limbo.submit(sync("d", "fine"))).position == 4
    assert others.counters["vetoes"] == 1


@story(quorum_validators={"audit": 1})
async def test_a_broken_validator_decides_nothing(cluster: Cluster) -> None:
    limbo = await cluster.own("core1")
    runs = []

    @limbo.validator("audit")
    def audit(proposal: Proposal) -> None:
        runs.append(proposal.position)
        if len(runs) < 6:
            raise RuntimeError("a secret value")

    one = asyncio.ensure_future(limbo.submit(sync("a"), timeout_s=60))
    await asyncio.sleep(0.2)
    assert cluster.state.pending == 1
    assert (await one).state == "confirmed"
    assert runs == [1] * 6
    assert limbo.counters["validator_failures"] == 5


@story(quorum_validators={"late": 1})
async def test_a_validator_that_is_registered_while_entries_wait(cluster: Cluster) -> None:
    limbo = await cluster.own("core1")
    waits = [asyncio.ensure_future(limbo.submit(sync(f"k{n}"), timeout_s=60)) for n in range(3)]
    await asyncio.sleep(1)
    assert cluster.state.pending == 3
    assert limbo.status().quorum.possible is False
    seen = []
    cluster.limbo("core3").validator("late", lambda proposal: seen.append(proposal.position))
    assert [(await one).position for one in waits] == [1, 2, 3]
    assert seen == [1, 2, 3]
    assert limbo.status().quorum.possible is True


@story(quorum="N")
async def test_a_validator_that_is_named_while_entries_wait(cluster: Cluster) -> None:
    limbo = await cluster.own("core1")
    seen = []
    cluster.limbo("core2").validator("audit", lambda proposal: seen.append(proposal.position))
    cluster.isolate("core3")
    waits = asyncio.ensure_future(limbo.submit(sync("k"), timeout_s=60))
    await asyncio.sleep(2)
    assert seen == []
    cluster.configure(quorum_validators={"audit": 1})
    await asyncio.sleep(2)
    assert seen == [1]
    cluster.configure(quorum="2")
    await waits
    cluster.heal("core3")


@story(quorum_validators={"slow": 1})
async def test_what_is_settled_while_a_validator_runs(cluster: Cluster) -> None:
    limbo = await cluster.own("core1")
    going = asyncio.Event()

    @limbo.validator("slow")
    async def slow(proposal: Proposal) -> None:
        if proposal.position == 1:
            await going.wait()
            raise Veto("too late")

    one = asyncio.ensure_future(limbo.submit(sync("a"), timeout_s=60))
    await until(lambda: cluster.state.pending == 1)
    await limbo.rollback(1, "before")
    with pytest.raises(RolledBack) as caught:
        await one
    assert caught.value.reason == "before"
    two = asyncio.ensure_future(limbo.submit(sync("b"), timeout_s=60))
    await asyncio.sleep(0.1)
    going.set()
    assert (await two).position == 2


@story()
async def test_validators_are_registered_with_care(cluster: Cluster) -> None:
    limbo = cluster.limbo("core1")
    limbo.validator("a", lambda proposal: None)
    with pytest.raises(ValueError, match="registered already"):
        limbo.validator("a", lambda proposal: None)
    for name in ("", "x" * 65, "\ud800"):
        with pytest.raises(ValueError, match="letters"):
            limbo.validator(name, lambda proposal: None)
    for n in range(VALIDATORS_MAX - 1):
        limbo.validator(f"v{n}", lambda proposal: None)
    with pytest.raises(ValueError, match="at most"):
        limbo.validator("one more", lambda proposal: None)
    await until(lambda: "core1" in cluster.table("nodes"))
    assert len(cluster.table("nodes")["core1"].validators) == VALIDATORS_MAX


@story(quorum_validators={"audit": 1})
async def test_a_validator_that_is_cancelled_decides_nothing(cluster: Cluster) -> None:
    """As any other failure: what ends in it must not end this node's voice."""
    limbo = await cluster.own("core1")
    runs = []

    @limbo.validator("audit")
    async def audit(proposal: Proposal) -> None:
        runs.append(proposal.position)
        if len(runs) < 3:
            other = asyncio.ensure_future(asyncio.sleep(60))
            asyncio.get_running_loop().call_later(0.01, other.cancel)
            await other

    assert (await limbo.submit(sync("a"), timeout_s=60)).state == "confirmed"
    assert limbo.counters["validator_failures"] == 2

    @cluster.limbo("core2").validator("plain")
    def plain(proposal: Proposal) -> None:
        runs.append(proposal.position)
        if len(runs) < 6:
            raise asyncio.CancelledError

    cluster.configure(quorum_validators={"plain": 1})
    assert (await limbo.submit(sync("b"), timeout_s=60)).state == "confirmed"
    assert runs == [1, 1, 1, 2, 2, 2]


@story(quorum="N", quorum_validators={"stuck": 1})
async def test_a_validator_that_hangs_holds_nothing_up_once_it_is_not_asked_for(
    cluster: Cluster,
) -> None:
    limbo = await cluster.own("core1")
    ends = []

    @cluster.limbo("core2").validator("stuck")
    async def stuck(proposal: Proposal) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ends.append(proposal.position)

    waits = asyncio.ensure_future(limbo.submit(sync("a"), timeout_s=60))
    await asyncio.sleep(3)
    assert not waits.done()
    cluster.configure(quorum_validators={})
    assert (await waits).state == "confirmed"
    assert ends == [1]
    # Named again, it holds up what it is asked about, and a rollback sets it free.
    cluster.configure(quorum_validators={"stuck": 1})
    waits = asyncio.ensure_future(limbo.submit(sync("b"), timeout_s=60))
    await asyncio.sleep(1)
    await limbo.rollback(2)
    with pytest.raises(RolledBack):
        await waits
    await until(lambda: ends == [1, 2], 2)


@story(quorum="N", quorum_validators={"audit": 1})
async def test_what_is_behind_many_async_ones_is_validated_before_its_turn(
    cluster: Cluster,
) -> None:
    limbo = await cluster.own("core1")
    seen: list[int] = []
    cluster.limbo("core2").validator("audit", lambda proposal: seen.append(proposal.position))
    cluster.isolate("core3")
    await limbo.submit(sync("first"), wait="submit")
    await asyncio.gather(
        *(limbo.submit(asynchronous(f"k{n}"), wait="submit") for n in range(150)),
    )
    await limbo.submit(sync("last"), wait="submit")
    await asyncio.sleep(1)
    assert seen == [1, 152]
    assert cluster.table("approvals") == {("audit", "core2"): 152}
    cluster.heal("core3")
    await limbo.wait_confirmed(152)


@story(quorum="2", quorum_validators={"audit": 1})
async def test_after_a_snapshot_validators_are_asked_anew(cluster: Cluster) -> None:
    """It may be of another history, in which the same position is another transaction."""
    limbo = await cluster.own("core1")
    seen: list[int] = []
    cluster.limbo("core2").validator("audit", lambda proposal: seen.append(proposal.position))
    cluster.configure(quorum="N")
    cluster.isolate("core3")
    waits = asyncio.ensure_future(limbo.submit(sync("a"), timeout_s=60))
    await until(lambda: seen == [1])
    cluster.pause("core2")
    cluster.jump("core2")
    cluster.declare_dead("core2")
    cluster.rejoin("core2")
    await until(lambda: seen == [1, 1], 2)
    cluster.heal("core3")
    await waits
