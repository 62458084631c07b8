"""The fake cluster for tests of plugins, with a small plugin of its own."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, ClassVar

import msgspec
import pytest

from raftkv.errors import (
    InvalidSetting,
    NoLeader,
    PeerUnreachable,
    ReadTimeout,
    Refused,
    RemoteFailed,
    Timeout,
)
from raftkv.kv import KV
from raftkv.plugin import Change, Context, Host, Member, Plugin, Service, TableSpec
from raftkv.state import NodeDown, NodeRole
from raftkv.testing.clock import run
from raftkv.testing.plugin_cluster import NETWORK_S, FakeCluster, FakeHost, until


class Taken(Refused):
    """Somebody else has that name."""

    code: ClassVar[str] = "toy_taken"


class Took(msgspec.Struct, frozen=True, array_like=True):
    by: str
    index: int


class Take(msgspec.Struct, frozen=True, array_like=True, tag="take"):
    Result: ClassVar[Any] = Took
    name: str


class ToyService(Service):
    """Writes down every hook, in their order."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.told: list[tuple[Any, ...]] = []

    async def start(self) -> None:
        self.host.rpc.register("echo", self.echo)
        self.host.rpc.register("slow", self.slow)
        self.told.append(("start", self.host.view().index))

    async def stop(self) -> None:
        self.told.append(("stop",))

    async def echo(self, sender: str, payload: bytes) -> bytes:
        self.told.append(("echo", sender, payload))
        if payload == b"fail":
            raise ValueError("as the test says")
        return payload

    async def slow(self, sender: str, payload: bytes) -> bytes:
        await asyncio.sleep(5.0)
        return payload

    def on_leader(self) -> None:
        self.told.append(("leader",))

    def on_follower(self) -> None:
        self.told.append(("follower",))

    def on_node_up(self, member: Member) -> None:
        self.told.append(("up", member.name, member.incarnation))

    def on_node_down(self, member: Member) -> None:
        self.told.append(("down", member.name, member.incarnation))

    def on_incarnation(self, incarnation: int) -> None:
        self.told.append(("incarnation", incarnation))

    def on_applied(self, index: int, changes: Sequence[Change]) -> None:
        if any(change.key == "broken hook" for change in changes):
            raise ValueError("as the test says")
        self.told += [("row", change.key) for change in changes]

    def on_progress(self, index: int) -> None:
        self.told.append(("progress", index))

    def on_restored(self, index: int) -> None:
        self.told.append(("restored", index))


class Toy(Plugin[Host]):
    """Names are taken by whoever comes first. The API is the host itself."""

    name = "toy"
    commands = (Take,)
    tables = (TableSpec("names", str, str),)
    refusals = (Taken,)
    uses = ("kv",)

    def apply(self, command: Any, ctx: Context) -> Took:
        assert isinstance(command, Take)
        assert ctx.origin is not None
        if ctx.table("names").get(command.name) is not None:
            raise Taken("taken")
        ctx.table("names").put(command.name, ctx.origin.name)
        return Took(ctx.origin.name, ctx.index)

    def open(self, host: Host) -> Host:
        return host

    def service(self, host: Host, api: Host) -> ToyService:
        return ToyService(host)


class NewToy(Toy):
    version = 2


Toys = FakeCluster[FakeHost[Host]]


def toy(body: Callable[[Toys], Awaitable[None]]) -> Callable[[], None]:
    """A test on a started cluster of three cores and one replicant."""

    def test() -> None:
        async def whole() -> None:
            cluster: Toys = FakeCluster(Toy, replicants=1, beside=[KV])
            await cluster.start()
            await body(cluster)

        run(whole())

    test.__name__ = body.__name__
    test.__doc__ = body.__doc__
    return test


def told(cluster: Toys, name: str, *kinds: str) -> list[tuple[Any, ...]]:
    service = cluster.nodes[name].service
    assert isinstance(service, ToyService)
    return [one for one in service.told if not kinds or one[0] in kinds]


def forget(cluster: Toys) -> None:
    for node in cluster.nodes.values():
        assert isinstance(node.service, ToyService)
        node.service.told.clear()


# --- the log --------------------------------------------------------------------------------------


@toy
async def test_a_proposal_is_applied_everywhere_and_answered(cluster: Toys) -> None:
    forget(cluster)
    took = await cluster.nodes["core2"].propose(Take("a"))
    assert took == Took("core2", len(cluster.log))
    for name in cluster.nodes:
        assert told(cluster, name) == [("row", "a"), ("progress", took.index)]
    assert cluster.table("names") == {"a": "core2"}
    assert cluster.nodes["core2"].proposals == ["take"]
    with pytest.raises(Taken):
        await cluster.nodes["rep1"].propose(Take("a"))
    cluster.check()


@toy
async def test_who_listens_hears_of_own_rows_until_it_stops(cluster: Toys) -> None:
    heard: list[tuple[int, str]] = []

    def hear(index: int, changes: Sequence[Change]) -> None:
        heard.extend((index, change.key) for change in changes)

    stop = cluster.nodes["core2"].listen(hear)
    index = (await cluster.nodes["core1"].propose(Take("a"))).index
    assert heard == [(index, "a")]
    stop()
    await cluster.nodes["core1"].propose(Take("b"))
    assert heard == [(index, "a")]


@toy
async def test_the_clock_of_the_log_follows_virtual_time(cluster: Toys) -> None:
    node = cluster.nodes["core1"]
    await asyncio.sleep(10.0)
    await node.propose(Take("a"))
    first = node.machine.now
    assert first == cluster.now_ms() == node.now_ms()
    cluster.stamp_ms += 60_000
    await node.propose(Take("b"))
    assert node.machine.now == node.now_ms() == first + 60_000


@toy
async def test_hooks_of_lives_come_once_per_life(cluster: Toys) -> None:
    forget(cluster)
    first = cluster.nodes["core3"].incarnation
    cluster.isolate("core3")
    cluster.declare_dead("core3")
    assert told(cluster, "core1", "up", "down") == [("down", "core3", first)]
    assert told(cluster, "core3") == []
    cluster.rejoin("core3")
    second = cluster.nodes["core3"].incarnation
    assert second > first
    assert told(cluster, "core1", "up", "down")[1:] == [("up", "core3", second)]
    assert told(cluster, "core3", "down", "up", "incarnation") == [
        ("down", "core3", first),
        ("up", "core3", second),
        ("incarnation", second),
    ]
    forget(cluster)
    # One life goes on in another role.
    cluster.append_core(NodeRole("rep1", cluster.nodes["rep1"].incarnation, "core"))
    assert cluster.witness.members["rep1"].role == "core"
    assert told(cluster, "core1", "up", "down") == []
    cluster.check()


@toy
async def test_a_command_of_the_core_that_is_refused_is_no_secret(cluster: Toys) -> None:
    cluster.isolate("core1")
    cluster.declare_dead("core1")
    # It comes from a node whose life goes on, though core1 runs.
    cluster.declare_dead("core2")
    member = cluster.witness.members["core2"]
    with pytest.raises(Refused):
        cluster.append_core(NodeDown("core2", member.incarnation))
    with pytest.raises(InvalidSetting):
        cluster.configure(unheard_of=1)


@toy
async def test_every_core_votes_and_no_replicant(cluster: Toys) -> None:
    assert sorted(cluster.nodes["rep1"].view().voters) == ["core1", "core2", "core3"]
    await cluster.add("core4")
    assert sorted(cluster.nodes["rep1"].view().voters) == ["core1", "core2", "core3", "core4"]


@toy
async def test_leading_goes_from_one_to_another(cluster: Toys) -> None:
    assert told(cluster, "core1", "leader", "follower") == [("leader",)]
    cluster.lead("core2")
    assert told(cluster, "core1", "leader", "follower") == [("leader",), ("follower",)]
    assert told(cluster, "core2", "leader") == [("leader",)]
    assert [node.name for node in cluster.nodes.values() if node.is_leader] == ["core2"]
    assert {node.leader for node in cluster.nodes.values()} == {"core2"}


def test_before_it_is_a_member_a_node_proposes_nothing() -> None:
    async def body() -> None:
        cluster: Toys = FakeCluster(Toy, beside=[KV])
        node = cluster.make_node("core1", "core")
        with pytest.raises(NoLeader):
            await node.propose(Take("a"))

    run(body())


@toy
async def test_a_plugin_sees_itself_and_what_it_uses(cluster: Toys) -> None:
    host = cluster.nodes["core1"]
    assert list(host.view("kv").table("keys").scan()) == []
    with pytest.raises(LookupError):
        host.view("other")
    with pytest.raises(LookupError):
        host.api(KV)


# --- nodes that go and come -----------------------------------------------------------------------


@toy
async def test_of_what_is_recovered_no_hook_hears(cluster: Toys) -> None:
    await cluster.nodes["core1"].propose(Take("a"))
    node = cluster.nodes["core2"]
    file = node.files.open(f"{node.directory}/kept", "w")
    file.write(b"kept")
    file.datasync()
    file.close()
    node.files.sync_dir(node.directory)
    index = len(cluster.log)
    again = await cluster.restart("core2")
    assert again is not node
    assert again is cluster.nodes["core2"]
    hooks = told(cluster, "core2")
    assert hooks[0] == ("start", index)
    assert ("row", "a") not in hooks
    assert hooks[-1] == ("incarnation", again.incarnation)
    assert again.incarnation > node.incarnation
    # Its disk outlived it, and what ran in it did not.
    assert again.files.exists(f"{again.directory}/kept")
    cluster.check()


@toy
async def test_what_runs_on_a_node_ends_with_it(cluster: Toys) -> None:
    node = cluster.nodes["core1"]
    task = node.spawn(asyncio.sleep(1000.0), "long")
    cluster.kill("core1")
    await asyncio.sleep(0.0)
    assert task.cancelled()
    index = node.machine.index
    await cluster.nodes["core2"].propose(Take("a"))
    assert node.machine.index == index
    await cluster.stop("core2")
    assert told(cluster, "core2", "stop") == [("stop",)]
    cluster.check()


@toy
async def test_a_paused_node_applies_nothing_until_it_is_resumed(cluster: Toys) -> None:
    cluster.pause("core2")
    await cluster.nodes["core1"].propose(Take("a"))
    waiting = asyncio.ensure_future(cluster.nodes["core2"].propose(Take("b")))
    await until(lambda: "b" in cluster.table("names"))
    forget(cluster)
    assert not waiting.done()
    cluster.resume("core2")
    # One call for all that came at once.
    assert told(cluster, "core2") == [("row", "a"), ("row", "b"), ("progress", len(cluster.log))]
    assert (await waiting).by == "core2"


@toy
async def test_an_isolated_node_hears_nothing_and_is_not_heard(cluster: Toys) -> None:
    node = cluster.nodes["core2"]
    cluster.isolate("core2")
    with pytest.raises(Timeout) as unknown:
        await node.propose(Take("a"))
    with pytest.raises(ReadTimeout):
        await node.barrier(timeout_s=1.0)
    await node.barrier("local")
    with pytest.raises(PeerUnreachable):
        await cluster.nodes["core1"].rpc.call("core2", "echo", b"x", 1.0)
    cluster.heal("core2")
    await node.barrier()
    session, seq = unknown.value.session, unknown.value.seq
    assert session is not None
    assert seq is not None
    assert (await node.outcome(session, seq)).verdict == "not_applied"
    assert cluster.table("names") == {}


@toy
async def test_a_jump_answers_who_waited_and_tells_no_row(cluster: Toys) -> None:
    cluster.pause("core2")
    waiting = asyncio.ensure_future(cluster.nodes["core2"].propose(Take("a")))
    await until(lambda: cluster.table("names") == {"a": "core2"})
    forget(cluster)
    cluster.jump("core2")
    assert (await waiting).by == "core2"
    assert told(cluster, "core2") == [("restored", len(cluster.log))]
    await cluster.nodes["core1"].propose(Take("b"))
    assert told(cluster, "core2", "row") == [("row", "b")]
    cluster.check()


@toy
async def test_a_node_of_another_version_joins(cluster: Toys) -> None:
    newer = FakeHost(cluster, "core4", "core", NewToy())
    await cluster.join(newer)
    # Commands keep the format that all understand.
    assert newer.machine.plugin_versions["toy"] == 2
    assert newer.machine.active_versions["toy"] == 1
    assert (await newer.propose(Take("a"))).by == "core4"
    cluster.check()


# --- mishaps of proposals -------------------------------------------------------------------------


@toy
async def test_a_lost_answer_can_be_asked_for(cluster: Toys) -> None:
    node = cluster.nodes["core1"]
    lost = cluster.lose_answers("core1", "take")
    with pytest.raises(Timeout) as unknown:
        await node.propose(Take("a"), timeout_s=1.0)
    assert len(lost) == 1
    session, seq = unknown.value.session, unknown.value.seq
    assert session is not None
    assert seq is not None
    told_later = await node.outcome(session, seq)
    assert told_later.verdict == "applied"
    assert told_later.result.by == "core1"
    assert (await node.propose(Take("b"))).by == "core1"


@toy
async def test_what_is_held_comes_when_it_is_released(cluster: Toys) -> None:
    release = cluster.hold("core1", "take")
    held = asyncio.ensure_future(cluster.nodes["core1"].propose(Take("a")))
    await cluster.nodes["core2"].propose(Take("b"))
    assert cluster.table("names") == {"b": "core2"}
    release()
    assert (await held).by == "core1"


@toy
async def test_a_task_that_fails_is_found(cluster: Toys) -> None:
    async def fail() -> None:
        raise ValueError("as the test says")

    cluster.nodes["core1"].spawn(fail(), "failing")
    await asyncio.sleep(0.0)
    await asyncio.sleep(0.0)
    with pytest.raises(AssertionError, match="failing"):
        cluster.check()


@toy
async def test_a_hook_that_fails_is_found(cluster: Toys) -> None:
    with pytest.raises(Timeout):
        await cluster.nodes["core1"].propose(Take("broken hook"))
    with pytest.raises(AssertionError, match="as the test says"):
        cluster.check()


@toy
async def test_a_state_that_differs_is_found(cluster: Toys) -> None:
    cluster.check()
    other: Toys = FakeCluster(Toy, beside=[KV])
    await other.start()
    await other.nodes["core1"].propose(Take("a"))
    cluster.pause("core2")
    cluster.nodes["core2"].machine = other.nodes["core1"].machine
    cluster.check()  # it lags, as far as anybody knows
    cluster.nodes["core2"].paused = False
    with pytest.raises(AssertionError, match="core2"):
        cluster.check()


# --- calls between nodes --------------------------------------------------------------------------


@toy
async def test_calls_take_their_time_and_fail_in_all_their_ways(cluster: Toys) -> None:
    loop = asyncio.get_running_loop()
    rpc = cluster.nodes["core1"].rpc
    began = loop.time()
    assert await rpc.call("core2", "echo", b"x", 1.0) == b"x"
    assert loop.time() - began == pytest.approx(2 * NETWORK_S)
    assert told(cluster, "core2", "echo") == [("echo", "core1", b"x")]
    assert (rpc.made, rpc.calls) == ([("core2", "echo")], 1)
    with pytest.raises(RemoteFailed, match="no method"):
        await rpc.call("core2", "nothing", b"x", 1.0)
    with pytest.raises(RemoteFailed, match="ValueError: as the test says"):
        await rpc.call("core2", "echo", b"fail", 1.0)
    with pytest.raises(Timeout):
        await rpc.call("core2", "slow", b"x", 1.0)
    with pytest.raises(PeerUnreachable):
        await rpc.call("core9", "echo", b"x", 1.0)
    cluster.cut.add("core2")
    with pytest.raises(PeerUnreachable):
        await rpc.call("core2", "echo", b"x", 1.0)
    # The log still comes through.
    assert (await cluster.nodes["core2"].propose(Take("a"))).by == "core2"


@pytest.mark.parametrize(("mishap", "handled"), [("request lost", 0), ("reply lost", 1)])
def test_a_lost_call_costs_its_time(mishap: Any, handled: int) -> None:
    @toy
    async def body(cluster: Toys) -> None:
        cluster.mishap = lambda sender, receiver, method: mishap
        loop = asyncio.get_running_loop()
        began = loop.time()
        with pytest.raises(Timeout):
            await cluster.nodes["core1"].rpc.call("core2", "echo", b"x", 1.0)
        assert loop.time() - began == pytest.approx(1.0)
        assert len(told(cluster, "core2", "echo")) == handled

    body()


@toy
async def test_a_node_that_dies_over_a_call_does_not_answer(cluster: Toys) -> None:
    call = asyncio.ensure_future(cluster.nodes["core1"].rpc.call("core2", "slow", b"x", 9.0))
    await asyncio.sleep(1.0)
    cluster.kill("core2")
    with pytest.raises(Timeout):
        await call


@toy
async def test_a_share_of_calls_is_lost(cluster: Toys) -> None:
    cluster.lose_calls(random.Random(1), 0.5)
    fates = [cluster.mishap("core1", "core2", "echo") for _ in range(200)]
    assert {"none", "request lost", "reply lost"} == set(fates)
    assert 70 < fates.count("none") < 130
