"""A stream of lines from a plugin's route: `client.stream`.

Rules of this file
1. A stream is of one node. When it ends it is not begun anew elsewhere: only who reads it knows
   from where to go on (for the keyspace there is `kv.watch`, which does).
2. Lines are taken from the socket when the reader asks for the next one. A reader that rests stops
   the node, through TCP.
3. An end that the node gave and one that came over it are two things: `StopAsyncIteration`, and
   PeerUnreachable.
"""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Self

from raftkv.errors import PeerUnreachable

from .http import Broken, Ended, LineStream

if TYPE_CHECKING:
    from .client import DoorAnswer

__all__ = ["ClientStream"]


class ClientStream:
    """An async iterator of lines, without their ends, and a context manager that closes it.

    `answer`: what the node said instead of lines, a refusal or a body; None: the lines follow.
    `endpoint`: which node it is. For one reader; `anext` may be cancelled, and loses no line then.
    """

    def __init__(self, endpoint: str, lines: LineStream, answer: DoorAnswer | None) -> None:
        self.endpoint = endpoint
        self.answer = answer
        self._lines = lines
        self._closed = False

    def close(self) -> None:
        """Hang up; whoever iterates comes to the end. Idempotent."""
        self._closed = True
        self._lines.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        """Raises PeerUnreachable when the connection broke, and for a line that is too long."""
        try:
            return await self._lines.next()
        except Ended:
            raise StopAsyncIteration from None
        except Broken as error:
            if self._closed or self.answer is not None:
                raise StopAsyncIteration from None
            raise PeerUnreachable(f"{self.endpoint}: the stream broke: {error}") from None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
