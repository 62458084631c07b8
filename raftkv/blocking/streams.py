"""A stream of lines without asyncio: an iterator."""

from __future__ import annotations

import contextlib
from types import TracebackType
from typing import Self

from raftkv.client import ClientStream, DoorAnswer
from raftkv.errors import Stopped

from .portal import Portal
from .taking import Taker

__all__ = ["Stream"]


class Stream:
    """An iterator of lines, and a context manager that closes it. Made by `client.stream`.

    One thread iterates; any thread may `close`, which ends the iteration. Raises PeerUnreachable
    when the connection broke.
    """

    def __init__(self, portal: Portal, stream: ClientStream) -> None:
        self._portal = portal
        self._stream = stream
        self._taker = Taker(portal, stream, "a stream")

    @property
    def endpoint(self) -> str:
        """Which node it is."""
        return self._stream.endpoint

    @property
    def answer(self) -> DoorAnswer | None:
        """What the node said instead of lines; None: the lines follow."""
        return self._stream.answer

    def next(self, timeout_s: float | None = None) -> bytes | None:
        """The next line; None at the end. Raises TimeoutError after `timeout_s`, and loses nothing
        by it, nor by Ctrl-C."""
        return self._taker.next(timeout_s)

    def close(self) -> None:
        """Hang up. Idempotent; harmless after its client was closed."""
        with contextlib.suppress(Stopped):
            self._portal.run(self._stream.close)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> bytes:
        line = self.next()
        if line is None:
            raise StopIteration
        return line

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
