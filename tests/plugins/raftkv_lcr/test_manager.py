"""The session manager: what a broker calls, and what happens when it goes away in between."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec
import pytest

from raftkv.errors import Timeout, TooLarge
from raftkv.state import Envelope
from raftkv_lcr.commands import Channel, Mode, NotAdopted, Open, SwitchMode
from raftkv_lcr.modes import mode_of
from raftkv_lcr.owner import ChannelGone, Message
from raftkv_lcr.testing.broker import MemoryBroker, Session, decode_content
from tests.plugins.raftkv_lcr.fakes import (
    Cluster,
    FakeNode,
    live,
    message,
    story,
    tag_of,
    tell,
    texts,
)

MOMENT_S = 0.01


@story()
async def test_arguments_are_checked(cluster: Cluster) -> None:
    manager = cluster.nodes["core1"].manager
    with pytest.raises(ValueError, match="client_id is empty"):
        await manager.open_session("", False, "a")
    with pytest.raises(ValueError, match="channel is empty"):
        await manager.open_session("c", False, "")
    with pytest.raises(ValueError, match="version -1"):
        await manager.open_session("c", False, "a", version=-1)
    with pytest.raises(TooLarge):
        await manager.open_session("c" * 20_000, False, "a")
    with pytest.raises(ValueError, match="one broker"):
        cluster.nodes["core1"].lcr.sessions(cluster.nodes["core1"].broker)


@story()
async def test_one_channel_is_opened_once_at_a_time(cluster: Cluster) -> None:
    manager = cluster.nodes["core1"].manager
    first = asyncio.ensure_future(cluster.nodes["core1"].broker.connect("c", "a"))
    await asyncio.sleep(0)
    with pytest.raises(ValueError, match="being opened"):
        await manager.open_session("c", False, "a")
    assert (await first).outcome == "ok"
    # And repeated, it hears the first answer, and is not its own predecessor.
    again = await manager.open_session("c", False, "a")
    assert (again.outcome, again.present, again.handover) == ("ok", False, "none")
    assert again.channel == (await first).channel


@story(replicants=1)
async def test_outdated_early_asks_nobody(cluster: Cluster) -> None:
    """Scenario 6, for a whole session."""
    a, b = cluster.nodes["core1"], cluster.nodes["rep1"]
    now_ms = a.now_ms()
    newer = (await a.broker.connect("c", "a", version=now_ms - 10)).channel
    proposed, calls = b.proposed, b.rpc.calls
    opened = await b.broker.connect("c", "b", version=now_ms - 20)
    assert (opened.outcome, opened.channel, opened.attempts) == ("outdated_early", newer, 0)
    assert (b.proposed, b.rpc.calls) == (proposed, calls)
    assert b.lcr.counters["outdated_early"] == 1


@story()
async def test_a_node_that_is_no_member_yet_waits(cluster: Cluster) -> None:
    """Its copy does not even know the mode: it would act as if it were disabled."""
    node = cluster.nodes["core2"]
    incarnation, node.incarnation = node.incarnation, 0
    late = await node.broker.connect("d", "late", timeout_s=MOMENT_S)
    assert (late.outcome, late.attempts) == ("timeout", 0)
    connecting = asyncio.ensure_future(node.broker.connect("c", "a"))
    await asyncio.sleep(MOMENT_S)
    assert not connecting.done()
    node.incarnation = incarnation
    assert (await connecting).outcome == "ok"


@story()
async def test_asking_a_channel_of_this_node_in_the_last_millisecond_takes_time(
    cluster: Cluster,
) -> None:
    """Time is virtual here: a loop that asks again and again without waiting never ends."""
    node = cluster.nodes["core1"]
    row = (await node.broker.connect("c", "a")).channel
    assert row is not None
    node.broker.hanging[("begin", "a")] = asyncio.Event()
    takeovers = node.manager.takeovers
    deadline = asyncio.get_running_loop().time() + 0.2009  # half of it is no whole millisecond
    with pytest.raises(ChannelGone, match="did not answer in time"):
        await takeovers.begin(row, takeovers.contender("b"), deadline)
    node.broker.hanging[("begin", "a")].set()


@story()
async def test_ticket_is_kept_over_retries(cluster: Cluster) -> None:
    """Told to restart, the connection grows no newer by trying again."""
    a, b = cluster.nodes["core1"], cluster.nodes["core2"]
    cluster.pause("core2")
    await a.broker.connect("c", "a")
    sent: list[tuple[int, bool]] = []

    def note(node: FakeNode, envelope: Envelope) -> bool:
        if tag_of(envelope) == "open":
            command = msgspec.msgpack.decode(envelope.command, type=Open)
            sent.append((command.ticket, command.resume))
        return True

    cluster.filter = note
    connecting = asyncio.ensure_future(b.broker.connect("c", "b"))
    await asyncio.sleep(MOMENT_S)
    cluster.resume("core2")
    opened = await connecting
    assert opened.channel is not None
    assert sent == [(0, False), (opened.channel.ticket, True)]


@story()
async def test_policy_refuse(cluster: Cluster) -> None:
    cluster.set("policy", "refuse")
    a, b, c = (cluster.nodes[name] for name in cluster.nodes)
    await a.broker.connect("c", "a")
    assert (await c.lcr.register("c", "x", predecessor=None)).outcome == "restart"
    opened = await b.broker.connect("c", "b")
    assert opened.outcome == "in_progress"
    assert opened.channel is not None
    assert opened.channel.channel == "x"
    await asyncio.sleep(MOMENT_S)
    assert not a.broker.sessions[("c", "a")].frozen
    won = await c.broker.connect("c", "x")
    assert won.handover == "complete"


@pytest.mark.parametrize("where", ["core1", "core2", "core3"])
def test_kick_and_discard_from_any_node(where: str) -> None:
    async def body(cluster: Cluster) -> None:
        a, manager = cluster.nodes["core1"].broker, cluster.nodes[where].manager
        assert not await manager.kick("c", "nobody is there")
        await a.connect("c", "a")
        assert await manager.kick("c", "because")
        assert a.sessions[("c", "a")].closed_for == "because"
        await asyncio.sleep(MOMENT_S)
        assert cluster.nodes["core3"].lcr.lookup_local("c") is None
        await a.connect("c", "b")
        assert await manager.discard("c")
        assert a.sessions[("c", "b")].closed_for == "discarded"
        await asyncio.sleep(MOMENT_S)
        assert cluster.nodes["core3"].lcr.lookup_local("c") is None

    tell(body)


@story()
async def test_kick_cleans_a_row_without_a_channel(cluster: Cluster) -> None:
    a, b = cluster.nodes["core1"], cluster.nodes["core2"]
    await a.broker.connect("c", "a")
    del a.broker.sessions[("c", "a")]
    assert not await b.manager.kick("c", "because")
    await asyncio.sleep(MOMENT_S)
    assert b.lcr.lookup_local("c") is None


@story()
async def test_close_is_by_the_row_that_stands(cluster: Cluster) -> None:
    """The broker closes with the row it was given, although its node has a new incarnation."""
    a = cluster.nodes["core1"]
    row = (await a.broker.connect("c", "a")).channel
    assert row is not None
    cluster.isolate("core1")
    cluster.declare_dead("core1")
    cluster.rejoin("core1")
    await asyncio.sleep(1.0)
    again = a.lcr.lookup_local("c")
    assert again is not None
    assert again.incarnation > row.incarnation
    await a.broker.disconnect("c", "a")
    assert a.lcr.lookup_local("c") is None
    await a.manager.close(row)


@story()
async def test_close_does_not_raise_without_a_leader(cluster: Cluster) -> None:
    a = cluster.nodes["core1"]
    await a.broker.connect("c", "a")
    cluster.filter = lambda node, envelope: False
    await a.broker.disconnect("c", "a")
    assert len(a.lcr.reaper) == 1
    cluster.filter = lambda node, envelope: True
    await asyncio.sleep(10.0)
    assert a.lcr.lookup_local("c") is None


@pytest.mark.parametrize("applied", [False, True])
def test_open_in_doubt(applied: bool) -> None:
    """No answer from the log: whether it was written or not, the client finds its session."""

    async def body(cluster: Cluster) -> None:
        p, w, x = (cluster.nodes[name] for name in cluster.nodes)
        await p.broker.connect("c", "p")
        assert p.broker.publish("c", message(0))
        if applied:
            cluster.pause("core2")
        else:
            cluster.filter = lambda node, envelope: tag_of(envelope) != "open"
        with pytest.raises(Timeout):
            await w.broker.connect("c", "w", timeout_s=1.0)
        cluster.filter = lambda node, envelope: True
        again = asyncio.ensure_future(x.broker.connect("c", "x"))
        await asyncio.sleep(1.0)
        # While it is not known what became of the channel, whoever wants its session waits.
        assert again.done() is not applied
        if applied:
            cluster.resume("core2")
        opened = await again
        assert (opened.outcome, opened.handover) == ("ok", "complete")
        [(name, session)] = live(cluster)
        assert (name, texts(session.content)) == ("core3", ["m0"])

    tell(body)


@story()
async def test_the_same_channel_opens_again_after_a_doubt(cluster: Cluster) -> None:
    """It was written, and the second call learns that; the predecessor's session, too."""
    p, w = cluster.nodes["core1"], cluster.nodes["core2"]
    await p.broker.connect("c", "p")
    assert p.broker.publish("c", message(0))
    cluster.pause("core2")
    with pytest.raises(Timeout):
        await w.broker.connect("c", "w", timeout_s=1.0)
    assert p.broker.publish("c", message(1))
    again = asyncio.ensure_future(w.broker.connect("c", "w", timeout_s=5.0))
    await asyncio.sleep(MOMENT_S)
    cluster.resume("core2")
    opened = await again
    assert (opened.outcome, opened.present, opened.handover) == ("ok", True, "complete")
    assert texts(w.broker.sessions[("c", "w")].content) == ["m0", "m1"]


@pytest.mark.parametrize("lagging", [False, True])
@pytest.mark.parametrize("half_ms", range(24))
@pytest.mark.parametrize("mode", ["enabled", "migration"])
def test_cancelled_at_every_step(mode: Mode, half_ms: int, lagging: bool) -> None:
    """Nothing leaks, and the session is there when the client comes back."""

    async def body(cluster: Cluster) -> None:
        p, w, x = (cluster.nodes[name].broker for name in cluster.nodes)
        if lagging:
            cluster.pause("core2")
        await p.connect("c", "p")
        assert p.publish("c", message(0))
        connecting = asyncio.ensure_future(w.connect("c", "w"))
        if lagging:
            await asyncio.sleep(0.0001)
            cluster.resume("core2")
        await asyncio.sleep(half_ms / 2000)
        expected = ["m0", "m1"] if p.publish("c", message(1)) else ["m0"]
        connecting.cancel()
        await asyncio.wait([connecting])
        await asyncio.sleep(1.0)
        opened = await x.connect("c", "x")
        assert (opened.outcome, opened.handover) == ("ok", "complete")
        [(name, session)] = live(cluster)
        assert name == "core3"
        assert texts(session.content) == expected

    tell(body, mode=mode)


@story()
async def test_parked_session_is_given_up_in_the_end(cluster: Cluster) -> None:
    p, w = cluster.nodes["core1"], cluster.nodes["core2"]
    await p.broker.connect("c", "p")
    slow = p.broker.hanging[("end", "p")] = asyncio.Event()
    connecting = asyncio.ensure_future(w.broker.connect("c", "w"))
    await asyncio.sleep(MOMENT_S)
    connecting.cancel()
    await asyncio.wait([connecting])
    slow.set()
    await asyncio.sleep(1.0)
    row = w.lcr.lookup_local("c")
    assert row is not None
    assert row.channel == "w"
    assert w.manager.handover.is_alive(row)
    await asyncio.sleep(w.manager.options.parked_keep_s)
    assert w.lcr.lookup_local("c") is None
    assert not w.manager.handover.is_alive(row)


@story()
async def test_a_parked_session_that_is_being_taken_over_goes_back_to_its_caller(
    cluster: Cluster,
) -> None:
    """What the channel accepts from then on is the contender's, too."""
    p, w, x = (cluster.nodes[name] for name in cluster.nodes)
    await p.broker.connect("c", "p")
    assert p.broker.publish("c", message(0))
    slow = p.broker.hanging[("end", "p")] = asyncio.Event()
    connecting = asyncio.ensure_future(w.broker.connect("c", "w"))
    await asyncio.sleep(MOMENT_S)
    connecting.cancel()
    await asyncio.wait([connecting])
    slow.set()
    await asyncio.sleep(1.0)
    release = cluster.hold("core3")
    contending = asyncio.ensure_future(x.broker.connect("c", "x"))
    await asyncio.sleep(MOMENT_S)
    again = await w.broker.connect("c", "w")
    assert (again.outcome, again.handover) == ("ok", "complete")
    assert w.broker.publish("c", message(1))
    release()
    assert (await contending).handover == "complete"
    [(name, session)] = live(cluster)
    assert (name, texts(session.content)) == ("core3", ["m0", "m1"])


@story()
async def test_a_parked_session_that_is_just_being_ended_is_gone(cluster: Cluster) -> None:
    p, w, x = (cluster.nodes[name] for name in cluster.nodes)
    await p.broker.connect("c", "p")
    assert p.broker.publish("c", message(0))
    slow = p.broker.hanging[("end", "p")] = asyncio.Event()
    connecting = asyncio.ensure_future(w.broker.connect("c", "w"))
    await asyncio.sleep(MOMENT_S)
    connecting.cancel()
    await asyncio.wait([connecting])
    slow.set()
    await asyncio.sleep(1.0)
    parking = w.manager.owner
    end, ending = parking.end, asyncio.Event()

    async def slowly(channel: Channel) -> Sequence[Message]:
        ending.set()
        await asyncio.sleep(0.5)
        return await end(channel)

    parking.end = slowly  # type: ignore[method-assign]
    contending = asyncio.ensure_future(x.broker.connect("c", "x"))
    await ending.wait()
    # Its caller is back, and newer than the one that took the session over.
    again = await w.broker.connect("c", "w")
    assert (await contending).handover == "complete"
    assert (again.outcome, again.handover) == ("ok", "complete")
    [(name, session)] = live(cluster)
    assert (name, texts(session.content)) == ("core2", ["m0"])


@story()
async def test_a_broker_that_keeps_sessions_gets_it(cluster: Cluster) -> None:
    p, w, x = (cluster.nodes[name] for name in cluster.nodes)
    kept: list[tuple[str, list[str], list[str]]] = []

    class Keeper(MemoryBroker):
        def keep(self, channel: Channel, session: bytes, pendings: Sequence[Message]) -> None:
            kept.append((channel.channel, texts(decode_content(session)), texts(pendings)))
            session_here = self.sessions[(channel.client_id, channel.channel)] = Session(
                channel.client_id, channel.channel
            )
            session_here.row = channel
            session_here.content = [*decode_content(session), *pendings]

    w.broker = Keeper("core2")
    w.manager.owner.broker = w.broker
    w.broker.manager = w.manager
    await p.broker.connect("c", "p")
    assert p.broker.publish("c", message(0))
    slow = p.broker.hanging[("end", "p")] = asyncio.Event()
    connecting = asyncio.ensure_future(w.broker.connect("c", "w"))
    await asyncio.sleep(MOMENT_S)
    assert p.broker.publish("c", message(1))
    connecting.cancel()
    await asyncio.wait([connecting])
    slow.set()
    await asyncio.sleep(1.0)
    assert kept == [("w", ["m0"], ["m1"])]
    assert (await x.broker.connect("c", "x")).handover == "complete"
    assert texts(live(cluster)[0][1].content) == ["m0", "m1"]


@story()
async def test_lost_to_nobody_it_comes_back(cluster: Cluster) -> None:
    """Somebody deleted the row of a living channel."""
    a = cluster.nodes["core1"]
    row = (await a.broker.connect("c", "a")).channel
    assert isinstance(row, Channel)
    await cluster.nodes["core2"].lcr.unregister(row)
    await asyncio.sleep(1.0)
    assert a.lcr.lookup_local("c") == row
    assert a.manager.held[("c", "a")] == row


@story()
async def test_a_ticket_of_a_history_that_was_given_up_is_no_obstacle(cluster: Cluster) -> None:
    """After a recovery by force the log counts from an earlier point."""
    a = cluster.nodes["core1"]
    row = (await a.broker.connect("c", "a")).channel
    assert row is not None
    await cluster.nodes["core2"].lcr.unregister(row)
    given_up = msgspec.structs.replace(row, ticket=10**9, version=10**9)
    entered = await a.manager.enter(given_up)
    assert entered is not None
    assert entered.ticket < 10**9
    assert cluster.nodes["core3"].lcr.lookup_local("c") == entered
    await asyncio.sleep(1.0)
    assert a.manager.held[("c", "a")] == entered


# --- the mode -------------------------------------------------------------------------------------


@story(mode="disabled")
async def test_switch_takes_the_steps_and_waits_for_adoption(cluster: Cluster) -> None:
    a, b = cluster.nodes["core1"], cluster.nodes["core2"]
    for number in range(20):
        await a.broker.connect(f"c{number}", "a")
        assert a.broker.publish(f"c{number}", message(number))
    assert len(b.view().table("clients")) == 0
    row = await b.lcr.switch_mode("enabled")
    assert row.mode == "enabled"
    assert b.lcr.mode() == row == mode_of(a.view())
    # All of them are where the new mode looks for them.
    for number in range(20):
        opened = await b.broker.connect(f"c{number}", "b")
        assert (opened.present, texts(opened.pendings)) == (True, [])
        assert texts(b.broker.sessions[(f"c{number}", "b")].content) == [f"m{number}"]


@story(mode="migration")
async def test_open_that_began_before_the_switch_starts_again(cluster: Cluster) -> None:
    a, b, c = (cluster.nodes[name] for name in cluster.nodes)
    await a.broker.connect("c", "a")
    assert a.broker.publish("c", message(0))
    release = cluster.hold("core2")
    connecting = asyncio.ensure_future(b.broker.connect("c", "b"))
    await asyncio.sleep(MOMENT_S)
    with pytest.raises(NotAdopted):
        # core2 cannot announce, for what it proposes does not reach the log yet.
        await c.lcr.switch_mode("enabled", timeout_s=0.5)
    assert c.lcr.mode().mode == "enabled"
    release()
    opened = await connecting
    assert (opened.outcome, opened.handover, opened.attempts) == ("ok", "complete", 2)
    assert b.lcr.counters["mode_changed"] == 1
    assert b.manager.written[("c", "b")].old is None
    assert texts(b.broker.sessions[("c", "b")].content) == ["m0"]
    assert (await c.lcr.switch_mode("enabled")).mode == "enabled"


@story(mode="migration")
async def test_switch_waits_for_adoption_on_the_way_to_a_mode_too(cluster: Cluster) -> None:
    c = cluster.nodes["core3"]
    release = cluster.hold("core2")
    # No step leads from here to "enabled" but by "migration", which must wait for core2.
    await c.propose(SwitchMode("disabled"))
    switching = asyncio.ensure_future(c.lcr.switch_mode("enabled"))
    await asyncio.sleep(0.5)
    assert not switching.done()
    release()
    assert (await switching).mode == "enabled"
