"""Short requests to the hot words, answered in the connection itself.

Theory. Between the bytes of a small request and the word that serves it lies, on the usual way, a
parser with a callback per header, an ASGI scope, an event, a task and two messages: more work than
a put or a get themselves. This file leaves that out where nothing of it is needed.

- *A head that was understood once need not be parsed again.* A client writes its heads alike, byte
  by byte. When the parser has accepted a head and found nothing in it but an ordinary POST of a hot
  word, the head is kept with what it said: the word and the length of the body. What a head means
  follows from its bytes alone, so the same bytes at the beginning of a later request mean the same.
  A head is learned only if the parser was at rest before its first byte and had the head, and
  nothing else, complete after its last one.
- *A numbered write is new in three lines only.* Writes under a client session (sessions.py) carry
  a number that is another one each time. These lines stand together, in one form; what is learned
  is the bytes before and behind them, and what they say is read anew each time. Header lines mean
  nothing for one another, so a head with other digits in these lines is one that the parser would
  accept as well. (A line that begins with a blank would continue the one before it. Behind the
  three lines there is none.) A session that this node does not know takes the usual way, where it
  may wait for the log.
- *A coroutine that waits for futures only needs no task.* `_Run` sends it on by itself. A word that
  is hot must therefore await nothing but futures and `sleep(0)`: no time-outs, no task groups,
  which ask for the current task.

Everything else (a request in parts, pipelined ones, other words, a head not seen before, a client
that reads too slowly) takes the usual way, through the same parser, on the same connection. The
parser never sees what was answered here: it rests between two requests, as it would anyway.

One request at a time: what arrives while one is being answered is kept until then.
"""

from __future__ import annotations

import asyncio
import http
import re
from collections.abc import Callable, Coroutine
from typing import Any, Final, NamedTuple

from raftkv.errors import OutcomeUnknown

from .answers import Failure

__all__ = ["Heads", "Known", "Run", "head_of", "response"]

# Different heads of one door's clients: names, versions, lengths of bodies. When they are more all
# are forgotten, which costs each of them one request on the usual way.
HEADS_MAX: Final = 4096
# A head with more in it than a few usual headers is not worth the memory.
HEAD_BYTES_MAX: Final = 512

_ALLOWED: Final = frozenset(
    (b"host", b"accept", b"accept-encoding", b"accept-language", b"content-type", b"user-agent",
     b"content-length", b"connection", b"cache-control", b"pragma")
)  # fmt: skip
# The three lines of a write under a client session, as `raftkv.Client` writes them.
_NUMBERED: Final = re.compile(
    rb"\r\nraftkv-session: ([0-9]{1,20}-[0-9a-f]{1,16})"
    rb"\r\nraftkv-seq: ([0-9]{1,19})"
    rb"\r\nraftkv-floor: ([0-9]{1,19})(?=\r\n[^ \t])",
    re.IGNORECASE,
)
_NAMES: Final = (b"raftkv-session", b"raftkv-seq", b"raftkv-floor")


class Known(NamedTuple):
    """What a head said: the path of its word, how long its body is, whose write it is.

    `numbered` are the headers that name a client session and a number, if it has any.
    """

    path: bytes
    body_bytes: int
    numbered: dict[bytes, bytes] | None = None


class Heads:
    """The heads that a door has understood, shared by its connections."""

    def __init__(self, paths: frozenset[bytes], body_bytes_max: int) -> None:
        self._paths = paths
        self._body_bytes_max = body_bytes_max
        self._known: dict[bytes, Known] = {}
        #: The same for heads of numbered writes: by what stands before and behind the numbers.
        self._around: dict[tuple[bytes, bytes], Known] = {}
        self.get = self._known.get

    def forget(self) -> None:
        """Forget all of them: what they mean may have changed (admission.py)."""
        self._known.clear()
        self._around.clear()

    def numbered(self, head: bytes) -> Known | None:
        """What the head of a write under a client session said, if one like it is known."""
        found = _NUMBERED.search(head)
        if found is None:
            return None
        known = self._around.get((head[: found.start()], head[found.end() :]))
        if known is None:
            return None
        return Known(known.path, known.body_bytes, dict(zip(_NAMES, found.groups(), strict=True)))

    def learn(
        self, head: bytes, method: bytes, path: bytes, headers: list[tuple[bytes, bytes]]
    ) -> None:
        """Keep a head that the parser has accepted as one of HTTP/1.1 that may be kept alive."""
        if method != b"POST" or path not in self._paths or len(head) > HEAD_BYTES_MAX:
            return
        found = _NUMBERED.search(head)
        names = [name for name, _ in headers]
        if found is not None:
            if any(names.count(name) != 1 for name in _NAMES):
                return
            names = [name for name in names if name not in _NAMES]
        if not _ALLOWED.issuperset(names) or names.count(b"content-length") != 1:
            return
        given = dict(headers)
        length = given[b"content-length"]
        if not length.isdigit() or not 0 < int(length) <= self._body_bytes_max:
            return
        if given.get(b"connection", b"keep-alive").lower() != b"keep-alive":
            return
        if len(self._known) + len(self._around) >= HEADS_MAX:
            self.forget()
        known = Known(path, int(length))
        if found is None:
            self._known[head] = known
        else:
            self._around[head[: found.start()], head[found.end() :]] = known


class Run:
    """A word on its way, without a task. `answer(answer, error)` is called once, at its end."""

    __slots__ = ("_answer", "_coroutine", "_loop", "_waits_for")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        coroutine: Coroutine[Any, Any, bytes],
        answer: Callable[[bytes, Exception | None], None],
    ) -> None:
        self._loop = loop
        self._coroutine = coroutine
        self._answer = answer
        self._waits_for: asyncio.Future[Any] | None = None

    def cancel(self) -> None:
        """End it where it waits, as a task is cancelled."""
        if self._waits_for is not None:
            self._waits_for.cancel()

    def step(self, _: object = None) -> None:
        """Let the coroutine go on until it waits again, or ends."""
        self._waits_for = None
        try:
            waits_for = self._coroutine.send(None)
        except StopIteration as end:
            self._answer(end.value, None)
        except asyncio.CancelledError:
            # Somebody has cancelled what it waited for: nobody knows what becomes of it.
            self._answer(b"", OutcomeUnknown("the request was cancelled inside the node"))
        except Exception as error:
            self._answer(b"", error)
        else:
            if waits_for is None:  # sleep(0)
                self._loop.call_soon(self.step)
            else:
                # What a Task does: it tells the future that somebody has understood it.
                waits_for._asyncio_future_blocking = False
                self._waits_for = waits_for
                waits_for.add_done_callback(self.step)


def head_of(answer: bytes) -> bytes:
    """What stands before a large answer, which is not copied to put it behind."""
    form = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return form % len(answer)


def response(answer: bytes, failure: Failure | None) -> bytes:
    """The whole response on the wire."""
    if failure is None:
        form = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
        return form % (len(answer), answer)
    retry = b"retry-after: 1\r\n" if failure.status in (429, 503) else b""
    body = failure.body
    phrase = http.HTTPStatus(failure.status).phrase.encode("ascii")
    form = b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n%b\r\n%b"
    return form % (failure.status, phrase, len(body), retry, body)
