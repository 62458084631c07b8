"""How it is asked: one kept connection to a door, and streams of watches.

Small on purpose and of the standard library: the clients whose work is compared here must not
smooth anything over.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import urllib.parse
from typing import Any, Final

import msgspec

from bench.differential.words import Granted, Rev, Step

__all__ = ["Answer", "Door", "Stream"]

TIMEOUT_S: Final = 10.0
# An id that no server has given.
UNKNOWN_LEASE: Final = 99


class Answer(msgspec.Struct, frozen=True):
    """What came back: `document` is the decoded JSON, or the text if it is none."""

    status: int
    kind: str
    document: Any


class Door:
    """One side. `base` is the revision at the start of the example, `granted` the ids it chose."""

    def __init__(self, name: str, endpoint: str) -> None:
        self.name = name
        self.base = 0
        self.granted: list[int] = []
        self._address = urllib.parse.urlsplit(endpoint).netloc
        self._connection = http.client.HTTPConnection(self._address, timeout=TIMEOUT_S)

    def send(self, step: Step) -> None:
        """Send a request; `answer` must follow."""
        data = self.encoded(step.body)
        headers = {"content-type": "application/json"}
        try:
            self._connection.request(step.method, step.path, data, headers)
        except (ConnectionError, http.client.CannotSendRequest):
            # An idle connection was closed: nothing of the request was taken.
            self._connection.close()
            self._connection.request(step.method, step.path, data, headers)

    def answer(self) -> Answer:
        """The answer to the request that was sent."""
        response = self._connection.getresponse()
        data = response.read()
        kind = (response.getheader("content-type") or "").partition(";")[0]
        return Answer(response.status, kind, _decoded(data))

    def ask(self, path: str, document: Any) -> Any:
        """A request that must succeed."""
        self.send(Step(path, document))
        answer = self.answer()
        if answer.status != 200:
            raise AssertionError(f"{self.name} answered {answer} to {path} {document}")
        return answer.document

    def watch(self, create: dict[str, Any]) -> Stream:
        return Stream(self._address, self.encoded({"create_request": create}))

    def encoded(self, document: Any) -> bytes:
        """The bytes of a body; marks become what they mean on this side."""
        if isinstance(document, bytes):
            return document
        return json.dumps(self._resolved(document)).encode()

    def _resolved(self, found: Any) -> Any:
        match found:
            case bytes():
                return base64.b64encode(found).decode()
            case Rev():
                return str(self.base + found.after)
            case Granted():
                known = found.number < len(self.granted)
                return str(self.granted[found.number] if known else UNKNOWN_LEASE)
            case dict():
                return {key: self._resolved(value) for key, value in found.items()}
            case list():
                return [self._resolved(each) for each in found]
            case _:
                return found

    def close(self) -> None:
        self._connection.close()


class Stream:
    """The answers to one watch request, one JSON document a line; `messages` are those read."""

    def __init__(self, address: str, request: bytes) -> None:
        self.messages: list[Any] = []
        self._connection = http.client.HTTPConnection(address, timeout=TIMEOUT_S)
        self._connection.request("POST", "/v3/watch", request, {"content-type": "application/json"})
        self._response: http.client.HTTPResponse | None = None

    def head(self) -> Answer | None:
        """The answer if it is not a stream, else None."""
        response = self._response = self._connection.getresponse()
        if response.status == 200:
            return None
        kind = (response.getheader("content-type") or "").partition(";")[0]
        return Answer(response.status, kind, _decoded(response.read()))

    def next(self, timeout_s: float) -> Any:
        """The next message; None if none came in time, or the stream has ended."""
        assert self._response is not None
        if self._connection.sock is not None:
            self._connection.sock.settimeout(timeout_s)
        try:
            line = self._response.readline()
        except (TimeoutError, OSError, ValueError, http.client.HTTPException):
            return None
        return _decoded(line) if line else None

    def close(self) -> None:
        with contextlib.suppress(OSError):
            if self._response is not None:
                self._response.close()
            self._connection.close()


def _decoded(data: bytes) -> Any:
    """A document; several of them, a line each; or text."""
    try:
        return json.loads(data)
    except ValueError:
        pass  # more than one, or none: see below
    try:
        return [json.loads(line) for line in data.splitlines() if line]
    except ValueError:
        return data.decode("utf-8", "replace")
