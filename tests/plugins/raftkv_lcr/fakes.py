"""A cluster without consensus: one list is the log, and every node applies it to a real machine.

Real are the state machine, the plugin and its service. Faked are the log (an append is a commit)
and the network between nodes (a delay). A node may be paused: it goes on proposing but applies
nothing until it is resumed, like a replicant that lags. Time is virtual.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Coroutine, Mapping
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
from raftkv_lcr import LCR, LcrApi

NETWORK_S = 0.001


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

    def spawn(self, coroutine: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        return self._loop.create_task(coroutine, name=name)

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
        await asyncio.sleep(NETWORK_S)
        target = self._cluster.nodes.get(node)
        if target is None or not target.alive or node in self._cluster.cut:
            raise PeerUnreachable(f"{node} cannot be reached")
        try:
            reply = await asyncio.wait_for(
                target.rpc.handlers[method](self._name, payload), timeout_s
            )
        except TimeoutError:
            raise Timeout(f"{node} did not answer {method}") from None
        except Exception as error:
            raise RemoteFailed(f"{type(error).__name__}: {error}") from error
        await asyncio.sleep(NETWORK_S)
        return reply


class FakeNode:
    """A `Host` on a real machine."""

    options = None

    def __init__(self, cluster: Cluster, name: str, role: Literal["core", "replicant"]) -> None:
        self.cluster = cluster
        self.name = name
        self.role = role
        self.log = logging.getLogger("raftkv.plugin.lcr")
        self.runtime: Any = FakeRuntime(len(cluster.nodes))
        self.rpc = FakeRpc(cluster, name)
        self.alive = True
        self.paused = False
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
        while not self.paused and self.alive and self.machine.index < len(self.cluster.log):
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
        if isinstance(old, Member) and old.up:
            self.service.on_node_down(old)
        if isinstance(new, Member) and new.up:
            self.service.on_node_up(new)
            if new.name == self.name and self.alive:
                self.incarnation = new.incarnation
                self.service.on_incarnation(new.incarnation)


class Cluster:
    """The log and the nodes. `await cluster.start()` before use."""

    def __init__(self, cores: int = 3, replicants: int = 0) -> None:
        self.log: list[bytes] = []
        self.nodes: dict[str, FakeNode] = {}
        self.cut: set[str] = set()
        self.leader: str | None = None
        self.stamp_ms = 1_000
        self._nonce = 0
        # Called with each envelope before it is appended; a false answer keeps it off the log.
        self.filter: Callable[[FakeNode, Envelope], bool] = lambda node, envelope: True
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
        return await self.add(name, self.nodes[name].role)

    def kill(self, name: str) -> None:
        """The process is gone; the cluster has not noticed yet."""
        node = self.nodes[name]
        node.alive = False
        for task in node.tasks:
            task.cancel()

    def node_up(self, node: FakeNode) -> None:
        self._nonce += 1
        command = NodeUp(self._nonce, node.name, node.role, node.name, "", None, (("lcr", 1),))
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

    def transmit(self, node: FakeNode, envelope: Envelope) -> None:
        loop = asyncio.get_running_loop()
        if self.filter(node, envelope):
            loop.call_later(NETWORK_S, self.append, [envelope])

    def pause(self, name: str) -> None:
        self.nodes[name].paused = True

    def resume(self, name: str) -> None:
        self.nodes[name].paused = False
        self.nodes[name].catch_up()

    def check(self) -> None:
        """Every invariant on every node, and equal digests of those that are equally far."""
        live = [node for node in self.nodes.values() if node.alive]
        digests: dict[int, str] = {}
        for node in live:
            assert list(LCR().invariants(node.view())) == []
            digest = node.machine.digest()
            assert digests.setdefault(node.machine.index, digest) == digest


def ended(old: Member, incarnation: int) -> MemberChange:
    """The change that a pure hook sees when a life ends."""
    return MemberChange(old, msgspec.structs.replace(old, up=False), incarnation)
