"""Waiting for verdicts: own transactions, handles, questions about positions, snapshots."""

from __future__ import annotations

import asyncio

import pytest

from raftkv.plugin import View
from raftkv_limbo import waiting
from raftkv_limbo.errors import RolledBack, StillPending, VerdictForgotten
from raftkv_limbo.waiting import Verdict
from tests.plugins.raftkv_limbo.fakes import Cluster, asynchronous, story, sync, until


@story(quorum="N")
async def test_a_handle_knows_what_became_of_it(cluster: Cluster) -> None:
    limbo = await cluster.own("core1")
    cluster.isolate("core3")
    kept = await limbo.submit(sync("kept"), wait="none")
    lost = await limbo.submit(sync("lost"), wait="none")
    assert kept.now.state == "submitting"
    receipt = await kept.receipt()
    assert (receipt.position, receipt.state, receipt.term) == (1, "pending", 1)
    with pytest.raises(StillPending):
        await lost.verdict(0.5)
    await limbo.rollback(2, "as wished")
    for _ in range(2):
        with pytest.raises(RolledBack) as caught:
            await lost.verdict()
    assert caught.value.args == (2, "as wished", "core1")
    cluster.heal("core3")
    assert (await kept.verdict()).state == "confirmed"
    assert (await kept.receipt()).state == "confirmed"
    assert kept.now.position == 1


@story(quorum="N")
async def test_verdicts_are_asked_for_anywhere(cluster: Cluster) -> None:
    limbo, other = await cluster.own("core1"), cluster.limbo("core2")
    # Before the position is given.
    asked = asyncio.ensure_future(other.wait_verdict(1, timeout_s=60))
    cluster.isolate("core3")
    one = await limbo.submit(sync("a"), wait="submit")
    await limbo.submit(sync("b"), wait="submit")
    assert other.verdict(1) == Verdict(1, "pending", submitted_index=one.index)
    assert other.verdict(3).fate == "unknown"
    assert other.verdict(0).fate == "unknown"
    assert (await other.wait_verdict(0)).fate == "unknown"
    with pytest.raises(StillPending):
        await other.wait_verdict(2, timeout_s=0.5)
    with pytest.raises(StillPending):
        await other.wait_confirmed(2, timeout_s=0.5)
    second = asyncio.ensure_future(other.wait_verdict(2, timeout_s=60))
    await asyncio.sleep(0.1)
    undone = await other.rollback(2, "by another")
    assert (undone.first, undone.last, undone.entries) == (2, 2, 1)
    verdict = await second
    assert (verdict.fate, verdict.reason, verdict.by) == ("rolled back", "by another", "core2")
    cluster.heal("core3")
    assert (await asked).fate == "confirmed"
    assert await other.wait_confirmed(2) == 1


@story(quorum="N")
async def test_an_independent_one_is_decided_before_those_in_front(cluster: Cluster) -> None:
    limbo = await cluster.own("core1")
    cluster.isolate("core3")
    asked = asyncio.ensure_future(cluster.limbo("core2").wait_verdict(2, timeout_s=60))
    await limbo.submit(sync("a"), wait="submit")
    await limbo.submit(asynchronous("b"), order="independent")
    assert (await asked).fate == "confirmed"
    assert limbo.verdict(1).fate == "pending"
    cluster.heal("core3")


@story(quorum="N")
async def test_a_snapshot_brings_the_verdicts(cluster: Cluster) -> None:
    limbo = await cluster.own("core1")
    cluster.isolate("core3")
    confirmed = asyncio.ensure_future(limbo.submit(sync("a"), timeout_s=99))
    undone = asyncio.ensure_future(limbo.submit(sync("b"), timeout_s=99))
    asked = asyncio.ensure_future(limbo.wait_confirmed(1, timeout_s=99))
    await until(lambda: cluster.state.pending == 2)
    await asyncio.sleep(0.1)
    cluster.pause("core1")
    await cluster.limbo("core2").rollback(2, "elsewhere")
    cluster.heal("core3")
    await until(lambda: cluster.state.confirmed == 1)
    assert not confirmed.done()
    cluster.jump("core1")
    assert (await confirmed).position == 1
    with pytest.raises(RolledBack):
        await undone
    assert await asked == 1
    assert cluster.value("core1", "s", b"a") == b"x"
    assert cluster.value("core1", "s", b"b") is None


@story(quorum="N")
async def test_the_verdict_may_come_before_the_answer(cluster: Cluster) -> None:
    """The Submit's answer is lost; when it is asked for, the transaction is rolled back already."""
    limbo = await cluster.own("core1")
    cluster.isolate("core3")
    cluster.lose_answers("core1", "submit")
    first = asyncio.ensure_future(limbo.submit(sync("a"), timeout_s=60))
    await until(lambda: cluster.state.pending == 1)
    await cluster.limbo("core2").rollback(1, "quick")
    cluster.heal("core3")
    with pytest.raises(RolledBack):
        await first
    cluster.lose_answers("core1", "submit")
    assert (await limbo.submit(sync("b"), timeout_s=60)).position == 2


@story(quorum="N", rollbacks_kept=10)
async def test_a_verdict_may_be_forgotten(cluster: Cluster) -> None:
    limbo, other = await cluster.own("core1"), cluster.limbo("core2")
    cluster.isolate("core3")
    handle = await limbo.submit(sync("a"), wait="none", timeout_s=None)
    await handle.receipt()
    cluster.pause("core1")
    await other.rollback(1, "first of many")
    await cluster.own("core2")
    for n in range(15):
        at = await other.submit(sync(f"k{n}"), wait="submit")
        await other.rollback(at.position, "one more")
        # A confirmed one in between keeps the runs apart.
        await other.submit(asynchronous(f"k{n}"))
    cluster.jump("core1")
    with pytest.raises(VerdictForgotten):
        await handle.verdict()
    assert limbo.verdict(1).fate == "forgotten"
    assert (await limbo.wait_verdict(1)).fate == "forgotten"
    cluster.heal("core3")


@story(quorum="N")
async def test_who_asks_and_leaves_is_forgotten(cluster: Cluster) -> None:
    limbo = await cluster.own("core1")
    asked = asyncio.ensure_future(limbo.wait_verdict(1, timeout_s=None))
    await asyncio.sleep(0.1)
    assert len(limbo.waiting) == 1
    asked.cancel()
    await asyncio.sleep(0.1)
    assert len(limbo.waiting) == 0


@story(quorum="N")
async def test_questions_about_what_is_pending_cost_little(cluster: Cluster) -> None:
    """They are asked at every change, and most changes say nothing about most of them."""
    limbo = await cluster.own("core1")
    cluster.isolate("core3")
    for n in range(20):
        await limbo.submit(sync(f"k{n}"), wait="submit")
    looks = []
    whole = waiting.verdict_of

    def counting(view: View, position: int) -> waiting.Verdict:
        looks.append(position)
        return whole(view, position)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(waiting, "verdict_of", counting)
        asked = [asyncio.ensure_future(limbo.wait_verdict(n, timeout_s=60)) for n in range(1, 21)]
        for n in range(20):
            await limbo.submit(asynchronous(f"k{n}"), wait="submit")
    # Each once; the oldest one cannot be anything but pending.
    assert looks == list(range(2, 21))
    await limbo.rollback(11)
    cluster.heal("core3")
    fates = [(await one).fate for one in asked]
    assert fates == ["confirmed"] * 10 + ["rolled back"] * 10
