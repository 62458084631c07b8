"""Topics whose messages find no room in this region: a link goes on without them, for a while.

To leave one out, or to try it again, takes a new stream. So that many of them do not take as many,
they are tried together: the times are of a grid, as wide as the pause.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

__all__ = ["PAUSE_FIRST_S", "PAUSE_MAX_S", "Pause", "Pauses"]

# A paused topic is tried again after about the first, and then ever more rarely.
PAUSE_FIRST_S: Final = 1.0
PAUSE_MAX_S: Final = 30.0


class Pause(Exception):
    """This topic finds no room, or what comes of it is refused."""

    def __init__(self, topic: str, why: str) -> None:
        super().__init__(why)
        self.topic = topic


class _Paused(msgspec.Struct):
    until: float
    delay_s: float
    why: str


class Pauses:
    """Those of one link. Times are of `runtime.monotonic`."""

    def __init__(self) -> None:
        self._rows: dict[str, _Paused] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """The topics, sorted."""
        return tuple(sorted(self._rows))

    @property
    def why(self) -> str:
        """What is said of the first of them; "": there is none."""
        if not self._rows:
            return ""
        topic = min(self._rows)
        return f"the messages of {topic!r} wait: {self._rows[topic].why}"

    def add(self, error: Pause, now: float) -> None:
        """It was refused, perhaps again."""
        before = self._rows.get(error.topic)
        delay_s = PAUSE_FIRST_S if before is None else min(2 * before.delay_s, PAUSE_MAX_S)
        until = math.ceil(now / delay_s + 0.5) * delay_s
        self._rows[error.topic] = _Paused(until, delay_s, str(error)[:400])

    def remove(self, topic: str) -> None:
        """Its messages were taken, or there are none."""
        self._rows.pop(topic, None)

    def waiting(self, now: float) -> tuple[str, ...]:
        """Those that are not to be tried yet."""
        return tuple(name for name in sorted(self._rows) if not self.is_due(name, now))

    def is_due(self, name: str, now: float) -> bool:
        """Whether it is to be tried (again). Whether there is room the log knows."""
        row = self._rows.get(name)
        return row is None or now >= row.until
