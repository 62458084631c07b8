"""Nodes of one cluster with other limits and time-outs than their neighbours, and other ones later.

An operator changes a configuration file node by node, and one node is a smaller machine than the
next. So every start of a node may draw its own. What must be alike on all nodes is left as it is:
`frame_bytes_max`, since a node reads no larger message than its own.
"""

from __future__ import annotations

import random

from msgspec import structs

from raftkv.config import Limits, NodeConfig, RaftTimes

__all__ = ["differ", "varied"]

# Every `heartbeat_ms` is at most a third of every shortest time-out: any of these may lead any
# other one. The longest ones stay below the time within which a healed cluster must be ready.
ELECTION_MIN_MS = (450, 600, 900)
ELECTION_FACTOR = (1.5, 2.0)
HEARTBEAT_MS = (20, 60, 150)
RESEND_MS = (300, 1000, 3000)
NODE_DOWN_MS = (2_000, 5_000, 10_000)
# Of the base's.
SHARES = (0.5, 1.0, 2.0)
# The least that any node takes: what the clients send, except for their largest values.
COMMAND_BYTES_MIN = 2 * 1024


def varied(config: NodeConfig, rng: random.Random) -> NodeConfig:
    """The configuration with other time-outs and limits, each drawn by itself."""
    shortest = rng.choice(ELECTION_MIN_MS)
    base = config.raft
    times = structs.replace(
        base,
        election_timeout_min_ms=shortest,
        election_timeout_max_ms=int(shortest * rng.choice(ELECTION_FACTOR)),
        heartbeat_ms=rng.choice(HEARTBEAT_MS),
        lease_ms=min(shortest, rng.choice((base.lease_ms, base.lease_ms, base.lease_ms // 2))),
        resend_ms=rng.choice(RESEND_MS),
        node_down_ms=rng.choice(NODE_DOWN_MS),
    )
    return structs.replace(config, raft=times, limits=_limits(config.limits, rng)).validated()


def _limits(base: Limits, rng: random.Random) -> Limits:
    def near(number: int, least: int = 1) -> int:
        return max(least, int(number * rng.choice(SHARES)))

    command = near(base.command_bytes_max, COMMAND_BYTES_MIN)
    batch = min(max(command, near(base.batch_bytes_max)), base.frame_bytes_max // 2)
    command = min(command, batch)
    return structs.replace(
        base,
        command_bytes_max=command,
        batch_bytes_max=batch,
        key_bytes_max=min(base.key_bytes_max, command // 4),
        value_bytes_max=min(base.value_bytes_max, command // 2),
        outbox_commands_max=near(base.outbox_commands_max),
        inflight_bytes_max=near(base.inflight_bytes_max),
        uncommitted_bytes_max=near(base.uncommitted_bytes_max),
        snapshot_log_bytes=near(base.snapshot_log_bytes),
        snapshot_log_entries=near(base.snapshot_log_entries),
        log_tail_entries=near(base.log_tail_entries),
        segment_bytes_max=near(base.segment_bytes_max),
    )


def differ(one: NodeConfig, other: NodeConfig) -> bool:
    """Whether two nodes go by other limits or time-outs."""
    mine: tuple[RaftTimes, Limits] = (one.raft, one.limits)
    return mine != (other.raft, other.limits)
