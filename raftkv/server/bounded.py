"""uvicorn's HTTP protocol with a bound on the size of a request's head.

The parser behind it collects header lines without any limit, so that one connection that never
ends its headers would fill the memory of the node. Everything that arrives while no request is
being answered belongs to a head (or to the end of a body that was refused), so it is enough to
count those bytes.
"""

from __future__ import annotations

from typing import Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

__all__ = ["HEAD_BYTES_MAX", "BoundedHttp"]

# Request line and headers of one request. Apache and nginx allow 8 KiB a line; Node.js 16 KiB in
# all; this leaves room for a proxy's additions. One read of the loop may exceed it once.
HEAD_BYTES_MAX: Final = 64 * 1024

_REFUSAL: Final = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"content-length: 0\r\nconnection: close\r\n\r\n"
)


class BoundedHttp(HttpToolsProtocol):
    """Closes a connection whose request head exceeds `HEAD_BYTES_MAX`."""

    _in_head = True
    _head_bytes = 0

    def data_received(self, data: bytes) -> None:
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES_MAX and not self._head_ends_in(data):
                self.transport.write(_REFUSAL)
                self.transport.close()
                return
        super().data_received(data)

    def _head_ends_in(self, data: bytes) -> bool:
        # A head and the first part of a large body may arrive in one read.
        return b"\r\n\r\n" in data[: HEAD_BYTES_MAX + 4]

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._head_bytes = 0
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_head = True
        super().on_message_complete()
