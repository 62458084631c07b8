"""A node: what a program embeds.

    config = raftkv.NodeConfig(...)
    async with raftkv.Node(config) as node:
        await node.kv.put(b"k", b"v")

The node owns its data directory, its listening port, the state machine with its plugins, and its
part in replication (a core's engine or a replicant's follower). Entering the context starts it;
it takes part as soon as the cluster has a leader, and calls wait for that within their deadline.

A node that must stop itself (damaged log, failing disk, contradiction) sets `fault`; every call
then raises it. Nothing that was acknowledged is lost by that.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import msgspec

from .config import NodeConfig
from .core_format import CoreFormat
from .corruption_check import CorruptionCheck
from .costly_commands import CostlyCommands
from .descriptors import lacks_descriptors
from .disk_errors import directory_gone, disk_failed
from .errors import (
    ConfigError,
    CorruptState,
    NodeFault,
    NoLeader,
    RemovedNode,
    Stopped,
    again,
)
from .failure_detector import Verdict
from .foreign import Foreign, Ticket, TicketHost
from .formats import about_node, announced
from .hindrance import Hindrance
from .histogram import Histogram
from .hosting import Hosting, find_plugins
from .kv import KV, KVApi, LeaseApi
from .logclock import LogClock
from .membership import Membership
from .metrics import Metrics
from .outbox import Outbox
from .parts import CorePart, Part, ReplicantPart
from .peering import Peering
from .plugin import Consistency, Outcome, Plugin
from .presence import Identity
from .promotion import Promotion
from .quotas import Quotas
from .raft import wire
from .raft.epoch import Epoch
from .raft.identity import DataDirectory
from .raft.installing import load
from .raft.recovery import Recovered, recover
from .reading import Reader, discarded
from .rebuild import Rebuild
from .rejecting import error_of
from .removed_members import RemovedMembers
from .replica import Replica
from .replicant.upstream import STATUS_S
from .rpc import RpcHub
from .runtime import OsRuntime, Runtime
from .start_errors import error_of_start
from .state.core import Core, NodeUp, NodeUpResult
from .state.machine import StateMachine
from .status import Status, status_of
from .validation import checked, require, require_timeout
from .verdicts import Verdicts
from .voters import VoterNews
from .waste import Sweeper

if TYPE_CHECKING:
    from .security.keeper import Keeper
    from .server.door import Door

__all__ = ["Node"]

log = logging.getLogger("raftkv.node")
# A program that configures no logging is not to find lines of ours on its stderr.
logging.getLogger("raftkv").addHandler(logging.NullHandler())

T = TypeVar("T")

# Two processes never draw the same token by accident.
PROCESS_TOKEN_BYTES = 8
# A node whose name another one has taken in the log opens no session for so long: two rounds and
# more in which the core that feeds it looks at the log, and ends its stream (namesakes.py).
NAME_TAKEN_PAUSE_S = 2.5 * STATUS_S

_NOT_STARTED = "the node has not been started: use `async with` or `await start()`"

# How often a node looks whether its data directory is still there.
DIRECTORY_CHECK_S = 1.0

# What a node starts from that has read no snapshot: not even the entry that names the cores.
EMPTY_INDEX = 1

_encode = msgspec.msgpack.Encoder().encode


class _NotStarted(Stopped, AttributeError):
    """An attribute that a node has once it was started; `hasattr` is False before."""


class Node:
    """One node of a cluster, on the running event loop.

    `plugins`: classes or instances to run beside the keyspace; None takes the installed ones that
    `config.plugins` names. `runtime` is for the simulated world, `core_format_max` for tests of
    upgrades: with 1 the node speaks and decides as raftkv 0.1.0 does.
    """

    def __init__(
        self,
        config: NodeConfig,
        *,
        plugins: Sequence[type[Plugin[Any]] | Plugin[Any]] | None = None,
        runtime: Runtime | None = None,
        core_format_max: int = Core.version,
    ) -> None:
        if not isinstance(config, NodeConfig):
            raise ConfigError("config must be a NodeConfig, made by its constructor or load_config")
        self.config = config
        chosen: Sequence[type[Plugin[Any]] | Plugin[Any]]
        chosen = find_plugins(config.plugins) if plugins is None else plugins
        made = [plugin() if isinstance(plugin, type) else plugin for plugin in chosen]
        self._plugins: list[Plugin[Any]] = [KV(), *made]
        self._given_runtime = runtime
        self._core_format_max = core_format_max
        self.name = config.name
        self.incarnation = 0
        self.session = 0
        # No session is opened before this time of the node's clock.
        self._reopen_at = 0.0
        self._started = False
        self._stopping = False
        # True while calls are taken: the one look that every call pays for.
        self._running = False
        # Set once this core knows its state to be corrupt (withdrawal.py).
        self.withdrawn: CorruptState | None = None
        self._part: Part | None = None
        self._directory: DataDirectory | None = None
        # What `start` and `stop` do, apart from who waits for it.
        self._joining: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None
        self._opening: asyncio.Task[Any] | None = None
        self._watching: asyncio.Task[Any] | None = None
        self._keeper: Keeper | None = None
        #: The HTTP API, once `start` or `raftkv.server.door_of` has made it.
        self.http_api: Door | None = None
        self.loop_late_s = Histogram()

    if not TYPE_CHECKING:  # a type checker would take any name for one of this class

        def __getattr__(self, name: str) -> Any:
            if not name.startswith("_") and not self._started:
                raise _NotStarted(_NOT_STARTED)
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    # -- the node's states: new, starting, running, faulted, stopped (docs/embedding.md)

    async def __aenter__(self) -> Node:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Recover, listen and begin to take part. Raises ConfigError or NodeFault.

        With an `http_address` it also serves the HTTP API, until `stop`. It does not wait for a
        leader: `wait_ready` does. Raises Stopped if `stop` is called meanwhile, and RuntimeError
        if the node was started before: that changes nothing.
        """
        if self._started:
            raise RuntimeError(
                f"the node {self.name} was started already; a node is started once: make another "
                f"Node to start again"
            )
        self._started = True
        self._home = asyncio.get_running_loop()
        runtime = self.runtime = self._given_runtime or OsRuntime()
        self._fault: asyncio.Future[Any] = runtime.future()
        self._ready: asyncio.Future[Any] = runtime.future()
        try:
            self._assemble(runtime)
            self._joining = runtime.spawn(self._join(runtime), "start")
            await self._joining
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._ending is not None and not (task and task.cancelling()):
                await asyncio.shield(self._ending)
                raise Stopped("the node was stopped while it started") from None
            await self._release()
            raise
        except OSError as error:
            await self._release()
            raise error_of_start(error, self.config.dir) from error
        except BaseException:
            await self._release()
            raise

    @property
    def fault(self) -> asyncio.Future[NodeFault]:
        """Done with the NodeFault once the node has stopped itself.

        Every look gives a future of its own: whoever awaits one may be cancelled, and that must
        not keep the fault from the others.
        """
        if not self._started:
            raise Stopped(_NOT_STARTED)
        return asyncio.shield(self._fault)

    def _assemble(self, runtime: Runtime) -> None:
        """Make the parts that every node has; nothing runs yet."""
        config = self.config
        keeper = self._keeper = self._make_keeper(runtime)
        directory = self._directory = DataDirectory(config, runtime)
        self.machine = StateMachine(self._plugins, core_format_max=self._core_format_max)
        #: What this process tells of its software in every handshake.
        self.about = about_node(
            self.machine.core_format_max,
            self.machine.plugin_versions,
            runtime.token(PROCESS_TOKEN_BYTES).hex(),
            config.cores,
        )
        self.clock = LogClock(runtime)
        self._verdicts = Verdicts(self._send, lambda: self.machine.core_format)
        self.outbox = Outbox(runtime, config.limits, config.raft, self._verdicts.send)
        self.reader = Reader(runtime, config.raft, self._ask)
        self.foreign = Foreign(
            runtime, config.limits, config.raft, self.machine, self._send, config.timeout_s
        )
        self.costly = CostlyCommands(runtime, self.machine, self.foreign)
        replica = self._replica = Replica(self.machine, self.clock, self.outbox, self.reader)
        replica.foreign = self.foreign
        replica.on_session = self._session_opened
        replica.on_office = self._office_changed
        replica.on_progress = self._progressed
        replica.on_restored = self._restored
        replica.later = runtime.call_soon
        self._sweeper = Sweeper(runtime, self.machine.waste)
        replica.on_fault = self._faulted
        peering = self._peering = Peering(config, directory, runtime, self._faulted, keeper)
        # Raftkv 0.1.0 tells nothing of itself.
        peering.about = self.about if self._core_format_max > 1 else None
        peering.active = lambda: self.machine.formats_active
        peering.addresses.members = lambda: self.machine.members
        self.rpc = RpcHub(
            self.name, runtime, peering.hub, peering.addresses.of, config.limits.frame_bytes_max
        )
        peering.purpose("rpc", self.rpc.link_up, self.rpc.link_down)
        peering.route(wire.RpcRequest, self.rpc.on_request)
        peering.route(wire.RpcReply, self.rpc.on_reply)
        peering.on_newer_epoch = self._newer_epoch
        self.membership = Membership(self)
        self.voters = VoterNews(self)
        self.removed_members = RemovedMembers(self)
        self.promotion = Promotion(self)
        self.format = CoreFormat(self)
        self.corruption = CorruptionCheck(self)
        self.hindrance = Hindrance(self)
        self.rebuild = Rebuild(self)
        peering.on_wiped = self.rebuild.on_wiped
        self.reader.hindrance = lambda: self.hindrance.text
        peering.route(wire.LostEntries, self.hindrance.on_lost_entries)
        replica.on_digest_point = self.corruption.point
        peering.route(wire.Digests, self.corruption.on_digests)
        self.quotas = Quotas(self)
        self.metrics = Metrics(self)
        self.hosting = Hosting(self, self._plugins)
        self.hosting.open()

    async def _join(self, runtime: Runtime) -> None:
        """Recover what the directory holds, listen, and let all parts run."""
        config, directory, peering = self.config, self._directory, self._peering
        assert directory is not None
        if directory.is_marked:
            await self.rebuild.leave_marked()
        self._part = await self._make_part(runtime, directory, self._replica)
        if config.listen_address is None:
            await peering.hub.listen(config.peer_address)
        else:
            await peering.hub.listen(config.listen_address, "listen_address")
        await self.hosting.start()
        self.removed_members.start()
        self._part.start()
        self._office_changed()
        self._opening = runtime.spawn(self._keep_session(), "session")
        self.format.start()
        self.corruption.start()
        self.hindrance.start()
        self.rebuild.start()
        if self._keeper is not None:
            self._keeper.start()
        if self._given_runtime is None:  # in a simulated world nothing removes a directory
            self._watching = runtime.spawn(self._watch_directory(), "watch the directory")
        self._running = not self._fault.done()
        # In a simulated world there are no sockets.
        if config.http_address is not None and self._given_runtime is None:
            # Imported late: a node without an HTTP API needs no HTTP server.
            from .server.serving import door_of

            await door_of(self).start()

    async def _watch_directory(self) -> None:
        """Fault when the data directory is gone: another node may begin a new one in its place."""
        directory = self._directory
        assert directory is not None
        while not self._fault.done():
            await self.runtime.sleep(DIRECTORY_CHECK_S)
            try:
                moved = await self.runtime.offload_bulk(directory.moved)
            except (OSError, RuntimeError):
                continue  # what it hides fails by itself: a disk, or a runtime that is closed
            if moved and not self._fault.done():
                self._faulted(directory_gone(directory.path))

    def _make_keeper(self, runtime: Runtime) -> Keeper | None:
        """The node's certificates, if it has any. Raises CertificateError, ConfigError."""
        if self.config.tls is None:
            return None
        if not runtime.has_tls:
            raise ConfigError("this runtime has no TLS: leave tls out of the configuration")
        # Imported late: without certificates nobody pays for `cryptography`.
        from .security.keeper import Keeper

        return Keeper(self.config, runtime)

    async def _make_part(
        self, runtime: Runtime, directory: DataDirectory, replica: Replica
    ) -> Part:
        config, identity = self.config, directory.identity
        if identity.role != config.role:
            log.warning(
                "%s was promoted: by its data directory it is a core, although its configuration "
                "says role = %r",
                self.name,
                config.role,
            )
        if identity.role == "replicant":
            self.machine.skip(1)
            replicant = ReplicantPart(config, runtime, self._peering, replica, self.reader)
            replicant.identity = self._identity
            replicant.on_rejected = self._rejected
            replicant.follower.on_corrupt_upstream = self._copy_again
            return replicant
        recovered = await self._recover(belongs=bool(identity.cluster_id))
        return self._core_part(recovered)

    async def _recover(self, *, belongs: bool) -> Recovered:
        """Read the data directory, without holding the loop up: the program has other things to do.

        Nobody can reach this node meanwhile: it listens once it can answer.
        """
        assert self._directory is not None
        config, runtime, owner = self.config, self.runtime, self._directory.identity.log_owner
        recovering = runtime.offload(
            lambda: recover(
                runtime.files,
                config.dir,
                config.limits,
                fsync=config.fsync == "on",
                belongs=belongs,
                owner=owner,
            )
        )
        try:
            recovered: Recovered = await asyncio.shield(recovering)
        except asyncio.CancelledError:
            # The directory must not be unlocked while the thread still writes into it.
            await asyncio.wait([recovering])
            raise
        snapshot = recovered.snapshot
        if snapshot is None:
            self.machine.skip(1)
        else:
            reader = self.machine.reader()
            await load(runtime, snapshot, reader, lambda: True)
            self.machine.adopt(reader.finish(), snapshot.meta.index)
        return recovered

    def _core_part(self, recovered: Recovered) -> CorePart:
        assert self._directory is not None
        identity = self._directory.identity
        part = CorePart(
            self.config,
            self.runtime,
            self._peering,
            recovered,
            self._replica,
            self.reader,
            identity.raft_id,
            identity.cluster_id,
        )
        part.on_down = self._declare_down
        part.detector.identity = self._identity
        part.rejecting.own = self._rejected
        return part

    def _become_core(self, former: ReplicantPart, recovered: Recovered) -> None:
        """The directory is a core's by now: go on as one from the entry that was applied last."""
        former.leave()
        self._part = part = self._core_part(recovered)
        part.start()
        self._office_changed()
        self.hosting.spawn(self.promotion.tell(), "tell the log of the promotion")

    def _newer_epoch(self, epoch: Epoch) -> bool:
        """The cluster was recovered by force: what this replicant has copied is given up.

        False if the epoch could not be stored.
        """
        part, directory = self._part, self._directory
        assert isinstance(part, ReplicantPart)
        assert directory is not None
        log.warning(
            "the cluster was recovered by force (epoch %s): %s discards its state", epoch, self.name
        )
        try:
            directory.adopt(epoch)
        except OSError as error:
            if lacks_descriptors(error):
                log.error("the cluster's epoch cannot be stored yet: %s", error)
                return False  # the next handshake names it again
            self._faulted(disk_failed("the cluster's epoch cannot be stored", error))
            return False
        # Its session may be another's in the new history, where nothing is known of its numbers.
        self.outbox.open(0)
        self._copy_again()
        return True

    def _copy_again(self) -> None:
        """A replicant discards its state, and copies it from a core like a new node."""
        part = self._part
        assert isinstance(part, ReplicantPart)
        self.machine.reset()
        self.machine.skip(1)
        self.reader.applied(self.machine.index)
        part.follower.begin_anew()
        # Its session may be one that the log, after a forced recovery, has never seen.
        self.session, self._replica.nonce = 0, None
        self.foreign.history_ended()
        self.costly.history_ended()
        self.hosting.life_ended()
        self.hosting.restored(self.machine.index)
        self.runtime.call_soon(self._reopen)

    async def stop(self, *, hand_over: bool = True) -> None:
        """Stop cleanly. What was acknowledged is on disk; calls under way end with an error.

        The HTTP API finishes its requests first, for 2 s at most. A leader then transfers its
        leadership, so that the others need no time-out; without `hand_over` it does not, as after a
        crash. A further call waits for the same end, which a cancelled call does not stop.
        """
        if not self._started:
            return
        if self._ending is None:
            if self.http_api is None:
                self._stopping, self._running = True, False
            self._ending = self.runtime.spawn(self._end(hand_over), "stop")
        await asyncio.shield(self._ending)

    async def _end(self, hand_over: bool) -> None:
        joining = self._joining
        joined = joining is None or joining.done()
        if joining is not None and not joined:
            joining.cancel()
            await asyncio.wait([joining])
        if self.http_api is not None:
            await self.http_api.stop()
            # Only now: the requests under way are calls of this node.
            self._stopping, self._running = True, False
        if joined and hand_over and self._part is not None and not self._fault.done():
            await self._part.hand_over(self.config.raft.election_timeout_min_ms / 1000)
        await self._release()
        if not self._fault.done():
            self._fault.cancel()

    async def _release(self) -> None:
        if self.http_api is not None:
            await self.http_api.stop()
        if self._opening is not None:
            self._opening.cancel()
        if self._watching is not None:
            self._watching.cancel()
        if self._keeper is not None:
            self._keeper.stop()
        if "voters" in vars(self):
            self.voters.stop()
            self.removed_members.stop()
        if "format" in vars(self):
            self.format.stop()
            self.corruption.stop()
            self.hindrance.stop()
            self.rebuild.stop()
        if "hosting" in vars(self):
            await self.hosting.stop()
        if self._part is not None:
            self._part.stop()
            await self._part.closed()
        if "_sweeper" in vars(self):
            self._sweeper.stop()
        if "_peering" in vars(self):
            self._peering.close()
            self.rpc.stop()
            self.reader.stop()
            self.outbox.stop()
            self.foreign.stop()
            self.costly.stop()
        self.runtime.close()
        if self._directory is not None:
            self._directory.close()
        if not self._ready.done():
            self._ready.cancel()

    def _faulted(self, fault: NodeFault) -> None:
        """The node ends itself: calls are answered, peers see the streams close."""
        if self._fault.done():
            return
        if isinstance(fault, RemovedNode) and self.rebuild.leaving:
            self.rebuild.removed = True  # as it has asked; it stops when that is noted
            return
        log.error("%s: %s", self.name, fault)
        self._running = False
        self._fault.set_result(fault)
        if "hosting" in vars(self):
            self.hosting.faulted()
            self.corruption.stop()
            self.hindrance.stop()
            self.rebuild.stop()
        if self._part is not None:
            self._part.stop()
        self._peering.close()
        self.reader.stop(fault)
        self.outbox.stop(fault)
        self.foreign.stop(fault)
        self.costly.stop(fault)

    # -- session

    async def _keep_session(self) -> None:
        """Open a session through the log (rule 13); again whenever the cluster has ended it."""
        runtime, pause_s = self.runtime, self.config.raft.resend_ms / 1000
        while True:
            if self.session == 0 and self._may_open:
                self._propose_up()
            due = runtime.monotonic() + pause_s
            await runtime.sleep(pause_s)
            self.loop_late_s.observe(max(0.0, runtime.monotonic() - due))

    def _propose_up(self) -> None:
        """Ask for a session. Repeated under the same nonce until it is answered."""
        assert self._directory is not None
        config, replica = self.config, self._replica
        if replica.nonce is None:
            replica.nonce = int.from_bytes(self.runtime.token(8), "big") >> 1
        command = NodeUp(
            replica.nonce,
            self.name,
            self.role,
            self._directory.identity.raft_id,
            config.peer_address,
            config.http_address,
            announced(self.machine.plugin_versions, self.machine.core_format),
        )
        self._send([_encode((0, replica.nonce, 0, "core", _encode(command)))])

    def _session_opened(self, outcome: Any) -> None:
        if not isinstance(outcome, NodeUpResult):
            log.error("%s could not open a session: %s", self.name, outcome)
            return
        self._replica.nonce = None
        self.session, self.incarnation = outcome.session, outcome.incarnation
        self._peering.settled = True
        self.outbox.open(outcome.session)
        self.hosting.incarnation_changed(outcome.incarnation)
        if not self._ready.done():
            self._ready.set_result(None)

    def _identity(self) -> Identity:
        """This node's incarnation; or 0, and the nonce under which it asks for one."""
        return (self.incarnation, 0) if self.session else (0, self._replica.nonce or 0)

    def _check_incarnation(self) -> None:
        """Was this life ended by the cluster? Then open another; what it owned is fenced."""
        if self.session:
            member = self.machine.members.get(self.name)
            if member is None or member.incarnation != self.incarnation:
                self.session = 0
                if member is None or not member.up:
                    log.warning("%s was declared dead: opening a new session", self.name)
                    self.runtime.call_soon(self._reopen)
                    return
                # Whichever of the two must wait is for a core to decide, not for the faster one.
                log.warning("%s is another node, or process, in the log now", self.name)
                self._reopen_at = self.runtime.monotonic() + NAME_TAKEN_PAUSE_S
                self.runtime.call_later(NAME_TAKEN_PAUSE_S, self._reopen)

    @property
    def _may_open(self) -> bool:
        return self.runtime.monotonic() >= self._reopen_at

    def _reopen(self) -> None:
        if self.session == 0 and self._may_open and not self._stopping:
            self._propose_up()

    # -- news from below

    def _office_changed(self) -> None:
        part = self._part
        if part is None:
            return
        changed = part.office_changed()
        self.hosting.set_leads(part.leads)
        self.voters.look()
        self.removed_members.look()
        if changed:
            if self._replica.nonce is not None:
                self._propose_up()
            self.outbox.office_changed()
            self.foreign.office_changed()
            self.reader.office_changed()

    def _progressed(self) -> None:
        assert self._part is not None
        self._part.progressed()
        self.hosting.set_leads(self._part.leads)
        self.hosting.progressed(self.machine.index)
        self.voters.look()
        self.removed_members.look()
        self._check_incarnation()

    def _restored(self, index: int) -> None:
        if self._replica.nonce is not None:
            opened = self.machine.session_of(self.name, self._replica.nonce)
            if opened is not None:
                self._session_opened(NodeUpResult(*opened))
        self.hosting.restored(index)
        self.removed_members.restored()

    def _declare_down(self, verdict: Verdict, valid: Callable[[], bool]) -> None:
        if not self._running or self._verdicts.is_under_way(verdict):
            return
        name = verdict.name
        log.warning("%s has not been heard for long: declaring it dead", name)
        proposing = self._verdicts.propose(self.propose, verdict, valid)
        self.hosting.spawn(proposing, f"declare {name} dead")

    # -- the way to the log

    def _send(self, commands: Sequence[bytes]) -> bool:
        return self._part is not None and self._part.send(commands)

    def _rejected(self, rejected: wire.Rejected) -> None:
        """A core has left out one copy of a command that this node has sent."""
        error = error_of(rejected)
        if rejected.session and rejected.session == self.outbox.session:
            self.outbox.rejected(rejected.seq, error)
        else:
            self.foreign.rejected(rejected.session, rejected.seq, error)

    def _ask(self, number: int) -> bool:
        return self._part is not None and self._part.ask(number)

    def _check_running(self) -> None:
        self._check_started()
        if self.withdrawn is not None:
            raise again(self.withdrawn)

    def _check_started(self) -> None:
        """As `_check_running`, for what a core still does whose state is corrupt."""
        if not self._started:
            raise Stopped(_NOT_STARTED)
        if self._fault.done() and not self._fault.cancelled():
            raise again(self._fault.result())
        if self._stopping:
            raise Stopped("the node has stopped")
        if asyncio.get_running_loop() is not self._home:
            raise Stopped(
                "a node belongs to the event loop on which it was started: use "
                "raftkv.blocking.Node, which serves any thread"
            )

    # -- what a program uses

    @property
    def kv(self) -> KVApi:
        """The keyspace."""
        return self.plugin(KV)

    @property
    def leases(self) -> LeaseApi:
        """Leases, and the keys that end with them."""
        return self.kv.leases

    def plugin(self, plugin: type[Plugin[T]]) -> T:
        """The typed API of a plugin that this node runs. Raises LookupError for another."""
        given: Any = plugin
        if not isinstance(given, type) or not issubclass(given, Plugin):
            raise TypeError(f"plugin must be a class of a plugin, not {plugin!r:.60}")
        try:
            api: T = self.hosting.apis[plugin.name]
        except KeyError:
            raise LookupError(f"the plugin {plugin.name} does not run on this node") from None
        return api

    @property
    def role(self) -> Literal["core", "replicant"]:
        """What the node is: as configured, or a core that began as a replicant."""
        return self.config.role if self._directory is None else self._directory.identity.role

    @property
    def raft_id(self) -> str:
        """The node's name and the id minted with its data directory. Raises Stopped before."""
        if self._directory is None:
            raise Stopped(_NOT_STARTED)
        return self._directory.identity.raft_id

    @property
    def leader(self) -> str | None:
        """The leader's name, as far as this node knows."""
        return None if self._part is None else self._part.leader

    @property
    def term(self) -> int:
        """The current term, as far as this node knows."""
        return 0 if self._part is None else self._part.term

    @property
    def standing(self) -> tuple[str, int, int]:
        """(role now, term, applied index) for a line in the log; also of a node that starts."""
        part = self._part
        return (
            ("starting", 0, 0) if part is None else (part.role_name, part.term, self.machine.index)
        )

    @checked
    async def wait_ready(self, timeout_s: float = 30.0) -> None:
        """Return once this node has a session, so that calls succeed. Raises NoLeader."""
        self._check_running()
        await asyncio.wait(
            [self._ready, self._fault], timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
        )
        self._check_running()
        if not self._ready.done():
            raise NoLeader(
                f"{self.name} has not heard a leader in {timeout_s:g} s. A new cluster needs all "
                f"its cores once, an old one a majority of them"
            )

    async def propose(
        self, plugin: str, command: msgspec.Struct, *, timeout_s: float | None = None
    ) -> Any:
        """Send a plugin's command through the log; its result, once applied on this node.

        Raises the `Refused` that the state machine decided, a `NotApplied` when nothing happened,
        or `Timeout` (with `session` and `seq`) when the outcome is unknown.
        """
        if not self._running or asyncio.get_running_loop() is not self._home:
            self._check_running()
        if timeout_s is not None:
            require_timeout(timeout_s)
        if plugin != KV.name:  # whose API has looked at every value
            self.machine.require_decodable(plugin, command)
        timeout = self.config.timeout_s if timeout_s is None else timeout_s
        if type(command) in self.machine.costly_kinds and (
            rows := self.costly.rows_of(plugin, command)
        ):
            return await self.costly.propose(plugin, command, rows, timeout)
        return await self.outbox.submit(plugin, command, timeout)

    def kv_under(self, ticket: Ticket) -> KVApi:
        """The keyspace for one write under a client's session; its `leases` likewise."""
        self._check_running()
        host: Any = TicketHost(self.hosting.hosts[KV.name], self.foreign, ticket, KV.name)
        return KVApi(host, self.kv)

    @checked
    async def outcome(self, session: int, seq: int, *, timeout_s: float | None = None) -> Outcome:
        """What became of a command that ended in `Timeout`. After "not_applied" it never will.

        Raises NotPermitted on a replicant for the session of another node.
        """
        return await self.hosting.settle(session, seq, timeout_s)

    async def barrier(
        self, consistency: Consistency = "linearizable", *, timeout_s: float | None = None
    ) -> None:
        """Return when a read of this node's state is as fresh as asked.

        Raises ReadTimeout, or NoLeader for "local" on a node that has applied nothing yet.
        """
        if not self._running or asyncio.get_running_loop() is not self._home:
            self._check_running()
        if timeout_s is not None:
            require_timeout(timeout_s)
        timeout = self.config.timeout_s if timeout_s is None else timeout_s
        if consistency == "lease" and self._part is not None and self._part.holds_lease:
            await self.reader.reach(self._part.commit, timeout)
        elif consistency in ("linearizable", "lease"):
            discards = self.machine.discards
            await self.reader.barrier(timeout)
            if self.machine.discards != discards:
                # Between the confirmation and this line.
                raise discarded()
        elif consistency != "local":
            require(Consistency, "consistency", consistency)
        elif self.machine.index <= EMPTY_INDEX:
            raise NoLeader(
                f"{self.name} has applied nothing since its start, as without a quorum, so it has "
                f"no state to read: ask another node, or start more of the cores"
            )

    @checked
    def inject_lag(self, seconds: float) -> None:
        """Make this replicant apply what it receives so much later: for benchmarks and tests.

        Raises ValueError on a core, whose applying is part of the protocol's speed.
        """
        if not self._running:
            self._check_running()
        if not isinstance(self._part, ReplicantPart) or not 0 <= seconds < math.inf:
            raise ValueError("only a started replicant can lag, by 0 or more seconds")
        self._part.follower.lag_s = seconds

    async def reload_certificates(self) -> None:
        """Read the files under `tls` now, for new connections; those that stand go on.

        They are also read when they have changed. Raises CertificateError for files that cannot
        be used (the former ones stay in force) and ConfigError on a node without certificates.
        """
        self._check_running()
        if self._keeper is None:
            raise ConfigError("this node has no certificates: set tls in its configuration")
        await self._keeper.reload()

    def status(self) -> Status:
        """What this node knows of itself and of the cluster."""
        return status_of(self)
