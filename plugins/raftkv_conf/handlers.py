"""What can be configured: paths with a type, a check, and what brings a value about on a node.

Rules of this file
1. A value is JSON. What a handler declares as its type is built from it by msgspec, strictly.
2. `check` is for the initiator: it may refuse. `build` is for every node: a committed value is
   brought about, and what cannot be built from it fails loudly.
3. A message never quotes a value: the configuration may hold secrets. msgspec's name types only.

Paths are exact: there is no handler for "everything below". Only below "user." may programs keep
any JSON they like, without a handler.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final

import msgspec

from raftkv_cluster_call import cause_of

from .errors import InvalidValue, UnknownPath

__all__ = ["FREE", "HIDDEN", "Handler", "Handlers", "encoded"]

#: What is shown of a secret.
HIDDEN: Final = "***"

#: Below it any path may be set, to any JSON value.
FREE: Final = "user."
PATH: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)+")
PATH_CHARS_MAX: Final = 255
NEAR_MAX: Final = 3
#: What is shown of a secret: the mask, or (`raftkv conf diff`) the mask with a digest behind it.
_MASK: Final = re.compile(re.escape(HIDDEN) + r"( \([0-9a-f]*\))?")
# Of msgspec's messages those that quote, and what is said instead.
_QUOTING: Final = {
    "Invalid enum value": "not one of the values that are allowed",
    "Invalid value": "not one of the kinds that are allowed",
    "Object contains unknown field": "a field that the type does not have",
}


class Handler(msgspec.Struct, frozen=True, kw_only=True):
    """One path. `apply` gets the built value, `default` where nothing is set; see `ConfApi`."""

    path: str
    type: Any = None
    default: Any = None
    validate: Callable[[Any], str | None] | None = None
    apply: Callable[[Any], Awaitable[None] | None] | None = None
    doc: str = ""
    secret: bool = False

    def build(self, value: bytes) -> Any:
        """The value as the declared type. Raises InvalidValue."""
        try:
            return msgspec.json.decode(value, type=self.type)
        except msgspec.DecodeError as error:
            about = f" ({self.doc})" if self.doc else ""
            raise InvalidValue(f"{self.path}: {_words(error)}{about}") from None

    def check(self, value: bytes) -> Any:
        """Build it, and ask the handler's own check. Raises InvalidValue."""
        built = self.build(value)
        if self.secret and _is_mask(value):
            raise InvalidValue(
                f"{self.path}: this is the mask that is shown in place of the secret, not a value: "
                "leave the path out to keep the secret, or set the secret itself"
            )
        try:
            reason = None if self.validate is None else self.validate(built)
        except Exception as error:
            raise InvalidValue(f"{self.path}: its check failed: {cause_of(error)}") from None
        if reason is not None:
            raise InvalidValue(f"{self.path}: {reason}")
        return built


class Handlers:
    """The handlers of one node."""

    def __init__(self) -> None:
        self._by_path: dict[str, Handler] = {}

    def add(self, handler: Handler) -> None:
        """Register. Raises ValueError for a path that is malformed or taken."""
        path = handler.path
        if not PATH.fullmatch(path) or len(path) > PATH_CHARS_MAX:
            raise ValueError(
                f"{path!r} cannot be a path: take words of letters, digits, _ and -, at least two, "
                f"with dots between them, at most {PATH_CHARS_MAX} letters"
            )
        if path.startswith(FREE):
            raise ValueError(f"{path!r}: paths below {FREE!r} belong to users and have no handler")
        if path in self._by_path:
            raise ValueError(f"{path!r} has a handler already")
        self._by_path[path] = handler

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._by_path))

    def get(self, path: str) -> Handler | None:
        """The handler of this path; that of any JSON below "user."; None: the path is unknown."""
        known = self._by_path.get(path)
        if known is None and path.startswith(FREE) and PATH.fullmatch(path):
            return Handler(path=path, type=Any) if len(path) <= PATH_CHARS_MAX else None
        return known

    def need(self, path: str) -> Handler:
        """The same. Raises UnknownPath, which names the paths that come near."""
        handler = self.get(path)
        if handler is None:
            near = difflib.get_close_matches(path, self._by_path, NEAR_MAX)
            meant = f"did you mean {' or '.join(near)}?" if near else "see `raftkv conf list`."
            raise UnknownPath(f"no such path: {path!r}; {meant} What is yours goes below {FREE!r}")
        return handler


def encoded(value: Any) -> bytes:
    """A value as JSON, equal for equal values. Raises InvalidValue for what has no JSON."""
    try:
        found = msgspec.json.encode(value, order="sorted")
        # msgspec writes null for numbers that JSON does not know: nobody would have said that.
        bent = b"null" in found and not _finite(msgspec.to_builtins(value))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        # Its text names types, and may name what is inside.
        raise InvalidValue(f"this has no JSON form: {type(error).__name__}") from None
    if bent:
        raise InvalidValue("this has no JSON form: a number is infinite, or none")
    return found


def _is_mask(value: bytes) -> bool:
    """Whether it holds what `list`, `get` and `diff` show of a secret, anywhere inside."""
    return any(_MASK.fullmatch(text) for text in _texts(msgspec.json.decode(value)))


def _texts(plain: Any) -> Iterator[str]:
    match plain:
        case str():
            yield plain
        case dict():
            for each in plain.values():
                yield from _texts(each)
        case list():
            for each in plain:
                yield from _texts(each)


def _finite(plain: Any) -> bool:
    match plain:
        case float():
            return math.isfinite(plain)
        case dict():
            return all(map(_finite, plain.values()))
        case list() | tuple() | set() | frozenset():
            return all(map(_finite, plain))
    return True


def _words(error: msgspec.DecodeError) -> str:
    """msgspec's words, which name types and places; some also quote what they found."""
    text = str(error)
    for quoting, words in _QUOTING.items():
        if quoting in text:
            place = text.partition(" - at ")[2]
            return words + (f" - at {place}" if place else "")
    return text
