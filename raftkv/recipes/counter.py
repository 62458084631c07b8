"""A counter that many may change: an integer in one key, in decimal digits."""

from __future__ import annotations

import msgspec

from raftkv.errors import RaftkvError
from raftkv.kv import Compare, KeyValue, PutOp, RangeOp
from raftkv.validation import checked

from .ports import Store
from .waiting import insist, once

__all__ = ["Count", "Counter", "NotANumber"]


class NotANumber(RaftkvError):
    """The counter's key holds something that is no whole number: another program uses it."""

    code = "not_a_number"


class Count(msgspec.Struct, frozen=True):
    """The counter's value, and the revision that gave it: greater for each later one."""

    value: int
    token: int


@checked
class Counter:
    """A whole number of any size, 0 until it is first changed."""

    @checked
    def __init__(self, store: Store, name: bytes) -> None:
        self._store = store
        self._key = name

    async def get(self) -> Count:
        """The value now; `token` is 0 if it was never changed."""
        return _count_of(await insist(lambda: self._store.kv.get(self._key)))

    async def add(self, amount: int = 1) -> Count:
        """Add to it; the new value. Nobody else gets the same value and token.

        Raises OutcomeUnknown if it cannot be known whether it was added: do not just repeat it.
        """
        now = await self.get()
        while True:
            value = now.value + amount
            done = await once(
                self._store,
                (Compare(self._key, "mod", "=", now.token),),
                (PutOp(self._key, b"%d" % value),),
                (RangeOp(self._key),),
            )
            if done.succeeded:
                return Count(value, done.revision)
            # The refusal has read what it was that came in between.
            found = done.rows() if done.results else None
            now = await self.get() if found is None else _count_of(found[0] if found else None)


def _count_of(kv: KeyValue | None) -> Count:
    if kv is None:
        return Count(0, 0)
    try:
        return Count(int(kv.value), kv.mod_revision)
    except ValueError:
        raise NotANumber(f"{kv.key!r} holds {kv.value[:40]!r}, which is no whole number") from None
