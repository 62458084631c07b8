"""The entry that is being applied, slice by slice: the loop runs other work in between.

An application applies an entry at once, or returns an iterator of which each step does a bounded
piece (application.py). `Applying` keeps that iterator over turns of the loop, for the engine of a
core and the follower of a replicant alike. While it is `busy` the state belongs to no index: it
holds a part of the entry. So what reads the whole state (a snapshot, a digest, a promotion) begins
between two entries, by `between`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, Protocol

__all__ = ["Applying"]

_ENDED: Final = object()


class _Clock(Protocol):
    def monotonic(self) -> float: ...

    def future(self) -> asyncio.Future[None]: ...


class Applying:
    """At most one entry, and what waits for its end."""

    def __init__(self, runtime: _Clock) -> None:
        self._runtime = runtime
        self._rest: Iterator[None] | None = None
        self._begun = False
        self._waiting: list[Callable[[], None]] = []

    @property
    def busy(self) -> bool:
        """Whether an entry is applied in part."""
        return self._rest is not None

    def begin(self, rest: Iterator[None] | None) -> None:
        """An entry was begun. `rest`: its further slices, None if there are none."""
        assert self._rest is None
        self._rest, self._begun = rest, True

    def run(self, until: float) -> bool:
        """Apply slices until the entry has ended (then True) or the time is over.

        Raises what the application raises.
        """
        rest = self._rest
        if rest is None:
            return True
        begun, self._begun = self._begun, False
        if begun and self._runtime.monotonic() >= until:
            return False  # the first slice has taken all of this turn's time
        while next(rest, _ENDED) is not _ENDED:
            if self._runtime.monotonic() >= until:
                return False
        self._rest = None
        return True

    def between(self, action: Callable[[], None]) -> None:
        """Call `action` between two entries: now, or as soon as the one under way has ended.

        It is also called when the node stops in the middle of one: it has to look.
        """
        if self._rest is None:
            action()
        else:
            self._waiting.append(action)

    async def idle(self) -> None:
        """Return between two entries, or when the node stops; await nothing before using that."""
        while self._rest is not None:
            entry_ended = self._runtime.future()
            self._waiting.append(partial(_resolve, entry_ended))
            await entry_ended

    def ended(self) -> bool:
        """The applied index has moved to the end of an entry: run what has waited for that.

        True if anything has: then no further entry may be begun in this turn, so that tasks which
        wait get their turn before it.
        """
        waiting, self._waiting = self._waiting, []
        for action in waiting:
            action()
        return bool(waiting)

    def drop(self) -> None:
        """The state is replaced, or given up, or the node stops: the rest is not applied."""
        self._rest = None
        self.ended()


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
