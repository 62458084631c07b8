"""A cluster without consensus: one list is the log, and every node applies it to a real machine.

Real are the state machine, the plugin, its service and, once `sessions` was called, its session
flow with a broker in memory. Faked are the log (an append is a commit) and the network between
nodes (a delay, and what `mishap` does to a call). Time is virtual.

A node may be *paused*: it goes on proposing but applies nothing until it is resumed, like a
replicant that lags. It may be *isolated*: nothing reaches it or leaves it, but it goes on serving
its clients; declared dead meanwhile, it comes back in a new life (`rejoin`). Or it is *killed*.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from typing import Any, Literal

import msgspec

from raftkv.errors import PeerUnreachable, ReadTimeout, Refused, RemoteFailed, Timeout
from raftkv.plugin import Change, Member, MemberChange, Outcome, Service, View
from raftkv.state import (
    Envelope,
    NodeDown,
    NodeUp,
    NodeUpResult,
    SetSetting,
    SettleOutcome,
    StateMachine,
    encode_batch,
)
from raftkv.testing.clock import run
from raftkv_lcr import LCR, LcrApi
from raftkv_lcr.commands import Mode
from raftkv_lcr.manager import ChannelManager
from raftkv_lcr.options import LcrOptions
from raftkv_lcr.owner import Message
from raftkv_lcr.testing.broker import MemoryBroker, Session

NETWORK_S = 0.001
# Between two messages: several come between a begin and its end.
PUBLISH_S = 0.0007
# Longer than `handover_keep_s`, after which what nobody acknowledged ends by itself.
REST_S = 90.0

# What happens to a call between nodes.
Mishap = Literal["none", "request lost", "reply lost"]


class FakeRuntime:
    """The part of `raftkv.runtime.Runtime` that a plugin uses, on the running (virtual) loop."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self._loop = asyncio.get_running_loop()

    def monotonic(self) -> float:
        return self._loop.time()

    def wall_ms(self) -> int:
        return 1_700_000_000_000 + int(self._loop.time() * 1000)

    def call_soon(self, callback: Callable[..., object], *args: Any) -> None:
        self._loop.call_soon(callback, *args)

    def call_later(
        self, delay_s: float, callback: Callable[..., object], *args: Any
    ) -> asyncio.TimerHandle:
        return self._loop.call_later(delay_s, callback, *args)

    def spawn(self, coroutine: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        return self._loop.create_task(coroutine, name=name)

    def future(self) -> asyncio.Future[Any]:
        return self._loop.create_future()

    async def sleep(self, delay_s: float) -> None:
        await asyncio.sleep(delay_s)


class FakeRpc:
    def __init__(self, cluster: Cluster, name: str) -> None:
        self._cluster = cluster
        self._name = name
        self.handlers: dict[str, Callable[[str, bytes], Awaitable[bytes]]] = {}
        self.calls = 0

    def register(self, method: str, handler: Callable[[str, bytes], Awaitable[bytes]]) -> None:
        self.handlers[method] = handler

    async def call(self, node: str, method: str, payload: bytes, timeout_s: float) -> bytes:
        self.calls += 1
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout_s
        await asyncio.sleep(NETWORK_S)
        target = self._cluster.nodes.get(node)
        if target is None or not self._cluster.reaches(self._name, node):
            raise PeerUnreachable(f"{node} cannot be reached")
        if method not in target.rpc.handlers:
            raise RemoteFailed(f"{node} has no method {method!r}")
        mishap = self._cluster.mishap(self._name, node, method)
        if mishap != "request lost":
            # What was received is worked off, whoever still waits for it.
            work = asyncio.ensure_future(target.rpc.handlers[method](self._name, payload))
            work.add_done_callback(lambda task: task.cancelled() or task.exception())
            try:
                async with asyncio.timeout_at(until):
                    reply = await asyncio.shield(work)
                    await asyncio.sleep(NETWORK_S)
            except TimeoutError:
                raise Timeout(f"{node} did not answer {method}") from None
            except Exception as error:
                raise RemoteFailed(f"{type(error).__name__}: {error}") from error
            if mishap == "none" and self._cluster.reaches(node, self._name):
                return reply
        await asyncio.sleep(until - loop.time())
        raise Timeout(f"{node} did not answer {method}")


class FakeNode:
    """A `Host` on a real machine."""

    def __init__(
        self,
        cluster: Cluster,
        name: str,
        role: Literal["core", "replicant"],
    ) -> None:
        self.options: LcrOptions | None = cluster.options
        self.cluster = cluster
        self.name = name
        self.role = role
        self.log = logging.getLogger("raftkv.plugin.lcr")
        self.runtime: Any = FakeRuntime(len(cluster.nodes))
        self.rpc = FakeRpc(cluster, name)
        self.alive = True
        self.paused = False
        # Nothing reaches it and nothing leaves it, but it goes on.
        self.isolated = False
        self.incarnation = 0
        self.session = 0
        self.seq = 0
        self.proposed = 0
        plugin = LCR()
        self.machine = StateMachine([plugin])
        self.machine.subscribe(self._note)
        self._changes: list[Change] = []
        self._waiting: dict[tuple[int, int], asyncio.Future[Any]] = {}
        self.tasks: list[asyncio.Task[None]] = []
        self.lcr: LcrApi = plugin.open(self)
        self.service: Service = plugin.service(self, self.lcr)
        # Of the session flow, once `Cluster.sessions` has made it.
        self.broker = MemoryBroker(name)

    @property
    def manager(self) -> ChannelManager:
        manager = self.lcr.sessions_or_none()
        assert manager is not None, "call cluster.sessions() first"
        return manager

    # --- Host ---

    @property
    def leader(self) -> str | None:
        return self.cluster.leader

    @property
    def is_leader(self) -> bool:
        return self.cluster.leader == self.name

    @property
    def members(self) -> Mapping[str, Member]:
        return self.view().members

    @property
    def settings(self) -> Mapping[str, Any]:
        return self.view().settings

    def view(self, plugin: str | None = None) -> View:
        return self.machine.view("lcr")

    def now_ms(self) -> int:
        return self.machine.now

    def spawn(self, coroutine: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task: asyncio.Task[None] = self.runtime.spawn(coroutine, name)
        self.tasks.append(task)
        return task

    def api(self, plugin: Any) -> Any:
        raise KeyError(plugin.name)

    async def propose(self, command: msgspec.Struct, *, timeout_s: float | None = None) -> Any:
        self.proposed += 1
        return await self._send("lcr", command, timeout_s)

    async def outcome(self, session: int, seq: int, *, timeout_s: float | None = None) -> Outcome:
        report = await self._send("core", SettleOutcome(session, seq), timeout_s)
        return Outcome(report.verdict)

    async def barrier(
        self,
        consistency: Literal["linearizable", "local"] = "linearizable",
        *,
        timeout_s: float | None = None,
    ) -> None:
        index = len(self.cluster.log)
        deadline = self.runtime.monotonic() + (5.0 if timeout_s is None else timeout_s)
        while consistency == "linearizable" and self.machine.index < index:
            if self.runtime.monotonic() >= deadline:
                raise ReadTimeout("this node is behind")
            await asyncio.sleep(NETWORK_S)

    # --- the log ---

    async def _send(self, plugin: str, command: msgspec.Struct, timeout_s: float | None) -> Any:
        self.seq += 1
        seq, session = self.seq, self.session
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[(session, seq)] = future
        envelope = Envelope(session, seq, 1, plugin, msgspec.msgpack.encode(command))
        self.cluster.transmit(self, envelope)
        try:
            outcome = await asyncio.wait_for(future, 5.0 if timeout_s is None else timeout_s)
        except TimeoutError:
            raise Timeout("no answer in time", session=session, seq=seq) from None
        finally:
            self._waiting.pop((session, seq), None)
        if isinstance(outcome, Refused):
            raise outcome
        return outcome

    def catch_up(self) -> None:
        while (
            not self.paused
            and not self.isolated
            and self.alive
            and self.machine.index < len(self.cluster.log)
        ):
            self._apply(self.cluster.log[self.machine.index])

    def _apply(self, body: bytes) -> None:
        outcomes = self.machine.apply(self.machine.index + 1, body)
        assert not self.machine.faults, self.machine.faults[0].detail
        changes, self._changes = self._changes, []
        for change in changes:
            if change.plugin == "core" and change.table == "members":
                self._member_hooks(change)
        mine = [change for change in changes if change.plugin == "lcr"]
        if mine:
            self.service.on_applied(self.machine.index, mine)
        for session, seq, outcome in outcomes:
            future = self._waiting.get((session, seq))
            if future is not None and not future.done():
                future.set_result(outcome)

    def _note(self, index: int, changes: Any) -> None:
        self._changes += changes

    def _member_hooks(self, change: Change) -> None:
        old, new = change.old, change.new
        both = isinstance(old, Member) and isinstance(new, Member) and old.up and new.up
        if both and old.incarnation == new.incarnation:
            return  # promoted: one life goes on in another role
        if isinstance(old, Member) and old.up:
            self.service.on_node_down(old)
        if isinstance(new, Member) and new.up:
            self.service.on_node_up(new)
            if new.name == self.name and self.alive:
                self.incarnation = new.incarnation
                self.service.on_incarnation(new.incarnation)


class Cluster:
    """The log and the nodes. `await cluster.start()` before use."""

    def __init__(
        self, cores: int = 3, replicants: int = 0, options: LcrOptions | None = None
    ) -> None:
        self.options = options
        self.log: list[bytes] = []
        self.nodes: dict[str, FakeNode] = {}
        self.cut: set[str] = set()
        self.leader: str | None = None
        self.stamp_ms = 1_000
        self._nonce = 0
        # Called with each envelope before it is appended; a false answer keeps it off the log.
        self.filter: Callable[[FakeNode, Envelope], bool] = lambda node, envelope: True
        # Called with (sender, receiver, method) of each call between nodes.
        self.mishap: Callable[[str, str, str], Mishap] = lambda sender, receiver, method: "none"
        self._shape = (cores, replicants)

    async def start(self) -> Cluster:
        cores, replicants = self._shape
        for number in range(1, cores + 1):
            await self.add(f"core{number}", "core")
        for number in range(1, replicants + 1):
            await self.add(f"rep{number}", "replicant")
        self.lead("core1")
        return self

    async def add(self, name: str, role: Literal["core", "replicant"]) -> FakeNode:
        node = self.nodes[name] = FakeNode(self, name, role)
        node.catch_up()
        await node.service.start()
        self.node_up(node)
        return node

    async def restart(self, name: str) -> FakeNode:
        """A new process under the same name, with nothing but the log."""
        self.kill(name)
        former = self.nodes[name]
        node = await self.add(name, former.role)
        if former.lcr.sessions_or_none() is not None:
            self.attach(node, MemoryBroker(name))
        return node

    def kill(self, name: str) -> None:
        """The process is gone; the cluster has not noticed yet."""
        node = self.nodes[name]
        node.alive = False
        for task in node.tasks:
            task.cancel()

    def node_up(self, node: FakeNode) -> None:
        self._nonce += 1
        command = NodeUp(
            self._nonce, node.name, node.role, node.name, "", None, (("lcr", LCR.version),)
        )
        index = len(self.log)
        self.append_core(command, session=0, seq=self._nonce)
        probe = StateMachine([LCR()])
        for position, body in enumerate(self.log, 1):
            outcomes = probe.apply(position, body)
        assert position == index + 1
        result = outcomes[0][2]
        assert isinstance(result, NodeUpResult)
        node.session, node.incarnation = result.session, result.incarnation

    def declare_dead(self, name: str) -> None:
        """What the leader's failure detector proposes."""
        member = self.any_live().machine.members[name]
        self.append_core(NodeDown(name, member.incarnation))

    def set(self, key: str, value: Any) -> None:
        self.append_core(SetSetting.of("lcr", key, value))

    def lead(self, name: str) -> None:
        if self.leader is not None and self.nodes[self.leader].alive:
            self.nodes[self.leader].service.on_follower()
        self.leader = name
        self.nodes[name].service.on_leader()

    def any_live(self) -> FakeNode:
        return next(node for node in self.nodes.values() if node.alive and not node.paused)

    def append_core(self, command: msgspec.Struct, session: int = -1, seq: int = 0) -> None:
        if session < 0:
            node = self.any_live()
            node.seq += 1
            session, seq = node.session, node.seq
        self.append([Envelope(session, seq, 1, "core", msgspec.msgpack.encode(command))])

    def append(self, envelopes: list[Envelope]) -> None:
        self.stamp_ms += 1
        self.log.append(encode_batch(self.stamp_ms, envelopes))
        for node in list(self.nodes.values()):
            node.catch_up()

    def reaches(self, sender: str, receiver: str) -> bool:
        """Whether what one node sends arrives at the other."""
        one, other = self.nodes[sender], self.nodes[receiver]
        if not one.alive or not other.alive or {sender, receiver} & self.cut:
            return False
        return sender == receiver or not (one.isolated or other.isolated)

    def transmit(self, node: FakeNode, envelope: Envelope) -> None:
        loop = asyncio.get_running_loop()
        if node.alive and not node.isolated and self.filter(node, envelope):
            loop.call_later(NETWORK_S, self.append, [envelope])

    def pause(self, name: str) -> None:
        self.nodes[name].paused = True

    def resume(self, name: str) -> None:
        self.nodes[name].paused = False
        self.nodes[name].catch_up()

    def isolate(self, name: str) -> None:
        """Cut the node off from all others and from the log; it does not know."""
        self.nodes[name].isolated = True

    def heal(self, name: str) -> None:
        """The node hears the others again, and catches up."""
        self.nodes[name].isolated = False
        self.nodes[name].catch_up()

    def rejoin(self, name: str) -> None:
        """The node hears the others again, learns that it was declared dead, and begins anew."""
        self.heal(name)
        self.node_up(self.nodes[name])

    def lose_calls(self, rng: random.Random, share: float) -> None:
        """From now on, that share of the calls between nodes is lost on the way there or back."""

        def mishap(sender: str, receiver: str, method: str) -> Mishap:
            if rng.random() >= share:
                return "none"
            return "request lost" if rng.random() < 0.5 else "reply lost"

        self.mishap = mishap

    def hold(self, name: str) -> Callable[[], None]:
        """Keep what this node proposes off the log until the returned function is called."""
        held: list[Envelope] = []

        def keep(node: FakeNode, envelope: Envelope) -> bool:
            if node.name == name:
                held.append(envelope)
                return False
            return True

        def release() -> None:
            self.filter = lambda node, envelope: True
            for envelope in held:
                self.append([envelope])

        self.filter = keep
        return release

    def before_each_open(
        self, node: FakeNode, act: Callable[[int], Coroutine[Any, Any, None]]
    ) -> None:
        """Before each registration of a session on this node arrives, `act` is done, from 1 on."""
        count = 0

        async def first_act(envelope: Envelope, number: int) -> None:
            await act(number)
            self.append([envelope])

        def delay(sender: FakeNode, envelope: Envelope) -> bool:
            nonlocal count
            if sender is not node or tag_of(envelope) != "open":
                return True
            count += 1
            node.runtime.spawn(first_act(envelope, count), "first")
            return False

        self.filter = delay

    # --- sessions ---

    async def sessions(
        self,
        mode: Mode = "enabled",
        owner: Callable[[FakeNode], MemoryBroker] = lambda node: node.broker,
    ) -> None:
        """Give every node a broker, and switch to `mode` by the steps that lead there."""
        for node in self.nodes.values():
            self.attach(node, owner(node))
        if mode != "disabled":
            await self.any_live().lcr.switch_mode(mode)

    def attach(self, node: FakeNode, broker: MemoryBroker) -> None:
        """Make this broker the node's."""
        node.broker = broker
        broker.attach(node.lcr)

    def check(self) -> None:
        """Every invariant on every node, and equal digests of those that are equally far."""
        live = [node for node in self.nodes.values() if node.alive]
        digests: dict[int, str] = {}
        for node in live:
            assert list(LCR().invariants(node.view())) == []
            digest = node.machine.digest()
            assert digests.setdefault(node.machine.index, digest) == digest


def tag_of(envelope: Envelope) -> str:
    """The tag of a command of this plugin; "" for the core's."""
    if envelope.plugin != "lcr":
        return ""
    tag: str = msgspec.msgpack.decode(envelope.command)[0]
    return tag


def ended(old: Member, incarnation: int) -> MemberChange:
    """The change that a pure hook sees when a life ends."""
    return MemberChange(old, msgspec.structs.replace(old, up=False), incarnation)


# --- stories about sessions -----------------------------------------------------------------------

Story = Callable[[Cluster], Awaitable[None]]


def story(
    cores: int = 3,
    replicants: int = 0,
    options: LcrOptions | None = None,
    mode: Mode = "enabled",
) -> Callable[[Story], Callable[[], None]]:
    """A test on a cluster whose nodes have brokers; what must be at rest at its end is checked."""

    def wrap(body: Story) -> Callable[[], None]:
        def test() -> None:
            tell(body, cores, replicants, options, mode)

        test.__name__ = body.__name__
        test.__doc__ = body.__doc__
        return test

    return wrap


def tell(
    body: Story,
    cores: int = 3,
    replicants: int = 0,
    options: LcrOptions | None = None,
    mode: Mode = "enabled",
) -> None:
    """Run one story in virtual time."""

    async def whole() -> None:
        cluster = await Cluster(cores, replicants, options).start()
        await cluster.sessions(mode)
        await body(cluster)
        await settle(cluster)

    run(whole())


async def settle(cluster: Cluster) -> None:
    """Let everything come to rest, and check that nothing was left behind."""
    cluster.mishap = lambda sender, receiver, method: "none"
    await asyncio.sleep(REST_S)
    cluster.check()
    for node in cluster.nodes.values():
        if node.alive and not node.isolated and not node.paused:
            at_rest(node)


def at_rest(node: FakeNode) -> None:
    """Nothing is under way on the node, and its broker, its manager and the log agree."""
    kept = {metric.name: metric.value for metric in node.manager.handover.metrics()}
    for name in ("frozen", "lost_channels", "handovers_kept", "handover_bytes"):
        assert kept[name] == 0, f"{node.name}: {name} is {kept[name]}"
    assert not node.manager.opening
    assert len(node.lcr.reaper) == 0
    living = {(row.client_id, row.channel) for row in node.manager.owner.channels()}
    assert set(node.manager.held) == living
    for key, row in node.manager.held.items():
        assert node.lcr.lookup_local(key[0]) == row
        assert key not in node.broker.sessions or not node.broker.sessions[key].frozen
    for client_id, entry in node.view().table("clients").scan():
        assert entry.claim is None, f"a claim of {client_id} is left"
        if entry.owner.node == node.name:
            assert (client_id, entry.owner.channel) in living, f"{entry.owner} has no channel"


def message(number: int) -> Message:
    return Message(f"m{number}", b"")


def texts(messages: Iterable[Message]) -> list[str]:
    return [message.id for message in messages]


def live(cluster: Cluster, client_id: str = "c") -> list[tuple[str, Session]]:
    """The client's live sessions on all nodes, by the node's name."""
    return [
        (name, session)
        for name, node in cluster.nodes.items()
        if node.alive
        for session in node.broker.sessions.values()
        if session.client_id == client_id and session.live
    ]


class Publisher:
    """Publishes one message after the other for a client, each until some broker accepts it."""

    def __init__(self, cluster: Cluster, rng: random.Random, client_id: str = "c") -> None:
        self.accepted: list[str] = []
        self._cluster = cluster
        self._client_id = client_id
        self._rng = rng
        self._stopping = False
        self._task = asyncio.get_running_loop().create_task(self._play())

    async def stop(self) -> None:
        self._stopping = True
        await self._task

    async def _play(self) -> None:
        while not self._stopping:
            names = [name for name, node in self._cluster.nodes.items() if node.alive]
            self._rng.shuffle(names)
            one = message(len(self.accepted))
            for name in names:
                if self._cluster.nodes[name].broker.publish(self._client_id, one):
                    self.accepted.append(one.id)
                    break
            await asyncio.sleep(PUBLISH_S)
