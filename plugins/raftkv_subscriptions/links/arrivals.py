"""What comes over a link, and the commands that it becomes.

Nothing here waits or decides: the log compares everything again. What is looked up in the tables
saves entries for what is known to change nothing, because a stream that begins anew says everything
again, and in a mesh the same acknowledgement comes by several links.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from raftkv.plugin import View
from raftkv_subscriptions.commands import (
    DeclareTopic,
    Deliver,
    Merge,
    SnapshotAnswer,
    SnapshotAnswered,
    Update,
)
from raftkv_subscriptions.mapping import vector_of_rows
from raftkv_subscriptions.rows import (
    COMMAND_BYTES,
    ROWS_MAX,
    Advance,
    Answer,
    Copy,
    Floor,
    Hole,
    Marker,
    Pending,
    Ranges,
    Request,
    Sub,
    Topic,
    size_of,
)
from raftkv_subscriptions.scope import own_region
from raftkv_subscriptions.views import state_of

from .frames import STATE_RANGES, MessagesFrame, StateFrame, TopicFrame
from .lanes import Lane
from .spans import above, joined, minus

__all__ = [
    "Early",
    "Item",
    "declaration",
    "gathered_messages",
    "gathered_state",
    "marker_command",
    "merge_of",
    "news_of",
    "takes_states",
]


class Early(msgspec.Struct, frozen=True):
    """An answer that came before the messages that it counts; it is tried again in `delay_s`."""

    what: Answer
    delay_s: float


Item = TopicFrame | MessagesFrame | StateFrame | Request | Answer | Advance | Early

# Parts of one command. Each touches a row and a little more (blocks, keys).
PARTS_MAX: Final = ROWS_MAX


def declaration(frame: TopicFrame) -> DeclareTopic:
    """For a topic that is missing here."""
    return DeclareTopic(
        frame.topic,
        replicated=True,
        compacted=frame.compacted,
        retention_ms=frame.retention_ms,
        retention_bytes=frame.retention_bytes,
        backlog_bytes_max=frame.backlog_bytes_max,
        if_missing=True,
    )


# --- messages -------------------------------------------------------------------------------------


def gathered_messages(lane: Lane[tuple[str, Item]], source: str) -> Deliver:
    """Frames of messages at the head of a lane as one command, up to what a command may hold."""
    topic, first = lane.take()
    assert isinstance(first, MessagesFrame)
    parts = list(first.parts)
    size = _bytes_of(first.parts)
    while (found := lane.peek()) is not None and isinstance(found[1], MessagesFrame):
        more = found[1].parts
        size += _bytes_of(more)
        if len(parts) + len(more) > PARTS_MAX or size > COMMAND_BYTES:
            break
        parts.extend(more)
        lane.take()
    return Deliver(topic, source, tuple(parts))


def news_of(view: View, command: Deliver) -> Deliver | None:
    """Without what is here: a source sends again what it does not know to have come. None: all is.

    The log compares once more; this spares entries that say nothing.
    """
    topic: Topic | None = view.table("topics").get(command.topic)
    if topic is None:
        return command
    here = dict(vector_of_rows(view, topic.id))
    parts = tuple(part for part in command.parts if _end_of(part) > here.get(part.origin, 0))
    return msgspec.structs.replace(command, parts=parts) if parts else None


def _end_of(part: Copy | Hole) -> int:
    return part.seq if isinstance(part, Copy) else part.last


def _bytes_of(parts: tuple[Copy | Hole, ...]) -> int:
    return sum(size_of(part.message) for part in parts if isinstance(part, Copy))


# --- acknowledgements -----------------------------------------------------------------------------


def takes_states(view: View) -> bool:
    """Whether this region takes acknowledgements of others at all."""
    return bool(view.settings["enabled"])


def gathered_state(lane: Lane[tuple[str, Item]]) -> StateFrame:
    """Frames of one subscription at the head of a lane as one."""
    _, first = lane.take()
    assert isinstance(first, StateFrame)
    ranges: Ranges = first.ranges
    whole = first.whole
    while (found := lane.peek()) is not None and isinstance(found[1], StateFrame):
        more = joined(ranges, found[1].ranges)
        if len(more) > STATE_RANGES:
            break
        ranges, whole = more, whole or found[1].whole
        lane.take()
    return StateFrame(first.topic, first.sub, first.kind, first.base, ranges, whole)


def merge_of(view: View, frame: StateFrame, source: str) -> Merge | str | None:
    """The command for what is new here; None: nothing is; a text: why it cannot be taken now.

    "not replicated", "disabled": the subscription does not take it. "gone": it was deleted here
    since the stream began, and what is new is not enough to make it again.
    """
    topic: Topic | None = view.table("topics").get(frame.topic)
    sub: Sub | None = None if topic is None else view.table("subs").get((topic.id, frame.sub))
    if not takes_states(view):
        return "disabled"
    if sub is None:
        if not frame.whole:
            return "gone"
        return Merge(frame.topic, source, frame.sub, frame.kind, frame.base, frame.ranges)
    if not sub.replicate:
        return "not replicated"
    floors: dict[str, int] = {}
    floor: Floor
    for (_, origin), floor in view.table("floors").scan((sub.id, ""), (sub.id + 1, "")):
        floors[origin] = max(floor.floor, floor.mask)
    new = above(frame.ranges, floors)
    if new and sub.ranges:
        new = minus(new, state_of(view, frame.topic, frame.sub).ranges)
    if not new:
        return None
    return Merge(frame.topic, source, frame.sub, frame.kind, frame.base, new)


# --- markers --------------------------------------------------------------------------------------


def marker_command(
    view: View, topic: str, what: Request | Answer | Advance, source: str
) -> SnapshotAnswer | SnapshotAnswered | Update | None:
    """None: it is known, or nobody waits for it."""
    row: Topic | None = view.table("topics").get(topic)
    if row is None:
        return None
    return _COMMANDS[type(what)](view, topic, row, what, source)


def _answer(
    view: View, topic: str, row: Topic, what: Request, source: str
) -> SnapshotAnswer | None:
    if what.source != source:
        return None
    number = view.table("marked").get((row.id, f"answer/{source}"))
    marker: Marker | None = None
    if number is not None:
        marker = view.table("markers").get((row.id, number))
    if marker is not None and isinstance(marker.what, Answer):
        said = marker.what
        if (said.id, said.round) == (what.id, what.round):
            return None
    return SnapshotAnswer(topic, source, what.id, 2 if what.round == 2 else 1)


def _answered(
    view: View, topic: str, row: Topic, what: Answer, source: str
) -> SnapshotAnswered | None:
    pending: Pending | None = view.table("pending").get(row.id)
    if pending is None or (pending.id, pending.round) != (what.id, what.round):
        return None
    done = pending.first if what.round == 1 else pending.second
    if what.region != source or any(region == source for region, _ in done):
        return None
    return SnapshotAnswered(
        topic, source, what.id, 2 if what.round == 2 else 1, what.position, what.vector
    )


def _update(view: View, topic: str, row: Topic, what: Advance, source: str) -> Update | None:
    own = own_region(view)
    for region, position in what.positions:
        if region == own:
            return Update(
                topic, source, what.sub, what.kind, what.id, position, what.base, what.without
            )
    return None


_COMMANDS: Final[dict[type, Callable[..., SnapshotAnswer | SnapshotAnswered | Update | None]]] = {
    Request: _answer,
    Answer: _answered,
    Advance: _update,
}
