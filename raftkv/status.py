"""What a node tells of itself: `node.status()`, `/v1/status` and `raftkv cluster status`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from .config import NodeConfig
from .corruption_check import CORRUPT
from .credibility import EPOCH
from .errors import Stopped
from .parts import CorePart, ReplicantPart
from .quotas import QuotaStatus
from .raft.free_space import DISK
from .raft.membership import name_of
from .security.report import TlsStatus
from .twins import IDENTITY

if TYPE_CHECKING:
    from .node import Node

__all__ = ["FormatStatus", "MemberStatus", "Status", "status_of"]


class FormatStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The core format and the plugin formats: what is active, and what this node knows."""

    active: dict[str, int]
    known: dict[str, int]


class MemberStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One member as the log knows it. `lag_entries` is known to the leader, for voters only."""

    name: str
    role: str
    incarnation: int
    up: bool
    peer_address: str
    http_address: str | None
    lag_entries: int | None = None


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """A node at one moment. Indexes are of the log; sizes in bytes."""

    name: str
    cluster: str
    cluster_id: str
    raft_id: str
    role: str
    leader: str | None
    term: int
    commit_index: int
    applied_index: int
    last_index: int | None
    first_index: int | None
    snapshot_index: int | None
    incarnation: int
    ready: bool
    fsync: str
    tls: TlsStatus | None
    endpoint: str | None
    upstream: str | None
    replicants: list[str]
    members: list[MemberStatus]
    outbox_commands: int
    outbox_bytes: int
    resends: int
    commands_applied: int
    plugins: dict[str, Any]
    faults: int
    fault: str | None
    # Of this node itself: "DISK" while its disk lacks the room for a snapshot, "CORRUPT" while the
    # states of cores differ at one index, "IDENTITY" while a second process runs as a core, "EPOCH"
    # for a while after a newer epoch was claimed that no core proved. Of the cluster: "NOSPACE"
    # while a plugin takes nothing new, because its quota was used up.
    alarms: list[str] = []
    # What the alarm CORRUPT is about; None while it is off.
    corruption: str | None = None
    # Why this core cannot take its full part, as the others tell it, and what to do; else None.
    hindrance: str | None = None
    # Of each plugin with a quota; empty at core format 1.
    quotas: list[QuotaStatus] = []
    # What is left on the disk for the log; None on a replicant, and before the first look.
    disk_left_bytes: int | None = None
    # The last claim of a newer epoch that no core of the cluster proved, and what to do (EPOCH).
    unproved_epoch: str | None = None
    software: str
    formats: FormatStatus
    # Of the configuration in force; empty on a replicant, which does not know it.
    distrusted: list[str] = []
    # Client sessions (exactly-once writes) of the cluster, and how many it may have. One that has
    # written is kept for so many seconds after its last write, whatever others do; 0: no promise,
    # at core format 1.
    client_sessions: int = 0
    client_sessions_max: int = 0
    client_session_kept_s: int = 0
    # On a leader, from core format 2: cores that at most half of the other voters have heard.
    isolated: list[str] = []


def status_of(node: Node) -> Status:
    """Take the status of a started node."""
    part, machine = node._part, node.machine
    if part is None or node._directory is None:
        raise Stopped("the node is still starting: it has a status once `start` has returned")
    identity, config = node._directory.identity, node.config
    engine = part.engine if isinstance(part, CorePart) else None
    lag: dict[str, int] = {}
    if engine is not None and engine.leading is not None:
        lag = engine.leading.lag()
    members = [
        MemberStatus(
            name=member.name,
            role=member.role,
            incarnation=member.incarnation,
            up=member.up,
            peer_address=member.peer_address,
            http_address=member.http_address,
            lag_entries=lag.get(member.raft_id),
        )
        for member in machine.members.values()
    ]
    failed = node._fault.done() and not node._fault.cancelled()
    return Status(
        name=node.name,
        cluster=identity.cluster,
        cluster_id=identity.cluster_id,
        raft_id=identity.raft_id,
        role=part.role_name,
        leader=part.leader,
        term=part.term,
        commit_index=part.commit,
        applied_index=machine.index,
        last_index=None if engine is None else engine.wal.last_index,
        first_index=None if engine is None else engine.wal.first_index,
        snapshot_index=None if engine is None else engine.snapshotting.last_index,
        incarnation=node.incarnation,
        ready=_is_ready(node),
        fsync=config.fsync,
        tls=None if node._keeper is None else node._keeper.status(),
        endpoint=_endpoint(config),
        upstream=part.follower.upstream if isinstance(part, ReplicantPart) else None,
        replicants=part.feeds.names if isinstance(part, CorePart) else [],
        members=members,
        outbox_commands=len(node.outbox),
        outbox_bytes=node.outbox.size_bytes,
        resends=node.outbox.resends,
        commands_applied=node._replica.commands_applied,
        plugins=_plugins(node),
        faults=node.hosting.hook_faults + machine.fault_count,
        fault=str(node._fault.result()) if failed else None,
        alarms=_alarms(node),
        corruption=node.corruption.alarm or None,
        hindrance=node.hindrance.text or None,
        quotas=node.quotas.usage(),
        disk_left_bytes=None if engine is None else engine.snapshotting.space.left_bytes,
        unproved_epoch=node._peering.credibility.unproved_epoch,
        client_sessions=machine.clients.open,
        client_sessions_max=machine.clients.max,
        client_session_kept_s=machine.clients.kept_ms // 1000,
        isolated=[] if not isinstance(node._part, CorePart) else node._part.detector.isolated,
        distrusted=(
            [] if engine is None else [name_of(each) for each in engine.configuration.distrusted]
        ),
        software=node.about.software,
        formats=FormatStatus(
            active=machine.formats_active,
            known={"core": machine.core_format_max, **machine.plugin_versions},
        ),
    )


def _plugins(node: Node) -> dict[str, Any]:
    """What the services tell; nothing of a state that is corrupt."""
    if node.withdrawn is not None:
        return {}
    return {name: dict(each.status()) for name, each in sorted(node.hosting.services.items())}


def _alarms(node: Node) -> list[str]:
    part = node._part
    disk = isinstance(part, CorePart) and part.engine.snapshotting.space.alarm
    corrupt = [CORRUPT] if node.corruption.alarm else []
    twins = isinstance(part, CorePart) and part.twins.alarm(node.runtime.monotonic())
    identity = [IDENTITY] if twins else []
    epoch = [EPOCH] if node._peering.credibility.alarm else []
    return [*([DISK] if disk else []), *corrupt, *identity, *epoch, *node.quotas.alarms]


def _is_ready(node: Node) -> bool:
    """Whether calls through this node succeed."""
    takes_part = node.session != 0 and node.withdrawn is None and not node.hindrance.text
    return takes_part and node.leader is not None


def _endpoint(config: NodeConfig) -> str | None:
    if config.http_address is None:
        return None
    scheme = "http" if config.http_tls is None else "https"
    return f"{scheme}://{config.http_address}"
