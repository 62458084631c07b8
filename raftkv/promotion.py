"""A replicant becomes a core, in the same process, without a pause that callers would notice.

A replicant keeps its state in memory and has no log. A core that began with nothing would be of no
use until the whole state had been sent to it once more; so the replicant makes its log from what it
has: a snapshot of its state at index N, then the committed entries behind N as they come in. When
it has caught up with itself it stops following and goes on as a raft member from there.

The order (and where a crash leaves the node):

1. The leader makes the replicant's raft id a copy (a learner). It does not count for anything; the
   replicant goes on following.                               Crash: a replicant; promote it again.
2. Snapshot and log are written.                              Crash: a replicant; they are cleared.
3. `identity.json` says core, durably. What is on disk by now is a complete core.
                                                              Crash: a core, whose log continues.
4. The parts are exchanged within one turn of the loop: the engine starts at the applied index. The
   leader sends it what it lacks, and makes it a voter once that is little.

Callers notice a stream that ends, as when an upstream dies: commands and read questions under way
are sent again over the raft link. Session and incarnation stay; `NodeRole` tells the log what the
node is now.

The base of the new log. The snapshot at index N carries the configuration that was in force at N,
by the stream of the upstream (replicant/in_force.py): nothing later, and nothing that may be rolled
back. With a later one the core could elect and be elected by voters that others do not know, and
with an earlier one it could count by voters that are gone. So the leader names only M, the index of
the committed configuration that made the node a copy. A replicant that stands before M, or does not
know what is in force, answers "not yet"; one that finds itself no member at N refuses; and a
promotion under way ends when a newer M is named or the node is removed.

Below core format 2 the stream does not carry configurations, so a promotion is refused.
"""

from __future__ import annotations

import asyncio
import logging
import os.path
from typing import TYPE_CHECKING

import msgspec

from .descriptors import RETRY_S, lacks_descriptors
from .disk_errors import disk_failed
from .errors import MembershipRefused, NotApplied, RaftkvError
from .parts import ReplicantPart
from .raft.membership import decode, encode
from .raft.recovery import Recovered, recover
from .raft.snapshot import SnapshotMeta, SnapshotStore
from .raft.snapshot_file import FORMAT_VERSION
from .runtime import Files
from .state.core import NodeRole

if TYPE_CHECKING:
    from .node import Node
    from .raft.membership import Configuration
    from .replicant.follower import Entries

__all__ = ["FORMAT_NEEDED", "TOO_OLD", "NotYet", "Promotion"]

log = logging.getLogger("raftkv.node")

METHOD = "core.become_core_2"
# Asked by leaders of release 0.1.0, who give the configuration to begin with; always refused.
METHOD_FORMER = "core.become_core"
# The core format from which on a replicant may be promoted.
FORMAT_NEEDED = 2
# Rows per slice of the snapshot, as for any other (raft/snapshotting.py).
SLICE_ROWS = 500
# The log is written in the disk's thread until no more entries than these are new; the last ones
# are written between two turns of the loop.
LAST_ENTRIES_MAX = 64
_CONFIGURATION = 2


TOO_OLD = (
    f"the promotion of a replicant needs core format {FORMAT_NEEDED}: below it, the new core could "
    f"begin with members of the past. Upgrade every node, then `raftkv format raise`"
)


class NotYet(NotApplied):
    """The replicant cannot begin now; it will be able to, so ask again."""

    code = "not_yet"


class _Request(msgspec.Struct, frozen=True, array_like=True):
    """`raft_id` is a copy since the committed configuration at index `since`."""

    raft_id: str
    since: int


class _Answer(msgspec.Struct, frozen=True, array_like=True):
    """Both are empty when the node is a core now."""

    refused: str = ""
    not_yet: str = ""


class _FormerAnswer(msgspec.Struct, frozen=True, array_like=True):
    refused: str


class Promotion:
    """One node's part in a promotion: asked for it, and, on a leader, asking."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._running: asyncio.Task[None] | None = None
        # The newest `since` that was asked for: a promotion for an older one stops. And that of the
        # promotion that runs.
        self._since = 0
        self._begun = 0
        node.rpc.register(METHOD, self._on_request)
        node.rpc.register(METHOD_FORMER, self._on_former_request)

    async def ask(self, name: str, raft_id: str, since: int, timeout_s: float) -> None:
        """On a leader: let the replicant become a core. Raises MembershipRefused.

        `since`: the index of the committed configuration that made it a copy. Also raises NotYet,
        PeerUnreachable, RemoteFailed and Timeout; it may be asked again.
        """
        payload = msgspec.msgpack.encode(_Request(raft_id, since))
        answer = msgspec.msgpack.decode(
            await self._node.rpc.call(name, METHOD, payload, timeout_s), type=_Answer
        )
        if answer.refused:
            raise MembershipRefused(f"{name} cannot be promoted: {answer.refused}")
        if answer.not_yet:
            raise NotYet(answer.not_yet)

    async def _on_former_request(self, sender: str, payload: bytes) -> bytes:
        return msgspec.msgpack.encode(_FormerAnswer(TOO_OLD))

    async def _on_request(self, sender: str, payload: bytes) -> bytes:
        request = msgspec.msgpack.decode(payload, type=_Request)
        node = self._node
        refused = not_yet = ""
        if node.raft_id != request.raft_id:
            refused = f"its data directory is {node.raft_id}, not {request.raft_id}"
        elif node._keeper is not None and node._keeper.current.identity.replicant_only:
            refused = (
                f"its certificate is for a replicant only: issue one without --replicant-only "
                f"(raftkv certs issue {node.name} --force) and give it to the node first"
            )
        elif node.role == "replicant":
            try:
                await self._once(request.since)
            except MembershipRefused as refusal:
                refused = str(refusal)
            except NotYet as reason:
                not_yet = str(reason)
        return msgspec.msgpack.encode(_Answer(refused, not_yet))

    async def _once(self, since: int) -> None:
        """However often it is asked for, one promotion runs: that of the newest `since`."""
        while (running := self._under_way()) is not None and since > self._begun:
            # It stops at its next step, and nothing of it is left that the next one would meet.
            self._since = max(self._since, since)
            await asyncio.wait([running])
            if self._node.role != "replicant":
                return  # it was too late to stop, and what it began with is right
            if since < self._since:
                raise NotYet(f"it is to become a core as of entry {self._since}")
        if running is None:
            self._since = self._begun = since
            running = self._node.hosting.spawn(self._promote(since), "become a core")
            self._running = running
        elif since < self._begun:
            raise NotYet(f"it is becoming a core as of entry {self._begun} already")
        await asyncio.shield(running)

    def _under_way(self) -> asyncio.Task[None] | None:
        return None if self._running is None or self._running.done() else self._running

    def _check(self, part: ReplicantPart, since: int) -> Configuration:
        """The configuration in force where the replicant stands. Raises NotYet, or for good."""
        raft_id, in_force = self._node.raft_id, part.follower.in_force
        if since < self._since:
            raise NotYet(f"it is to become a core as of a later entry than {since}")
        if in_force.index < since:
            raise NotYet(f"it has applied entry {in_force.index}, not {since} yet")
        if in_force.configuration is None:
            raise NotYet("it does not know the members yet; its upstream will send them")
        if not in_force.configuration.is_member(raft_id):
            raise MembershipRefused(
                f"it was removed again by entry {in_force.index}: start it with an empty directory"
            )
        return in_force.configuration

    async def _promote(self, since: int) -> None:
        node = self._node
        part = node._part
        assert isinstance(part, ReplicantPart)
        self._check(part, since)
        log.info("%s is to become a core: writing its log", node.name)
        recovered: Recovered | None = None
        try:
            recovered = await self._write_log(part, since)
            await part.follower.applying.idle()
            await self._catch_up(part, recovered, since)
            self._check(part, since)
            await self._last_step(part, recovered)
        except BaseException as error:
            part.follower.kept = None
            if recovered is not None:
                recovered.wal.close()
            if lacks_descriptors(error):
                log.error("%s cannot become a core yet: no file descriptor is left", node.name)
                await node.runtime.sleep(RETRY_S)  # it is asked again at once
                raise NotYet(
                    f"no file descriptor is left ({error}): raise the limit (ulimit -n, or "
                    f"LimitNOFILE= in a unit of systemd), or have the program close files"
                ) from error
            if isinstance(error, OSError):
                raise MembershipRefused(f"its disk refuses: {error}") from error
            raise

    async def _last_step(self, part: ReplicantPart, recovered: Recovered) -> None:
        """Become the core. Raises OSError while the directory is a replicant's for certain."""
        node = self._node
        directory = node._directory
        assert directory is not None
        while True:
            # Within one try nothing waits: no entry comes in between.
            try:
                self._finish(part, recovered)
                return
            except (OSError, MembershipRefused) as error:
                lacks = lacks_descriptors(error)
                if not directory.replaced and (lacks or isinstance(error, MembershipRefused)):
                    raise
                if not lacks:
                    # The directory may be a core's or not: only a start can tell.
                    node._faulted(disk_failed("the last step of the promotion failed", error))
                    return
                # The file makes it a core, and may not be durable: the step cannot be undone.
                log.error("%s: the last step of the promotion waits: %s", node.name, error)
            await node.runtime.sleep(RETRY_S)

    async def _write_log(self, part: ReplicantPart, since: int) -> Recovered:
        """The snapshot of the state as it is now, and an empty log behind it."""
        node, follower, directory = self._node, part.follower, self._node._directory
        assert directory is not None
        runtime, config = node.runtime, node.config
        await follower.applying.idle()
        if follower.stopped:
            raise MembershipRefused("it was stopped meanwhile: promote it again")
        configuration = self._check(part, since)
        frozen = node._replica.freeze()
        # In the same turn: what is applied from here on is kept for the log.
        follower.kept = []
        meta = SnapshotMeta(
            follower.applied,
            follower.applied_term,
            encode(configuration),
            directory.identity.cluster_id,
            # A promotion needs the core format that this version of the file needs.
            FORMAT_VERSION,
            follower.in_force.since,
        )
        try:
            await runtime.offload_bulk(_clear, runtime.files, config.dir)
            store = await runtime.offload_bulk(
                SnapshotStore, runtime.files, os.path.join(config.dir, "snapshots")
            )
            writer = await runtime.offload_bulk(store.writer, meta)
            try:
                for chunk in frozen.slices(SLICE_ROWS):
                    await runtime.offload_bulk(writer.write, chunk)
                    self._check(part, since)
            except BaseException:
                await runtime.offload_bulk(writer.abort)
                raise
            await runtime.offload_bulk(writer.commit)
        finally:
            frozen.close()
        return await runtime.offload(  # type: ignore[no-any-return]
            lambda: recover(
                runtime.files,
                config.dir,
                config.limits,
                fsync=config.fsync == "on",
                belongs=False,
                owner=directory.identity.log_owner,
            )
        )

    async def _catch_up(self, part: ReplicantPart, recovered: Recovered, since: int) -> None:
        """Write what has come meanwhile, until that is little. Raises as `_check`."""
        wal, runtime = recovered.wal, self._node.runtime
        while len(kept := _take_kept(part)) > LAST_ENTRIES_MAX:
            _append(recovered, kept)
            pending = wal.take()
            assert pending is not None
            await runtime.offload(wal.write, pending)
            wal.written(pending)
            await part.follower.applying.idle()
            self._check(part, since)
        _append(recovered, kept)

    def _finish(self, part: ReplicantPart, recovered: Recovered) -> None:
        node, wal = self._node, recovered.wal
        _append(recovered, _take_kept(part))
        pending = wal.take()
        if pending is not None:
            wal.write(pending)
            wal.written(pending)
        assert wal.last_index == part.follower.applied
        assert node._directory is not None
        node._directory.become_core()
        recovered.applied = wal.last_index
        node._become_core(part, recovered)
        log.warning(
            "%s is a core from here on, by its data directory, whatever role its configuration "
            "file gives it",
            node.name,
        )

    async def tell(self) -> None:
        """Let the log know that this life of the node goes on as a core."""
        node = self._node
        while True:
            member = node.machine.members.get(node.name)
            if member is not None and member.role == node.role:
                return
            try:
                await node.propose("core", NodeRole(node.name, node.incarnation, node.role))
            except RaftkvError:
                await node.runtime.sleep(node.config.raft.resend_ms / 1000)


def _clear(files: Files, directory: str) -> None:
    """Remove what an interrupted promotion has left: nobody was promised anything from it."""
    for name in ("wal", "snapshots"):
        path = os.path.join(directory, name)
        files.makedirs(path)
        for file in files.listdir(path):
            files.remove(os.path.join(path, file))
        files.sync_dir(path)


def _take_kept(part: ReplicantPart) -> Entries:
    follower = part.follower
    kept = follower.kept
    if kept is None or follower.stopped:
        raise MembershipRefused(
            "it has had to copy the state anew, or was stopped, meanwhile: promote it again"
        )
    follower.kept = []
    return kept


def _append(recovered: Recovered, entries: Entries) -> None:
    for index, term, payload in entries:
        recovered.wal.append(payload, index, term)
        if payload[0] == _CONFIGURATION:
            recovered.configurations.append(index, decode(payload[1:]))
