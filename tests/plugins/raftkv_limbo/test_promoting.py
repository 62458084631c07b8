"""Promote, demote and rollback on a node, in all corners."""

from __future__ import annotations

import asyncio

import pytest

from raftkv.errors import NotApplied, OutcomeUnknown, ReadTimeout
from raftkv_limbo.commands import Promoted
from raftkv_limbo.errors import InAnotherPromote, PromoteTimedOut, RolledBack
from raftkv_limbo.refusals import (
    AlreadyConfirmed,
    AlreadyRolledBack,
    ForeignOwner,
    InterferingPromote,
    NotOwner,
    StaleTerm,
    Unclaimed,
    UnknownPosition,
)
from tests.plugins.raftkv_limbo.fakes import Cluster, asynchronous, story, sync, until


async def two_pending(cluster: Cluster) -> None:
    """core1 owns the queue and leaves two entries in it; core3 is away."""
    limbo = await cluster.own("core1")
    cluster.isolate("core3")
    await limbo.submit(sync("a"), wait="submit")
    await limbo.submit(sync("b"), wait="submit")


@story()
async def test_owners_come_and_go(cluster: Cluster) -> None:
    one, two = cluster.limbo("core1"), cluster.limbo("core2")
    assert await one.promote() == Promoted(1, 0, 0)
    assert one.status().mine
    assert one.status().live
    assert (await one.submit(sync("a"))).term == 1
    # The owner stays who it is.
    assert await one.promote() == Promoted(1, 1, 0)
    assert one.counters["promotes"] == 1
    with pytest.raises(NotOwner) as caught:
        await two.demote()
    assert (caught.value.owner, caught.value.term) == ("core1", 1)
    assert await two.promote() == Promoted(2, 1, 0)
    with pytest.raises(ForeignOwner):
        await one.submit(sync("b"))
    assert (await two.submit(sync("b"))).term == 2
    assert (await two.demote()).term == 3
    assert two.status().owner == ""
    for limbo in (one, two):
        with pytest.raises(Unclaimed):
            await limbo.submit(sync("c"))
        assert (await limbo.submit(asynchronous("c"))).state == "confirmed"


@story()
async def test_of_two_at_once_one_wins(cluster: Cluster) -> None:
    answers = await asyncio.gather(
        cluster.limbo("core1").promote(), cluster.limbo("core2").promote(), return_exceptions=True
    )
    won = [one for one in answers if isinstance(one, Promoted)]
    lost = [one for one in answers if isinstance(one, InterferingPromote)]
    assert len(won) == 1
    assert len(lost) == 1
    assert lost[0].term == won[0].term == 1
    assert lost[0].owner == cluster.state.owner


@story(quorum="N")
async def test_one_at_a_time_on_a_node(cluster: Cluster) -> None:
    await two_pending(cluster)
    two = cluster.limbo("core2")
    waits = asyncio.ensure_future(two.promote(60))
    await asyncio.sleep(0.1)
    assert two.busy
    assert two.status().queue.busy
    for other in (two.promote(), two.demote(), two.rollback(1)):
        with pytest.raises(InAnotherPromote) as caught:
            await other
        assert caught.value.doing == "promotion"
    cluster.heal("core3")
    assert (await waits).term == 2
    assert not two.busy


@story(quorum="N")
async def test_a_promotion_waits_for_the_quorum_of_what_is_there(cluster: Cluster) -> None:
    await two_pending(cluster)
    waits = asyncio.ensure_future(cluster.limbo("core2").promote(60))
    await asyncio.sleep(1)
    assert cluster.state.owner == "core1"
    # What the old owner submits meanwhile is not waited for.
    late = asyncio.ensure_future(cluster.limbo("core1").submit(sync("late"), timeout_s=60))
    await asyncio.sleep(1)
    cluster.hold("core3", "ack")
    cluster.heal("core3")
    cluster.configure(quorum="2")
    await waits
    assert cluster.state.owner == "core2"
    assert cluster.value("core3", "s", b"b") == b"x"
    await asyncio.wait((late,))


@story(quorum="N")
async def test_a_lowered_quorum_ends_the_wait(cluster: Cluster) -> None:
    await two_pending(cluster)
    waits = asyncio.ensure_future(cluster.limbo("core2").promote(60))
    await asyncio.sleep(1)
    assert not waits.done()
    cluster.configure(quorum="2")
    assert await waits == Promoted(2, 2, 0)
    cluster.heal("core3")


@story(quorum="N")
async def test_a_promotion_that_times_out_changes_nothing(cluster: Cluster) -> None:
    await two_pending(cluster)
    before = cluster.state
    loop = asyncio.get_running_loop()
    began = loop.time()
    with pytest.raises(PromoteTimedOut) as caught:
        await cluster.limbo("core2").promote(2)
    assert loop.time() - began == pytest.approx(2, abs=0.1)
    assert (caught.value.term, caught.value.head) == (1, 1)
    assert cluster.state == before
    assert cluster.proposals("promote") == 1
    with pytest.raises(PromoteTimedOut):
        await cluster.limbo("core1").demote(2)
    assert cluster.state == before
    cluster.heal("core3")
    await until(lambda: cluster.state.confirmed == 2)


@story(quorum="N")
async def test_a_promotion_may_give_up_the_rest(cluster: Cluster) -> None:
    limbo = await cluster.own("core1")
    await limbo.submit(sync("before"))
    cluster.isolate("core3")
    waits = [asyncio.ensure_future(limbo.submit(sync(key), timeout_s=60)) for key in ("a", "b")]
    await until(lambda: cluster.state.pending == 2)
    assert await cluster.limbo("core2").promote(rest="roll back") == Promoted(2, 1, 2)
    for one in waits:
        with pytest.raises(RolledBack) as caught:
            await one
        assert caught.value.by == "core2"
        assert "term 2" in caught.value.reason
    cluster.heal("core3")
    assert await cluster.limbo("core3").get("s", b"before", view="linearizable") is not None
    assert cluster.value("core3", "s", b"a") is None


@story(quorum="N")
async def test_the_term_moves_during_the_wait(cluster: Cluster) -> None:
    await two_pending(cluster)
    waits = asyncio.ensure_future(cluster.limbo("core2").promote(60))
    await asyncio.sleep(0.5)
    await cluster.limbo("core1").demote(rest="roll back")
    with pytest.raises(InterferingPromote) as caught:
        await waits
    assert (caught.value.owner, caught.value.term) == ("", 2)
    cluster.heal("core3")


@story(quorum="N")
async def test_not_settled_after_all(cluster: Cluster) -> None:
    """The node that promotes sees the queue settled; when its command comes it is not."""
    limbo = await cluster.own("core1")
    release = cluster.hold("core2", "promote")
    waits = asyncio.ensure_future(cluster.limbo("core2").promote(60))
    await asyncio.sleep(0.1)
    late = asyncio.ensure_future(limbo.submit(sync("late"), timeout_s=60))
    cluster.nodes["core3"].isolated = True
    await asyncio.sleep(0.1)
    release()
    assert (await waits).rolled_back == 1
    with pytest.raises(RolledBack):
        await late
    cluster.heal("core3")


# --- submissions meanwhile ------------------------------------------------------------------------


@story(quorum="N")
async def test_what_is_submitted_during_a_promotion_comes_after_it(cluster: Cluster) -> None:
    await two_pending(cluster)
    two = cluster.limbo("core2")
    waits = asyncio.ensure_future(two.promote(60))
    await asyncio.sleep(0.1)
    mine = asyncio.ensure_future(two.submit(sync("mine"), timeout_s=60))
    await asyncio.sleep(1)
    assert not mine.done()
    assert len(two.submitting) == 1
    cluster.heal("core3")
    assert (await waits).term == 2
    assert (await mine).term == 2


@story(quorum="N")
async def test_what_is_submitted_during_a_failed_promotion_is_refused(cluster: Cluster) -> None:
    await two_pending(cluster)
    two = cluster.limbo("core2")
    waits = asyncio.ensure_future(two.promote(1))
    await asyncio.sleep(0.1)
    mine = asyncio.ensure_future(two.submit(sync("mine"), timeout_s=60))
    impatient = asyncio.ensure_future(two.submit(sync("impatient"), timeout_s=0.5))
    with pytest.raises(NotApplied):
        await impatient
    with pytest.raises(PromoteTimedOut):
        await waits
    with pytest.raises(ForeignOwner):
        await mine
    cluster.heal("core3")


@story(quorum="N")
async def test_a_demotion_waits_for_what_is_under_way(cluster: Cluster) -> None:
    limbo = await cluster.own("core1")
    release = cluster.hold("core1", "submit")
    under_way = asyncio.ensure_future(limbo.submit(sync("under way"), timeout_s=60))
    await asyncio.sleep(0.01)
    demotes = asyncio.ensure_future(limbo.demote(60))
    await asyncio.sleep(0.01)
    late = asyncio.ensure_future(limbo.submit(sync("late"), timeout_s=60))
    await asyncio.sleep(1)
    assert not demotes.done()
    release()
    assert (await demotes).term == 2
    assert (await under_way).state == "confirmed"
    with pytest.raises(Unclaimed):
        await late


@story()
async def test_what_is_under_way_does_not_land_in_time(cluster: Cluster) -> None:
    limbo = await cluster.own("core1")
    release = cluster.hold("core1", "submit")
    under_way = asyncio.ensure_future(limbo.submit(sync("k"), timeout_s=60))
    await asyncio.sleep(0.01)
    with pytest.raises(ReadTimeout):
        await limbo.demote(1)
    assert cluster.state.owner == "core1"
    release()
    assert (await under_way).position == 1


# --- lost answers ---------------------------------------------------------------------------------


@story()
async def test_a_lost_answer_to_a_promotion(cluster: Cluster) -> None:
    cluster.lose_answers("core1", "promote")
    assert await cluster.limbo("core1").promote(60) == Promoted(1, 0, 0)
    cluster.lose_answers("core1", "demote")
    assert (await cluster.limbo("core1").demote(60)).term == 2


@story()
async def test_another_node_is_promoted_while_the_proposal_is_under_way(cluster: Cluster) -> None:
    release = cluster.hold("core1", "promote")
    mine = asyncio.ensure_future(cluster.limbo("core1").promote(60))
    await asyncio.sleep(0.1)
    await cluster.limbo("core2").promote()
    release()
    with pytest.raises(InterferingPromote) as caught:
        await mine
    assert caught.value.owner == "core2"


@story()
async def test_an_isolated_node_cannot_promote(cluster: Cluster) -> None:
    cluster.isolate("core1")
    with pytest.raises(ReadTimeout):
        await cluster.limbo("core1").promote(1)
    cluster.heal("core1")
    release = cluster.hold("core1", "promote")
    with pytest.raises(NotApplied):
        await cluster.limbo("core1").promote(1)
    release()
    await asyncio.sleep(0.1)
    # It was settled: it can never come any more.
    assert cluster.state.owner == ""
    release = cluster.hold("core1")
    with pytest.raises(OutcomeUnknown):
        await cluster.limbo("core1").promote(1)
    release()
    await asyncio.sleep(0.1)
    # It was on its way, and came.
    assert cluster.limbo("core1").status().mine


@story()
async def test_the_life_ends_while_the_promotion_is_under_way(cluster: Cluster) -> None:
    limbo = cluster.limbo("core1")
    cluster.lose_answers("core1", "promote")
    waits = asyncio.ensure_future(limbo.promote(60))
    await asyncio.sleep(0.1)
    assert cluster.state.owner == "core1"
    cluster.declare_dead("core1")
    cluster.rejoin("core1")
    with pytest.raises(OutcomeUnknown):
        await waits
    status = limbo.status()
    assert (status.owner, status.mine, status.live) == ("core1", False, False)
    assert (await limbo.promote()).term == 2
    assert limbo.status().mine


# --- rollback on request --------------------------------------------------------------------------


@story(quorum="N")
async def test_a_rollback_loses_against_a_confirm(cluster: Cluster) -> None:
    limbo = await cluster.own("core1")
    await limbo.submit(sync("a"))
    with pytest.raises(AlreadyConfirmed):
        await limbo.rollback(1)
    with pytest.raises(UnknownPosition):
        await limbo.rollback(7)
    cluster.isolate("core3")
    await limbo.submit(sync("b"), wait="submit")
    release = cluster.hold("core2", "rollback")
    asks = asyncio.ensure_future(cluster.limbo("core2").rollback(2, timeout_s=60))
    await asyncio.sleep(0.1)
    cluster.heal("core3")
    # The hold has let the ack of core3 pass.
    await until(lambda: cluster.state.confirmed == 2)
    release()
    with pytest.raises(AlreadyConfirmed):
        await asks
    with pytest.raises(StaleTerm):
        await limbo.rollback(2, term=0)


@story(quorum="N")
async def test_a_rollback_cascades(cluster: Cluster) -> None:
    limbo = await cluster.own("core1")
    cluster.isolate("core3")
    for n in range(5):
        await limbo.submit(sync("k", str(n)), wait="submit")
    done = await limbo.rollback(3, "from here on")
    assert (done.first, done.last, done.entries) == (3, 5, 3)
    assert limbo.counters["rollback_requests"] == 1
    with pytest.raises(AlreadyRolledBack):
        await limbo.rollback(4)
    cluster.heal("core3")
    await limbo.wait_confirmed(5)
    assert cluster.value("core2", "s", b"k") == b"1"


@story(quorum="N")
async def test_what_is_submitted_during_a_rollback_is_not_part_of_it(cluster: Cluster) -> None:
    limbo = await cluster.own("core1")
    cluster.isolate("core3")
    first = asyncio.ensure_future(limbo.submit(sync("k", "1"), timeout_s=60))
    await until(lambda: cluster.state.pending == 1)
    release = cluster.hold("core1", "rollback")
    asks = asyncio.ensure_future(limbo.rollback(1, timeout_s=60))
    await asyncio.sleep(0.1)
    t = limbo.transaction().expect("s", b"k", value=b"1").put("s", b"k", b"2")
    second = asyncio.ensure_future(t.submit(timeout_s=60))
    await asyncio.sleep(0.1)
    assert cluster.state.pending == 1
    release()
    await asks
    with pytest.raises(RolledBack):
        await first
    # It saw the queue without what was rolled back.
    with pytest.raises(Exception, match="condition"):
        await second
    cluster.heal("core3")


@story(quorum="N")
async def test_a_reason_that_cannot_be_written_is_written_as_well_as_it_can(
    cluster: Cluster,
) -> None:
    limbo = await cluster.own("core1")
    cluster.isolate("core3")
    await limbo.submit(sync("k"), wait="submit")
    await limbo.rollback(1, "lost: \udcff" + "x" * 999)
    assert limbo.verdict(1).reason.startswith("lost: ?xxx")
    cluster.heal("core3")
