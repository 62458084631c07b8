"""One topic of one stream, at the source: what the target lacks, in the order of positions.

Theory. `known` is what the target has of each origin, as if all that was said had arrived: it began
with what the target asked from, and every message moves it on by one. A message whose number is not
the next one stands behind something that is not here any more: a `Hole` is said first. At the end,
what `known` lacks of the region's vector is not here either: the last ones may be missing, too. So
what is said of an origin has no gap, whatever was trimmed, compacted away, or never came here.

What the target claims to have when the stream begins counts only as far as an earlier report. The
rest was sent by another node, whose streams are not known here, or passed on by another region, or
is not true; so it is sent again (`again`), beside what is new, and then it counts. A target that
has it passes it over.

Rules of this file: nothing waits here, and nothing is kept of the tables but numbers. One call
looks at SCAN_ROWS rows at most: a topic full of messages that nobody wants must not hold the loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from raftkv.plugin import View
from raftkv_subscriptions.mapping import as_vector, position_of, vector_of_rows
from raftkv_subscriptions.markers import markers_after
from raftkv_subscriptions.rows import (
    ORIGINS_MAX,
    Advance,
    Answer,
    Copy,
    Hole,
    Request,
    Topic,
    Vector,
    size_of,
)
from raftkv_subscriptions.views import vector_before_first

from .frames import FRAME_BYTES, FRAME_PARTS, MarkerFrame, MessagesFrame, TopicFrame

__all__ = ["SCAN_ROWS", "TopicFeed", "wanted_by"]

# Rows that one call looks at: about a millisecond.
SCAN_ROWS: Final = 1_000
# One message may come with a hole before it, and each origin with one at the end.
PARTS_MAX: Final = FRAME_PARTS - ORIGINS_MAX - 2

Parts = tuple[Copy | Hole, ...]


def wanted_by(target: str, want: str, own: str, direct: frozenset[str]) -> Callable[[str], bool]:
    """Whether the target wants messages of an origin from the region `own`."""
    if want == "all":
        return lambda origin: origin != target
    return lambda origin: origin == own or (origin != target and origin not in direct)


class TopicFeed:
    """See the top of the file. `asked`: what the target has; `counted`: what it has reported;
    `markers`: whether it gets them."""

    def __init__(
        self,
        view: View,
        name: str,
        topic: Topic,
        asked: Vector,
        wanted: Callable[[str], bool],
        *,
        own: str,
        target: str,
        markers: bool,
        paused: bool,
        counted: Vector = (),
    ) -> None:
        self.name = name
        self.id = topic.id
        self._wanted = wanted
        self._own = own
        self._target = target
        self._markers = markers
        self._paused = paused
        self._marker = 0
        here = vector_of_rows(view, topic.id)
        ends, said = dict(here), dict(counted)
        # More than is here is not known to be the same: it is sent when it comes.
        self.known = {origin: min(seq, ends.get(origin, 0)) for origin, seq in asked}
        self._owed = {
            origin: seq
            for origin, seq in self.known.items()
            if wanted(origin) and seq > said.get(origin, 0)
        }
        self._sent = {origin: said.get(origin, 0) for origin in self._owed}
        self._again_end = topic.next - 1
        self._again = position_of(view, topic.id, as_vector(self._sent), list(self._owed))
        self._limits: dict[str, int] = {}
        self.was_taken()
        self.at = position_of(view, topic.id, asked, [o for o, _ in here if wanted(o)])
        if topic.kept and not self._has(vector_before_first(view, topic)):
            # What compaction has left stands below the first position, and is not trimmed.
            self.at = 0
        self.head = TopicFrame(
            name,
            here,
            topic.compacted,
            topic.retention_ms,
            topic.retention_bytes,
            topic.backlog_bytes_max,
        )

    def was_taken(self) -> None:
        """All frames that were made have been sent: the target may have what is in them."""
        self._limits = {**self.known, **{origin: self._sent[origin] for origin in self._owed}}

    def counted_of(self, told: Vector, here: Vector) -> Vector:
        """What counts of a report: of the origins that this feed carries what it has sent.

        The target has other origins from elsewhere, so of them all that is `here` counts. Its own
        messages are its own to tell.
        """
        ends = dict(here)
        counts: dict[str, int] = {}
        for origin, seq in told:
            if origin == self._target:
                counts[origin] = seq
            else:
                limits = self._limits if self._wanted(origin) else ends
                counts[origin] = min(seq, limits.get(origin, 0))
        return as_vector(counts)

    def _has(self, vector: Vector) -> bool:
        """Whether the target has all of this that it wants."""
        return all(
            self.known.get(origin, 0) >= seq for origin, seq in vector if self._wanted(origin)
        )

    def messages(self, view: View, topic: Topic) -> tuple[MessagesFrame | None, bool]:
        """The next frame, if there is something to say; and whether there is more to be read."""
        if self._paused:
            return None, False
        parts: list[Copy | Hole] = []
        more = self._read(view, topic, parts)
        if not more:
            self.at = topic.next - 1
            for origin, seq in vector_of_rows(view, self.id):
                if self._wanted(origin) and seq > self.known.get(origin, 0):
                    self._gap(parts, origin, seq)
        return (MessagesFrame(self.name, tuple(parts)) if parts else None), more

    def again(self, view: View) -> tuple[MessagesFrame | None, bool]:
        """The next frame of what the target said it had; and whether there is more of it."""
        if not self._owed:
            return None, False
        parts: list[Copy | Hole] = []
        more = self._read_again(view, parts)
        if not more:
            self._owed.clear()
        return (MessagesFrame(self.name, tuple(parts)) if parts else None), more

    def _read_again(self, view: View, parts: list[Copy | Hole]) -> bool:
        size, sent, owed = 0, self._sent, self._owed
        rows = view.table("messages").scan(
            (self.id, self._again + 1), (self.id, self._again_end + 1)
        )
        for looked, (key, stored) in enumerate(rows):
            if looked == SCAN_ROWS:
                return True
            origin, seq = stored.origin, stored.seq
            if sent.get(origin, seq) < seq <= owed[origin]:
                size += size_of(stored.message)
                if parts and (size > FRAME_BYTES or len(parts) >= PARTS_MAX):
                    return True
                parts.append(Copy(origin, seq, stored.message, stored.published_ms))
                sent[origin] = seq
            self._again = key[1]
        return False

    def _read(self, view: View, topic: Topic, parts: list[Copy | Hole]) -> bool:
        """Take messages into `parts`; whether the frame was full before the end was reached."""
        size = 0
        known, wanted = self.known, self._wanted
        rows = view.table("messages").scan((self.id, self.at + 1), (self.id, topic.next))
        for looked, (key, stored) in enumerate(rows):
            if looked == SCAN_ROWS:
                return True
            origin, seq = stored.origin, stored.seq
            if seq > known.get(origin, 0) and wanted(origin):
                size += size_of(stored.message)
                if parts and (size > FRAME_BYTES or len(parts) >= PARTS_MAX):
                    return True
                if seq > known.get(origin, 0) + 1:
                    self._gap(parts, origin, seq - 1)
                parts.append(Copy(origin, seq, stored.message, stored.published_ms))
                known[origin] = seq
            self.at = key[1]
        return False

    def _gap(self, parts: list[Copy | Hole], origin: str, last: int) -> None:
        parts.append(Hole(origin, self.known.get(origin, 0) + 1, last))
        self.known[origin] = last

    def markers(self, view: View) -> tuple[MarkerFrame, ...]:
        """The markers whose turn has come, that say something to this target."""
        if not self._markers or self._paused:
            return ()
        found: list[MarkerFrame] = []
        for number, marker in markers_after(view, self.id, self._marker):
            if marker.position > self.at:
                break
            self._marker = number
            if self._concerns(marker.what):
                found.append(MarkerFrame(self.name, marker.what))
        return tuple(found)

    def _concerns(self, what: Request | Answer | Advance) -> bool:
        match what:
            case Request():
                return what.source == self._own
            case Answer():
                return what.source == self._target
            case Advance():
                return any(region == self._target for region, _ in what.positions)
