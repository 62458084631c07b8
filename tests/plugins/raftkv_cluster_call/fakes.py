"""A cluster without consensus: one list is the log, and every node applies it to a real machine.

Real are the state machine with the keyspace and the calls, the calls' service and everything that
it runs. Faked are the log (an append is a commit), the network between nodes (a delay, and what
`mishap` does to a call) and the disks. Time is virtual.

A node may be *paused*: it applies nothing until it is resumed, like one that lags. It may be
*isolated*: nothing reaches it or leaves it; declared dead meanwhile, it comes back in a new life
(`rejoin`). It may be *deaf* to answers: a proposal is applied, and its caller does not hear of it.
Or it is *killed*, and *restarted* with its disk.

    @story()
    async def test_all(cluster: Cluster) -> None:
        done = await cluster.calls("core1").call("note", Note("x"))
        assert cluster.ran("core2") == [done.id]

Each node has the functions of its `Seat`, which stands outside the node and outlives it.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from typing import Any, Literal

import msgspec

from raftkv.errors import NoLeader, PeerUnreachable, ReadTimeout, Refused, RemoteFailed, Timeout
from raftkv.kv import KV, Put
from raftkv.plugin import Change, Member, Outcome, View
from raftkv.state import (
    Envelope,
    NodeDown,
    NodeUp,
    SetSetting,
    SettleOutcome,
    StateMachine,
    encode_batch,
)
from raftkv.testing.clock import run
from raftkv.testing.disk import SimDisk
from raftkv_cluster_call.api import CallsApi
from raftkv_cluster_call.commands import Cursor, Record
from raftkv_cluster_call.functions import Call
from raftkv_cluster_call.options import CallsOptions
from raftkv_cluster_call.plugin import Calls
from raftkv_cluster_call.service import CallsService

__all__ = [
    "NETWORK_S",
    "Broken",
    "Cluster",
    "FakeNode",
    "Note",
    "Ran",
    "Seat",
    "story",
    "tag_of",
    "tell",
    "until",
]

NETWORK_S = 0.001
PROPOSE_TIMEOUT_S = 5.0
# The log's clock where a world begins.
EPOCH_MS = 1_000_000
# Longer than any pause between two tries, so that what can come to rest does.
REST_S = 15.0

# What happens to a call between nodes.
Mishap = Literal["none", "request lost", "reply lost"]


class FakeRuntime:
    """The part of `raftkv.runtime.Runtime` that a plugin uses, on the running (virtual) loop."""

    def __init__(self, seed: int, files: SimDisk) -> None:
        self.rng = random.Random(seed)
        self.files = files
        self.tasks: list[asyncio.Task[Any]] = []
        self._loop = asyncio.get_running_loop()

    def monotonic(self) -> float:
        return self._loop.time()

    def wall_ms(self) -> int:
        return 1_700_000_000_000 + int(self._loop.time() * 1000)

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
        self.tasks.append(task)
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


class FakeRpc:
    def __init__(self, cluster: Cluster, name: str) -> None:
        self._cluster = cluster
        self._name = name
        self.handlers: dict[str, Callable[[str, bytes], Awaitable[bytes]]] = {}
        # (receiver, method) of every call that was made.
        self.made: list[tuple[str, str]] = []

    def register(self, method: str, handler: Callable[[str, bytes], Awaitable[bytes]]) -> None:
        self.handlers[method] = handler

    async def call(self, node: str, method: str, payload: bytes, timeout_s: float) -> bytes:
        self.made.append((node, method))
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
            work = target.runtime.spawn(
                _handled(target.rpc.handlers[method], self._name, payload), "rpc"
            )
            work.add_done_callback(lambda task: task.cancelled() or task.exception())
            try:
                async with asyncio.timeout_at(until):
                    reply: bytes = await asyncio.shield(work)
                    await asyncio.sleep(NETWORK_S)
            except TimeoutError:
                raise Timeout(f"{node} did not answer {method}") from None
            except asyncio.CancelledError:
                if not work.cancelled() or target.alive:
                    raise
                mishap = "reply lost"  # the node died over it
            except Exception as error:
                raise RemoteFailed(f"{type(error).__name__}: {error}") from error
            if mishap == "none" and self._cluster.reaches(node, self._name):
                return reply
        await asyncio.sleep(max(0.0, until - loop.time()))
        raise Timeout(f"{node} did not answer {method}")


async def _handled(
    handler: Callable[[str, bytes], Awaitable[bytes]], sender: str, payload: bytes
) -> bytes:
    return await handler(sender, payload)


class FakeNode:
    """A `Host` on a real machine."""

    def __init__(self, cluster: Cluster, name: str, role: Literal["core", "replicant"]) -> None:
        self.options: CallsOptions | None = cluster.options
        self.cluster = cluster
        self.name = name
        self.role = role
        self.log = logging.getLogger("raftkv.plugins.calls")
        disk = cluster.disks.setdefault(name, SimDisk(random.Random(f"disk/{name}")))
        self.runtime: Any = FakeRuntime(cluster.boots, disk)
        self.rpc = FakeRpc(cluster, name)
        self.alive = True
        self.paused = False
        # Nothing reaches it and nothing leaves it, but it goes on.
        self.isolated = False
        self.incarnation = 0
        self.session = 0
        self.seq = 0
        #: Tags of the commands that it proposed.
        self.proposed: list[str] = []
        plugin = Calls()
        self.machine = StateMachine([KV(), plugin])
        self.machine.subscribe(self._note)
        self._changes: list[Change] = []
        self._waiting: dict[tuple[int, int], asyncio.Future[Any]] = {}
        self._kinds: dict[tuple[int, int], type[msgspec.Struct]] = {}
        self.calls: CallsApi = plugin.open(self)
        service = plugin.service(self, self.calls)
        assert isinstance(service, CallsService)
        self.service: CallsService = service

    # --- Host ---

    @property
    def directory(self) -> str:
        path = "data/plugins/calls"
        self.runtime.files.makedirs(path)
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
        return self.machine.view(plugin or "calls")

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
        raise KeyError(plugin.name)

    async def propose(self, command: msgspec.Struct, *, timeout_s: float | None = None) -> Any:
        self.proposed.append(str(command.__struct_config__.tag))
        return await self._send("calls", command, timeout_s)

    async def outcome(self, session: int, seq: int, *, timeout_s: float | None = None) -> Outcome:
        report = await self._send("core", SettleOutcome(session, seq), timeout_s)
        kind = self._kinds.get((session, seq))
        return Outcome(report.verdict, self.machine.read_report(report, kind))

    async def barrier(
        self,
        consistency: Literal["linearizable", "lease", "local"] = "linearizable",
        *,
        timeout_s: float | None = None,
    ) -> None:
        index = len(self.cluster.log)
        deadline = self.runtime.monotonic() + (timeout_s or PROPOSE_TIMEOUT_S)
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
            outcome = await asyncio.wait_for(future, timeout_s or PROPOSE_TIMEOUT_S)
        except TimeoutError:
            raise Timeout("no answer in time", session=session, seq=seq) from None
        finally:
            self._waiting.pop(key, None)
        if isinstance(outcome, Refused):
            raise outcome
        return outcome

    def catch_up(self) -> None:
        while self.applies and self.machine.index < len(self.cluster.log):
            self._apply(self.cluster.log[self.machine.index])

    @property
    def applies(self) -> bool:
        return self.alive and not self.paused and not self.isolated

    def _apply(self, body: bytes) -> None:
        outcomes = self.machine.apply(self.machine.index + 1, body)
        assert not self.machine.faults, self.machine.faults[0].detail
        changes, self._changes = self._changes, []
        for change in changes:
            if change.plugin == "core" and change.table == "members":
                self._member_hooks(change)
        mine = [change for change in changes if change.plugin in ("calls", "kv")]
        if mine:
            self.service.on_applied(self.machine.index, mine)
        for session, seq, outcome in outcomes:
            future = self._waiting.get((session, seq))
            if future is None or future.done() or (session, seq) in self.cluster.unheard:
                continue
            future.set_result(outcome)

    def _note(self, index: int, changes: Any) -> None:
        self._changes += changes

    def _member_hooks(self, change: Change) -> None:
        # As `hosting.py` does: of a change within one life (another role) no hook tells.
        old = change.old if isinstance(change.old, Member) else None
        new = change.new if isinstance(change.new, Member) else None
        lives = {(member.up, member.incarnation) for member in (old, new) if member is not None}
        if old is not None and new is not None and len(lives) == 1:
            return
        if old is not None and old.up:
            self.service.on_node_down(old)
        if new is not None and new.up:
            self.service.on_node_up(new)


# --- what stands outside the nodes ----------------------------------------------------------------


class Note(msgspec.Struct, frozen=True):
    """What the functions are called with."""

    text: str = ""


class Ran(msgspec.Struct, frozen=True):
    """One run of a function, as it was told about it."""

    node: str
    function: str
    id: int
    kind: str
    initiator: str
    attempt: int
    token: str
    said: str


class Broken(Exception):
    """What functions raise where the test says that they fail."""


class Seat:
    """One node from outside: its functions and what they did, over all its lives."""

    def __init__(self, name: str) -> None:
        self.name = name
        #: Every run that was begun, and those that succeeded.
        self.tries: list[Ran] = []
        self.runs: list[Ran] = []
        #: What fails here: functions' names, or "*" for all.
        self.broken: set[str] = set()
        #: How long a run takes; told the call.
        self.takes_s: Callable[[Call], float] = lambda call: 0.0
        #: Called in the midst of each run, before it succeeds.
        self.during: Callable[[Call], None] = lambda call: None
        #: A run that is cancelled goes on for so long.
        self.stubborn_s = 0.0

    def take(self, calls: CallsApi) -> None:
        calls.function("note", version=1)(self.note)
        calls.function("quick", version=1)(self.quick)
        calls.function("count", version=1, effect=True)(self.count)

    async def note(self, args: Note, call: Call) -> str:
        """Takes its time, and may fail."""
        ran = self._begin("note", args, call)
        seconds = self.takes_s(call)
        if seconds:
            try:
                await asyncio.sleep(seconds)
            except asyncio.CancelledError:
                if not self.stubborn_s:
                    raise
                await asyncio.sleep(self.stubborn_s)
        self._end("note", ran, call)
        return f"{args.text}@{self.name}"

    def quick(self, args: Note, call: Call) -> str:
        ran = self._begin("quick", args, call)
        self._end("quick", ran, call)
        return args.text

    def count(self, args: Note, call: Call) -> Put:
        """Its only effect is on the keyspace, at a key of this node's own: how often it is set."""
        ran = self._begin("count", args, call)
        self._end("count", ran, call)
        return Put(f"count/{self.name}".encode(), str(call.id).encode())

    def _begin(self, function: str, args: Note, call: Call) -> Ran:
        ran = Ran(
            call.node,
            function,
            call.id,
            call.kind,
            call.initiator,
            call.attempt,
            call.token,
            args.text,
        )
        self.tries.append(ran)
        return ran

    def _end(self, function: str, ran: Ran, call: Call) -> None:
        self.during(call)
        if self.broken & {function, "*"}:
            raise Broken(f"as the test says, of {ran.said}")
        self.runs.append(ran)


# --- the cluster ----------------------------------------------------------------------------------


class Cluster:
    """The log and the nodes. `await cluster.start()` before use."""

    def __init__(
        self,
        cores: int = 3,
        replicants: int = 0,
        options: CallsOptions | None = None,
        register: Callable[[FakeNode], None] | None = None,
    ) -> None:
        self.options = options
        self.log: list[bytes] = []
        self.nodes: dict[str, FakeNode] = {}
        self.disks: dict[str, SimDisk] = {}
        self.seats: dict[str, Seat] = {}
        self.leader: str | None = None
        self.boots = 0
        #: (node, task, error) of tasks that failed: nothing may be left of them at the end.
        self.failures: list[tuple[str, str, BaseException | None]] = []
        #: (session, seq) of proposals whose callers do not hear of the outcome.
        self.unheard: set[tuple[int, int]] = set()
        #: Called with each envelope before it is appended; a false answer keeps it off the log.
        self.filter: Callable[[FakeNode, Envelope], bool] = lambda node, envelope: True
        #: Called with (sender, receiver, method) of each call between nodes.
        self.mishap: Callable[[str, str, str], Mishap] = lambda sender, receiver, method: "none"
        #: Called with each node that starts, before its service does.
        self.register = register
        self._stamp_ms = EPOCH_MS
        self._nonce = 0
        self._shape = (cores, replicants)
        # Applies everything at once: what the log says, whatever the nodes do.
        self.witness = StateMachine([KV(), Calls()])

    async def start(self) -> Cluster:
        cores, replicants = self._shape
        for number in range(1, cores + 1):
            await self.add(f"core{number}", "core")
        for number in range(1, replicants + 1):
            await self.add(f"rep{number}", "replicant")
        self.lead("core1")
        names = [name for name, node in self.nodes.items() if node.role == "core"]
        await until(lambda: all(self.state(name) == "following" for name in names))
        return self

    async def add(self, name: str, role: Literal["core", "replicant"] = "core") -> FakeNode:
        self.boots += 1
        node = self.nodes[name] = FakeNode(self, name, role)
        self.seats.setdefault(name, Seat(name)).take(node.calls)
        if self.register is not None:
            self.register(node)
        node.catch_up()
        await node.service.start()
        self.node_up(node)
        return node

    def kill(self, name: str) -> None:
        """The process is gone; the cluster has not noticed yet."""
        node = self.nodes[name]
        node.alive = False
        for task in node.runtime.tasks:
            task.cancel()

    async def restart(self, name: str) -> FakeNode:
        """A new process under the same name, with its disk and the log."""
        self.kill(name)
        return await self.add(name, self.nodes[name].role)

    async def stop(self, name: str) -> None:
        """The node stops in good order."""
        node = self.nodes[name]
        await node.service.stop()
        self.kill(name)

    def node_up(self, node: FakeNode) -> None:
        self._nonce += 1
        plugins = (("calls", Calls.version), ("kv", KV.version))
        command = NodeUp(self._nonce, node.name, node.role, node.name, "", None, plugins)
        self.append([Envelope(0, self._nonce, 1, "core", msgspec.msgpack.encode(command))])
        opened = self.witness.session_of(node.name, self._nonce)
        assert opened is not None
        node.session, node.incarnation = opened
        node.seq = 0
        node.service.on_incarnation(node.incarnation)

    def declare_dead(self, name: str) -> None:
        """What the leader's failure detector proposes."""
        self.append_core(NodeDown(name, self.witness.members[name].incarnation))

    def set(self, **settings: Any) -> None:
        """Set replicated settings of the calls."""
        for key, value in settings.items():
            self.append_core(SetSetting.of("calls", key, value))

    def lead(self, name: str) -> None:
        if self.leader is not None and self.nodes[self.leader].alive:
            self.nodes[self.leader].service.on_follower()
        self.leader = name
        self.nodes[name].service.on_leader()

    # --- the log ---

    def now_ms(self) -> int:
        return EPOCH_MS + int(asyncio.get_running_loop().time() * 1000)

    def append_core(self, command: msgspec.Struct) -> None:
        node = next(node for node in self.nodes.values() if node.alive and not node.paused)
        node.seq += 1
        body = msgspec.msgpack.encode(command)
        self.append([Envelope(node.session, node.seq, 1, "core", body)])

    def append(self, envelopes: list[Envelope]) -> None:
        self._stamp_ms = max(self._stamp_ms, self.now_ms())
        body = encode_batch(self._stamp_ms, envelopes)
        self.log.append(body)
        self.witness.apply(len(self.log), body)
        assert not self.witness.faults, self.witness.faults[0].detail
        for node in list(self.nodes.values()):
            node.catch_up()

    def transmit(self, node: FakeNode, envelope: Envelope) -> None:
        loop = asyncio.get_running_loop()
        if node.alive and not node.isolated and self.filter(node, envelope):
            loop.call_later(NETWORK_S, self.append, [envelope])

    # --- mishaps ---

    def reaches(self, sender: str, receiver: str) -> bool:
        """Whether what one node sends arrives at the other."""
        one, other = self.nodes[sender], self.nodes[receiver]
        if not one.alive or not other.alive:
            return False
        return sender == receiver or not (one.isolated or other.isolated)

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

    def hold(self, name: str, *tags: str) -> Callable[[], None]:
        """Keep what this node proposes (of these tags) off the log until the result is called."""
        held: list[Envelope] = []

        def keep(node: FakeNode, envelope: Envelope) -> bool:
            if node.name == name and (not tags or tag_of(envelope) in tags):
                held.append(envelope)
                return False
            return True

        def release() -> None:
            self.filter = lambda node, envelope: True
            for envelope in held:
                self.append([envelope])

        self.filter = keep
        return release

    def lose_answers(self, name: str, *tags: str, times: int = 1) -> list[Envelope]:
        """The next proposals of these tags are applied, but their callers do not hear of it."""
        lost: list[Envelope] = []

        def deafen(node: FakeNode, envelope: Envelope) -> bool:
            if node.name == name and tag_of(envelope) in tags and len(lost) < times:
                lost.append(envelope)
                self.unheard.add((envelope.session, envelope.seq))
            return True

        self.filter = deafen
        return lost

    # --- looking ---

    def calls(self, name: str) -> CallsApi:
        return self.nodes[name].calls

    def ran(self, name: str) -> list[int]:
        """The ids that succeeded on this node, in their order."""
        return [run.id for run in self.seats[name].runs]

    def tried(self, name: str) -> list[int]:
        """The ids that were begun on this node, in their order."""
        return [run.id for run in self.seats[name].tries]

    def table(self, name: str) -> dict[Any, Any]:
        """The rows of one table, as the log has them."""
        return dict(self.witness.view("calls").table(name).scan())

    def row(self, name: str) -> Cursor:
        row: Cursor = self.table("cursors")[name]
        return row

    def state(self, name: str) -> str:
        row: Cursor | None = self.table("cursors").get(name)
        return "" if row is None else row.state

    def record(self, id: int) -> Record:
        record: Record = self.table("records")[id]
        return record

    def cursors(self) -> dict[str, int]:
        return {name: row.id for name, row in self.table("cursors").items()}

    def count(self, name: str) -> int:
        """How often the key of this node's `count` was written."""
        kv = self.witness.view("kv").table("keys").get(f"count/{name}".encode())
        return 0 if kv is None else int(kv.version)

    def alarms(self, name: str) -> set[tuple[str, str, int]]:
        """(name, node, id) of every alarm of the cluster, as this node sees it."""
        return {(alarm.name, alarm.node, alarm.id) for alarm in self.calls(name).alarms()}

    async def at(self, id: int, names: Iterable[str] | None = None) -> None:
        """Wait until these nodes (all with a cursor) have executed the id."""
        wanted = list(self.cursors()) if names is None else list(names)
        await until(lambda: all(self.cursors().get(name, 0) >= id for name in wanted))

    # --- judging ---

    def check(self) -> None:
        """The invariants, equal digests, order, and nothing of an aborted call elsewhere."""
        assert not self.failures, self.failures
        assert list(Calls().invariants(self.witness.view("calls"))) == []
        for node in self.nodes.values():
            if node.applies:
                assert node.machine.index == len(self.log)
                assert node.machine.digest() == self.witness.digest(), node.name
        records = self.table("records")
        for seat in self.seats.values():
            for earlier, later in zip(seat.runs, seat.runs[1:], strict=False):
                assert earlier.id <= later.id, f"{seat.name} ran {earlier.id} and then {later.id}"
            for ran in seat.tries:
                record = records.get(ran.id)
                if ran.kind == "replicate" and record is not None:
                    assert record.state == "committed", f"{seat.name} ran {ran} of {record.state}"


def tag_of(envelope: Envelope) -> str:
    """The tag of a command of the calls; "" for others."""
    if envelope.plugin != "calls":
        return ""
    tag: str = msgspec.msgpack.decode(envelope.command)[0]
    return tag


async def until(condition: Callable[[], bool], timeout_s: float = 120.0) -> None:
    """Wait, in virtual time, for something to become true."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    while not condition():
        assert loop.time() < deadline, f"not within {timeout_s:g} s of virtual time"
        await asyncio.sleep(NETWORK_S)


Story = Callable[[Cluster], Awaitable[None]]


def story(
    cores: int = 3,
    replicants: int = 0,
    options: CallsOptions | None = None,
    register: Callable[[FakeNode], None] | None = None,
) -> Callable[[Story], Callable[[], None]]:
    """A test on a cluster that has started; what must hold at its end is checked."""

    def wrap(body: Story) -> Callable[[], None]:
        def test() -> None:
            tell(body, cores, replicants, options, register)

        test.__name__ = body.__name__
        test.__doc__ = body.__doc__
        return test

    return wrap


def tell(
    body: Story,
    cores: int = 3,
    replicants: int = 0,
    options: CallsOptions | None = None,
    register: Callable[[FakeNode], None] | None = None,
) -> None:
    """Run one story in virtual time."""

    async def whole() -> None:
        cluster = await Cluster(cores, replicants, options, register).start()
        await body(cluster)
        await asyncio.sleep(REST_S)
        cluster.check()

    run(whole())
