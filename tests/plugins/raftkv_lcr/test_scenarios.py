"""The research page's scenarios of the session flow, with the linear registry switched on.

Those of the registry alone (6, 7, 8, 11, 12) are in test_registry.py and test_api.py, the sweep
(14) in test_sweep.py. The cluster is faked, time is virtual (fakes.py).
"""

from __future__ import annotations

import asyncio
import random

import pytest

from raftkv_lcr.commands import Unregister
from raftkv_lcr.linear_flow import RETRIES_MAX
from tests.plugins.raftkv_lcr.fakes import (
    Cluster,
    Publisher,
    live,
    message,
    settle,
    story,
    tell,
    texts,
)

CONNECTS = 50
# Somewhat more than a round trip through the faked log.
MOMENT_S = 0.01


def first_ms(cluster: Cluster) -> int:
    """The first of the connect times of a test: all of them have passed."""
    return cluster.nodes["core1"].now_ms() - 2_000


def owners(cluster: Cluster) -> set[str | None]:
    """What all nodes show as the client's channel."""
    rows = [node.lcr.lookup_local("c") for node in cluster.nodes.values() if node.alive]
    return {None if row is None else row.channel for row in rows}


@story(replicants=3)
async def test_1_registered_on_one_node_found_on_each(cluster: Cluster) -> None:
    opened = await cluster.nodes["rep2"].broker.connect("c", "a")
    assert (opened.outcome, opened.present, opened.handover) == ("ok", False, "none")
    for node in cluster.nodes.values():
        assert await node.lcr.lookup("c") == opened.channel


@story(replicants=1)
async def test_2_lagging_node_discards_what_it_did_not_see(cluster: Cluster) -> None:
    old, new = cluster.nodes["core1"].broker, cluster.nodes["rep1"].broker
    cluster.pause("rep1")
    await old.connect("c", "a")
    assert old.publish("c", message(0))
    connecting = asyncio.ensure_future(new.connect("c", "b", clean_start=True))
    await asyncio.sleep(MOMENT_S)
    # Its own verdict reaches it with what it has missed.
    cluster.resume("rep1")
    opened = await connecting
    assert (opened.outcome, opened.present, opened.attempts) == ("ok", False, 1)
    assert opened.session is None
    await asyncio.sleep(MOMENT_S)
    assert old.sessions[("c", "a")].closed_for == "discarded"
    assert owners(cluster) == {"b"}
    assert [texts(session.content) for _, session in live(cluster)] == [[]]


@story(replicants=1)
async def test_3_lagging_node_takes_over_what_it_did_not_see(cluster: Cluster) -> None:
    old, new = cluster.nodes["core1"].broker, cluster.nodes["rep1"].broker
    cluster.pause("rep1")
    await old.connect("c", "a")
    assert old.publish("c", message(0))
    connecting = asyncio.ensure_future(new.connect("c", "b"))
    await asyncio.sleep(MOMENT_S)
    cluster.resume("rep1")
    opened = await connecting
    assert (opened.outcome, opened.present, opened.handover) == ("ok", True, "complete")
    assert owners(cluster) == {"b"}
    assert [(name, texts(session.content)) for name, session in live(cluster)] == [("rep1", ["m0"])]


@pytest.mark.parametrize("lag_ms", [0, 100, 500])
def test_3_the_old_channels_node_lags(lag_ms: int) -> None:
    """It has not heard of its own channel's successor, and hands over all the same, at once."""

    async def body(cluster: Cluster) -> None:
        old, new = cluster.nodes["rep1"].broker, cluster.nodes["core1"].broker
        await old.connect("c", "a")
        assert old.publish("c", message(0))
        cluster.pause("rep1")
        before = asyncio.get_running_loop().time()
        opened = await new.connect("c", "b")
        assert (opened.present, opened.handover) == (True, "complete")
        assert asyncio.get_running_loop().time() - before < 0.05
        await asyncio.sleep(lag_ms / 1000)
        cluster.resume("rep1")
        assert owners(cluster) == {"b"}
        assert cluster.nodes["rep1"].lcr.counters["lost"] == 0

    tell(body, replicants=1)


@story()
async def test_4_two_contenders_for_a_frozen_channel(cluster: Cluster) -> None:
    """A does not answer yet. B begins, D 10 ms later; whoever begins first, D is in the end."""
    base_ms = first_ms(cluster)
    a, b, d = (cluster.nodes[name].broker for name in cluster.nodes)
    await a.connect("c", "a", version=base_ms + 100)
    assert a.publish("c", message(0))
    thaw = a.hanging[("begin", "a")] = asyncio.Event()
    older = asyncio.ensure_future(b.connect("c", "b", version=base_ms + 200))
    await asyncio.sleep(0.01)
    newer = asyncio.ensure_future(d.connect("c", "d", version=base_ms + 210))
    await asyncio.sleep(0.1)
    assert not older.done()
    assert not newer.done()
    thaw.set()
    assert (await newer).outcome == "ok"
    assert (await newer).present
    # B was first in the log and then taken over, or came too late; both are clear answers.
    assert (await older).outcome in ("ok", "outdated_late", "outdated_early")
    assert owners(cluster) == {"d"}
    assert [texts(session.content) for _, session in live(cluster)] == [["m0"]]
    assert a.calls.count(("begin", "a")) == 1


@pytest.mark.parametrize("first", ["b", "d"])
def test_4_in_either_order_of_the_log(first: str) -> None:
    """Both have begun; the log gets their registrations in one order or the other."""

    async def body(cluster: Cluster) -> None:
        base_ms = first_ms(cluster)
        a, b, d = (cluster.nodes[name].broker for name in cluster.nodes)
        await a.connect("c", "a", version=base_ms + 100)
        assert a.publish("c", message(0))
        held = {"b": "core3", "d": "core2"}[first]
        release = cluster.hold(held)
        older = asyncio.ensure_future(b.connect("c", "b", version=base_ms + 200))
        newer = asyncio.ensure_future(d.connect("c", "d", version=base_ms + 210))
        await asyncio.sleep(0.1)
        release()
        assert (await newer).outcome == "ok"
        assert (await newer).handover == "complete"
        assert (await older).outcome == ("ok" if first == "b" else "outdated_late")
        assert owners(cluster) == {"d"}
        assert [texts(session.content) for _, session in live(cluster)] == [["m0"]]

    tell(body)


@story()
async def test_4_who_waits_longer_grows_no_newer(cluster: Cluster) -> None:
    """Without versions: A hangs for both of them, and B's way to the log is the longer one."""
    a, b, d = (cluster.nodes[name] for name in cluster.nodes)
    await a.broker.connect("c", "a")
    thaw = a.broker.hanging[("begin", "a")] = asyncio.Event()
    older = asyncio.ensure_future(b.broker.connect("c", "b"))
    await asyncio.sleep(0.01)
    newer = asyncio.ensure_future(d.broker.connect("c", "d"))

    async def slowly(number: int) -> None:
        await asyncio.sleep(0.1)

    cluster.before_each_open(b, slowly)
    assert (await newer).outcome == "ok"
    assert (await older).outcome == "outdated_late"
    assert owners(cluster) == {"d"}
    thaw.set()
    await asyncio.sleep(MOMENT_S)
    assert [session.channel for _, session in live(cluster)] == ["d"]


@story()
async def test_a_quick_begin_costs_no_entry_for_a_ticket(cluster: Cluster) -> None:
    a, d = cluster.nodes["core1"], cluster.nodes["core2"]
    await a.broker.connect("c", "a")
    proposed = d.proposed
    assert (await d.broker.connect("c", "d")).outcome == "ok"
    assert d.proposed == proposed + 1


@story()
async def test_5_old_channel_never_answers(cluster: Cluster) -> None:
    a, d = cluster.nodes["core1"].broker, cluster.nodes["core2"].broker
    await a.connect("c", "a")
    assert a.publish("c", message(0))
    a.hanging[("begin", "a")] = asyncio.Event()
    before = asyncio.get_running_loop().time()
    opened = await d.connect("c", "d")
    assert asyncio.get_running_loop().time() - before < 5.5
    assert (opened.outcome, opened.present) == ("ok", False)
    assert (opened.handover, opened.failure) == ("lost", "timeout")
    await asyncio.sleep(MOMENT_S)
    assert [session.channel for _, session in live(cluster)] == ["d"]
    assert owners(cluster) == {"d"}
    assert cluster.nodes["core2"].lcr.counters["takeover_failed_begin_timeout"] == 1


@story(replicants=1)
async def test_9_retries_are_bounded(cluster: Cluster) -> None:
    """Before each registration the predecessor leaves, and another connection comes."""
    base_ms = first_ms(cluster)
    broker, slow = cluster.nodes["core1"].broker, cluster.nodes["rep1"]
    await broker.connect("c", "a0", version=base_ms + 1)

    async def leave_and_come(number: int) -> None:
        await broker.disconnect("c", f"a{number - 1}")
        assert (
            await broker.connect("c", f"a{number}", version=base_ms + number + 1)
        ).outcome == "ok"

    cluster.before_each_open(slow, leave_and_come)
    opened = await slow.broker.connect("c", "z", version=base_ms + 1_000)
    assert opened.outcome == "retries_exhausted"
    assert opened.attempts == RETRIES_MAX + 1
    assert slow.lcr.counters["retries_exhausted"] == 1
    cluster.filter = lambda node, envelope: True
    await asyncio.sleep(MOMENT_S)
    [(name, session)] = live(cluster)
    assert (name, session.channel, session.frozen) == ("core1", f"a{RETRIES_MAX + 1}", False)
    assert owners(cluster) == {session.channel}


@story(replicants=1)
async def test_9_what_was_begun_in_vain_goes_on(cluster: Cluster) -> None:
    """A newer connection claims the place while the other one's registration is on its way."""
    base_ms = first_ms(cluster)
    a, b, d = (cluster.nodes[name].broker for name in ("core1", "core2", "core3"))
    await a.connect("c", "a", version=base_ms + 100)
    release = cluster.hold("core2")
    older = asyncio.ensure_future(b.connect("c", "b", version=base_ms + 200))
    await asyncio.sleep(MOMENT_S)
    assert a.sessions[("c", "a")].frozen
    assert a.publish("c", message(0))
    claimed = await cluster.nodes["core3"].lcr.register(
        "c", "d", predecessor=None, version=base_ms + 300
    )
    assert claimed.outcome == "restart"
    release()
    assert (await older).outcome == "outdated_late"
    await asyncio.sleep(MOMENT_S)
    session = a.sessions[("c", "a")]
    assert (session.live, session.frozen, texts(session.content)) == (True, False, ["m0"])
    assert owners(cluster) == {"a"}
    opened = await d.connect("c", "d", version=base_ms + 300)
    assert (opened.handover, texts(live(cluster)[0][1].content)) == ("complete", ["m0"])


@story()
async def test_10_late_and_doubled_delete(cluster: Cluster) -> None:
    a, b = cluster.nodes["core1"].broker, cluster.nodes["core2"].broker
    gone = (await a.connect("c", "a")).channel
    assert gone is not None
    successor = (await b.connect("c", "b")).channel
    for _ in range(2):
        await a.manager.close(gone)
        removed = await cluster.nodes["core1"].propose(Unregister(gone))
        assert not removed.removed
    for node in cluster.nodes.values():
        assert node.lcr.lookup_local("c") == successor


@story(replicants=1)
async def test_13_partition_is_not_death_and_nothing_is_resurrected(cluster: Cluster) -> None:
    """One client reconnected elsewhere meanwhile, one did not."""
    n, elsewhere = cluster.nodes["rep1"].broker, cluster.nodes["core2"].broker
    await n.connect("c", "a")
    stayed = await n.connect("stayed", "s")
    assert n.publish("stayed", message(7))
    cluster.isolate("rep1")
    # It goes on serving its clients.
    assert n.publish("c", message(0))
    cluster.declare_dead("rep1")
    opened = await elsewhere.connect("c", "b")
    assert (opened.outcome, opened.present) == ("ok", False)
    assert elsewhere.publish("c", message(1))
    assert cluster.nodes["core1"].lcr.lookup_local("stayed") is None
    cluster.rejoin("rep1")
    await settle(cluster)
    assert owners(cluster) == {"b"}
    assert n.sessions[("c", "a")].closed_for is not None
    assert [texts(session.content) for _, session in live(cluster)] == [["m1"]]
    again = cluster.nodes["core1"].lcr.lookup_local("stayed")
    assert again is not None
    assert stayed.channel is not None
    assert (again.channel, again.ticket) == ("s", stayed.channel.ticket)
    assert again.incarnation > stayed.channel.incarnation
    # And it can be taken over, by its new row.
    moved = await elsewhere.connect("stayed", "t")
    assert moved.handover == "complete"
    assert texts(live(cluster, "stayed")[0][1].content) == ["m7"]


@pytest.mark.parametrize("lost", [0.0, 0.1])
@pytest.mark.parametrize("spacing_ms", [0, 1, 3, 10, 100])
@pytest.mark.parametrize("seed", range(3))
def test_15_massive_race(spacing_ms: int, seed: int, lost: float) -> None:
    """50 connects of one client over all nodes, while messages come in.

    At the end one channel in the cluster and one live session, which has every accepted message
    once and in order; also when every tenth call between nodes, or its answer, gets lost.
    """

    async def body(cluster: Cluster) -> None:
        rng = random.Random(seed)
        names = list(cluster.nodes)
        await cluster.nodes["rep1"].broker.connect("c", "first")
        publisher = Publisher(cluster, rng)
        if lost:
            cluster.lose_calls(rng, lost)
        connects = []
        for number in range(CONNECTS):
            broker = cluster.nodes[rng.choice(names)].broker
            # Some 100 round trips: no time-out may decide here.
            connect = broker.connect("c", f"{number}", timeout_s=120.0)
            connects.append(asyncio.ensure_future(connect))
            await asyncio.sleep(spacing_ms / 1000)
        answers = await asyncio.gather(*connects)
        await publisher.stop()
        await settle(cluster)
        outcomes = {answer.outcome for answer in answers}
        assert "ok" in outcomes
        assert outcomes <= {"ok", "outdated_early", "outdated_late", "retries_exhausted"}
        [(name, session)] = live(cluster)
        assert owners(cluster) == {session.channel}
        assert len(cluster.nodes[name].manager.held) == 1
        assert len(publisher.accepted) >= 10
        assert texts(session.content) == publisher.accepted

    tell(body, 3, 3)
