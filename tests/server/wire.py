"""HTTP by hand: what a test sends in its own pieces, and reads as it comes."""

from __future__ import annotations

import json
import socket
from types import TracebackType
from typing import Any, Self

TIMEOUT_S = 10.0


def post(path: str, body: bytes, *lines: str) -> bytes:
    """A whole request as a plain client writes it."""
    extra = "".join(f"{line}\r\n" for line in lines)
    head = f"POST {path} HTTP/1.1\r\nhost: [::1]\r\ncontent-length: {len(body)}\r\n{extra}\r\n"
    return head.encode() + body


class Wire:
    """One connection. `response` reads one response, `lines` those of a stream."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._file = self._socket.makefile("rb")

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def response(self) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of a response with an announced length."""
        status, headers = self.head()
        return status, headers, self._file.read(int(headers.get("content-length", 0)))

    def head(self) -> tuple[int, dict[str, str]]:
        line = self._file.readline()
        if not line:
            raise ConnectionError("the connection was closed")
        status = int(line.split()[1])
        headers = {}
        while (line := self._file.readline().strip()) != b"":
            name, _, value = line.decode().partition(":")
            headers[name.lower()] = value.strip()
        return status, headers

    def closed(self) -> bool:
        """Whether the other side has closed; waits for it."""
        try:
            return self._file.read(1) == b""
        except ConnectionError:
            return True

    def shut_writing(self) -> None:
        """Send no more, and read on."""
        self._socket.shutdown(socket.SHUT_WR)

    def shut_reading(self) -> None:
        """Take nothing any more, as far as the other side can tell."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)

    # Streams

    def open_stream(self, path: str, *objects: Any) -> None:
        """Begin a POST whose body goes on."""
        head = f"POST {path} HTTP/1.1\r\nhost: [::1]\r\ntransfer-encoding: chunked\r\n\r\n"
        self.send(head.encode())
        self.say(*objects)

    def say(self, *objects: Any) -> None:
        """Send further requests of the stream."""
        data = b"".join(
            each if isinstance(each, bytes) else json.dumps(each).encode() for each in objects
        )
        if data:
            self.send(b"%x\r\n%b\r\n" % (len(data), data))

    def end_body(self) -> None:
        self.send(b"0\r\n\r\n")

    def line(self) -> Any:
        """The next line of the stream, decoded; None at its end."""
        size = int(self._file.readline(), 16)
        data = self._file.read(size + 2)[:-2]
        if not size:
            return None
        assert data.endswith(b"\n"), "one line, one chunk"
        return json.loads(data)

    def result(self) -> Any:
        """The next line's result."""
        line = self.line()
        assert line is not None, "the stream has ended"
        return line["result"]

    def close(self) -> None:
        self._file.close()
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
