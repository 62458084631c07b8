"""How many bytes of answers a node holds: being written, or not yet taken by their clients.

The limit is one for all connections, `http.answer_bytes_max`: each of thousands could hold a large
answer and take none of it.

Rules of this file
1. Beyond the limit no request is begun (429, as beyond `requests_max`), and a read whose answer
   does not fit any more is refused, for it has changed nothing. The answer of a write is always
   given, and counts while it is written: so the limit may be exceeded by those of the writes under
   way, each bounded by `result_bytes_max`, and then nothing else is begun. No room is reserved for
   them: at their bound, 170 small ones at once would use up the limit.
2. A stream waits until there is room before it takes its next line from its watch. What waits there
   is bounded by the watch; one that is too late ends as slow, with the revision to go on from.
   A line that was taken counts while it waits for its connection.
   Keep-alives do not wait: their answers are small, and the client's leases would expire.
3. Rows that are read to be sorted count from their reading on, by estimate.
4. One answer alone is never too large for it: `large_answer.ANSWER_BYTES_MAX` bounds that.

What a connection has not sent is looked at after each write, when it has sent most of it, and once
a second. In between it may count as more than it is.
"""

from __future__ import annotations

import asyncio
from collections import deque

from .answers import Busy

__all__ = ["Outgoing"]


class Outgoing:
    """The answers of one HTTP API."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        #: Bytes of answers that are held now.
        self.bytes = 0
        #: Requests that were refused.
        self.refused = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    def require_room(self, size: int = 0) -> None:
        """Raise Busy unless an answer of this size may be added."""
        if self.bytes and self.bytes + size >= self._bytes_max:
            self.refused += 1
            raise Busy(
                f"{self.bytes} bytes of answers are under way (http.answer_bytes_max = "
                f"{self._bytes_max}): try again later"
            )

    def moved(self, size: int) -> None:
        """So many bytes more are held, or less."""
        self.bytes += size
        if size < 0:
            self._wake()

    async def room(self) -> None:
        """Return when there is room for a line of a stream."""
        loop = asyncio.get_running_loop()
        add = self._waiting.append
        while self.bytes >= self._bytes_max:
            waiter = loop.create_future()
            add(waiter)
            add = self._waiting.appendleft  # it has been the first one
            try:
                await waiter
            finally:
                if waiter in self._waiting:
                    self._waiting.remove(waiter)
                # Behind what this one writes now, or at once if it was cancelled.
                loop.call_soon(self._wake)

    def _wake(self) -> None:
        """One after the other, so that each sees what the one before it has written."""
        while self._waiting and self.bytes < self._bytes_max:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
