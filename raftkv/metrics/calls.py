"""Figures of what programs ask of this node: proposals, reads; and of its streams."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from .family import Family, counter, gauge, histogram, outcomes

if TYPE_CHECKING:
    from raftkv.fates import Fates
    from raftkv.foreign import Foreign
    from raftkv.outbox import Outbox
    from raftkv.peering import Peering
    from raftkv.raft.transport import Hub
    from raftkv.reading import Reader

__all__ = ["clients", "handshakes", "proposals", "reads", "streams"]


def proposals(outbox: Outbox) -> Iterator[Family]:
    """Commands of this node, on their way into the log and back."""
    yield counter("proposals_total", outbox.submitted, "Commands that this node took.")
    yield gauge("proposals_in_flight", len(outbox), "Commands of this node without an answer.")
    yield gauge("proposals_in_flight_bytes", outbox.size_bytes, "Bytes of those commands.")
    yield from _ends("proposal", outbox.fates, outbox.applied)
    yield counter("proposals_resent_total", outbox.resends, "Commands sent again.")
    yield histogram(
        "proposal_seconds",
        outbox.latency_s,
        "From a command's leaving its node's outbox to its answer there.",
    )


def clients(foreign: Foreign) -> Iterator[Family]:
    """Commands that clients sent to this node under sessions of their own."""
    yield counter("client_sessions_opened_total", foreign.sessions_opened, "Sessions opened here.")
    yield counter("client_commands_total", foreign.submitted, "Clients' commands taken.")
    yield gauge("client_commands_in_flight", len(foreign), "Clients' commands without an answer.")
    yield gauge("client_commands_in_flight_bytes", foreign.size_bytes, "Bytes of those commands.")
    yield from _ends("client_command", foreign.fates, foreign.applied)
    yield counter("client_commands_resent_total", foreign.resends, "Clients' commands sent again.")


def _ends(what: str, fates: Fates, applied: int) -> Iterator[Family]:
    yield outcomes(
        f"{what}_outcomes_total",
        "outcome",
        {
            "applied": applied,
            "refused": fates.refused,
            "unknown": fates.unknown,
            "no_leader": fates.no_leader,
            "cancelled": fates.cancelled,
            "stopped": fates.stopped,
            "left_out": fates.left_out,
        },
        "Commands that were taken and have ended, by how.",
    )
    yield outcomes(
        f"{what}s_rejected_total",
        "limit",
        {
            "outbox_commands_max": fates.over_commands_max,
            "outbox_bytes_max": fates.over_bytes_max,
            "session_window": fates.over_window,
            "command_bytes_max": fates.too_large,
        },
        "Commands that were not taken, by the limit that they met.",
    )


def reads(reader: Reader) -> Iterator[Family]:
    """Linearizable reads of this node; those of a lease and local ones ask nobody."""
    yield counter("reads_total", reader.reads, "Linearizable reads that asked the leader.")
    yield gauge("reads_waiting", len(reader), "Linearizable reads that wait.")
    yield counter(
        "read_questions_total", reader.questions, "Questions to the leader, for many reads."
    )
    yield counter("read_timeouts_total", reader.timeouts, "Reads that were not confirmed in time.")
    yield histogram(
        "read_seconds", reader.latency_s, "From a read's question to the leader's confirmation."
    )


def streams(hub: Hub) -> Iterator[Family]:
    """Connections with other nodes, for whatever purpose."""
    yield gauge("links", hub.link_count, "Connections with other nodes, greeted or not.")
    yield counter("link_sent_bytes_total", hub.sent_bytes, "Bytes of messages sent, before TLS.")
    yield counter("link_received_bytes_total", hub.received_bytes, "Bytes received.")
    yield counter(
        "links_closed_for_cause_total",
        hub.closed_for_cause,
        "Connections closed for what the other end did.",
    )
    yield counter(
        "links_pending_dropped_total",
        hub.over_pending_max,
        "Connections closed because too many had not greeted.",
    )


def handshakes(peering: Peering) -> Iterator[Family]:
    """What other nodes claimed at the beginning of a connection."""
    yield counter(
        "unproved_epochs_total",
        peering.credibility.unproved_epochs,
        "Handshakes with a newer epoch that no core of the cluster proved.",
    )
    yield counter(
        "peer_calls_refused_total",
        peering.calls_refused,
        "Calls of other nodes that their certificates do not allow.",
    )
