"""Both registries side by side: what each mode writes, adoption, calls from and to old nodes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import msgspec
import pytest

from raftkv.errors import OutcomeUnknown
from raftkv.state import Envelope
from raftkv.testing.clock import run
from raftkv_lcr import modes
from raftkv_lcr.commands import (
    Announce,
    Channel,
    Mode,
    NotAdopted,
    OldNodes,
    SwitchMode,
    Unregister,
    WrongStep,
)
from raftkv_lcr.legacy_wire import Operation
from raftkv_lcr.mixed import Announcer
from raftkv_lcr.modes import effective_mode, not_adopted, old_nodes
from raftkv_lcr.old_calls import speaks_old
from tests.plugins.raftkv_lcr.fakes import Cluster, FakeNode, tag_of
from tests.plugins.raftkv_lcr.worlds import World, texts

Body = Callable[[World], Awaitable[None]]


def play(body: Body, *, old: int = 0, replicants: int = 1) -> None:
    """Play on three cores and `replicants` of this version, with `old` nodes of the one before."""

    async def whole() -> None:
        cluster = await Cluster(3, replicants).start()
        world = World(cluster)
        for number in range(1, old + 1):
            await world.old_node(f"old{number}", "replicant")
        await world.warm_up()
        await world.rest()
        await body(world)
        cluster.check()

    run(whole())


async def switch(world: World, *modes: Mode) -> None:
    for mode in modes:
        row = await world.cluster.nodes["core2"].lcr.switch_mode(mode)
        assert row.mode == mode
    await world.rest(1)


def in_log(world: World, client: str, node: str = "core1") -> Channel | None:
    return world.cluster.nodes[node].lcr.lookup_local(client)


def in_old(world: World, client: str) -> set[str]:
    """The client's channels in any node's copy of the old registry."""
    return {
        row.channel
        for node in world.cluster.nodes.values()
        if node.alive
        for row in node.lcr.legacy.channels_local(client)
    }


def names(world: World, client: str) -> tuple[str | None, set[str]]:
    """What the linear registry has of the client, and what the old one has."""
    owner = in_log(world, client)
    return (None if owner is None else owner.channel), in_old(world, client)


def mode_of(node: FakeNode) -> Mode:
    return effective_mode(node.view()).mode


# --- what each mode writes ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("modes", "found"),
    [
        ((), (None, {"a"})),
        (("migration",), ("a", {"a"})),
        (("migration", "dual"), ("a", {"a"})),
        (("migration", "enabled"), ("a", set())),
    ],
)
def test_each_mode_writes_where_it_should_and_deletes_what_it_wrote(
    modes: tuple[Mode, ...], found: tuple[str | None, set[str]]
) -> None:
    async def body(world: World) -> None:
        await switch(world, *modes)
        await world.connect("rep1", "c", "a")
        await world.rest()
        assert names(world, "c") == found
        await world.connect("core3", "c", "a2")
        await world.rest()
        assert world.live("c") == [("core3", "a2")]
        assert {name for name in (names(world, "c")[0], *names(world, "c")[1]) if name} == {"a2"}
        await world.leave("c")
        await world.rest()
        assert names(world, "c") == (None, set())
        assert not world.anomalies

    play(body)


@pytest.mark.parametrize("last", ["disabled", "dual", "migration", "enabled"])
def test_what_was_written_is_deleted_whatever_the_mode_is_by_then(last: Mode) -> None:
    async def body(world: World) -> None:
        await switch(world, "migration")
        await world.connect("rep1", "left", "a")
        await world.connect("rep1", "taken", "a")
        await world.connect("rep1", "kicked", "a")
        if last != "migration":
            await switch(world, last)
        await world.leave("left")
        await world.connect("core1", "taken", "b")
        assert await world.brokers["core2"].manager.kick("kicked", "because")
        await world.rest()
        assert names(world, "left") == (None, set())
        assert names(world, "kicked") == (None, set())
        assert {n for n in (names(world, "taken")[0], *names(world, "taken")[1]) if n} == {"b"}

    play(body)


def test_dual_does_not_see_what_only_the_old_registry_knows() -> None:
    """The seed's mode: it reads the linear registry only. Migration is there to read both."""

    async def body(world: World) -> None:
        await switch(world, "migration", "dual")
        await world.connect("old1", "c", "a")
        await world.rest()
        opened = await world.connect("core1", "c", "b")
        assert (opened.present, opened.predecessor) == (False, None)
        await world.rest(20)
        assert sorted(world.live("c")) == [("core1", "b"), ("old1", "a")]

    play(body, old=1)


# --- adoption -------------------------------------------------------------------------------------


def test_item_5_session_that_a_clean_start_ended_does_not_come_back() -> None:
    """What has a ticket in the old registry and is not the log's owner has been replaced."""

    async def body(world: World) -> None:
        await switch(world, "migration")
        await world.connect("core1", "c", "a")
        world.publish("c", "m1")
        await world.rest()
        # The discard of `a` hangs, so its row stays in the old registry meanwhile.
        gate = world.brokers["core1"].hanging[("discard", "a")] = asyncio.Event()
        opened = await world.connect("core2", "c", "b", clean_start=True)
        assert (opened.outcome, opened.present) == ("ok", False)
        await world.leave("c")
        await asyncio.sleep(0.2)
        assert in_log(world, "c") is None
        assert in_old(world, "c") == {"a"}
        opened = await world.connect("rep1", "c", "d")
        assert (opened.outcome, opened.present, opened.predecessor) == ("ok", False, None)
        gate.set()
        await world.rest(30)
        assert world.live("c") == [("rep1", "d")]

    play(body)


@pytest.mark.parametrize("there", ["core1", "core2"])
@pytest.mark.parametrize("modes", [(), ("dual",), ("migration",), ("migration", "enabled")])
def test_b1_nothing_to_take_over_in_every_mode(modes: tuple[Mode, ...], there: str) -> None:
    """A session that ends with its connection is not taken over, and that connection is ended."""

    async def body(world: World) -> None:
        await switch(world, *modes)
        old = world.brokers["core1"]
        await old.connect("c", "old")
        old.ephemeral.add("old")
        await world.rest()
        opened = await world.brokers[there].connect("c", "new")
        assert (opened.outcome, opened.present, opened.session) == ("ok", False, None)
        assert (opened.handover, opened.failure) == ("none", None)
        await world.rest(5)
        assert world.live("c") == [(there, "new")]
        assert world.registered("core3", "c") == ["new"]

    play(body)


@pytest.mark.parametrize(("owner", "there"), [("core1", "old1"), ("old1", "core1")])
def test_b1_nothing_to_take_over_beside_nodes_of_the_version_before(owner: str, there: str) -> None:
    async def body(world: World) -> None:
        await world.brokers[owner].connect("c", "old")
        world.brokers[owner].ephemeral.add("old")
        await world.rest()
        opened = await world.brokers[there].connect("c", "new")
        assert (opened.outcome, opened.present, opened.handover) == ("ok", False, "none")
        await world.rest(5)
        assert world.live("c") == [(there, "new")]

    play(body, old=1)


def test_b1_a_session_that_an_ephemeral_one_has_ended_does_not_come_back() -> None:
    """The newest of the union has nothing to hand over: what stands behind it is not asked."""

    async def body(world: World) -> None:
        await switch(world, "migration")
        await world.connect("old1", "c", "a")
        world.publish("c", "m1")
        await world.rest()
        # The discard of `a` hangs, so it lives meanwhile, and its row stands in the old registry.
        gate = world.brokers["old1"].hanging[("discard", "a")] = asyncio.Event()
        await world.connect("core1", "c", "b", clean_start=True)
        world.brokers["core1"].ephemeral.add("b")
        await world.rest()
        assert in_old(world, "c") == {"a", "b"}
        opened = await world.connect("core2", "c", "d", clean_start=False)
        assert (opened.outcome, opened.present, opened.session) == ("ok", False, None)
        gate.set()
        await world.rest(30)
        assert world.live("c") == [("core2", "d")]

    play(body, old=1)


def test_switch_adopts_every_channel_and_disabled_takes_them_out_again() -> None:
    async def body(world: World) -> None:
        clients = [f"c{number}" for number in range(200)]
        nodes = list(world.cluster.nodes)
        for number, client in enumerate(clients):
            await world.connect(nodes[number % 4], client, "a")
            world.publish(client, "m")
        await world.rest()
        await switch(world, "migration")
        assert all(names(world, client) == ("a", {"a"}) for client in clients)
        await switch(world, "enabled")
        await world.connect("core3", "fresh", "a")
        assert names(world, "fresh") == ("a", set())
        await switch(world, "dual")
        assert names(world, "fresh") == ("a", {"a"})
        await switch(world, "disabled")
        await world.rest()
        assert all(names(world, client) == (None, {"a"}) for client in (*clients, "fresh"))
        for node in world.cluster.nodes.values():
            assert len(node.view().table("clients")) == 0
        for number, client in enumerate(clients):
            opened = await world.connect(nodes[(number + 1) % 4], client, "b")
            assert opened.present
            assert texts(world.session(client)) == ["m"]
        assert not world.anomalies

    play(body)


def test_open_under_the_former_mode_is_adopted_before_the_epoch_is_announced() -> None:
    async def body(world: World) -> None:
        await world.connect("core1", "c", "a")
        await world.rest()
        suspended = world.brokers["core1"].hanging[("begin", "a")] = asyncio.Event()
        opening = asyncio.ensure_future(world.brokers["rep1"].connect("c", "b"))
        await asyncio.sleep(0.05)
        await world.cluster.nodes["core1"].propose(SwitchMode("migration"))
        await world.rest(2)
        view = world.cluster.nodes["core1"].view()
        assert not_adopted(view, view.members) == ["rep1"]
        with pytest.raises(NotAdopted, match="rep1"):
            await world.cluster.nodes["core1"].propose(SwitchMode("enabled"))
        suspended.set()
        opened = await opening
        assert (opened.outcome, opened.present) == ("ok", True)
        await world.rest()
        assert names(world, "c") == ("b", {"b"})
        await world.cluster.nodes["core1"].propose(SwitchMode("enabled"))

    play(body)


def test_open_that_the_log_refuses_for_its_epoch_starts_again_under_the_new_mode() -> None:
    """A replicant that lags opens under "enabled" when the cluster is in "dual" already."""

    async def body(world: World) -> None:
        await switch(world, "migration", "enabled")
        world.cluster.pause("rep1")
        await world.cluster.nodes["core1"].propose(SwitchMode("dual"))
        opening = asyncio.ensure_future(world.brokers["rep1"].connect("c", "a"))
        await asyncio.sleep(0.05)
        world.cluster.resume("rep1")
        assert (await opening).outcome == "ok"
        await world.rest()
        assert names(world, "c") == ("a", {"a"})
        assert world.cluster.nodes["rep1"].lcr.counters["mode_changed"] >= 1

    play(body)


def unregistered_under(world: World, node: str) -> list[Mode]:
    """From now on: under which mode, as that node knows it, it proposed each `Unregister`."""
    modes: list[Mode] = []

    def note(sender: FakeNode, envelope: Envelope) -> bool:
        if sender.name == node and tag_of(envelope) == "unregister":
            modes.append(mode_of(sender))
        return True

    world.cluster.filter = note
    return modes


def test_adoption_that_waited_for_an_opening_looks_again_at_the_mode() -> None:
    """Else it would take out, as under "disabled", what was registered while it waited."""

    async def body(world: World) -> None:
        core1 = world.cluster.nodes["core1"]
        await world.connect("rep1", "slow", "a")
        await world.rest()
        suspended = world.brokers["rep1"].hanging[("begin", "a")] = asyncio.Event()
        opening = asyncio.ensure_future(world.brokers["core1"].connect("slow", "b"))
        await asyncio.sleep(0.05)
        core1.manager.on_nodes()
        await asyncio.sleep(0.05)
        await core1.propose(SwitchMode("migration"))
        await world.connect("core1", "c", "a")
        row = in_log(world, "c")
        assert row is not None
        deletions = unregistered_under(world, "core1")
        suspended.set()
        assert (await opening).outcome == "ok"
        await world.rest()
        assert deletions == []
        assert in_log(world, "c") == row
        assert names(world, "slow") == ("b", {"b"})

    play(body)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log lets nobody leave "disabled" before all have adopted it. Where a node has not
    announced itself yet, it cannot know: here it lets everybody leave at once.
    """
    monkeypatch.setitem(modes._STEPS, ("disabled", "migration"), False)  # type: ignore[arg-type]


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("hidden", [False, True])
def test_adoption_deletes_no_row_of_a_living_channel_once_the_mode_was_switched(
    hidden: bool,
) -> None:
    """Back to "migration" in the midst of it. `hidden`: the broker does not tell of its channels,
    as of those that end just then, and so their rows are found in the table.
    """

    async def body(world: World) -> None:
        core1 = world.cluster.nodes["core1"]
        await switch(world, "migration")
        clients = [f"c{number}" for number in range(200)]
        for client in clients:
            await world.connect("core1", client, "a")
        await world.rest()
        if hidden:
            world.brokers["core1"].channels = list  # type: ignore[method-assign]
        deletions = unregistered_under(world, "core1")
        await core1.propose(SwitchMode("disabled"))
        while not deletions:
            await asyncio.sleep(0.0001)
        await core1.propose(SwitchMode("migration"))
        if hidden:
            del world.brokers["core1"].channels
        await world.rest(10)
        assert len(deletions) < 200
        assert set(deletions) == {"disabled"}
        assert all(names(world, client) == ("a", {"a"}) for client in clients)

    play(body)


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("applied", [False, True])
def test_deletion_of_unknown_outcome_is_settled_before_the_next_adoption(applied: bool) -> None:
    """Left to the reaper it would delete the row that the next adoption writes: it is the same."""

    async def body(world: World) -> None:
        core1 = world.cluster.nodes["core1"]
        await switch(world, "migration")
        await world.connect("core1", "c", "a")
        await world.rest()
        propose, failed = core1.propose, 0

        async def unsure(command: object, **words: object) -> object:
            nonlocal failed
            if not isinstance(command, Unregister) or failed:
                return await propose(command, **words)  # type: ignore[arg-type]
            failed += 1
            seq = core1.seq + 1
            if applied:
                await propose(command)
            else:
                core1.seq = seq
            raise OutcomeUnknown("not known", session=core1.session, seq=seq)

        core1.propose = unsure  # type: ignore[method-assign, assignment]
        deletions = unregistered_under(world, "core1")
        await core1.propose(SwitchMode("disabled"))
        while not failed:
            await asyncio.sleep(0.0001)
        await core1.propose(SwitchMode("migration"))
        await world.rest(10)
        assert failed == 1
        assert "migration" not in deletions
        assert len(core1.lcr.reaper) == 0
        assert names(world, "c") == ("a", {"a"})

    play(body)


# --- a connect of "disabled" across a switch ------------------------------------------------------


def test_connect_of_disabled_that_is_overtaken_by_a_switch_begins_anew() -> None:
    """It must not end a channel that a connection of the log has taken over by then."""

    async def body(world: World) -> None:
        await world.connect("core1", "c", "a")
        world.publish("c", "m")
        await world.rest()
        suspended = world.brokers["core1"].hanging[("begin", "a")] = asyncio.Event()
        first = asyncio.ensure_future(world.brokers["core2"].connect("c", "b1"))
        await asyncio.sleep(0.05)
        await world.cluster.nodes["core1"].propose(SwitchMode("migration"))
        second = asyncio.ensure_future(world.brokers["rep1"].connect("c", "b2"))
        await asyncio.sleep(0.05)
        suspended.set()
        opened = [await first, await second]
        await world.rest(30)
        assert [each.handover for each in opened if each.outcome == "ok"].count("lost") == 0
        assert world.cluster.nodes["core2"].lcr.counters["mode_changed"] == 1
        assert len(world.live("c")) == 1
        node, channel = world.live("c")[0]
        assert texts(world.brokers[node].live("c")) == ["m"]
        assert names(world, "c") == (channel, {channel})

    play(body)


def test_connect_of_disabled_that_wrote_before_the_switch_takes_its_row_back() -> None:
    """The last look is directly before the end. What it froze goes on, what it wrote goes."""

    async def body(world: World) -> None:
        core1, core2 = world.cluster.nodes["core1"], world.cluster.nodes["core2"]
        now_ms = core1.now_ms()
        await world.connect("core1", "c", "a", version=now_ms - 10)
        world.publish("c", "m")
        await world.rest()
        add = core2.lcr.legacy.add

        async def add_and_switch(row: Channel) -> None:
            core2.lcr.legacy.add = add  # type: ignore[method-assign]
            await add(row)
            await core1.propose(SwitchMode("migration"))
            await asyncio.sleep(1)  # by then "a" is adopted, and is newer

        core2.lcr.legacy.add = add_and_switch  # type: ignore[method-assign]
        opened = await world.brokers["core2"].connect("c", "b", version=now_ms - 20)
        await world.rest(30)
        assert core2.lcr.counters["mode_changed"] == 1
        assert opened.outcome.startswith("outdated")
        assert world.live("c") == [("core1", "a")]
        assert texts(world.brokers["core1"].live("c")) == ["m"]
        assert names(world, "c") == ("a", {"a"})

    play(body)


def test_channel_that_was_adopted_is_not_ended_by_a_node_that_knows_of_no_switch() -> None:
    """Its end speaks of an epoch that is past; the registration of the channel is younger."""

    async def body(world: World) -> None:
        await world.connect("core1", "c", "a")
        world.publish("c", "m")
        await world.rest()
        world.cluster.pause("core2")
        await world.cluster.nodes["core1"].propose(SwitchMode("migration"))
        await world.rest()
        assert names(world, "c") == ("a", {"a"})
        opened = await world.brokers["core2"].connect("c", "b")
        assert (opened.outcome, opened.handover, opened.failure) == ("ok", "lost", "noproc")
        world.cluster.resume("core2")
        await world.rest(40)
        assert world.live("c") == [("core1", "a")]
        assert texts(world.brokers["core1"].live("c")) == ["m"]
        assert names(world, "c") == ("a", {"a"})

    play(body)


def test_two_sessions_of_the_old_registry_become_one() -> None:
    """An anomaly that stands when the mode is switched: one is entered, the other has to go."""

    async def body(world: World) -> None:
        world.begin_lag("rep1", 0.5)
        await world.connect("core1", "c", "a")
        await world.connect("rep1", "c", "b")
        await world.rest()
        assert len(world.live("c")) == 2
        await switch(world, "migration")
        await world.rest(30)
        assert len(world.live("c")) == 1
        channel = world.live("c")[0][1]
        assert names(world, "c") == (channel, {channel})

    play(body)


def test_row_of_a_channel_that_is_gone_does_not_keep_a_living_one_out() -> None:
    """The owner's node says clearly that there is no such channel, so its row is deleted."""

    async def body(world: World) -> None:
        await switch(world, "migration")
        await world.connect("rep1", "c", "a")
        await world.rest()
        # The broker forgets it, as brokers with defects do.
        del world.brokers["rep1"].sessions[("c", "a")]
        world.cluster.nodes["rep1"].manager.written.clear()
        for node in world.cluster.nodes.values():
            node.lcr.legacy.copies.bag._clients.clear()
        await switch(world, "disabled")
        opened = await world.connect("core1", "c", "b")
        assert opened.outcome == "ok"
        await switch(world, "migration")
        await world.rest()
        assert names(world, "c") == ("b", {"b"})
        assert world.live("c") == [("core1", "b")]

    play(body)


def test_doubt_about_the_owner_delays_adoption_and_decides_nothing() -> None:
    async def body(world: World) -> None:
        world.begin_lag("rep1", 0.5)
        await world.connect("core1", "c", "a")
        await world.connect("rep1", "c", "b")
        await world.rest()
        mute = True
        world.cluster.mishap = lambda one, two, method: (
            "reply lost" if mute and method.endswith(".alive") else "none"
        )
        await world.cluster.nodes["core1"].propose(SwitchMode("migration"))
        await world.rest(20)
        view = world.cluster.nodes["core1"].view()
        assert len(not_adopted(view, view.members)) == 1
        assert len(world.live("c")) == 2
        mute = False
        await world.rest(30)
        assert len(world.live("c")) == 1
        view = world.cluster.nodes["core1"].view()
        assert not_adopted(view, view.members) == []

    play(body)


def test_owner_of_whom_nothing_is_heard_stays_the_owner() -> None:
    """Its node is a member and never answers: the log's word stands, and adoption gets done."""

    async def body(world: World) -> None:
        world.begin_lag("rep1", 0.5)
        await world.connect("core1", "c", "a")
        await world.connect("rep1", "c", "b")
        await world.rest()
        world.cluster.mishap = lambda one, two, method: (
            "request lost" if method.endswith(".alive") else "none"
        )
        await world.cluster.nodes["core1"].propose(SwitchMode("migration"))
        await world.rest(90)
        view = world.cluster.nodes["core1"].view()
        assert not_adopted(view, view.members) == []
        owner = in_log(world, "c")
        assert owner is not None
        assert world.live("c") == [(owner.node, owner.channel)]

    play(body)


def test_node_that_dies_is_not_waited_for() -> None:
    async def body(world: World) -> None:
        await world.connect("rep1", "c", "a")
        world.cluster.pause("rep1")
        switching = asyncio.ensure_future(world.cluster.nodes["core2"].lcr.switch_mode("enabled"))
        await world.rest(5)
        assert not switching.done()
        assert mode_of(world.cluster.nodes["core2"]) == "migration"
        world.cluster.kill("rep1")
        world.cluster.declare_dead("rep1")
        assert (await switching).mode == "enabled"
        await world.rest()
        assert names(world, "c")[0] is None

    play(body)


def test_switch_goes_by_the_steps_and_refuses_others() -> None:
    async def body(world: World) -> None:
        node = world.cluster.nodes["core1"]
        for mode in ("dual", "enabled"):
            with pytest.raises(WrongStep, match="migration"):
                await node.propose(SwitchMode(mode))  # type: ignore[arg-type]
        row = await node.lcr.switch_mode("enabled")
        assert (row.mode, mode_of(node)) == ("enabled", "enabled")
        with pytest.raises(WrongStep, match="migration"):
            await node.propose(SwitchMode("disabled"))
        assert (await node.lcr.switch_mode("disabled")).mode == "disabled"

    play(body)


def test_switch_that_comes_late_does_not_undo_a_later_one() -> None:
    """Asked of one node, which does not answer, then of another; the first one is heard at last."""

    async def body(world: World) -> None:
        cluster = world.cluster
        late: list[Envelope] = []

        def keep(node: FakeNode, envelope: Envelope) -> bool:
            if node.name == "core2" and tag_of(envelope) == "switch_mode":
                late.append(envelope)
                return False
            return True

        cluster.filter = keep
        with pytest.raises(OutcomeUnknown):
            await cluster.nodes["core2"].lcr.switch_mode("migration", timeout_s=0.5)
        for mode in ("migration", "enabled"):
            await cluster.nodes["core3"].lcr.switch_mode(mode)
        cluster.append(late)
        await world.rest()
        assert cluster.nodes["core1"].lcr.mode().mode == "enabled"

    play(body)


def test_announcement_names_the_life_that_has_adopted() -> None:
    async def body(world: World) -> None:
        named: list[tuple[str, int]] = []

        def note(node: FakeNode, envelope: Envelope) -> bool:
            if tag_of(envelope) == "announce":
                command = msgspec.msgpack.decode(envelope.command, type=Announce)
                named.append((node.name, command.incarnation))
            return True

        world.cluster.filter = note
        world.cluster.node_up(world.cluster.nodes["core3"])
        await switch(world, "migration")
        lives = {name: node.incarnation for name, node in world.cluster.nodes.items()}
        assert lives["core3"] == 2
        assert dict(named) == lives

    play(body)


def test_switch_begins_anew_when_its_node_is_behind() -> None:
    async def body(world: World) -> None:
        cluster = world.cluster
        await switch(world, "enabled")
        cluster.pause("core2")
        await cluster.nodes["core3"].propose(SwitchMode("dual"))
        switching = asyncio.ensure_future(cluster.nodes["core2"].lcr.switch_mode("migration"))
        await asyncio.sleep(0.01)
        assert cluster.nodes["core1"].lcr.mode().mode == "dual"
        cluster.resume("core2")
        assert (await switching).mode == "migration"

    play(body)


def test_row_of_a_channel_that_was_taken_over_before_it_was_adopted_is_taken_out() -> None:
    """Between the switch to "disabled" and its adoption, the old flow ends a registered channel."""

    async def body(world: World) -> None:
        await switch(world, "migration")
        await world.connect("core1", "c", "a")
        await world.connect("core1", "slow", "a")
        await world.rest()
        # An opening that hangs keeps core1 from adopting.
        suspended = world.brokers["core1"].hanging[("begin", "a")] = asyncio.Event()
        opening = asyncio.ensure_future(world.brokers["core1"].connect("slow", "b"))
        await asyncio.sleep(0.05)
        await world.cluster.nodes["core2"].propose(SwitchMode("disabled"))
        await asyncio.sleep(0.05)
        del world.brokers["core1"].hanging[("begin", "a")]
        opened = await world.connect("rep1", "c", "b")
        assert opened.present
        assert names(world, "c")[0] == "a", "nobody has taken it out yet"
        suspended.set()
        await opening
        await world.rest()
        assert names(world, "c") == (None, {"b"})
        assert names(world, "slow") == (None, {"b"})

    play(body)


def test_switch_to_disabled_row_that_its_own_node_still_sees_contradicts_no_end() -> None:
    """The new node's copy shows the registered row taken out, that of the old channel not yet."""

    async def body(world: World) -> None:
        core2 = world.cluster.nodes["core2"]
        await switch(world, "migration", "dual")
        await world.connect("core1", "c", "a")
        world.publish("c", "m")
        await world.rest()
        release = world.cluster.hold("core1", "unregister")
        # It begins under "dual"; the log refuses its registration for the epoch.
        suspended = world.brokers["core1"].hanging[("begin", "a")] = asyncio.Event()
        opening = asyncio.ensure_future(world.connect("core2", "c", "b"))
        await asyncio.sleep(0.05)
        await core2.propose(SwitchMode("disabled"))
        await asyncio.sleep(0.05)
        world.cluster.pause("core1")
        release()
        assert (in_log(world, "c", "core1") is None, in_log(world, "c", "core2")) == (False, None)
        suspended.set()
        opened = await opening
        assert (opened.outcome, opened.present, opened.attempts) == ("ok", True, 2)
        world.cluster.resume("core1")
        await world.rest()
        assert core2.lcr.counters["mode_changed"] == 1
        assert world.live("c") == [("core2", "b")]
        assert texts(world.session("c")) == ["m"]
        assert names(world, "c") == (None, {"b"})
        assert not world.anomalies

    play(body)


def test_switch_from_disabled_finds_channels_that_the_log_had_before() -> None:
    """Their rows in the old registry are no leftovers: they have not been adopted yet."""

    async def body(world: World) -> None:
        core2 = world.cluster.nodes["core2"]
        await switch(world, "migration")
        await world.connect("core1", "c", "a")
        world.publish("c", "m")
        await world.rest()
        await switch(world, "disabled")
        release = world.cluster.hold("core1", "adopt")
        await core2.propose(SwitchMode("migration"))
        await asyncio.sleep(0.05)
        assert names(world, "c") == (None, {"a"})
        await world.connect("core2", "c", "b")
        release()
        await world.rest()
        assert world.live("c") == [("core2", "b")]
        assert texts(world.session("c")) == ["m"]
        assert not world.anomalies

    play(body)


def test_switch_from_disabled_keeps_sessions_ended_that_a_clean_start_ended() -> None:
    """As of item 5, for a channel that was opened under "disabled" and adopted after it."""

    async def body(world: World) -> None:
        await world.connect("core1", "c", "a")
        world.publish("c", "m1")
        await switch(world, "migration")
        gate = world.brokers["core1"].hanging[("discard", "a")] = asyncio.Event()
        await world.connect("core2", "c", "b", clean_start=True)
        await world.leave("c")
        await asyncio.sleep(0.2)
        assert names(world, "c") == (None, {"a"})
        opened = await world.connect("rep1", "c", "d")
        assert (opened.outcome, opened.present, opened.predecessor) == ("ok", False, None)
        gate.set()
        await world.rest(30)
        assert world.live("c") == [("rep1", "d")]

    play(body)


def test_switch_from_disabled_is_looked_for_when_an_end_is_refused() -> None:
    """The channel's node knows of a switch that the new one has not heard of yet."""

    async def body(world: World) -> None:
        core2 = world.cluster.nodes["core2"]
        await world.connect("core1", "c", "a")
        world.publish("c", "m")
        await world.rest()
        world.cluster.pause("core2")
        await world.cluster.nodes["core1"].propose(SwitchMode("migration"))
        await world.rest()
        opening = asyncio.ensure_future(world.connect("core2", "c", "b"))
        await asyncio.sleep(0.5)
        world.cluster.resume("core2")
        opened = await opening
        assert (opened.outcome, opened.present) == ("ok", True)
        assert core2.lcr.counters["mode_changed"] == 1
        await world.rest(40)
        assert world.live("c") == [("core2", "b")]
        assert texts(world.session("c")) == ["m"]
        assert names(world, "c") == ("b", {"b"})

    play(body)


# --- old nodes ------------------------------------------------------------------------------------


def test_old_nodes_are_known_by_their_silence_and_keep_the_old_registry_on() -> None:
    async def body(world: World) -> None:
        node = world.cluster.nodes["core1"]
        assert old_nodes(node.view(), node.view().members) == ["old1"]
        assert speaks_old(node, "old1")
        assert not speaks_old(node, "rep1")
        assert (await node.lcr.switch_mode("migration")).mode == "migration"
        with pytest.raises(OldNodes, match="old1"):
            await node.lcr.switch_mode("enabled")
        world.cluster.kill("old1")
        world.cluster.declare_dead("old1")
        assert (await node.lcr.switch_mode("enabled")).mode == "enabled"

    play(body, old=1)


@pytest.mark.parametrize("mode", ["disabled", "migration"])
def test_client_goes_through_old_and_new_nodes(mode: Mode) -> None:
    async def body(world: World) -> None:
        if mode != "disabled":
            await switch(world, mode)
        path = ["rep1", "old1", "old2", "core1", "core2", "old1", "rep1", "core3", "old2"]
        for number, node in enumerate(path * 2):
            opened = await world.connect(node, "c", f"ch{number}")
            assert (opened.outcome, opened.present) == ("ok", number > 0), (number, node)
            world.publish("c", f"m{number}")
            await world.rest()
            assert world.live("c") == [(node, f"ch{number}")]
            assert in_old(world, "c") == {f"ch{number}"}
        assert texts(world.session("c")) == [f"m{number}" for number in range(18)]
        assert not world.anomalies
        await world.leave("c")
        await world.rest()
        assert in_old(world, "c") == set()

    play(body, old=2)


def test_new_node_enters_an_old_node_s_channel_with_the_time_of_the_call() -> None:
    async def body(world: World) -> None:
        await switch(world, "migration")
        await world.connect("rep1", "c", "a")
        await world.rest()
        before = world.cluster.nodes["core1"].now_ms()
        await world.connect("old1", "c", "b")
        await world.rest(1)
        owner = in_log(world, "c")
        assert owner is not None
        assert (owner.node, owner.channel, owner.supplied) == ("old1", "b", True)
        assert 0 <= owner.version - before < 1000
        assert owner.incarnation == world.cluster.nodes["old1"].incarnation
        assert world.cluster.nodes["rep1"].lcr.counters["old_calls_answered"] == 2

    play(body, old=1)


def test_new_node_writes_the_log_and_leaves_the_old_channel_s_row_to_the_old_node() -> None:
    async def body(world: World) -> None:
        await switch(world, "migration")
        await world.connect("old1", "c", "a")
        world.publish("c", "m")
        await world.rest()
        assert names(world, "c") == (None, {"a"})
        written: list[str] = []
        for name, node in world.cluster.nodes.items():
            copies, write = node.lcr.legacy.copies, node.lcr.legacy.copies.write

            async def spied(operation: object, name: str = name, write: object = write) -> None:
                assert isinstance(operation, Operation)
                if not operation.add:
                    written.append(f"{name} deletes {operation.channel.channel}")
                await write(operation)  # type: ignore[operator]

            copies.write = spied  # type: ignore[method-assign]
        opened = await world.connect("rep1", "c", "b")
        assert (opened.present, opened.handover) == (True, "complete")
        assert texts(world.session("c")) == ["m"]
        await world.rest()
        assert names(world, "c") == ("b", {"b"})
        assert written == ["old1 deletes a"]

    play(body, old=1)


def test_clean_start_discards_an_old_node_s_channel() -> None:
    async def body(world: World) -> None:
        await switch(world, "migration")
        await world.connect("old1", "c", "a")
        await world.rest()
        opened = await world.connect("rep1", "c", "b", clean_start=True)
        assert (opened.outcome, opened.present) == ("ok", False)
        await world.rest()
        assert world.live("c") == [("rep1", "b")]
        await world.connect("old1", "c", "d", clean_start=True)
        await world.rest()
        assert world.live("c") == [("old1", "d")]
        assert names(world, "c") == ("d", {"d"})

    play(body, old=1)


@pytest.mark.parametrize("from_node", ["core1", "old1"])
def test_kick_and_discard_reach_channels_of_both_kinds_of_nodes(from_node: str) -> None:
    async def body(world: World) -> None:
        await switch(world, "migration")
        for client, node in (("c", "old2"), ("d", "rep1"), ("e", "old2"), ("f", "rep1")):
            await world.connect(node, client, "a")
        await world.rest()
        manager = world.brokers[from_node].manager
        assert await manager.kick("c", "so")
        assert await manager.kick("d", "so")
        assert await manager.discard("e")
        assert await manager.discard("f")
        await world.rest()
        for client in "cdef":
            assert world.live(client) == []
            assert in_old(world, client) == set()
            assert in_log(world, client) is None
        assert not await manager.kick("c", "again")

    play(body, old=2)


def test_session_that_an_old_node_began_beside_a_registered_one_is_discarded() -> None:
    """The old node's copy is behind, so it begins anew; the registered channel's node sees it."""

    async def body(world: World) -> None:
        await switch(world, "migration")
        world.cluster.nodes["old1"].lcr.legacy.lag_s = 1.0
        await world.connect("rep1", "c", "a")
        world.publish("c", "m")
        opened = await world.connect("old1", "c", "b")
        assert (opened.outcome, opened.present) == ("ok", False)
        assert len(world.live("c")) == 2
        await world.rest(20)
        assert world.live("c") == [("rep1", "a")]
        assert names(world, "c") == ("a", {"a"})

    play(body, old=1)


def test_channel_of_an_old_node_that_took_over_is_no_rival() -> None:
    async def body(world: World) -> None:
        await switch(world, "migration")
        await world.connect("rep1", "c", "a")
        world.publish("c", "m")
        await world.rest()
        await world.connect("old1", "c", "b")
        await world.rest(30)
        assert world.live("c") == [("old1", "b")]
        assert texts(world.session("c")) == ["m"]

    play(body, old=1)


def test_old_node_that_joins_while_enabled_makes_everybody_act_as_in_migration() -> None:
    async def body(world: World) -> None:
        await switch(world, "migration", "enabled")
        await world.connect("rep1", "c", "a")
        world.publish("c", "m")
        await world.rest()
        assert names(world, "c") == ("a", set())
        await world.old_node("old1", "replicant")
        assert {mode_of(node) for node in world.cluster.nodes.values()} == {"migration"}
        await world.connect("core1", "fresh", "a")
        assert "a" in in_old(world, "fresh")
        await world.rest(5)
        assert names(world, "c") == ("a", {"a"}), "entered for the old node's sake"
        opened = await world.connect("old1", "c", "b")
        assert opened.present
        assert texts(world.session("c")) == ["m"]
        await world.rest()
        assert names(world, "c") == ("b", {"b"})
        world.cluster.kill("old1")
        world.cluster.declare_dead("old1")
        assert {mode_of(n) for n in world.cluster.nodes.values() if n.alive} == {"enabled"}

    play(body)


def test_node_without_a_broker_announces_and_is_no_old_one() -> None:
    async def body(world: World) -> None:
        await switch(world, "migration", "enabled")
        node = await world.cluster.add("rep2", "replicant")
        announcer = Announcer(node, node.lcr.long_runs)
        announcer.wake()
        await world.rest()
        view = world.cluster.nodes["core1"].view()
        assert old_nodes(view, view.members) == []
        await world.cluster.nodes["core1"].propose(SwitchMode("dual"))
        announcer.wake()
        await world.rest()
        view = world.cluster.nodes["core1"].view()
        assert not_adopted(view, view.members) == []
        proposed = node.proposed
        announcer.wake()
        await world.rest()
        assert node.proposed == proposed, "there is nothing new to say"

    play(body)


@pytest.mark.parametrize("seed", range(6))
def test_race_over_nodes_of_both_kinds_leaves_one_channel(seed: int) -> None:
    """Nobody but the old nodes takes the lock, so anything may happen; in the end it is settled."""

    async def body(world: World) -> None:
        rng = random.Random(seed)
        await switch(world, "migration")
        nodes = list(world.cluster.nodes)
        await world.brokers["core1"].connect("c", "start")
        await world.rest()

        async def one(number: int) -> str:
            await asyncio.sleep(rng.choice((0.0, 0.002, 0.02)) * number)
            broker = world.brokers[rng.choice(nodes)]
            return (await broker.connect("c", f"ch{number}", timeout_s=30.0)).outcome

        outcomes = await asyncio.gather(*(one(number) for number in range(20)))
        assert "ok" in outcomes
        # A last connect, as a client does when it was refused or kicked.
        last = rng.choice([name for name in nodes if not name.startswith("old")])
        await world.rest(1)
        opened = await world.brokers[last].connect("c", "last", timeout_s=30.0)
        assert opened.outcome == "ok"
        await world.rest(60)
        assert world.live("c") == [(last, "last")]
        assert names(world, "c") == ("last", {"last"})

    print(f"seed {seed}")
    play(body, old=2)


def test_new_node_that_starts_is_no_reason_to_fill_the_old_registry() -> None:
    async def body(world: World) -> None:
        await switch(world, "migration", "enabled")
        await world.connect("rep1", "c", "a")
        await world.new_node("rep2", "replicant")
        await world.rest(10)
        assert {mode_of(node) for node in world.cluster.nodes.values()} == {"enabled"}
        assert names(world, "c") == ("a", set())

    play(body)


@pytest.mark.parametrize("kind", ["normal", "shutdown", "shutdown_reason", "timeout", "noproc"])
def test_old_node_s_failing_channel_is_lost_with_its_kind(kind: str) -> None:
    async def body(world: World) -> None:
        await switch(world, "migration")
        await world.connect("old1", "c", "a")
        await world.rest()
        world.brokers["old1"].failing[("begin", "a")] = kind  # type: ignore[assignment]
        opened = await world.connect("rep1", "c", "b")
        assert (opened.outcome, opened.present) == ("ok", False)
        assert (opened.handover, opened.failure) == ("lost", kind)
        await world.rest(20)
        assert ("rep1", "b") in world.live("c")

    play(body, old=1)
