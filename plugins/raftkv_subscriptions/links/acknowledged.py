"""What a stream says of the replicated subscriptions of its region (vector mode), at the source.

Theory. A subscription's acknowledged set only grows, as far as others are concerned, and to unite
it twice is the same as once. So a stream remembers what it has said of each subscription, and says
what is new; a new stream begins with everything, which mends whatever was lost.

Rules of this file
1. The first change after a rest is said at once; then a subscription rests for `pace_s`, and longer
   if its set has many ranges, for reading them is work (RANGE_S).
2. Memory is bounded: beyond REMEMBERED_MAX ranges those of the subscription that was least recently
   said are forgotten. Its next change says everything again.
3. At the beginning one topic's subscriptions are walked at a time, not all at once.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from typing import Final

from raftkv.plugin import View
from raftkv_subscriptions.rows import Ranges, Sub, Topic
from raftkv_subscriptions.views import state_of

from .frames import STATE_RANGES, StateFrame
from .spans import chunks, joined, minus

__all__ = ["REMEMBERED_MAX", "States"]

#: Ranges that one stream remembers, about 200 bytes each.
REMEMBERED_MAX: Final = 100_000
# Reading a range costs about a microsecond; so this is a twentieth of the time.
RANGE_S: Final = 0.000_02

# Of one `take`: subscriptions, and ranges, roughly.
TAKE_SUBS: Final = 200
TAKE_RANGES: Final = 20_000

# Topic id and name of the subscription.
Key = tuple[int, str]


class States:
    """Of one stream. Times are of `runtime.monotonic`."""

    def __init__(self, pace_s: float, remembered_max: int = REMEMBERED_MAX) -> None:
        self._pace_s = pace_s
        self._remembered_max = remembered_max
        self._topics: deque[int] = deque()
        self._ready: dict[Key, None] = {}
        self._waiting: set[Key] = set()
        self._due: list[tuple[float, Key]] = []
        #: What was said, of which subscription (by id), and until when it rests.
        self._said: dict[Key, tuple[int, Ranges]] = {}
        self._rests: dict[Key, float] = {}
        self._remembered = 0

    def walk(self, topic_id: int) -> None:
        """Say everything of this topic, in its turn."""
        self._topics.append(topic_id)

    def touch(self, key: Key, now: float) -> None:
        """This subscription has changed."""
        if key in self._ready or key in self._waiting:
            return
        until = self._rests.get(key, 0.0)
        if until <= now:
            self._ready[key] = None
        else:
            self._waiting.add(key)
            heappush(self._due, (until, key))

    def next_due(self) -> float | None:
        """When there is something to say; 0: now; None: nothing."""
        if self._ready or self._topics:
            return 0.0
        return self._due[0][0] if self._due else None

    def take(self, view: View, now: float) -> list[tuple[str, tuple[StateFrame, ...]]]:
        """Some of what is due: topics with frames. What is left is due at once."""
        while self._due and self._due[0][0] <= now:
            _, key = heappop(self._due)
            self._waiting.discard(key)
            self._ready[key] = None
        if self._topics and not self._ready:
            id = self._topics.popleft()
            for (_, name), _ in view.table("subs").scan((id, ""), (id + 1, "")):
                self._ready[id, name] = None
        found: list[tuple[str, tuple[StateFrame, ...]]] = []
        ranges = 0
        for looked, key in enumerate(list(self._ready)):
            if looked >= TAKE_SUBS or ranges >= TAKE_RANGES:
                break
            del self._ready[key]
            topic, frames = self._look(view, key, now)
            if frames:
                ranges += sum(len(frame.ranges) for frame in frames)
                found.append((topic, frames))
        return found

    def _look(self, view: View, key: Key, now: float) -> tuple[str, tuple[StateFrame, ...]]:
        topic: str | None = view.table("names").get(key[0])
        row: Topic | None = None if topic is None else view.table("topics").get(topic)
        sub: Sub | None = view.table("subs").get(key)
        if topic is None or row is None or sub is None or not (row.replicated and sub.replicate):
            self._forget(key)
            return "", ()
        return topic, self._frames(view, topic, key, sub, now)

    def _frames(
        self, view: View, topic: str, key: Key, sub: Sub, now: float
    ) -> tuple[StateFrame, ...]:
        state = state_of(view, topic, key[1])
        self._rests[key] = now + self._pace_s + RANGE_S * len(state.ranges)
        said = self._said.get(key)
        before: Ranges | None = None if said is None or said[0] != sub.id else said[1]
        new = state.ranges if before is None else minus(state.ranges, before)
        if before is not None and not new:
            return ()
        self._forget(key, keep_rest=True)
        self._said[key] = (sub.id, joined(before or (), new))
        self._remembered += len(self._said[key][1])
        while self._remembered > self._remembered_max and len(self._said) > 1:
            self._forget(next(iter(self._said)))
        return tuple(
            StateFrame(topic, key[1], sub.kind, state.base, part, before is None)
            for part in chunks(new, STATE_RANGES)
        )

    def _forget(self, key: Key, *, keep_rest: bool = False) -> None:
        said = self._said.pop(key, None)
        if said is not None:
            self._remembered -= len(said[1])
        if not keep_rest:
            self._rests.pop(key, None)
