"""What one node counts of the queues, and how it is shown: nothing unbounded, no user's data.

Queues have no labels here: their names are the users', and there may be thousands. The status has
a single queue's figures (`status.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from raftkv.plugin import Counters as PluginCounters
from raftkv.plugin import Metric, View

from .status import Totals, totals
from .times import timed_rows

__all__ = ["Counters", "gauges"]

_DOC: Final = {
    "published": "Messages published on this node outside of transactions.",
    "acquired": "Messages that sessions of this node acquired.",
    "redelivered": "Acquired messages that had been delivered before.",
    "empty_acquires": "Acquire commands of this node that found nothing.",
    "waits": "Consumers of this node that had to wait for a message.",
    "wakeups": "Waiting consumers of this node that were woken.",
    "accepted": "Messages that sessions of this node accepted outside of transactions.",
    "released": "Messages that sessions of this node gave back.",
    "put_back": "Messages that sessions of this node put back: no program has had them.",
    "to_back": "Messages that sessions of this node returned to the back of their queue.",
    "rejected": "Messages that sessions of this node rejected.",
    "sessions_opened": "Sessions that this node opened.",
    "sessions_ended": "Sessions of this node that were ended by others than their user.",
    "sessions_ended_by_operators": "Of these: by operators.",
    "sessions_timed_out": "Of these: because they held a message for longer than its queue allows.",
    "door_sessions_closed": "Sessions of this node's door that were closed because nobody used it.",
    "stages": "Stage commands of this node.",
    "detached": "Callers that left, or whose time was over, while their command went on.",
    "released_unheard": "Messages that were acquired for a caller who had left, and given back.",
    "committed": "Transactions of this node (TX) that were committed.",
    "rolled_back": "Transactions of this node (TX) that were rolled back.",
    "unknown": "Commits of this node whose outcome was unknown when the time was over.",
    "unknown_outcomes": "Proposals whose answer was lost, and had to be settled.",
    "prepared": "Branches (DTX) that were prepared by this node.",
    "dtx_committed": "Branches that were committed by this node.",
    "dtx_rolled_back": "Branches that were rolled back by this node, or answered so.",
    "heuristics": "Branches that operators decided at this node.",
    "votes_yes": "Transactions that this node, as a participant, could prepare.",
    "votes_no": "Transactions that this node, as a participant, could not prepare.",
    "observer_failures": "Calls of transaction observers that raised something unexpected.",
    "observer_gaps": "Transactions of which observers of this node did not hear everything.",
    "sweeps": "Sweep commands of this node, as leader.",
    "swept": "Rows that they touched.",
}


class Counters(PluginCounters):
    """What this node has done (`_DOC`)."""

    def __init__(self) -> None:
        super().__init__(_DOC)


def gauges(view: View, now_ms: int) -> Iterator[Metric]:
    """The queues and transactions as this node has them, and the limits they are held to."""
    sums, settings = totals(view, now_ms), view.settings
    for name, value, doc in (*_held(sums), *_kept(view)):
        yield Metric(name, "gauge", value, doc)
    for name, key in _LIMITS:
        yield Metric(name, "gauge", settings[key], f"The setting {key}.")
    yield Metric("dropped_total", "counter", sums.dropped, "Messages dropped to make room, ever.")
    yield Metric(
        "dead_total",
        "counter",
        sums.dead,
        "Messages rejected or delivered too often, ever: dead letters, and those without a queue.",
    )


#: Figure of a limit -> the setting that it is.
_LIMITS: Final = (
    ("queues_limit", "queues_max"),
    ("sessions_limit", "sessions_max"),
    ("transactions_limit", "transactions_max"),
    ("staged_bytes_limit", "staged_bytes_max"),
    ("transaction_rows_limit", "transaction_rows_max"),
    ("transaction_bytes_limit", "transaction_bytes_max"),
    ("message_bytes_limit", "message_bytes_max"),
    ("acquired_limit", "acquired_max"),
    ("sessions_kept_limit", "sessions_kept"),
    ("rollbacks_kept_limit", "rollbacks_kept"),
    ("decisions_limit", "decisions_kept"),
    ("ttl_ms_limit", "ttl_max_ms"),
    ("delay_ms_limit", "delay_max_ms"),
    ("timed_limit", "timed_max"),
)


def _held(sums: Totals) -> tuple[tuple[str, int, str], ...]:
    return (
        ("queues", sums.queues, "Queues."),
        ("messages", sums.messages, "Messages in all queues, acquired ones included."),
        ("bytes", sums.bytes, "Their bytes, as the limits count them."),
        ("ready", sums.ready, "Messages that can be acquired."),
        ("reserved", sums.reserved, "Messages for which prepared transactions have room reserved."),
        ("transactions", sums.transactions, "Transactions with rows in the log, decided ones too."),
        ("active", sums.active, "Transactions that go on."),
        ("preparing", sums.preparing, "Transactions that wait for their participants' votes."),
        ("in_doubt", sums.prepared, "Prepared branches, which wait for their coordinator."),
        (
            "in_doubt_age_ms",
            sums.prepared_age_ms,
            "How long the oldest prepared branch has been open, in ms; 0: there is none.",
        ),
        ("heuristic", sums.heuristic, "Branches that operators decided, and nobody forgot yet."),
        ("failed", sums.failed, "Branches that can only be rolled back, and were not yet."),
        ("unfolding", sums.unfolding, "Decided transactions with rows that are still moved."),
        ("staged_bytes", sums.staged_bytes, "Bytes staged by undecided transactions."),
    )


def _kept(view: View) -> tuple[tuple[str, int, str], ...]:
    return (
        ("acquired", len(view.table("locks")), "Messages that sessions hold."),
        ("accepting", len(view.table("accepts")), "Accepted in transactions not yet done with."),
        ("ack_timeouts", len(view.table("ack_timeouts")), "Queues with a time-out of their own."),
        ("queue_ttls", len(view.table("queue_ttls")), "Queues with a time to live of their own."),
        ("ack_due", len(view.table("ack_due")), "Held messages that must be settled in time."),
        ("sessions", len(view.table("owners")), "Sessions that go on."),
        ("sessions_kept", len(view.table("old_sessions")), "Ended sessions, kept for outcomes."),
        ("rollbacks_kept", len(view.table("rollbacks")), "Rolled back TX that are remembered."),
        (
            "decisions_kept",
            len(view.table("decisions")),
            "Decisions on branches, kept for those who ask.",
        ),
        ("delayed", len(view.table("delayed")), "Messages whose delay is not over."),
        ("timed", timed_rows(view), "Times to live and delays that count against timed_limit."),
        ("observers", len(view.table("observers")), "Nodes that take part in transactions."),
    )
