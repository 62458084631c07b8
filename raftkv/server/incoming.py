"""How many bytes of requests a node holds: received, and not answered yet.

The limit is one for all connections, `http.request_bytes_max`: each of thousands could send most of
a large body and leave it there.

Rules of this file
1. A body counts from its first byte until its request is answered, for what is made of it too, also
   while it lies unread in its connection; so do the requests of a stream until they are carried
   out, and what a connection has received behind a request under way.
2. The first SMALL_BYTES of a body need no room: small requests are taken however many large ones
   are under way. `requests_max` bounds how many.
3. What does not fit is refused (429) and changes nothing. A client that sends more of a large body
   slowly, while others are refused for it, is cut off (bounded.py).
4. One body alone is never too large for it: the limits of a body bound that.
"""

from __future__ import annotations

from typing import Final

from .answers import Busy

__all__ = ["SMALL_BYTES", "Incoming", "Received"]

#: Of one request: the usual sizes of keys and values, in base64.
SMALL_BYTES: Final = 64 * 1024


class Incoming:
    """The requests of one HTTP API."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        #: Bytes of requests that are held now.
        self.bytes = 0
        #: Requests that were refused.
        self.refused = 0

    def receive(self, size: int, held: int = 0) -> None:
        """Count bytes of a request that holds `held` already. Raises Busy if they do not fit."""
        if held + size > SMALL_BYTES and self.bytes > held and self.bytes + size > self._bytes_max:
            self.refused += 1
            raise Busy(
                f"{self.bytes} bytes of requests are under way (http.request_bytes_max = "
                f"{self._bytes_max}): try again later"
            )
        self.bytes += size

    def moved(self, size: int) -> None:
        """Count bytes that are held anyway, or, below 0, that are held no longer."""
        self.bytes += size


class Received:
    """The bytes of one request. Use it as a context: at its end they are held no longer."""

    def __init__(self, incoming: Incoming) -> None:
        self._incoming = incoming
        self.bytes = 0

    def __enter__(self) -> Received:
        return self

    def __exit__(self, *_: object) -> None:
        self.set(0)

    def add(self, size: int) -> None:
        """Count bytes that have come. Raises Busy as `Incoming.receive`."""
        self._incoming.receive(size, self.bytes)
        self.bytes += size

    def set(self, size: int) -> None:
        """Count that many bytes from now on, which are held anyway."""
        self._incoming.moved(size - self.bytes)
        self.bytes = size
