"""What replicated subscriptions keep: the rows of their tables, and what these have in common with
the commands (`commands.py`). Everything here is data.

A *region* is one cluster with its own log. A *topic* is a line of messages in every region; its
*positions* are given by the log of the region, so the same message stands at different positions.
What is the same everywhere is (origin, seq): the region where it was published, and its number
among those of that region in that topic: 1, 2, 3, ... Links keep the order of each origin, so that
what a region has of a topic is one number per origin, a *vector* (`vectors`); `blocks` remembers
the vector before every 256th position, which makes positions and vectors exchangeable.

A *subscription* is a set of acknowledged (origin, seq). Per origin (`floors`): up to `base` it does
not want any here (where it began, or was sought to); base+1 to `floor` are acknowledged; what is
acknowledged beyond are ranges in `acks`. This set does not depend on positions. Regions exchange
it and unite what they are told with what they have: in any order, any number of times, also for
messages that are not here yet. The *mark* is derived from it: the last position up to which nothing
is wanted any more. The base is never an acknowledgement: it is told only to a region that does not
have the subscription yet.

Markers have no positions. They stand between messages (`Marker.position` is the one before it), and
links send them there.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from raftkv.plugin import TableSpec

__all__ = [
    "BLOCK",
    "COMMAND_BYTES",
    "FRESH",
    "HEADERS_MAX",
    "INT_MAX",
    "LOCAL",
    "MESSAGE_OVERHEAD",
    "NAME_CHARS_MAX",
    "ORIGINS_MAX",
    "REGIONS_MAX",
    "ROWS_MAX",
    "TABLES",
    "Advance",
    "Answer",
    "Backlog",
    "Consumer",
    "ConsumerId",
    "Copy",
    "Count",
    "Floor",
    "Hole",
    "Initial",
    "Kind",
    "Marker",
    "Message",
    "Meta",
    "Mode",
    "Pending",
    "Position",
    "Ranges",
    "Region",
    "RegionState",
    "Request",
    "Rows",
    "Seq",
    "Snapshot",
    "Stored",
    "Sub",
    "Topic",
    "Vector",
    "size_of",
]

INT_MAX: Final = 2**63 - 1
#: Rows of one command: what one entry may touch.
ROWS_MAX: Final = 1_000
#: Bytes of messages in one command, as `size_of` counts them; one message may have more, up to the
#: setting message_bytes_max.
COMMAND_BYTES: Final = 512 * 1024
#: What a message counts besides its body, key and headers, in bytes.
MESSAGE_OVERHEAD: Final = 64
#: Positions between two rows of `blocks`.
BLOCK: Final = 256
#: Letters of the name of a topic, a subscription, a region, and of a message's key.
NAME_CHARS_MAX: Final = 255
#: Headers of one message.
HEADERS_MAX: Final = 64
#: Regions that a cluster may know, itself included.
REGIONS_MAX: Final = 16
#: Origins of the messages of one topic: regions come and go, what they published stays.
ORIGINS_MAX: Final = 64
#: The name of a region that was given none.
LOCAL: Final = "local"

Position = Annotated[int, msgspec.Meta(ge=1, le=INT_MAX)]
Seq = Annotated[int, msgspec.Meta(ge=1, le=INT_MAX)]
Count = Annotated[int, msgspec.Meta(ge=0, le=INT_MAX)]
Rows = Annotated[int, msgspec.Meta(ge=1, le=ROWS_MAX)]
ConsumerId = Annotated[int, msgspec.Meta(ge=1, le=INT_MAX)]

#: One number per origin, sorted by origin, without those that are 0.
Vector = tuple[tuple[str, Count], ...]
#: Acknowledged ones: (origin, first seq, last seq), sorted, disjoint and not adjacent.
Ranges = tuple[tuple[str, Seq, Seq], ...]

Kind = Literal["exclusive", "failover", "shared"]
Initial = Literal["earliest", "latest"]
RegionState = Literal["active", "excluded"]
Mode = Literal["vector", "snapshot"]


# --- parts of commands ----------------------------------------------------------------------------


class Message(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a producer says. `key`: for compacted topics, "": none. Headers are pairs of texts."""

    body: bytes
    key: str = ""
    headers: tuple[tuple[str, str], ...] = ()


def size_of(message: Message) -> int:
    """What it counts against limits, in bytes."""
    size = MESSAGE_OVERHEAD + len(message.body) + _bytes_of(message.key)
    for name, value in message.headers:
        size += _bytes_of(name) + _bytes_of(value)
    return size


def _bytes_of(text: str) -> int:
    """Of its UTF-8; what is no text at all is for others to refuse."""
    return len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))


class Copy(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="copy"):
    """A message of another region, on its way. `published_ms`: by the log's clock there."""

    origin: str
    seq: Seq
    message: Message
    published_ms: Count


class Hole(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="hole"):
    """The source no longer has these: retention removed them before this region fetched them."""

    origin: str
    first: Seq
    last: Seq


# --- rows: regions and topics ---------------------------------------------------------------------


class Region(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Another region. An excluded one is not waited for: not by snapshots, not by retention; it is
    not fetched from, it fetches nothing, and what it says is ignored.

    `fetches`: it fetches from here (in a ring it may not), so retention waits for it.
    """

    state: RegionState = "active"
    since_ms: int = 0
    fetches: bool = True


class Topic(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A topic. Its id is never used again, so the rows of a deleted one can be swept later.

    `replicated`: links carry it. `compacted`: `latest` knows the last message of every key.
    `retention_ms`, `retention_bytes` (0: no limit): what is beyond them is removed once every
    subscription has acknowledged it and every active region has fetched it; never before.
    `backlog_bytes_max` (0: no limit): beyond it a publication is refused (`backlog.py`).

    `first`: the oldest position that is kept (but for compacted ones). `next`: the next position.
    `seq`: the last seq of this region's own messages. `bytes`: of all kept. `marker`: the next n of
    `markers`. `gapped`: it has rows in `holes`. `snapshot_next`: `next` when the last completed
    snapshot was started, or less if it may not tell another region of all before that;
    `snapshot_ms`: when it completed. `kept`: compacted rows below `first`.
    """

    id: int
    replicated: bool = True
    compacted: bool = False
    retention_ms: int = 0
    retention_bytes: int = 0
    backlog_bytes_max: int = 0
    first: int = 1
    next: int = 1
    seq: int = 0
    bytes: int = 0
    marker: int = 1
    gapped: bool = False
    snapshot_next: int = 1
    snapshot_ms: int = 0
    kept: int = 0
    keys: int = 0


class Backlog(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What was appended to a topic since its messages are counted (format 2).

    `start`: the first position that is counted; `total`: the bytes of all messages from there on,
    removed ones too.
    """

    start: int
    total: int


class Stored(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A message at its position. `at_ms`: the log's clock here when it got it; `published_ms`: that
    of the origin when it was published."""

    origin: str
    seq: int
    message: Message
    at_ms: int
    published_ms: int


# --- rows: subscriptions --------------------------------------------------------------------------


class Sub(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A subscription. Its id is never used again.

    `replicate`: its state goes to other regions, and theirs is taken. `mark`: every position up to
    it is not wanted any more; it may lag while `advancing` has the subscription. `cursor` (shared):
    the first position that was never handed out since it was made or sought; above the mark.
    `epoch`: counts seeks. `locked` (shared): messages in hands of consumers. `ranges`: rows in
    `acks`. `changed`: the index of the entry that last changed the acknowledged set.
    `active` (exclusive, failover): the consumer that gets the messages, 0: none.
    `update`: the id of the snapshot of the last update that was sent (snapshot mode).
    """

    id: int
    kind: Kind = "exclusive"
    replicate: bool = False
    mark: int = 0
    cursor: int = 1
    epoch: int = 0
    locked: int = 0
    ranges: int = 0
    changed: int = 0
    active: int = 0
    consumers: int = 0
    update: int = 0
    created_ms: int = 0


class Floor(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Of one origin. Up to `base` none is wanted here; `base`+1 to `floor` are acknowledged.

    `mask`: other regions' acknowledgements up to this seq are ignored, for the subscription was
    sought back here; 0: none are.
    """

    base: int = 0
    floor: int = 0
    mask: int = 0


class Consumer(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A consumer, tied to one life of its node. `held`: its rows in `locks` (shared).

    `priority` (failover): the active one has the smallest (priority, id). `ended_ms`: 0, it has
    not; an ended one is removed when nothing is left in its hands. `epoch`: of the subscription,
    when it came or last took messages: locks of an older one mean nothing.
    """

    topic: int
    sub: int
    name: str
    node: str
    incarnation: int
    kind: Kind
    priority: int = 0
    held: int = 0
    epoch: int = 0
    ended_ms: int = 0


# --- rows: snapshots (the seed's protocol) --------------------------------------------------------


class Request(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="request"):
    """`source` asks every other region for its position. `round`: 1 or 2."""

    id: int
    source: str
    round: int


class Answer(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="answer"):
    """`region` answers `source`: the last position it had. `vector`: what it had, then.

    The source counts it only once it has what `region` published, and what excluded regions did,
    up to that vector: the order of the link, checked.
    """

    id: int
    source: str
    round: int
    region: str
    position: Count
    vector: Vector


class Advance(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="update"):
    """The subscription's mark passed the snapshot `id`: region -> position there.

    `without`: what the mark covers but nobody acknowledged: up to the bases, and holes.
    """

    id: int
    sub: str
    kind: Kind
    positions: tuple[tuple[str, Count], ...]
    base: Vector
    without: Ranges


class Marker(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Stands after the message `position`. Newer ones of the same meaning replace older ones: one
    request per topic, one answer per source, one update per subscription."""

    position: int
    what: Request | Answer | Advance


class Pending(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The snapshot that is being built. `first`, `second`: who answered in which round, with their
    positions. `next`: the topic's, when it was started."""

    id: int
    round: int
    started_ms: int
    next: int
    participants: tuple[str, ...]
    first: tuple[tuple[str, int], ...] = ()
    second: tuple[tuple[str, int], ...] = ()


class Snapshot(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Whoever acknowledged everything up to its key's position here has acknowledged everything up
    to these positions there."""

    id: int
    positions: tuple[tuple[str, int], ...]
    at_ms: int


class Meta(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The one row of `meta`: this region's name ("": not given, `LOCAL` is used), the next ids, and
    counters of ever. `published`: own messages; from the first one on the name is fixed."""

    region: str = ""
    next_topic: int = 1
    next_sub: int = 1
    next_consumer: int = 1
    topics: int = 0
    consumers: int = 0
    published: int = 0
    delivered: int = 0
    doubles: int = 0
    holes: int = 0
    merged: int = 0
    snapshots: int = 0
    timed_out: int = 0
    updates: int = 0
    trimmed: int = 0
    cache_hits: int = 0
    cache_misses: int = 0
    ignored: int = 0


#: Before the first command.
FRESH: Final = Meta()


# --- tables ---------------------------------------------------------------------------------------

TABLES = (
    TableSpec("topics", str, Topic),
    # topic id -> name
    TableSpec("names", int, str),
    # name of a deleted topic -> its last own seq or position, whichever is higher: one of that name
    # goes on from there with both
    TableSpec("gone", str, int),
    # (topic id, position)
    TableSpec("messages", tuple[int, int], Stored),
    # (topic id, origin) -> the highest seq that is here, or in a hole
    TableSpec("vectors", tuple[int, str], int),
    # (topic id, block): the vector before the position block * BLOCK + 1, or before Topic.first if
    # that is in the block; of messages alone, so never with a hole at its end
    TableSpec("blocks", tuple[int, int], tuple[tuple[str, int], ...]),
    # (topic id, origin, first) -> last: never came here; disjoint, not adjacent, kept for ever
    TableSpec("holes", tuple[int, str, int], int),
    # topic id: the bytes of what was appended (format 2)
    TableSpec("backlogs", int, Backlog),
    # (topic id, block) -> `Backlog.total` before the first position of that block
    TableSpec("sizes", tuple[int, int], int),
    # topic id -> (position, `Backlog.total` up to it): nothing waits for messages up to there
    TableSpec("fronts", int, tuple[int, int]),
    # (topic id, key) -> position of its last message, of compacted topics; none if that is empty
    TableSpec("latest", tuple[int, str], int),
    TableSpec("regions", str, Region),
    # (region, topic id) -> the vector that it said it has
    TableSpec("fetched", tuple[str, int], tuple[tuple[str, int], ...]),
    # (topic id, name)
    TableSpec("subs", tuple[int, str], Sub),
    # sub id -> (topic id, name)
    TableSpec("sub_names", int, tuple[int, str]),
    # (sub id, origin)
    TableSpec("floors", tuple[int, str], Floor),
    # (sub id, origin, first) -> last: acknowledged, beyond the floor
    TableSpec("acks", tuple[int, str, int], int),
    # (topic id, sub id): its set reaches beyond what is here of some origin: a floor or a range
    # above the number in `vectors`. Only these marks can move when messages arrive
    TableSpec("ahead", tuple[int, int], None),
    # (sub id, position) -> deliveries: it came back (shared)
    TableSpec("returned", tuple[int, int], int),
    # (consumer, position) -> deliveries, this one included (shared)
    TableSpec("locks", tuple[int, int], int),
    TableSpec("consumers", int, Consumer),
    # (sub id, consumer)
    TableSpec("attached", tuple[int, int], None),
    # (node, incarnation, consumer)
    TableSpec("owners", tuple[str, int, int], None),
    # topic id -> the snapshot that is being built
    TableSpec("pending", int, Pending),
    # (topic id, n)
    TableSpec("markers", tuple[int, int], Marker),
    # (topic id, meaning) -> n: "request", "answer/<source>", "update/<sub>"
    TableSpec("marked", tuple[int, str], int),
    # (topic id, position)
    TableSpec("snapshots", tuple[int, int], Snapshot),
    # (sub id, position): the few that the subscription may use
    TableSpec("cached", tuple[int, int], Snapshot),
    # what Sweep has to do: (node, incarnation) that ended; consumers that ended; subscriptions
    # whose mark is behind; deleted topics, and subscriptions, with rows left
    TableSpec("ended_nodes", tuple[str, int], None),
    TableSpec("ended_consumers", int, None),
    TableSpec("advancing", int, None),
    TableSpec("dropped_topics", int, None),
    TableSpec("dropped_subs", int, None),
    TableSpec("meta", str, Meta),
)
