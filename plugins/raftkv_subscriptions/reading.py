"""Messages of this node's copy: as they are handed out, and what a subscription still wants.

Everything here is a look at the tables of one node, at one moment. `Wanted` answers for many
messages in a row: of each origin it remembers the last stretch of seqs that are all wanted, or all
not, so that a batch takes a search of the ranges per stretch and not per message.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from raftkv.plugin import Host, Proposer, View

from .commands import Seek, Sought
from .rows import INT_MAX, Floor, Stored, Sub, Topic
from .views import sub_of, topic_of

__all__ = [
    "Read",
    "Received",
    "Wanted",
    "Where",
    "first_at",
    "read_of",
    "received_of",
    "seek",
]

#: Where to begin, besides at a position.
Where = Literal["earliest", "latest"]

_NOTHING: Final = Floor()


class Read(msgspec.Struct, frozen=True, gc=False):
    """A message as a reader has it. `origin`, `seq`: the region where it was published, and its
    number among those of that region: the same everywhere. `position`, `at_ms`: where and when (the
    log's clock) it came into this region; `published_ms`: when it was published, there."""

    topic: str
    position: int
    origin: str
    seq: int
    body: bytes
    key: str
    headers: tuple[tuple[str, str], ...]
    at_ms: int
    published_ms: int


class Received(msgspec.Struct, frozen=True, gc=False):
    """A message in the hands of a consumer. See `Read`.

    `deliveries`: how often it was handed out, this time included: on all nodes for shared
    subscriptions, else by this consumer. `epoch`: of the subscription; a seek begins another.
    """

    topic: str
    position: int
    origin: str
    seq: int
    body: bytes
    key: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    published_ms: int = 0
    deliveries: int = 1
    epoch: int = 0


def read_of(topic: str, position: int, stored: Stored) -> Read:
    message = stored.message
    return Read(
        topic,
        position,
        stored.origin,
        stored.seq,
        message.body,
        message.key,
        message.headers,
        stored.at_ms,
        stored.published_ms,
    )


def received_of(topic: str, position: int, stored: Stored, deliveries: int, epoch: int) -> Received:
    message = stored.message
    return Received(
        topic,
        position,
        stored.origin,
        stored.seq,
        message.body,
        message.key,
        message.headers,
        stored.published_ms,
        deliveries,
        epoch,
    )


class Wanted:
    """Whether a subscription wants a message, as of one view. Not kept over an await."""

    __slots__ = ("_acks", "_floors", "_spans", "_sub_id")

    def __init__(self, view: View, sub_id: int) -> None:
        self._sub_id = sub_id
        self._floors = view.table("floors")
        self._acks = view.table("acks")
        #: Of each origin a stretch of seqs that are all wanted, or all not.
        self._spans: dict[str, tuple[int, int, bool]] = {}

    def __call__(self, origin: str, seq: int) -> bool:
        span = self._spans.get(origin)
        if span is None or not span[0] <= seq <= span[1]:
            span = self._spans[origin] = self._span(origin, seq)
        return span[2]

    def _span(self, origin: str, seq: int) -> tuple[int, int, bool]:
        id = self._sub_id
        floor = self._floors.get((id, origin), _NOTHING).floor
        if seq <= floor:
            return 1, floor, False
        low, high = floor + 1, INT_MAX
        before = self._acks.scan((id, origin, 0), (id, origin, seq + 1), reverse=True, limit=1)
        for (_, _, first), last in before:
            if seq <= last:
                return first, last, False
            low = max(low, last + 1)
        after = self._acks.scan((id, origin, seq + 1), (id, origin, INT_MAX), limit=1)
        for (_, _, first), _last in after:
            high = first - 1
        return low, high, True


# --- seeking --------------------------------------------------------------------------------------


def first_at(view: View, topic: Topic, at_ms: int) -> int:
    """The first kept position whose message came here at `at_ms` or later (the log's clock); the
    next one, if none did. Times do not go back with positions."""
    messages = view.table("messages")
    low, high = topic.first, topic.next
    while low < high:
        middle = (low + high) // 2
        stored: Stored | None = messages.get((topic.id, middle))
        if stored is not None and stored.at_ms >= at_ms:
            high = middle
        else:
            low = middle + 1
    return low


async def seek(
    host: Host,
    proposer: Proposer,
    topic: str,
    sub: str,
    where: int | Where | None,
    at_ms: int | None,
    deadline: float,
) -> Sought:
    """See `SubscriptionsApi.seek`."""
    if (where is None) == (at_ms is None):
        raise ValueError("give either where to seek to, or at_ms")
    if isinstance(where, int):
        position = where
    else:
        if where not in ("earliest", "latest", None):
            raise ValueError(f'a position, "earliest" or "latest": {where!r}')
        # What was published before this call is on this node.
        left_s = max(0.0, deadline - host.runtime.monotonic())
        await host.barrier("linearizable", timeout_s=left_s)
        view = host.view()
        row: Topic = topic_of(view, topic)
        _: Sub = sub_of(view, topic, sub)
        if at_ms is not None:
            position = first_at(view, row, at_ms) - 1
        else:
            position = row.next - 1 if where == "latest" else 0
    if not 0 <= position <= INT_MAX:
        raise ValueError(f"positions are 0 to {INT_MAX}")
    done: Sought = await proposer.until_verdict(Seek(topic, sub, position), deadline)
    return done
