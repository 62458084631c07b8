"""Linearizable reads on any node: ask the leader for a read index, wait until it is applied here.

All readers that come while a question is on its way share the next one. A question is repeated
after a change of leader or a silence, because reading changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from .config import RaftTimes
from .errors import ReadTimeout, Stopped
from .runtime import Runtime, Timer

__all__ = ["Reader"]

# An unanswered question is asked again this soon. A round takes well below a millisecond on
# loopback, a slow fsync of a follower some tens.
ASK_AGAIN_S = 0.1


class Reader:
    """The linearizable reads of one node. `ask(number)` sends a question towards the leader."""

    def __init__(self, runtime: Runtime, times: RaftTimes, ask: Callable[[int], bool]) -> None:
        self._runtime = runtime
        self._ask = ask
        self._number = 0
        self._first_number = 0
        self._asking: list[asyncio.Future[None]] = []
        self._waiting: list[asyncio.Future[None]] = []
        # Confirmed, but this node has not applied the index yet.
        self._behind: list[tuple[int, list[asyncio.Future[None]]]] = []
        self._applied = 0
        self._timer: Timer | None = None
        self._scheduled = False
        self._stopped = False

    async def barrier(self, timeout_s: float) -> None:
        """Return once this node's state holds everything committed before the call."""
        if self._stopped:
            raise Stopped("this node has stopped")
        future: asyncio.Future[None] = self._runtime.future()
        self._waiting.append(future)
        if not self._asking and not self._scheduled:
            # A turn later, so that everybody who reads in this turn shares the question.
            self._scheduled = True
            self._runtime.call_soon(self._next)
        timer = self._runtime.call_later(timeout_s, _time_out, future)
        try:
            await future
        finally:
            timer.cancel()

    async def reach(self, index: int, timeout_s: float) -> None:
        """Return once this node has applied `index`."""
        if index <= self._applied:
            return
        future: asyncio.Future[None] = self._runtime.future()
        self._behind.append((index, [future]))
        timer = self._runtime.call_later(timeout_s, _time_out, future)
        try:
            await future
        finally:
            timer.cancel()

    def _next(self) -> None:
        self._scheduled = False
        self._waiting = [future for future in self._waiting if not future.done()]
        if self._asking or not self._waiting or self._stopped:
            return
        self._asking, self._waiting = self._waiting, []
        self._number += 1
        self._first_number = self._number
        self._send()

    def _send(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._runtime.call_later(ASK_AGAIN_S, self._again)
        self._ask(self._number)

    def _again(self) -> None:
        """No answer: ask anew, for those who still wait."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._stopped:
            return
        self._asking = [future for future in self._asking if not future.done()]
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

    def stop(self) -> None:
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        behind = [future for _, readers in self._behind for future in readers]
        for future in [*self._asking, *self._waiting, *behind]:
            if not future.done():
                future.set_exception(Stopped("this node stops"))


def _resolve(readers: list[asyncio.Future[None]]) -> None:
    for future in readers:
        if not future.done():
            future.set_result(None)


def _time_out(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_exception(
            ReadTimeout(
                "the read was not confirmed by a majority in time. Retry; if it lasts, the "
                "cluster has lost its quorum"
            )
        )
