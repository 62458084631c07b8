"""What one node counts of cluster calls, and how it is shown: no labels, nothing unbounded."""

from __future__ import annotations

from typing import Final

from raftkv.plugin import Counters as PluginCounters
from raftkv.plugin import Metric, View

from .views import cursor_of, decided_id, last_id, oldest_id, trim_due

__all__ = ["Counters", "gauges"]

_DOC: Final = {
    "calls": "Calls that callers on this node asked for, forwarded ones of others included.",
    "committed": "Calls of this node that were committed.",
    "ok": "Calls of this node that all required nodes executed in time.",
    "init_failures": "Calls of this node that failed on it, and ran nowhere else.",
    "peers_lagging": "Calls of this node that required nodes had not executed in time.",
    "stopped_nodes": "Calls of this node that only nodes which are down have not executed.",
    "stale_views": "Calls refused because this node does not get on with earlier ones.",
    "deadlines_passed": "Calls whose time was over before it was their turn; nothing ran.",
    "too_late": "Calls of this node that ran, and were aborted before they could be committed.",
    "behind": "Reservations that the log refused because this node had earlier calls to execute.",
    "queued": "Reservations that had to wait for others.",
    "withdrawn": "Reservations taken back before they ran.",
    "executed": "Calls of others that this node executed.",
    "failures": "Attempts of this node at calls of others that failed.",
    "skips": "Calls that an operator let this node pass.",
    "overruns": "Runs of functions that were cancelled because their time was up.",
    "held_up": "Runs of plain functions that held up the whole node for 0.1 s or longer.",
    "unknown_outcomes": "Proposals whose answer was lost, and had to be settled.",
    "forwarded": "Calls that this node took to a core.",
    "forwarded_unknown": "Forwarded calls whose outcome stayed unknown.",
    "served": "Calls of replicants that this node made for them.",
    "alarms_raised": "Alarms of this node itself that were raised.",
    "expired": "Reservations that this node, as leader, had ended because their time was over.",
    "trimmed": "Records of the history that this node, as leader, had deleted.",
}


class Counters(PluginCounters):
    """What this node has done (`_DOC`)."""

    def __init__(self) -> None:
        super().__init__(_DOC)


def gauges(view: View, node: str) -> tuple[Metric, ...]:
    """The log of calls and this node's place in it. A node without a cursor has no lag."""
    row = cursor_of(view, node)
    cursor, lag = (0, 0) if row is None else (row.id, max(0, decided_id(view) - row.id))
    figures = (
        ("last_id", last_id(view), "The highest id of the cluster's calls."),
        ("cursor", cursor, "The id up to which this node has executed all calls."),
        ("lag", lag, "Decided calls that this node has not passed yet."),
        ("following", int(row is not None and row.state == "following"), "1: it takes part."),
        ("queue", len(view.table("queue")), "Reservations that wait for their turn."),
        ("records", last_id(view) + 1 - oldest_id(view), "Records of calls that are kept."),
        ("trim_due", int(trim_due(view)), "1: records wait for the next cleaning."),
        ("lost_effects", len(view.table("lost")), "Aborted calls that may have run, cluster-wide."),
    )
    return tuple(Metric(name, "gauge", value, doc) for name, value, doc in figures)
