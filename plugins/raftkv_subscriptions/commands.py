"""What replicated subscriptions say through the log: the commands with their results.

Everything here is data. The rows are in `rows.py`, whose words are meant here too; the refusals in
`refusals.py`. Who decides what:

- `topics.py`, `arriving.py`, `regions.py`: topics, what links bring, regions;
- `subs.py`, `acking.py`, `merging.py`: subscriptions, acknowledgements, other regions' state;
- `consumers.py`, `handing.py`: who consumes, and what is in whose hands;
- `snapshots.py` over `snapshot_cache.py` and `markers.py`: the seed's protocol;
- `sweeping.py`: what is due, and what was left for later.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Final, Literal

import msgspec

from .rows import (
    ROWS_MAX,
    ConsumerId,
    Copy,
    Count,
    Hole,
    Initial,
    Kind,
    Message,
    Position,
    Ranges,
    RegionState,
    Rows,
    Seq,
    Vector,
)

__all__ = [
    "FORMAT_BACKLOG",
    "FORMAT_ENSURE",
    "FORMAT_EPOCHS",
    "FORMAT_KEPT",
    "FORMAT_REPORTED",
    "Ack",
    "AckDelivered",
    "AckTo",
    "AckToDelivered",
    "Acked",
    "Answered",
    "Attach",
    "Attached",
    "DeclareTopic",
    "Declared",
    "DeleteTopic",
    "Deleted",
    "Deliver",
    "Delivered",
    "Detach",
    "EnsureTopic",
    "Merge",
    "Merged",
    "Publish",
    "Published",
    "PutRegion",
    "Release",
    "ReleaseDelivered",
    "Released",
    "RemoveRegion",
    "Report",
    "Reported",
    "Seek",
    "SetRegion",
    "SetReplicate",
    "SnapshotAbandon",
    "SnapshotAnswer",
    "SnapshotAnswered",
    "SnapshotStart",
    "Sought",
    "Started",
    "Subscribe",
    "Subscribed",
    "Sweep",
    "Swept",
    "Take",
    "Taken",
    "Unsubscribe",
    "Update",
]

#: The format of the commands that has acknowledgements and releases with an epoch.
FORMAT_EPOCHS: Final = 2
#: The one that has `EnsureTopic`.
FORMAT_ENSURE: Final = 2
#: The one in which a mark uses all kept snapshots, and not only the cached ones.
FORMAT_KEPT: Final = 2
#: The one in which messages are not the only reason for a snapshot: reports and settings are, too.
FORMAT_REPORTED: Final = 2
#: The one in which `backlog_bytes_max` limits what is waited for, and not all that is kept.
FORMAT_BACKLOG: Final = 2

# --- results --------------------------------------------------------------------------------------


class Declared(msgspec.Struct, frozen=True, array_like=True):
    """`created`: it was not there; `changed`: it was otherwise."""

    id: int
    created: bool
    changed: bool


class Deleted(msgspec.Struct, frozen=True, array_like=True):
    """`messages` were in it."""

    messages: int


class Published(msgspec.Struct, frozen=True, array_like=True):
    """They have the positions `first` to `last` here, and the seqs from `seq` on everywhere."""

    first: int
    last: int
    origin: str
    seq: int


class Delivered(msgspec.Struct, frozen=True, array_like=True):
    """`appended` were new; `doubles` were here already. `last`: the last position now."""

    appended: int
    doubles: int
    last: int


class Reported(msgspec.Struct, frozen=True, array_like=True):
    """`changed`: rows that say something new."""

    changed: int


class Subscribed(msgspec.Struct, frozen=True, array_like=True):
    """`created`: it was not there. `mark`: everything up to it is not wanted."""

    id: int
    created: bool
    mark: int


class Attached(msgspec.Struct, frozen=True, array_like=True):
    """`active`: it gets messages now (failover: others may be before it)."""

    consumer: int
    active: bool


class Taken(msgspec.Struct, frozen=True, array_like=True):
    """In order; the messages are read from the tables of this node. `deliveries`: per position,
    this one included. `more`: there is more to be had now. `epoch`: of the subscription."""

    positions: tuple[int, ...]
    deliveries: tuple[int, ...]
    more: bool
    epoch: int


class Acked(msgspec.Struct, frozen=True, array_like=True):
    """`done` were not acknowledged before. `mark`: as of this entry."""

    done: int
    mark: int


class Released(msgspec.Struct, frozen=True, array_like=True):
    """`done` go back; `missing`: it did not hold the rest (any longer)."""

    done: int
    missing: int


class Sought(msgspec.Struct, frozen=True, array_like=True):
    """The next message is the one after `mark`. `epoch`: consumers with an older one begin anew."""

    mark: int
    epoch: int


class Merged(msgspec.Struct, frozen=True, array_like=True):
    """`created`: the subscription was not here. `done`: acknowledgements that were new here.

    `ignored`: why it was not taken ("": it was): "not replicated", "excluded", "disabled"; or why a
    part of it was not: "too many ranges" (the setting ranges_max).
    """

    created: bool
    done: int
    mark: int
    ignored: str = ""


class Started(msgspec.Struct, frozen=True, array_like=True):
    """`started`: false with the reason: "pending", "no regions", "nothing new", "nobody",
    "disabled" (or the mode is not "snapshot")."""

    started: bool
    reason: str = ""
    id: int = 0


class Answered(msgspec.Struct, frozen=True, array_like=True):
    """`counted`: it was waited for. `complete`: it was the last one."""

    counted: bool
    complete: bool = False


class Swept(msgspec.Struct, frozen=True, array_like=True):
    """`rows` were touched; `more`: there is more that is due now, propose it again."""

    rows: int
    more: bool


# --- commands: topics -----------------------------------------------------------------------------


class DeclareTopic(msgspec.Struct, frozen=True, array_like=True, tag="declare"):
    """Make a topic, or give an existing one these limits. `if_missing`: leave an existing one as it
    is (what links do). `compacted` cannot be changed."""

    Result: ClassVar[Any] = Declared
    topic: str
    replicated: bool = True
    compacted: bool = False
    retention_ms: Count = 0
    retention_bytes: Count = 0
    backlog_bytes_max: Count = 0
    if_missing: bool = False


class EnsureTopic(msgspec.Struct, frozen=True, array_like=True, tag="ensure"):
    """Make a topic with these limits, None: the default. Of one that exists, what is None stays as
    it is, and what differs is refused (`TopicDiffers`) unless `change`. Format 2."""

    Result: ClassVar[Any] = Declared
    topic: str
    replicated: bool | None = None
    compacted: bool | None = None
    retention_ms: Count | None = None
    retention_bytes: Count | None = None
    backlog_bytes_max: Count | None = None
    change: bool = False


class DeleteTopic(msgspec.Struct, frozen=True, array_like=True, tag="delete"):
    """With its subscriptions. Refused while it is replicated and other regions are active: they
    would bring it back. One of its name that is declared later goes on with its numbers."""

    Result: ClassVar[Any] = Deleted
    topic: str


class Publish(msgspec.Struct, frozen=True, array_like=True, tag="publish"):
    """All of them or, refused, none."""

    Result: ClassVar[Any] = Published
    topic: str
    messages: tuple[Message, ...]


class Deliver(msgspec.Struct, frozen=True, array_like=True, tag="deliver"):
    """What the link from `source` brought, in its order.

    Of each origin the next seq is appended, a lower one is a double and skipped, a higher one is
    refused (`OutOfOrder`, with the one that is expected), and nothing is done. A `Hole` that is
    (partly) here counts from the next seq on.
    """

    Result: ClassVar[Any] = Delivered
    topic: str
    source: str
    parts: tuple[Copy | Hole, ...]


# --- commands: regions ----------------------------------------------------------------------------


class SetRegion(msgspec.Struct, frozen=True, array_like=True, tag="set_region"):
    """Name this region. The same name again is fine; another one only before the first message."""

    Result: ClassVar[Any] = None
    region: str


class PutRegion(msgspec.Struct, frozen=True, array_like=True, tag="put_region"):
    """Add another region (active), exclude it, or let it return."""

    Result: ClassVar[Any] = Declared
    region: str
    state: RegionState = "active"
    #: Leave one that is known as it is: what a service does with its configured links.
    if_missing: bool = False
    #: None: true for a new one, unchanged for a known one.
    fetches: bool | None = None


class RemoveRegion(msgspec.Struct, frozen=True, array_like=True, tag="remove_region"):
    """Forget an excluded region; its messages stay."""

    Result: ClassVar[Any] = None
    region: str


class Report(msgspec.Struct, frozen=True, array_like=True, tag="report"):
    """`region` says what it has, per topic; retention waits for it. Never lowers anything.

    Refused (`OriginBehind`) if it has more of this region's own messages than there ever were: this
    one was built anew.
    """

    Result: ClassVar[Any] = Reported
    region: str
    topics: tuple[tuple[str, Vector], ...]


# --- commands: subscriptions ----------------------------------------------------------------------


class Subscribe(msgspec.Struct, frozen=True, array_like=True, tag="subscribe"):
    """Make a subscription; an existing one is left as it is (another `kind` only without consumers,
    else refused). `replicate` None: false for a new one, unchanged for an existing one."""

    Result: ClassVar[Any] = Subscribed
    topic: str
    sub: str
    kind: Kind = "exclusive"
    initial: Initial = "latest"
    replicate: bool | None = None


class Unsubscribe(msgspec.Struct, frozen=True, array_like=True, tag="unsubscribe"):
    """Delete it here. Refused with consumers, unless `force`: they end."""

    Result: ClassVar[Any] = None
    topic: str
    sub: str
    force: bool = False


class SetReplicate(msgspec.Struct, frozen=True, array_like=True, tag="set_replicate"):
    """Refused when turned on while the setting `enabled` is false."""

    Result: ClassVar[Any] = None
    topic: str
    sub: str
    replicate: bool


class Ack(msgspec.Struct, frozen=True, array_like=True, tag="ack"):
    """These positions. `consumer` 0: an operator, or a consumer of exclusive/failover kinds."""

    Result: ClassVar[Any] = Acked
    topic: str
    sub: str
    positions: Annotated[tuple[Position, ...], msgspec.Meta(max_length=ROWS_MAX)]
    consumer: Count = 0


class AckTo(msgspec.Struct, frozen=True, array_like=True, tag="ack_to"):
    """All up to this position: not for shared subscriptions, unless `consumer` is 0 (an operator
    skips what is left). Refused (`TooManyRanges`) over more than ROWS_MAX holes: go in steps."""

    Result: ClassVar[Any] = Acked
    topic: str
    sub: str
    position: Count
    consumer: Count = 0


class AckDelivered(Ack, frozen=True, array_like=True, tag="ack_delivered"):
    """`Ack` of messages that were delivered in the subscription's `epoch`: passed over once it has
    a newer one, since a seek asked for them again. Format 2."""

    Result: ClassVar[Any] = Acked
    epoch: Count = 0


class AckToDelivered(AckTo, frozen=True, array_like=True, tag="ack_to_delivered"):
    """`AckTo` of a message that was delivered in the subscription's `epoch`. Format 2."""

    Result: ClassVar[Any] = Acked
    epoch: Count = 0


class Seek(msgspec.Struct, frozen=True, array_like=True, tag="seek"):
    """The next message shall be the one after `position`, here. No acknowledgement: other regions
    are not moved, in neither direction. Positions below the first kept one mean the first."""

    Result: ClassVar[Any] = Sought
    topic: str
    sub: str
    position: Count


class Merge(msgspec.Struct, frozen=True, array_like=True, tag="merge"):
    """Vector mode: what region `source` has acknowledged of the subscription (some of it, or all).

    `base`: where it begins there; used only if the subscription is made by this. Made with
    `replicate`. Never removes anything. Refused (`OriginBehind`) if it tells of messages of this
    region that were never published: this one was built anew.
    """

    Result: ClassVar[Any] = Merged
    topic: str
    source: str
    sub: str
    kind: Kind
    base: Vector
    ranges: Annotated[Ranges, msgspec.Meta(max_length=ROWS_MAX)]


class Update(msgspec.Struct, frozen=True, array_like=True, tag="update"):
    """Snapshot mode: everything up to `position` here, but for `without`, is acknowledged in
    `source`. A position that is not kept, or not given yet, says nothing. Otherwise as `Merge`."""

    Result: ClassVar[Any] = Merged
    topic: str
    source: str
    sub: str
    kind: Kind
    id: Count
    position: Count
    base: Vector
    without: Annotated[Ranges, msgspec.Meta(max_length=ROWS_MAX)] = ()


# --- commands: consumers --------------------------------------------------------------------------


class Attach(msgspec.Struct, frozen=True, array_like=True, tag="attach"):
    """A consumer of `ctx.origin`, in its present life. Exclusive: refused while there is one."""

    Result: ClassVar[Any] = Attached
    topic: str
    sub: str
    name: str = ""
    priority: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 0


class Detach(msgspec.Struct, frozen=True, array_like=True, tag="detach"):
    """It ends; what it holds goes back. One that is unknown has ended: nothing is done."""

    Result: ClassVar[Any] = None
    consumer: ConsumerId


class Take(msgspec.Struct, frozen=True, array_like=True, tag="take"):
    """Shared: the oldest `count` that are in nobody's hands, `bytes_max` at most (one always; 0: no
    bound), returned ones first."""

    Result: ClassVar[Any] = Taken
    consumer: ConsumerId
    count: Rows
    bytes_max: Count = 0


class Release(msgspec.Struct, frozen=True, array_like=True, tag="release"):
    """Shared: give these back, to be delivered again (negative acknowledgement)."""

    Result: ClassVar[Any] = Released
    consumer: ConsumerId
    positions: Annotated[tuple[Position, ...], msgspec.Meta(max_length=ROWS_MAX)]


class ReleaseDelivered(Release, frozen=True, array_like=True, tag="release_delivered"):
    """`Release` of messages that were delivered in the subscription's `epoch`: passed over once it
    has a newer one, since the consumer may hold these again, delivered after the seek. Format 2."""

    Result: ClassVar[Any] = Released
    epoch: Count = 0


# --- commands: snapshots --------------------------------------------------------------------------


class SnapshotStart(msgspec.Struct, frozen=True, array_like=True, tag="snapshot_start"):
    """By the leader's timer, when its links to all active regions are up. Started only if the mode
    is "snapshot", none is pending, other regions are active, a subscription is replicated, and a
    message came since the last completed one was started (and since the topic was made)."""

    Result: ClassVar[Any] = Started
    topic: str


class SnapshotAnswer(msgspec.Struct, frozen=True, array_like=True, tag="snapshot_answer"):
    """`source`'s request came here over the link: write the answer as a marker."""

    Result: ClassVar[Any] = None
    topic: str
    source: str
    id: Seq
    round: Literal[1, 2]


class SnapshotAnswered(msgspec.Struct, frozen=True, array_like=True, tag="snapshot_answered"):
    """An answer to this region's request came here over the link from `region`. See `Answer`."""

    Result: ClassVar[Any] = Answered
    topic: str
    region: str
    id: Seq
    round: Literal[1, 2]
    position: Count
    vector: Vector


class SnapshotAbandon(msgspec.Struct, frozen=True, array_like=True, tag="snapshot_abandon"):
    """The pending one, if it still is `id` and is older than timeout_ms on the log's clock."""

    Result: ClassVar[Any] = Answered
    topic: str
    id: Seq


# --- commands: what is due ------------------------------------------------------------------------


class Sweep(msgspec.Struct, frozen=True, array_like=True, tag="sweep"):
    """Whatever is due: consumers of nodes that ended, what ended consumers hold, marks that are
    behind, rows of what was deleted, and, in `topics`, messages beyond retention (the leader's
    service looks which). Everything is compared again here."""

    Result: ClassVar[Any] = Swept
    topics: Annotated[tuple[str, ...], msgspec.Meta(max_length=ROWS_MAX)] = ()
    rows_max: Rows = ROWS_MAX
