"""Topics, subscriptions and regions at one look, as one node's copy has them.

What a link does only the leader knows, whose service runs it: other nodes ask it. Everything else
is read from the tables of the node that is asked.
"""

from __future__ import annotations

from typing import Final

import msgspec

from raftkv.errors import RaftkvError
from raftkv.plugin import Host, View

from .backlog import backlog_bytes
from .mapping import number_in, vector_of_rows
from .retention import is_due
from .rows import Consumer, Kind, Mode, Ranges, RegionState, Sub, Topic, Vector
from .scope import meta_of, own_region
from .views import (
    attached_of,
    backlog_of,
    consumer_live,
    holes_of,
    kept_of,
    pending_of,
    regions_of,
    state_of,
)

__all__ = [
    "ConsumerStatus",
    "LinkStatus",
    "PendingStatus",
    "RegionStatus",
    "SubStatus",
    "SubscriptionsStatus",
    "TopicStatus",
    "ask_links",
    "region_rows",
    "status_of",
    "sub_status",
    "topic_rows",
    "topic_status",
]

# The leader looks into its memory; it answers at once, or not at all.
ASK_S: Final = 2.0
# Topics that one link or region shows; there may be thousands that are behind.
LAG_ROWS: Final = 200


class LinkStatus(msgspec.Struct, frozen=True):
    """A link, as the leader of this region sees it.

    `state`: "connected"; "connecting": it tries; "stopped": the other region refuses, or something
    is wrong that trying does not mend (it tries all the same); "none": this node has no options for
    it. `last_contact_ms`: ago; None: never. `last_error` "": none since it was connected last.
    `opened`: streams, ever. `bytes_in_flight`: what has come and is not in the log yet.
    `delivered`, `merged`: by this leader. `paused`: topics whose messages find no room here.
    `lag`: (topic, origin, messages) that are there and not here. `reports`: ever.
    """

    region: str
    state: str
    endpoint: str = ""
    want: str = "own"
    last_contact_ms: int | None = None
    last_error: str = ""
    opened: int = 0
    bytes: int = 0
    bytes_in_flight: int = 0
    delivered: int = 0
    merged: int = 0
    reports: int = 0
    paused: tuple[str, ...] = ()
    lag: tuple[tuple[str, str, int], ...] = ()


class RegionStatus(msgspec.Struct, frozen=True):
    """A region. `own`: this one. `link`: None if the leader did not answer, or for the own one.

    `behind`: (topic, messages) that it has not said it has; of the first LAG_ROWS topics.
    """

    name: str
    state: RegionState
    own: bool
    fetches: bool
    since_ms: int
    link: LinkStatus | None
    behind: tuple[tuple[str, int], ...]


class PendingStatus(msgspec.Struct, frozen=True):
    """The snapshot that is being built. `answered`: in this round."""

    id: int
    round: int
    age_ms: int
    participants: tuple[str, ...]
    answered: tuple[str, ...]


class TopicStatus(msgspec.Struct, frozen=True):
    """A topic. `messages`: that are kept. `holes`: what never came here. `snapshots`: kept ones.

    `backlog_bytes`: what `backlog_bytes_max` limits, from the first message on that a subscription
    or another region waits for; None in a list of topics, where it would take too long.
    `snapshot_age_ms`: since the last one was completed; None: none was. `due`: something is beyond
    retention, and nobody waits for it any more.
    """

    name: str
    id: int
    replicated: bool
    compacted: bool
    retention_ms: int
    retention_bytes: int
    backlog_bytes_max: int
    first: int
    next: int
    seq: int
    messages: int
    bytes: int
    vector: Vector
    holes: Ranges
    keys: int
    subscriptions: int
    snapshots: int
    pending: PendingStatus | None
    snapshot_age_ms: int | None
    due: bool
    backlog_bytes: int | None = None


class ConsumerStatus(msgspec.Struct, frozen=True):
    """A consumer whose node is up. `held`: messages in its hands (shared)."""

    id: int
    name: str
    node: str
    kind: Kind
    priority: int
    active: bool
    held: int


class SubStatus(msgspec.Struct, frozen=True):
    """A subscription. `backlog`: messages here that it still wants. `base`, `ranges`: its set.

    `cached`: snapshots at hand. `advancing`: its mark is behind its set, and being moved.
    """

    topic: str
    name: str
    id: int
    kind: Kind
    replicate: bool
    mark: int
    cursor: int
    backlog: int
    base: Vector
    ranges: Ranges
    locked: int
    consumers: tuple[ConsumerStatus, ...]
    epoch: int
    changed: int
    cached: int
    advancing: bool


class SubscriptionsStatus(msgspec.Struct, frozen=True, kw_only=True):
    """This region. The counters are the log's, of ever. `warnings`: what somebody should mend."""

    node: str
    leader: str | None
    index: int
    region: str
    mode: Mode
    enabled: bool
    topics: int
    messages: int
    bytes: int
    subscriptions: int
    replicated: int
    consumers: int
    published: int
    delivered: int
    doubles: int
    holes: int
    merged: int
    ignored: int
    trimmed: int
    snapshots: int
    pending: int
    timed_out: int
    updates: int
    cache_hits: int
    cache_misses: int
    regions: tuple[RegionStatus, ...]
    warnings: tuple[str, ...]


# --- topics ---------------------------------------------------------------------------------------


def topic_status(view: View, name: str, now_ms: int) -> TopicStatus | None:
    """None: there is no such topic."""
    topic: Topic | None = view.table("topics").get(name)
    if topic is None:
        return None
    found = _topic(view, name, topic, now_ms)
    return msgspec.structs.replace(found, backlog_bytes=backlog_bytes(view, topic))


def topic_rows(view: View, now_ms: int) -> tuple[TopicStatus, ...]:
    """All topics, by name."""
    return tuple(_topic(view, name, row, now_ms) for name, row in view.table("topics").scan())


def _topic(view: View, name: str, topic: Topic, now_ms: int) -> TopicStatus:
    age_ms = max(0, now_ms - topic.snapshot_ms) if topic.snapshot_ms else None
    return TopicStatus(
        name=name,
        id=topic.id,
        replicated=topic.replicated,
        compacted=topic.compacted,
        retention_ms=topic.retention_ms,
        retention_bytes=topic.retention_bytes,
        backlog_bytes_max=topic.backlog_bytes_max,
        first=topic.first,
        next=topic.next,
        seq=topic.seq,
        messages=kept_of(topic),
        bytes=topic.bytes,
        vector=vector_of_rows(view, topic.id),
        holes=holes_of(view, topic.id) if topic.gapped else (),
        keys=topic.keys,
        subscriptions=view.table("subs").count((topic.id, ""), (topic.id + 1, "")),
        snapshots=view.table("snapshots").count((topic.id, 0), (topic.id + 1, 0)),
        pending=_pending(view, topic.id, now_ms),
        snapshot_age_ms=age_ms,
        due=is_due(view, name, topic, now_ms),
    )


def _pending(view: View, topic_id: int, now_ms: int) -> PendingStatus | None:
    row = pending_of(view, topic_id)
    if row is None:
        return None
    answers = row.first if row.round == 1 else row.second
    return PendingStatus(
        row.id,
        row.round,
        max(0, now_ms - row.started_ms),
        row.participants,
        tuple(region for region, _ in answers),
    )


# --- subscriptions --------------------------------------------------------------------------------


def sub_status(view: View, topic: str, name: str) -> SubStatus | None:
    """None: there is no such topic or subscription."""
    row: Topic | None = view.table("topics").get(topic)
    sub: Sub | None = None if row is None else view.table("subs").get((row.id, name))
    if sub is None:
        return None
    state = state_of(view, topic, name)
    return SubStatus(
        topic=topic,
        name=name,
        id=sub.id,
        kind=sub.kind,
        replicate=sub.replicate,
        mark=sub.mark,
        cursor=sub.cursor,
        backlog=backlog_of(view, topic, name),
        base=state.base,
        ranges=state.ranges,
        locked=sub.locked,
        consumers=tuple(
            _consumer(id, consumer, sub)
            for id, consumer in attached_of(view, sub.id)
            if consumer_live(view, consumer)
        ),
        epoch=sub.epoch,
        changed=sub.changed,
        cached=view.table("cached").count((sub.id, 0), (sub.id + 1, 0)),
        advancing=sub.id in view.table("advancing"),
    )


def _consumer(id: int, row: Consumer, sub: Sub) -> ConsumerStatus:
    active = sub.kind == "shared" or sub.active == id
    return ConsumerStatus(id, row.name, row.node, row.kind, row.priority, active, row.held)


# --- regions --------------------------------------------------------------------------------------


async def ask_links(host: Host) -> dict[str, LinkStatus] | None:
    """The leader's links by region; None: it did not answer."""
    leader = host.leader
    if leader is None:
        return None
    try:
        answer = await host.rpc.call(leader, "links", b"", ASK_S)
        found = msgspec.msgpack.decode(answer, type=tuple[LinkStatus, ...])
    except (RaftkvError, msgspec.DecodeError) as error:
        # It cannot be reached, leads no more, or is of another version.
        host.log.debug("the leader did not tell of its links: %s", type(error).__name__)
        return None
    return {row.region: row for row in found}


async def region_rows(host: Host) -> tuple[RegionStatus, ...]:
    """This region, and the others by name."""
    links = await ask_links(host)
    view = host.view()
    own = RegionStatus(own_region(view), "active", True, False, 0, None, ())
    rows = [own]
    for name, row in regions_of(view):
        link = None if links is None else links.get(name, LinkStatus(name, "none"))
        behind = _behind(view, name) if row.fetches else ()
        rows.append(RegionStatus(name, row.state, False, row.fetches, row.since_ms, link, behind))
    return tuple(rows)


def _behind(view: View, region: str) -> tuple[tuple[str, int], ...]:
    found: list[tuple[str, int]] = []
    topic: Topic
    for name, topic in view.table("topics").scan():
        if not topic.replicated:
            continue
        fetched: Vector = view.table("fetched").get((region, topic.id), ())
        missing = sum(
            max(0, seq - number_in(fetched, origin))
            for origin, seq in vector_of_rows(view, topic.id)
            if origin != region
        )
        if missing:
            found.append((name, missing))
            if len(found) == LAG_ROWS:
                break
    return tuple(found)


async def status_of(host: Host) -> SubscriptionsStatus:
    """Everything at one look; asks the leader for its links."""
    regions = await region_rows(host)
    view = host.view()
    meta = meta_of(view)
    topics = [row for _, row in view.table("topics").scan()]
    settings = view.settings
    return SubscriptionsStatus(
        node=host.name,
        leader=host.leader,
        index=view.index,
        region=own_region(view),
        mode=settings["mode"],
        enabled=settings["enabled"],
        topics=len(topics),
        messages=sum(kept_of(topic) for topic in topics),
        bytes=sum(topic.bytes for topic in topics),
        subscriptions=len(view.table("subs")),
        replicated=sum(1 for _, sub in view.table("subs").scan() if sub.replicate),
        consumers=meta.consumers,
        published=meta.published,
        delivered=meta.delivered,
        doubles=meta.doubles,
        holes=meta.holes,
        merged=meta.merged,
        ignored=meta.ignored,
        trimmed=meta.trimmed,
        snapshots=meta.snapshots,
        pending=len(view.table("pending")),
        timed_out=meta.timed_out,
        updates=meta.updates,
        cache_hits=meta.cache_hits,
        cache_misses=meta.cache_misses,
        regions=regions,
        warnings=tuple(_warnings(host, view, regions)),
    )


def _warnings(host: Host, view: View, regions: tuple[RegionStatus, ...]) -> list[str]:
    found: list[str] = []
    snapshots = view.settings["mode"] == "snapshot"
    # On a ring or a chain, what a region has comes by others.
    passed_on = any(each.link is not None and each.link.want == "all" for each in regions)
    for region in regions:
        if region.own or region.state == "excluded":
            continue
        link = region.link
        if link is None:
            found.append(f"{region.name}: no leader tells how the link is")
        elif link.state == "none":
            if not passed_on:
                found.append(
                    f"{region.name}: the leader has no link to it: name its endpoints in the "
                    f"options"
                )
        elif link.last_error:
            found.append(f"{region.name}: {link.last_error}")
        if snapshots and link is not None and link.want == "all":
            found.append(
                f'{region.name}: snapshot mode needs a mesh, and this link has want = "all"'
            )
    return found
