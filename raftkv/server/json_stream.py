"""JSON objects that follow one another in a stream, with nothing or white space between them.

This is how grpc-gateway reads the body of a streaming word. Objects are found by counting braces
outside of strings; whether what lies between them is JSON is the decoder's to say. So no byte is
looked at twice, and an object that is too large is refused before it is whole. Each string and
bracket costs a turn of a loop in Python, so their number is bounded as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from .answers import BadRequest

__all__ = ["MARKS_MAX", "JsonStream"]

#: Strings and brackets of one object. A request to watch has about twenty.
MARKS_MAX: Final = 1_000

_MARK: Final = re.compile(rb'["{}\[\]]')
# The inside of a string, without a backslash at its end of which the escaped byte is to come.
_IN_STRING: Final = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
_NOT_BLANK: Final = re.compile(rb"[^ \t\r\n]")
_BLANK: Final = b" \t\r\n"


class JsonStream:
    """Cuts a stream of bytes into objects. `BadRequest` ends it for good."""

    def __init__(self, object_bytes_max: int) -> None:
        self._bytes_max = object_bytes_max
        self._held = bytearray()
        # How far `_held` was looked at, where the object there begins, its depth there, and whether
        # that is in a string.
        self._seen = 0
        self._begin = 0
        self._depth = 0
        self._marks = 0
        self._in_string = False

    @property
    def pending(self) -> bool:
        """Whether an object has begun and not ended."""
        return bool(self._held.strip(_BLANK))

    @property
    def held_bytes(self) -> int:
        """Of what has come and was not cut into objects yet."""
        return len(self._held)

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Take what has come; each object that is whole now, to be used up. Raises BadRequest.

        They are cut one by one, for there may be a hundred thousand in one piece of data.
        """
        self._held += data
        del data  # it may be large, and is not needed while its objects are used up
        while (end := self._next()) > 0:
            self._check(end - self._begin)
            yield bytes(self._held[self._begin : end])
        # All that was looked at is objects and blanks, but for one object that has begun.
        done = self._begin if self._depth else self._seen
        del self._held[:done]
        self._seen -= done
        self._begin = 0
        self._check(len(self._held))

    def _check(self, size: int) -> None:
        if size > self._bytes_max:
            raise BadRequest(f"a request of the stream exceeds {self._bytes_max} bytes")

    def _next(self) -> int:
        """Where the next object ends, 0 if it is not whole."""
        held = self._held
        if self._depth == 0:
            found = _NOT_BLANK.search(held, self._seen)
            if found is None:
                self._seen = len(held)
                return 0
            if found.group() != b"{":
                raise BadRequest("the stream must be JSON objects, one after the other")
            self._begin = self._seen = found.start()
            self._marks = 0
        while True:
            if self._in_string and not self._end_string():
                return 0
            found = _MARK.search(held, self._seen)
            if found is None:
                self._seen = len(held)
                return 0
            self._seen = found.end()
            self._marks += 1
            if self._marks > MARKS_MAX:
                raise BadRequest(
                    f"a request of the stream has more than {MARKS_MAX} strings and brackets"
                )
            mark = found.group()
            if mark == b'"':
                self._in_string = True
            elif mark in (b"{", b"["):
                self._depth += 1
            else:
                self._depth -= 1
                if self._depth == 0:
                    return self._seen

    def _end_string(self) -> bool:
        """Pass over what is left of a string; False if its end is not there yet."""
        inside = _IN_STRING.match(self._held, self._seen)
        assert inside is not None, "it matches nothing, too"
        self._seen = inside.end()
        if self._held[self._seen : self._seen + 1] != b'"':
            return False
        self._seen += 1
        self._in_string = False
        return True
