"""What links bring: each message once, in the order of its origin, whoever brings it.

`vectors` has, of each origin, the last seq that is here. The next one is appended; what is not
above it is a double and skipped, so it does no harm that several links bring the same, that a
command is sent again, or that messages come back to where they began. What is further above has
lost something on its way: the whole command is refused, and the link begins anew, with what is
here. Therefore nothing is ever missing in the midst, but for holes.

A hole is what the source itself no longer has: it was excluded, or joined late, and retention did
not wait. The source says so, and the numbers go on behind it. A hole is remembered for ever, for a
seq in it is no acknowledged message. Two that follow one another are one row.

This region's own messages come back on rings, as doubles. One above the last own seq is no double:
this region was built anew with its old name, and would give numbers a second time. It is refused,
and the link says so until somebody gives the region another name.

A full topic refuses what is new; the link waits. It is full far later than for publications: at
their limit, once for every active region, this one included. For the backlog of a full region may
be what others have not fetched yet, and if these were full by the same measure, none could ever
fetch from the other. As publications stop at the limit in every region of which another one lacks
that many bytes, what all of them may still bring is bounded, and finds room here. The bytes before
the command count, not those after it: a batch that is larger than the limit must pass some time.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from raftkv.plugin import Context

from . import backlog, marks
from .commands import Deliver, Delivered
from .refusals import (
    BadMessage,
    BatchTooLarge,
    EmptyBatch,
    OriginBehind,
    OutOfOrder,
    TooManyRegions,
)
from .rows import (
    COMMAND_BYTES,
    INT_MAX,
    LOCAL,
    ORIGINS_MAX,
    ROWS_MAX,
    Copy,
    Hole,
    Stored,
    Topic,
    size_of,
)
from .scope import active_regions, check_name, meta_of, put_meta, require_region, topic_named
from .topics import append, check_message

__all__ = ["LARGEST_BYTES", "deliver"]

#: What one publication may bring beyond its limit: the highest message_bytes_max.
LARGEST_BYTES: Final = 2 * COMMAND_BYTES


def deliver(command: Deliver, ctx: Context) -> Delivered:
    """Append what is new, in its order, or nothing."""
    require_region(ctx, command.source)
    name, parts = command.topic, command.parts
    old = topic_named(ctx, name)
    if not parts:
        raise EmptyBatch
    if len(parts) > ROWS_MAX:
        raise BatchTooLarge("rows", ROWS_MAX)
    meta = meta_of(ctx)
    arrival = _Arrival(ctx, old, meta.region or LOCAL)
    for part in parts:
        if type(part) is Copy:
            arrival.take(part)
        elif type(part) is Hole:
            arrival.skip(part)
    batch, size = arrival.batch, arrival.size
    if size > COMMAND_BYTES and len(batch) > 1:
        raise BatchTooLarge("bytes", COMMAND_BYTES)
    limit = old.backlog_bytes_max
    if batch and limit and old.bytes >= limit:
        room = (limit + LARGEST_BYTES) * (1 + len(active_regions(ctx)))
        waited = backlog.bytes_for(ctx, old, room - 1)
        if waited >= room:
            raise backlog.full(ctx, name, room, waited)
    topic = replace(old, gapped=True) if arrival.missing else old
    if batch:
        topic = append(ctx, name, topic, batch, size)
    if topic is not old:
        ctx.table("topics").replace(name, old, topic)
        arrival.write_vectors()
    meta = replace(
        meta,
        delivered=meta.delivered + len(batch),
        doubles=meta.doubles + arrival.doubles,
        holes=min(meta.holes + arrival.missing, INT_MAX),
    )
    put_meta(ctx, meta)
    if batch and _some_ahead(ctx, old.id):
        marks.arrived(ctx, name, topic)
    return Delivered(len(batch), arrival.doubles, topic.next - 1)


def _some_ahead(ctx: Context, topic_id: int) -> bool:
    """Whether a subscription may want none of what has come."""
    ahead = ctx.table("ahead")
    return len(ahead) > 0 and ahead.count((topic_id, 0), (topic_id + 1, 0)) > 0


class _Arrival:
    """What one command brings. Holes are written at once, messages and `vectors` by `deliver`.

    `batch`: what is new, of `size` bytes; `missing`: how many messages are in new holes.
    """

    def __init__(self, ctx: Context, topic: Topic, own: str) -> None:
        self._ctx = ctx
        self._topic = topic
        self._own = own
        self._known: dict[str, int] = {}
        self._before: dict[str, int] = {}
        self.batch: list[Stored] = []
        self.size = 0
        self.doubles = 0
        self.missing = 0

    def take(self, copy: Copy) -> None:
        """Raises `OutOfOrder`, `OriginBehind`, `TooManyRegions`, `BadMessage`."""
        origin, seq, message = copy.origin, copy.seq, copy.message
        known = self._known.get(origin)
        if known is None:
            known = self._first_of(origin)
        if seq <= known:
            self.doubles += 1
            return
        if origin == self._own:
            raise OriginBehind(origin, seq, known)
        if seq != known + 1:
            raise OutOfOrder(origin, known + 1)
        if message.key or message.headers:
            check_message(message)
        self._known[origin] = seq
        self.size += size_of(message)
        self.batch.append(Stored(origin, seq, message, self._ctx.now, copy.published_ms))

    def skip(self, hole: Hole) -> None:
        """Raises `OutOfOrder`, `OriginBehind`, `TooManyRegions`, `BadMessage`."""
        origin, last = hole.origin, hole.last
        if last < hole.first:
            raise BadMessage("it is a hole that ends before it begins")
        known = self._known.get(origin)
        if known is None:
            known = self._first_of(origin)
        if last <= known:
            self.doubles += 1
            return
        if origin == self._own:
            raise OriginBehind(origin, last, known)
        if hole.first > known + 1:
            raise OutOfOrder(origin, known + 1)
        self._known[origin] = last
        self.missing += last - known
        self._put_hole(origin, known + 1, last)

    def _first_of(self, origin: str) -> int:
        """The last seq that is here, of an origin that the command has not had yet."""
        vectors, id = self._ctx.table("vectors"), self._topic.id
        if origin == self._own:
            known = self._topic.seq
        else:
            known = vectors.get((id, origin), 0)
        if not known and origin != self._own:
            check_name("region", origin)
            fresh = sum(1 for seq in self._before.values() if seq == 0)
            if vectors.count((id, ""), (id + 1, "")) + fresh >= ORIGINS_MAX:
                raise TooManyRegions(ORIGINS_MAX)
        self._known[origin] = self._before[origin] = known
        return known

    def _put_hole(self, origin: str, first: int, last: int) -> None:
        holes, id = self._ctx.table("holes"), self._topic.id
        before = holes.scan((id, origin, 0), (id, origin, first), reverse=True, limit=1)
        for key, end in before:
            if end == first - 1:
                first = key[2]
        holes.put((id, origin, first), last)

    def write_vectors(self) -> None:
        put, id, before = self._ctx.table("vectors").put, self._topic.id, self._before
        for origin, seq in self._known.items():
            if seq != before[origin]:
                put((id, origin), seq)
