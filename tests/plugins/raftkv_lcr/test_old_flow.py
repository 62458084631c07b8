"""The session flow of the old registry, on nodes that know no other."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import get_args

import pytest

from raftkv.testing.clock import run
from raftkv_lcr.commands import Channel
from raftkv_lcr.legacy_wire import OldEnd
from raftkv_lcr.old_node import OldSessions
from raftkv_lcr.owner import ChannelGone, Failure
from tests.plugins.raftkv_lcr.fakes import Cluster
from tests.plugins.raftkv_lcr.worlds import World, message, texts

Body = Callable[[World], Awaitable[None]]

KINDS: tuple[Failure, ...] = get_args(Failure)


def play(body: Body, cores: int = 3, replicants: int = 1) -> None:
    """Run on a cluster of old nodes, in virtual time."""

    async def whole() -> None:
        cluster = Cluster(0, 0)
        world = World(cluster)
        for number in range(1, cores + 1):
            await world.old_node(f"core{number}", "core")
        for number in range(1, replicants + 1):
            await world.old_node(f"rep{number}", "replicant")
        cluster.lead("core1")
        await world.warm_up()
        await body(world)

    run(whole())


def sessions(world: World, node: str) -> OldSessions:
    manager = world.brokers[node].manager
    assert isinstance(manager, OldSessions)
    return manager


def row_of(world: World, client: str) -> Channel:
    session = world.session(client)
    assert session is not None
    assert session.row is not None
    return session.row


async def until_frozen(world: World, node: str, client: str) -> None:
    while not any(s.frozen for s in world.brokers[node].sessions.values() if s.client_id == client):
        await asyncio.sleep(0.0001)


def test_content_and_what_arrives_between_begin_and_end_move_in_order() -> None:
    async def body(world: World) -> None:
        await world.connect("rep1", "c", "a")
        world.publish("c", "m1")
        await world.rest()
        taking = asyncio.ensure_future(world.brokers["core2"].connect("c", "b"))
        await until_frozen(world, "rep1", "c")
        assert world.publish("c", "m2")
        assert world.publish("c", "m3")
        opened = await taking
        assert (opened.outcome, opened.present, opened.handover) == ("ok", True, "complete")
        assert [one.id for one in opened.pendings] == ["m2", "m3"]
        assert texts(world.brokers["core2"].live("c")) == ["m1", "m2", "m3"]
        await world.rest()
        assert world.live("c") == [("core2", "b")]
        assert all(set(world.registered(n, "c")) == {"b"} for n in world.cluster.nodes)

    play(body)


def test_one_channel_of_a_client_follows_another_through_all_nodes() -> None:
    async def body(world: World) -> None:
        names = list(world.cluster.nodes)
        for number in range(12):
            opened = await world.connect(names[number % len(names)], "c", f"ch{number}")
            assert opened.present == (number > 0)
            world.publish("c", f"m{number}")
            await world.rest()
        assert texts(world.session("c")) == [f"m{number}" for number in range(12)]
        assert world.audit("c") == {"ok": len(names)}
        assert not world.anomalies
        await world.leave("c")
        await world.rest()
        assert world.audit("c") == {"ok": len(names)}

    play(body)


def test_clean_start_discards_what_the_copy_shows() -> None:
    async def body(world: World) -> None:
        await world.connect("core1", "c", "a")
        world.publish("c", "m1")
        await world.rest()
        opened = await world.connect("core3", "c", "b", clean_start=True)
        assert (opened.outcome, opened.present, opened.session) == ("ok", False, None)
        assert world.live("c") == [("core3", "b")]
        assert texts(world.session("c")) == []
        await world.rest()
        assert world.audit("c") == {"ok": 4}

    play(body)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("call", ["begin", "end"])
def test_failing_predecessor_leaves_a_new_session_and_its_kind(call: str, kind: Failure) -> None:
    async def body(world: World) -> None:
        await world.connect("core1", "c", "a")
        await world.rest()
        world.brokers["core1"].failing[(call, "a")] = kind
        opened = await world.connect("rep1", "c", "b")
        assert (opened.outcome, opened.present) == ("ok", False)
        assert (opened.handover, opened.failure) == ("lost", kind)
        assert opened.session is None
        # The benchmark calls that a wrong session present, and right it is: a session was there.
        assert world.anomalies == {"wrong_session_present": 1}

    play(body)


def test_hanging_predecessor_costs_the_timeout_and_stays_behind_as_a_second_session() -> None:
    async def body(world: World) -> None:
        await world.connect("core1", "c", "a")
        world.publish("c", "m1")
        await world.rest()
        released = world.brokers["core1"].hanging[("begin", "a")] = asyncio.Event()
        loop = asyncio.get_running_loop()
        started = loop.time()
        opened = await world.connect("core2", "c", "b")
        assert 5.0 <= loop.time() - started < 5.1
        assert (opened.handover, opened.failure) == ("lost", "timeout")
        released.set()
        await world.rest(20)
        assert sorted(world.live("c")) == [("core1", "a"), ("core2", "b")]
        assert world.audit("c") == {"duplicate_session": 4}
        # It had begun, nobody ended it, so it went on.
        assert world.brokers["core1"].calls[-1] == ("resume", "a")

    play(body)


def test_frozen_channel_goes_on_when_nobody_ends_it() -> None:
    async def body(world: World) -> None:
        await world.connect("core1", "c", "a")
        world.publish("c", "m1")
        calls = sessions(world, "core2").calls
        row = row_of(world, "c")
        assert await calls.begin(row, None, 5.0)
        world.publish("c", "m2")
        await world.rest(9.0)
        again = await calls.begin(row, None, 5.0)
        await world.rest(9.0)
        session = world.session("c")
        assert session is not None
        assert session.frozen, "the second begin has renewed the freeze"
        assert again == await calls.begin(row, None, 5.0), "contenders share one content"
        await world.rest(11.0)
        assert not session.frozen
        assert texts(session) == ["m1", "m2"]
        assert [call for call, _ in world.brokers["core1"].calls] == ["begin", "resume"]
        with pytest.raises(ChannelGone) as gone:
            await calls.end(row, None, 5.0)
        assert gone.value.kind == "noproc"
        assert world.live("c") == [("core1", "a")]

    play(body)


def test_only_one_of_two_who_begun_can_end() -> None:
    """The lock should keep them apart; when it fails, the owner's side still gives once."""

    async def body(world: World) -> None:
        await world.connect("core1", "c", "a")
        row = row_of(world, "c")
        holder = sessions(world, "core1").holder
        first, second = await asyncio.gather(holder.begin(row), holder.begin(row))
        assert first == second
        world.publish("c", "m")
        answers = await asyncio.gather(
            *(holder.end(OldEnd(row, None, 0)) for _ in range(2)), return_exceptions=True
        )
        assert answers[0] == (message("m"),)
        assert isinstance(answers[1], ChannelGone)
        assert sessions(world, "core1").held == {}

    play(body)


def test_begin_waits_for_a_channel_that_is_itself_being_opened() -> None:
    async def body(world: World) -> None:
        await world.connect("core1", "c", "a")
        world.publish("c", "m1")
        await world.rest()
        first = asyncio.ensure_future(world.brokers["core2"].connect("c", "b"))
        # The row of b is spread before its end of a has come back.
        while ("c", "b") not in sessions(world, "core2").held:
            await asyncio.sleep(0.0001)
        content = await sessions(world, "core3").calls.begin(
            sessions(world, "core2").held[("c", "b")], None, 5.0
        )
        assert first.done()
        assert b"m1" in content

    play(body)


def test_channel_of_a_former_life_is_not_there() -> None:
    async def body(world: World) -> None:
        await world.connect("rep1", "c", "a")
        row = row_of(world, "c")
        world.cluster.declare_dead("rep1")
        world.cluster.node_up(world.cluster.nodes["rep1"])
        calls = sessions(world, "core1").calls
        with pytest.raises(ChannelGone) as gone:
            await calls.begin(row, None, 5.0)
        assert gone.value.kind == "noproc"
        assert await calls.alive("rep1", [row], 5.0) == (False,)

    play(body)


def test_kick_and_discard_reach_channels_of_other_nodes() -> None:
    async def body(world: World) -> None:
        for client in ("c", "d"):
            await world.connect("rep1", client, "a")
        await world.rest()
        assert await world.brokers["core3"].manager.kick("c", "an operator said so")
        assert await world.brokers["core3"].manager.discard("d")
        ended = {key[0]: s.closed_for for key, s in world.brokers["rep1"].sessions.items()}
        assert ended == {"c": "an operator said so", "d": "discarded"}
        await world.rest()
        assert all(world.registered(n, c) == [] for n in world.cluster.nodes for c in "cd")
        assert not await world.brokers["core3"].manager.kick("c", "again")
        assert not await world.brokers["core3"].manager.discard("d")

    play(body)


def test_cancelled_connect_leaves_neither_lock_nor_row() -> None:
    async def body(world: World) -> None:
        await world.connect("core1", "c", "a")
        await world.rest()
        world.brokers["core1"].hanging[("end", "a")] = asyncio.Event()
        task = asyncio.ensure_future(world.brokers["core2"].connect("c", "b"))
        while ("c", "b") not in sessions(world, "core2").held:
            await asyncio.sleep(0.0001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await world.rest(1)
        assert sessions(world, "core2").held == {}
        assert "b" not in world.registered("core2", "c")
        nodes = world.cluster.nodes.values()
        assert sum(len(node.lcr.legacy.lock_server) for node in nodes) == 0

    play(body)


def test_unreachable_node_is_a_channel_that_is_not_there() -> None:
    async def body(world: World) -> None:
        await world.connect("rep1", "c", "a")
        await world.rest()
        world.cluster.cut.add("rep1")
        row = row_of(world, "c")
        calls = sessions(world, "core1").calls
        for asked in (
            calls.begin(row, None, 1.0),
            calls.end(row, None, 1.0),
            calls.kick(row, "", 1.0),
        ):
            with pytest.raises(ChannelGone) as gone:
                await asked
            assert gone.value.kind == "noproc"

    play(body)
