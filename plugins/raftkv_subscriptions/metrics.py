"""What one node shows of subscriptions: nothing unbounded, no user's data.

Topics and subscriptions have no labels: their names are the users', and there may be thousands.
Regions have: there are few. The status has the figures of a single topic (`status.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from raftkv.plugin import Metric, View

from .rows import REGIONS_MAX, Topic
from .scope import meta_of
from .views import kept_of

if TYPE_CHECKING:
    from .links.serving import Serving
    from .status import LinkStatus

__all__ = ["gauges", "link_metrics", "serving_metrics"]

#: Counters of the log: field of `Meta` -> what it counts.
_COUNTED: Final = {
    "published": "Messages published in this region.",
    "delivered": "Messages that links brought.",
    "doubles": "Messages that links brought again, and that were skipped.",
    "holes": "Messages that never came here: their source no longer had them.",
    "merged": "Acknowledgements taken over from other regions.",
    "ignored": "What other regions said of subscriptions, and was not taken.",
    "trimmed": "Messages removed by retention.",
    "snapshots": "Snapshots completed (snapshot mode).",
    "timed_out": "Snapshots abandoned (snapshot mode).",
    "updates": "Updates sent to other regions (snapshot mode).",
    "cache_hits": "Marks that moved past a snapshot (snapshot mode).",
    "cache_misses": "Marks that moved with no snapshot at hand (snapshot mode).",
}
#: Figure of a limit -> the setting that it is.
_LIMITS: Final = (
    ("topics_limit", "topics_max"),
    ("keys_limit", "keys_max"),
    ("subs_limit", "subs_max"),
    ("consumers_limit", "consumers_max"),
    ("unacked_limit", "unacked_max"),
    ("ranges_limit", "ranges_max"),
    ("message_bytes_limit", "message_bytes_max"),
    ("cached_limit", "cached_max"),
    ("snapshots_kept_limit", "snapshots_kept"),
)


def gauges(view: View, now_ms: int) -> Iterator[Metric]:
    """The state as this node has it, and the limits that it is held to."""
    meta, settings = meta_of(view), view.settings
    topics: list[Topic] = [row for _, row in view.table("topics").scan()]
    oldest = [now_ms - row.snapshot_ms for row in topics if row.snapshot_ms]
    excluded = sum(1 for _, row in view.table("regions").scan() if row.state == "excluded")
    held = (
        ("topics", len(topics), "Topics."),
        ("messages", sum(map(kept_of, topics)), "Messages kept, in all topics."),
        ("bytes", sum(row.bytes for row in topics), "Their bytes, as the limits count them."),
        ("keys", sum(row.keys for row in topics), "Keys of compacted topics."),
        ("subs", len(view.table("subs")), "Subscriptions."),
        ("consumers", meta.consumers, "Consumers that have not ended."),
        ("locked", len(view.table("locks")), "Messages in hands of consumers (shared)."),
        ("ack_ranges", len(view.table("acks")), "Acknowledged ranges beyond the floors."),
        ("advancing", len(view.table("advancing")), "Subscriptions whose mark is being moved."),
        ("regions", len(view.table("regions")), "Other regions that are known."),
        ("regions_excluded", excluded, "Those of them that are excluded."),
        ("regions_limit", REGIONS_MAX, "Regions that a cluster may know."),
        ("snapshots_pending", len(view.table("pending")), "Snapshots that are being built."),
        ("snapshots_stored", len(view.table("snapshots")), "Completed snapshots that are kept."),
        ("markers", len(view.table("markers")), "Markers for other regions."),
        (
            "snapshot_age_ms",
            max(oldest, default=0),
            "Since the last completed snapshot of the topic that has waited longest; 0: none.",
        ),
    )
    for name, value, doc in held:
        yield Metric(name, "gauge", value, doc)
    for name, key in _LIMITS:
        yield Metric(name, "gauge", settings[key], f"The setting {key}.")
    for name, doc in _COUNTED.items():
        # Those of a node's own calls have names of their own (counting.py).
        yield Metric(f"log_{name}_total", "counter", getattr(meta, name), doc)


def link_metrics(links: Iterable[LinkStatus]) -> Iterator[Metric]:
    """The leader's links, one by one."""
    for link in links:
        label = {"region": link.region}
        lag = sum(messages for _, _, messages in link.lag)
        contact_s = -1.0 if link.last_contact_ms is None else link.last_contact_ms / 1000
        for name, value, doc in (
            ("link_up", int(link.state == "connected"), "1: the link is connected."),
            ("link_lag", lag, "Messages that are there and not here, as far as was told."),
            ("link_contact_seconds", contact_s, "Since something came over it; -1: nothing did."),
            ("link_bytes_in_flight", link.bytes_in_flight, "Come, and not in the log yet."),
            ("link_paused", len(link.paused), "Topics whose messages find no room here."),
        ):
            yield Metric(name, "gauge", value, doc, label)
        for name, value, doc in (
            ("link_opened_total", link.opened, "Streams that were begun."),
            ("link_bytes_total", link.bytes, "Bytes that came."),
            ("link_delivered_total", link.delivered, "Messages brought by this leader."),
            ("link_merged_total", link.merged, "Commands of acknowledgements by this leader."),
            ("link_reports_total", link.reports, "Reports that were sent."),
        ):
            yield Metric(name, "counter", value, doc, label)


def serving_metrics(serving: Serving) -> Iterator[Metric]:
    """What this node serves to other regions."""
    yield Metric("serving", "gauge", len(serving), "Links of other regions that end here.")
    yield Metric("served_streams_total", "counter", serving.begun, "Those, ever.")
    yield Metric("served_frames_total", "counter", serving.frames, "Lines that they were given.")
    yield Metric("served_bytes_total", "counter", serving.bytes, "Bytes of these.")
