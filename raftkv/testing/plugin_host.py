"""One node of a `FakeCluster`: the plugin's `Host` on a real state machine, without a node's rest.

The order in which hooks are called is the node's own (raftkv/hosting.py): of what is recovered no
hook hears; an entry is told first to who listens to rows, then to who hears of members, then to
who proposed it.

What is ugly. A hook that raises is a failed test here, where a node logs it and goes on. The fake
of the runtime has what plugins use of it, and no sockets.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

import msgspec

from raftkv.errors import NoLeader, PeerUnreachable, ReadTimeout, Refused, RemoteFailed, Timeout
from raftkv.plugin import ABSENT, Change, Consistency, Member, Outcome, Plugin, Service, View
from raftkv.state import Envelope, SetSetting, SettleOutcome
from raftkv.testing.disk import SimDisk

if TYPE_CHECKING:
    from raftkv.testing.plugin_cluster import FakeCluster

__all__ = ["NETWORK_S", "FakeHost", "FakeRpc", "FakeRuntime", "Mishap", "Role"]

# One way through the network; also what work in the disk's thread takes.
NETWORK_S = 0.001
# Of a proposal, an outcome or a barrier that does not say how long it waits.
TIMEOUT_S = 5.0
WALL_MS = 1_700_000_000_000

Role = Literal["core", "replicant"]
# What happens to a call between nodes.
Mishap = Literal["none", "request lost", "reply lost"]
Handler = Callable[[str, bytes], Awaitable[bytes]]
ApiT = TypeVar("ApiT")


class FakeRuntime:
    """The part of `raftkv.runtime.Runtime` that plugins use, on the running (virtual) loop."""

    def __init__(self, seed: int, files: SimDisk) -> None:
        self.rng = random.Random(seed)
        self.files = files
        self._loop = asyncio.get_running_loop()
        # In the order in which they were begun, so that they are cancelled in that order.
        self._tasks: dict[asyncio.Task[Any], None] = {}

    def monotonic(self) -> float:
        return self._loop.time()

    def wall_ms(self) -> int:
        return WALL_MS + int(self._loop.time() * 1000)

    def token(self, count: int) -> bytes:
        return self.rng.randbytes(count)

    def call_soon(self, callback: Callable[..., object], *args: Any) -> None:
        self._loop.call_soon(callback, *args)

    def call_later(
        self, delay_s: float, callback: Callable[..., object], *args: Any
    ) -> asyncio.TimerHandle:
        return self._loop.call_later(delay_s, callback, *args)

    def spawn(self, coroutine: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        task = self._loop.create_task(coroutine, name=name)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        return task

    def future(self) -> asyncio.Future[Any]:
        return self._loop.create_future()

    def offload(self, function: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        future = self._loop.create_future()

        def work() -> None:
            if future.done():
                return
            try:
                future.set_result(function(*args))
            except Exception as error:
                future.set_exception(error)

        self._loop.call_later(NETWORK_S, work)
        return future

    offload_bulk = offload

    async def sleep(self, delay_s: float) -> None:
        await asyncio.sleep(delay_s)

    def die(self) -> None:
        """The process is gone: cancel all that runs in it."""
        for task in list(self._tasks):
            task.cancel()


class FakeRpc:
    """Calls between the nodes of one cluster: delayed, and lost when `cluster.mishap` says so."""

    def __init__(self, cluster: FakeCluster[Any], name: str) -> None:
        self._cluster = cluster
        self._name = name
        self.handlers: dict[str, Handler] = {}
        #: (receiver, method) of every call that was made.
        self.made: list[tuple[str, str]] = []

    @property
    def calls(self) -> int:
        """How many calls were made."""
        return len(self.made)

    def register(self, method: str, handler: Handler) -> None:
        self.handlers[method] = handler

    async def call(self, node: str, method: str, payload: bytes, timeout_s: float) -> bytes:
        self.made.append((node, method))
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        await asyncio.sleep(NETWORK_S)
        target = self._cluster.nodes.get(node)
        if target is None or not self._cluster.reaches(self._name, node):
            unreachable = PeerUnreachable(f"{node} cannot be reached")
            unreachable.refused = node in self._cluster.refusing
            raise unreachable
        if method not in target.rpc.handlers:
            raise RemoteFailed(f"{node} has no method {method!r}")
        mishap = self._cluster.mishap(self._name, node, method)
        if mishap != "request lost":
            reply = await self._answer(target, method, payload, deadline)
            if reply is not None and mishap == "none" and self._cluster.reaches(node, self._name):
                return reply
        await asyncio.sleep(max(0.0, deadline - loop.time()))
        raise Timeout(f"{node} did not answer {method}")

    async def _answer(
        self, target: FakeHost[Any], method: str, payload: bytes, deadline: float
    ) -> bytes | None:
        """What the handler says, once it is back here; None if its node died over it."""
        handling = _handled(target.rpc.handlers[method], self._name, payload)
        # What was received is worked off, whoever still waits for it.
        work = target.runtime.spawn(handling, "rpc")
        work.add_done_callback(lambda task: task.cancelled() or task.exception())
        try:
            async with asyncio.timeout_at(deadline):
                reply: bytes = await asyncio.shield(work)
                await asyncio.sleep(NETWORK_S)
        except TimeoutError:
            raise Timeout(f"{target.name} did not answer {method}") from None
        except asyncio.CancelledError:
            if not work.cancelled() or target.alive:
                raise
            return None
        except Exception as error:
            raise RemoteFailed(f"{type(error).__name__}: {error}") from error
        return reply


async def _handled(handler: Handler, sender: str, payload: bytes) -> bytes:
    return await handler(sender, payload)


class FakeHost(Generic[ApiT]):
    """One process of one node, and the `Host` of the plugin under test.

    `opened` is the plugin's API, `service` its service. Subclass it to give them names of their
    own, or to put more beside them; the cluster makes nodes by `make_node`. `plugin` is given for
    a node of another version than the others (`FakeCluster.join`).
    """

    def __init__(
        self,
        cluster: FakeCluster[Any],
        name: str,
        role: Role,
        plugin: Plugin[ApiT] | None = None,
    ) -> None:
        self.cluster = cluster
        self.name = name
        self.role = role
        self.options: Any = cluster.options
        plugin = plugin or cluster.make_plugin()
        self.plugin: Plugin[ApiT] = plugin
        self.log = logging.getLogger(f"raftkv.plugins.{plugin.name}")
        self.files = cluster.disks.setdefault(name, SimDisk(random.Random(f"disk/{name}")))
        self.runtime: Any = FakeRuntime(cluster.boots, self.files)
        self.rpc = FakeRpc(cluster, name)
        self.alive = True
        self.paused = False
        #: Nothing reaches it and nothing leaves it, but it goes on.
        self.isolated = False
        #: Its service has started: from now on entries are applied, and hooks are called.
        self.started = False
        self.incarnation = 0
        self.session = 0
        self.seq = 0
        #: The tags of the commands that it proposed.
        self.proposals: list[str] = []
        self.machine = cluster.make_machine(plugin)
        self._waiting: dict[tuple[int, int], asyncio.Future[Any]] = {}
        self._kinds: dict[tuple[int, int], type[msgspec.Struct]] = {}
        self.opened: ApiT = plugin.open(self)
        self.service: Service = plugin.service(self, self.opened) or Service()

    # --- Host ---

    @property
    def directory(self) -> str:
        path = f"data/plugins/{self.plugin.name}"
        self.files.makedirs(path)
        return path

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
        name = plugin or self.plugin.name
        if name not in (self.plugin.name, *self.plugin.uses):
            raise LookupError(f"{self.plugin.name!r} does not name {name!r} in uses")
        return self.machine.view(name)

    async def stored(self, index: int) -> None:
        """At once, unless a test replaces it: the fake log is on all disks."""

    def listen(self, callback: Callable[[int, Sequence[Change]], None]) -> Callable[[], None]:
        return self.machine.subscribe(callback, (self.plugin.name,))

    def now_ms(self) -> int:
        return max(self.machine.now, self.cluster.now_ms())

    def spawn(self, coroutine: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task: asyncio.Task[None] = self.runtime.spawn(coroutine, name)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self.cluster.failures.append((self.name, task.get_name(), task.exception()))

    def api(self, plugin: Any) -> Any:
        raise LookupError(f"only the pure half of {plugin.name!r} is here")

    async def propose(self, command: msgspec.Struct, *, timeout_s: float | None = None) -> Any:
        self.proposals.append(str(command.__struct_config__.tag))
        return await self._send(self.plugin.name, command, timeout_s)

    async def set_setting(self, key: str, value: Any, *, timeout_s: float | None = None) -> None:
        packed = None if value is None else msgspec.msgpack.encode(value)
        await self._send("core", SetSetting(self.plugin.name, key, packed), timeout_s)

    async def outcome(self, session: int, seq: int, *, timeout_s: float | None = None) -> Outcome:
        report = await self._send("core", SettleOutcome(session, seq), timeout_s)
        kind = self._kinds.get((session, seq))
        return Outcome(report.verdict, self.machine.read_report(report, kind))

    async def barrier(
        self, consistency: Consistency = "linearizable", *, timeout_s: float | None = None
    ) -> None:
        index = len(self.cluster.log)
        deadline = self.runtime.monotonic() + (timeout_s or TIMEOUT_S)
        while consistency != "local" and (self.machine.index < index or self.isolated):
            if self.runtime.monotonic() >= deadline:
                raise ReadTimeout("this node is behind")
            await asyncio.sleep(NETWORK_S)

    # --- the log ---

    async def _send(self, plugin: str, command: msgspec.Struct, timeout_s: float | None) -> Any:
        if not self.session:
            raise NoLeader("this node is no member yet")
        self.seq += 1
        key = session, seq = self.session, self.seq
        self._kinds[key] = type(command)
        future = self._waiting[key] = asyncio.get_running_loop().create_future()
        envelope = Envelope(session, seq, 1, plugin, msgspec.msgpack.encode(command))
        self.cluster.transmit(self, envelope)
        try:
            outcome = await asyncio.wait_for(future, timeout_s or TIMEOUT_S)
        except TimeoutError:
            raise Timeout("no answer in time", session=session, seq=seq) from None
        finally:
            self._waiting.pop(key, None)
        if isinstance(outcome, Refused):
            raise outcome
        return outcome

    @property
    def applies(self) -> bool:
        return self.alive and self.started and not self.paused and not self.isolated

    def catch_up(self) -> None:
        """Apply what the log has, as far as this node hears it."""
        before = self.machine.index
        while self.applies and self.machine.index < len(self.cluster.log):
            self._apply(self.cluster.log[self.machine.index])
        if self.machine.index > before:
            self.service.on_progress(self.machine.index)

    async def boot(self) -> None:
        """Recover from the log, of which no hook hears, and start the service."""
        while self.machine.index < len(self.cluster.log):
            index, body = self.machine.index + 1, self.cluster.log[self.machine.index]
            raises = index in self.cluster.raises
            (self.machine.raise_format if raises else self.machine.apply)(index, body)
        await self.service.start()
        # A listener is told what it wants to hear of, and of members after that: as on a node.
        if type(self.service).on_applied is not Service.on_applied:
            hears = self.service.hears
            wanted = (self.plugin.name, *self.plugin.uses) if hears is None else hears
            self.machine.subscribe(self._rows_changed, wanted)
        self.machine.subscribe(self._members_changed, ("core",))
        self.started = True

    def restore(self, chunks: list[bytes], index: int) -> None:
        """A snapshot replaces the state; who waits for an entry before it is answered."""
        self.machine.restore(chunks, index)
        for (session, seq), future in list(self._waiting.items()):
            outcome = self.machine.recall(session, seq, self._kinds[session, seq])
            if outcome is not ABSENT:
                self._settle(session, seq, outcome, future)
        self.service.on_restored(index)

    def _apply(self, body: bytes) -> None:
        if self.machine.index + 1 in self.cluster.raises:
            self.machine.raise_format(self.machine.index + 1, body)
            return
        outcomes = self.machine.apply(self.machine.index + 1, body)
        assert not self.machine.faults, self.machine.faults[0].detail
        for session, seq, outcome in outcomes:
            self._settle(session, seq, outcome, self._waiting.get((session, seq)))

    def _settle(
        self, session: int, seq: int, outcome: Any, future: asyncio.Future[Any] | None
    ) -> None:
        deaf = (session, seq) in self.cluster.unheard
        if future is not None and not future.done() and not deaf:
            future.set_result(outcome)

    def _rows_changed(self, index: int, changes: Sequence[Change]) -> None:
        self.service.on_applied(index, changes)

    def _members_changed(self, index: int, changes: Sequence[Change]) -> None:
        for change in changes:
            if change.table != "members":
                continue
            old = change.old if isinstance(change.old, Member) else None
            new = change.new if isinstance(change.new, Member) else None
            if old is not None and old.up and not _same_life(old, new):
                self.service.on_node_down(old)
            if new is not None and new.up and not _same_life(new, old):
                self.service.on_node_up(new)


def _same_life(member: Member, other: Member | None) -> bool:
    """Whether both rows are of one life of a node, which may have changed its role meanwhile."""
    return other is not None and other.up == member.up and other.incarnation == member.incarnation
