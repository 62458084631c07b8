"""Figures of the replicated state and of the plugins, and of the node itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from raftkv.parts import CorePart, ReplicantPart

from .family import Family, counter, gauge, gauge_by, histogram, outcomes

if TYPE_CHECKING:
    from raftkv.config import NodeConfig
    from raftkv.corruption_check import CorruptionCheck
    from raftkv.node import Node
    from raftkv.state.machine import StateMachine

__all__ = ["applying", "identity", "state"]


def identity(node: Node, uptime_s: float) -> Iterator[Family]:
    """Who this node is, and how it stands."""
    directory, part = node._directory, node._part
    assert directory is not None
    assert part is not None
    known = directory.identity
    labels = {
        "name": node.name,
        "cluster": known.cluster,
        "cluster_id": known.cluster_id,
        "raft_id": known.raft_id,
        "role": known.role,
    }
    yield Family("node_info", "gauge", "Who this node is; always 1.", ((labels, 1),))
    yield gauge("uptime_seconds", uptime_s, "Since this node was started.")
    yield gauge(
        "ready", node.session != 0, "1 while this node has a session, so that calls succeed."
    )
    yield gauge("incarnation", node.incarnation, "Number of this node's life in the cluster.")
    failed = node._fault.done() and not node._fault.cancelled()
    yield gauge("faulted", failed, "1 once this node has stopped itself.")
    yield gauge("term", part.term, "The current term, as far as this node knows.")
    yield gauge("is_leader", part.role_name == "leader", "1 while this node leads.")
    yield gauge("has_leader", part.leader is not None, "1 while this node knows a leader.")
    yield gauge("commit_index", part.commit, "The last committed entry, as far as this node knows.")
    yield gauge("applied_index", node.machine.index, "The last entry that this node has applied.")
    yield histogram(
        "loop_late_seconds", node.loop_late_s, "How late the event loop ran a timer that was due."
    )
    yield gauge_by("limit", "limit", _limits(node.config), "The limits in force, by name.")
    yield from _certificate(node)
    if isinstance(part, CorePart):
        yield from _digests(node.corruption)
        yield gauge(
            "hindered", bool(node.hindrance.text), "1 while the cluster does not count this core."
        )
        yield counter(
            "identity_refusals_total",
            part.twins.refusals,
            "Handshakes refused because another process runs under the same raft id.",
        )


def _digests(check: CorruptionCheck) -> Iterator[Family]:
    """The comparison of states (corruption_check.py)."""
    yield gauge("corruption_alarm", bool(check.alarm), "1 while the states of cores differ.")
    yield gauge(
        "digest_agreed_index",
        check.agreed_index,
        "The last index at which a majority of the voters held one state.",
    )
    yield counter("digests_taken_total", check.taken, "Digests of the whole state taken here.")
    yield counter("digest_rows_total", check.rows, "Rows and outcomes read for digests.")
    yield counter("digest_bytes_total", check.bytes, "Bytes hashed for digests.")


def _limits(config: NodeConfig) -> dict[str, float]:
    door = {f"http.{name}": value for name, value in msgspec.structs.asdict(config.http).items()}
    return msgspec.structs.asdict(config.limits) | door


def _certificate(node: Node) -> Iterator[Family]:
    keeper = node._keeper
    ends, fault = {}, None
    if keeper is not None:
        current = keeper.current
        ends["certificate"] = current.not_after.timestamp()
        ends["authority"] = min(each.not_after.timestamp() for each in current.authorities)
        fault = keeper.fault is not None
    yield gauge_by(
        "certificate_end_timestamp_seconds",
        "what",
        ends,
        "When the node's certificate ends, and the first of the authorities; seconds since 1970.",
    )
    yield gauge("certificate_fault", fault, "1 while newer certificate files cannot be used.")


def applying(node: Node) -> Iterator[Family]:
    """What a core and a replicant do alike, counted by different parts."""
    part = node._part
    seconds, installed, received = [], 0, 0
    if isinstance(part, CorePart):
        counts = part.engine.counts
        seconds = [counts.apply_s]
        installed, received = counts.snapshots_installed, counts.snapshot_received_bytes
    elif isinstance(part, ReplicantPart):
        follower = part.follower
        seconds = [follower.apply_s]
        installed, received = follower.snapshots_installed, follower.snapshot_received_bytes
    yield counter(
        "commands_applied_total",
        node._replica.commands_applied,
        "Commands applied by this node, whoever proposed them.",
    )
    yield counter(
        "rows_charged_total",
        node.machine.rows_charged,
        "Rows that applied commands have looked at or changed, beyond their size.",
    )
    yield histogram("apply_seconds", seconds, "Applying one entry.")
    yield counter("snapshots_installed_total", installed, "Snapshots taken over from another node.")
    yield counter("snapshot_received_bytes_total", received, "Bytes of snapshots received.")


def state(node: Node) -> Iterator[Family]:
    """The state machine; equal on all nodes at one applied index, but for what was counted."""
    machine = node.machine
    # Nothing of plugins from a state that is corrupt.
    whole = node.withdrawn is None
    rows = machine.row_counts() if whole else {}
    yield Family(
        "table_rows",
        "gauge",
        "Rows of a table of the replicated state.",
        tuple(({"plugin": key[0], "table": key[1]}, rows[key]) for key in sorted(rows)),
    )
    yield from _members(machine)
    yield gauge(
        "sessions", machine.session_count, "Open exactly-once sessions, nodes' and clients'."
    )
    yield gauge("session_outcomes", machine.outcome_count, "Outcomes kept for commands sent again.")
    yield gauge(
        "session_outcomes_bytes", machine.outcome_bytes, "Of clients' sessions, what those count."
    )
    evicted, expired = machine.sessions_ended
    yield outcomes(
        "sessions_ended_total",
        "reason",
        {"evicted": evicted, "idle": expired},
        "Clients' sessions ended: to make room for others, or because they were idle.",
    )
    yield gauge(
        "core_format",
        machine.core_format,
        "Core format of the cluster, as this node has applied it.",
    )
    yield gauge(
        "core_format_known", machine.core_format_max, "The newest core format that this node knows."
    )
    yield gauge_by(
        "plugin_version",
        "plugin",
        dict(machine.active_versions),
        "Active version of each plugin in the cluster.",
    )
    if whole:
        yield from _quotas(node)
    yield counter(
        "plugin_faults_total", machine.fault_count, "Commands and hooks in which a plugin failed."
    )
    yield counter(
        "hook_faults_total", node.hosting.hook_faults, "Failures of plugins' services on this node."
    )


def _members(machine: StateMachine) -> Iterator[Family]:
    found = {"up": 0, "down": 0}
    for member in machine.members.values():
        found["up" if member.up else "down"] += 1
    yield gauge_by(
        "members", "state", dict(found), "Members of the cluster, as the log knows them."
    )


def _quotas(node: Node) -> Iterator[Family]:
    """Bounded by the plugins that this node has."""
    usage = node.quotas.usage()
    yield gauge_by(
        "logical_bytes",
        "plugin",
        {each.plugin: each.logical_bytes for each in usage},
        "What the user data of a plugin counts against its quota.",
    )
    yield gauge_by(
        "quota_bytes",
        "plugin",
        {each.plugin: each.quota_bytes for each in usage},
        "How much it may count: the replicated setting quota_bytes of the plugin.",
    )
    yield gauge_by(
        "nospace_alarm",
        "plugin",
        {each.plugin: each.nospace for each in usage},
        "1 while a plugin takes nothing new, until raftkv alarm disarm.",
    )
