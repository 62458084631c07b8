"""Linearizable reads on any node: ask the leader for a read index, wait until it is applied here.

All readers that come while a question is on its way share the next one. A question is repeated
after a change of leader or a silence, because reading changes nothing.

One reader costs one future and no timer: a hundred thousand reads a second pass here, and a timer
for each, set and cancelled, was half of the time spent in this module (deadlines.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from .config import RaftTimes
from .deadlines import Deadlines, require_seconds
from .errors import RaftkvError, ReadTimeout, Stopped, cut_off
from .histogram import Histogram
from .runtime import Runtime, Timer

__all__ = ["Reader", "discarded"]

# An unanswered question is asked again this soon. A round takes well below a millisecond on
# loopback, a slow fsync of a follower some tens.
ASK_AGAIN_S = 0.1

# Readers that may have timed out before those that wait are searched for them, besides as many as
# were found waiting by the last search.
LAPSED_KEPT = 256

_Waiter = asyncio.Future[None]


class Reader:
    """The linearizable reads of one node. `ask(number)` sends a question towards the leader."""

    def __init__(self, runtime: Runtime, times: RaftTimes, ask: Callable[[int], bool]) -> None:
        self._runtime = runtime
        self._ask = ask
        self._number = 0
        self._first_number = 0
        self._asking: list[_Waiter] = []
        self._waiting: list[_Waiter] = []
        # Confirmed, but this node has not applied the index yet.
        self._behind: list[tuple[int, list[_Waiter]]] = []
        self._applied = 0
        self._timer: Timer | None = None
        self._deadlines: Deadlines[_Waiter] = Deadlines(runtime, _is_over, self._expire)
        # Timed out since `_behind` was searched for such readers.
        self._lapsed = 0
        self._search_at = LAPSED_KEPT
        # So many in `_waiting`, and those that are over are dropped.
        self._prune_at = LAPSED_KEPT
        self._scheduled = False
        self._stopped = False
        self._asked_at = 0.0
        # Readers whose question was sent, questions (the repeated ones too), readers given up, and
        # how long a question took until the leader confirmed it.
        self.reads = 0
        self.questions = 0
        self.timeouts = 0
        self.latency_s = Histogram()
        # Set by the node: why it does not take part; empty if nothing is known to hinder it.
        self.hindrance: Callable[[], str] = lambda: ""

    def __len__(self) -> int:
        """Readers that wait."""
        return len(_unanswered(self._everybody()))

    def barrier(self, timeout_s: float) -> asyncio.Future[None]:
        """Done once this node's state holds everything committed before the call.

        The future ends with ReadTimeout at its deadline; a reader may cancel it. Raises Stopped.
        """
        if self._stopped:
            raise Stopped("this node has stopped")
        waiter = self._waiter(timeout_s)
        if len(self._waiting) >= self._prune_at:
            # While one question stays unanswered, readers may come and go behind it.
            self._waiting = _unanswered(self._waiting)
            self._prune_at = 2 * len(self._waiting) + LAPSED_KEPT
        self._waiting.append(waiter)
        if not self._asking and not self._scheduled:
            # A turn later, so that everybody who reads in this turn shares the question.
            self._scheduled = True
            self._runtime.call_soon(self._next)
        return waiter

    async def reach(self, index: int, timeout_s: float) -> None:
        """Return once this node has applied `index`."""
        if index <= self._applied:
            return
        waiter = self._waiter(timeout_s)
        self._behind.append((index, [waiter]))
        await waiter

    def _waiter(self, timeout_s: float) -> _Waiter:
        require_seconds(timeout_s)
        waiter = self._runtime.future()
        self._deadlines.add(self._runtime.monotonic() + timeout_s, waiter)
        return waiter

    def _next(self) -> None:
        self._scheduled = False
        self._waiting = _unanswered(self._waiting)
        if self._asking or not self._waiting or self._stopped:
            return
        self._asking, self._waiting = self._waiting, []
        self.reads += len(self._asking)
        self._asked_at = self._runtime.monotonic()
        self._number += 1
        self._first_number = self._number
        self._send()

    def _send(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._runtime.call_later(ASK_AGAIN_S, self._again)
        self.questions += 1
        self._ask(self._number)

    def _again(self) -> None:
        """No answer: ask anew, for those who still wait."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._stopped:
            return
        self._asking = _unanswered(self._asking)
        if not self._asking:
            self._next()
            return
        # The first answer to any of these numbers will do, for all asked for the same readers. One
        # to an earlier number may be of a leader that was deposed before one of them came.
        self._number += 1
        self._send()

    def office_changed(self) -> None:
        if self._asking and not self._stopped:
            self._again()

    def answered(self, number: int, index: int) -> None:
        """The leader confirmed `index` for question `number`; 0: it could not."""
        if not self._first_number <= number <= self._number or not self._asking or index == 0:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        readers, self._asking = self._asking, []
        self.latency_s.observe(self._runtime.monotonic() - self._asked_at, len(readers))
        if index <= self._applied:
            _resolve(readers)
        else:
            self._behind.append((index, readers))
        self._next()

    def applied(self, index: int) -> None:
        """This node has applied everything up to `index`."""
        self._applied = index
        if self._behind:
            ready = [readers for wanted, readers in self._behind if wanted <= index]
            self._behind = [item for item in self._behind if item[0] > index]
            for readers in ready:
                _resolve(readers)

    # -- deadlines

    def _expire(self, due: list[_Waiter], now: float) -> None:
        """Answer the readers whose deadline has passed."""
        self.timeouts += len(due)
        for waiter in due:
            waiter.set_exception(_timed_out(self.hindrance()))
        # Those that wait behind an index that is not applied are looked at nowhere else.
        self._lapsed += len(due)
        if self._lapsed >= self._search_at:
            self._behind = [(index, _unanswered(readers)) for index, readers in self._behind]
            self._behind = [item for item in self._behind if item[1]]
            self._lapsed = 0
            self._search_at = LAPSED_KEPT + len(self)

    def _everybody(self) -> list[_Waiter]:
        behind = [waiter for _, readers in self._behind for waiter in readers]
        return [*self._asking, *self._waiting, *behind]

    def stop(self, fault: RaftkvError | None = None) -> None:
        """Answer what waits: with `fault` if the node has stopped itself, else `Stopped`."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        self._deadlines.stop()
        for future in self._everybody():
            if not future.done():
                future.set_exception(cut_off(fault))


def discarded() -> ReadTimeout:
    """What a read ends with whose state a replicant has discarded, to copy it again."""
    return ReadTimeout("this node's state was discarded while it was read: ask again")


def _is_over(waiter: _Waiter) -> bool:
    return waiter.done()


def _unanswered(readers: Iterable[_Waiter]) -> list[_Waiter]:
    return [waiter for waiter in readers if not waiter.done()]


def _resolve(readers: Iterable[_Waiter]) -> None:
    for future in readers:
        if not future.done():
            future.set_result(None)


def _timed_out(hindrance: str) -> ReadTimeout:
    if hindrance:
        return ReadTimeout(f"the read was not confirmed in time, because {hindrance}")
    return ReadTimeout(
        "the read was not confirmed by a majority in time. Retry; if it lasts, the "
        "cluster has lost its quorum"
    )
