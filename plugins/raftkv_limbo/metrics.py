"""What one node counts of the limbo, and how it is shown: nothing unbounded, no user's data."""

from __future__ import annotations

from typing import Final

from raftkv.plugin import Counters as PluginCounters
from raftkv.plugin import Metric, View

from .views import state_of

__all__ = ["Counters", "gauges"]

_DOC: Final = {
    "submitted": "Transactions that callers on this node submitted.",
    "rejected": "Transactions of this node that were refused when they were applied.",
    "batches": "Submit commands of this node that were answered.",
    "waited_for_room": "Transactions of this node that had to wait for room in the queue.",
    "withdrawn": "Transactions whose callers left, or had no time left, before they were written.",
    "detached": "Callers whose time was over, or that left, before there was a verdict.",
    "unknown_outcomes": "Proposals whose answer was lost, and had to be settled.",
    "lost": "Transactions of this node of which nobody can say whether they were applied.",
    "acks": "Acknowledgements that this node sent.",
    "vetoes": "Vetoes of this node's validators.",
    "validator_failures": "Runs of validators that failed and decided nothing; they are repeated.",
    "hook_failures": "Callbacks on confirm or rollback that raised.",
    "promotes": "Promotions of this node.",
    "demotes": "Demotions by this node.",
    "rollback_requests": "Rollbacks that this node asked for.",
    "swept": "Rows of dropped spaces that this node, as leader, had deleted.",
}


class Counters(PluginCounters):
    """What this node has done (`_DOC`)."""

    def __init__(self) -> None:
        super().__init__(_DOC)


def gauges(view: View, *, mine: bool, age_ms: int) -> tuple[Metric, ...]:
    """The queue as this node has it, and the limits it is held to."""
    state, settings = state_of(view), view.settings
    held = state.last - state.head + 1 if state.head else 0
    figures = (
        ("queue_entries", state.pending, "Entries that wait for their verdict."),
        ("queue_span", held, "Entries from the oldest pending one to the last."),
        ("queue_bytes", state.held_bytes if state.head else 0, "Bytes of keys and values of them."),
        ("queue_writes", state.pending_writes, "Writes that wait in the queue."),
        ("queue_age_ms", age_ms, "How long the oldest entry has waited, in ms; 0: none waits."),
        ("queue_entries_limit", settings["queue_entries_max"], "The setting queue_entries_max."),
        ("queue_bytes_limit", settings["queue_bytes_max"], "The setting queue_bytes_max."),
        ("queue_writes_limit", settings["queue_writes_max"], "The setting queue_writes_max."),
        ("owner", int(mine), "1: this node, in its present life, owns the queue."),
        ("claimed", int(bool(state.owner)), "1: some node owns the queue."),
        ("term", state.term, "The term of the queue's owner."),
        ("last_position", state.last, "The last position that was given."),
        ("confirmed_position", state.confirmed, "The highest ordered position that is confirmed."),
        ("confirm_lag_ms", state.confirm_lag_ms, "How long the last synchronous one had waited."),
        ("spaces", len(view.table("spaces")), "Spaces."),
        ("spaces_limit", settings["spaces_max"], "The setting spaces_max."),
        ("rows", len(view.table("rows")), "Confirmed rows of all spaces, dropped ones included."),
        ("entries_kept", len(view.table("entries")), "Transactions kept, settled ones included."),
    )
    return (
        *(Metric(name, "gauge", value, doc) for name, value, doc in figures),
        Metric("confirms_total", "counter", state.confirms, "Entries that were confirmed, ever."),
        Metric("rollbacks_total", "counter", state.rollbacks, "Entries rolled back, ever."),
    )
