"""Refusals in a form that can be kept: (owner, code, arguments).

A refusal is an exception object, and an exception that was raised drags its traceback along. The
exactly-once table therefore keeps clean copies, and hands out a fresh copy each time. The class is
found again by the plugin that declares it and its code; "" owns those of raftkv itself.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from raftkv import errors
from raftkv.errors import Refused

__all__ = ["Refusals", "fresh"]

_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(tuple[str, str, list[object]]).decode
_unpack_args = msgspec.msgpack.Decoder(list[object]).decode


def _plain(args: tuple[object, ...]) -> list[object]:
    """As they come back: tuples among them are lists."""
    return _unpack_args(_pack(args))


def fresh(refusal: Refused) -> Refused:
    """A copy that nobody has raised yet."""
    return type(refusal)(*refusal.args)


class Refusals:
    """Which classes of refusals there are, by owner and code."""

    def __init__(self) -> None:
        self._owners: dict[type[Refused], tuple[str, str]] = {}
        self._classes: dict[tuple[str, str], type[Refused]] = {}
        builtin = [value for value in vars(errors).values() if isinstance(value, type)]
        self.add("", (value for value in builtin if issubclass(value, Refused)))

    def add(self, owner: str, classes: Iterable[type[Refused]]) -> None:
        """Register the refusals that a plugin declares. Raises TypeError for a code used twice."""
        for cls in classes:
            if not issubclass(cls, Refused):
                raise TypeError(f"{owner}: {cls.__name__} in refusals is no subclass of Refused")
            key = (owner, cls.code)
            if self._classes.setdefault(key, cls) is not cls:
                other = self._classes[key].__name__
                raise TypeError(f"{owner}: {cls.__name__} and {other} share the code {cls.code!r}")
            self._owners[cls] = key

    def encode(self, refusal: Refused, *, texts: bool = True) -> bytes:
        """As it is kept. Without `texts`, which are no state from core format 2 on (errors.py).

        Raises TypeError when the class is not registered or its arguments are not plain.
        """
        owner = self._owners.get(type(refusal))
        if owner is None:
            raise TypeError(f"{type(refusal).__name__} stands in no plugin's refusals")
        return _pack((*owner, refusal.state_args(texts=texts)))

    def decode(self, data: bytes) -> Refused:
        """Raises LookupError for a refusal of a plugin that is not here."""
        owner, code, args = _unpack(data)
        return self._classes[owner, code](*args)

    def kept(self, refusal: Refused, *, texts: bool) -> Refused:
        """The refusal as it will be after a restart, but for its text, without its traceback.

        `texts`: whether these are state, as at core format 1, with what release 0.1.0 kept.
        Raises TypeError if it could not be kept: then it must not be answered either, or a repeated
        command would be answered otherwise.
        """
        owner, code, args = _unpack(self.encode(refusal))
        return self._classes[owner, code](*(args if texts else _plain(refusal.args)))
