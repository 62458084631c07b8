"""Gathering a transaction piece by piece.

t = limbo.transaction()
t.expect("accounts", b"ann", value=b"70")
t.put("accounts", b"ann", b"60").delete("accounts", b"old")
receipt = await t.submit()
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raftkv.validation import checked

from .checking import Order
from .commands import Condition, Write
from .submission import Receipt, Submission, Wait

if TYPE_CHECKING:
    from .api import LimboApi

__all__ = ["TransactionBuilder"]


class _Unset:
    """Not given, where None is a value."""


_UNSET = _Unset()


@checked
class TransactionBuilder:
    """Writes and conditions. Nothing happens before `submit`, which may be called again."""

    def __init__(self, api: LimboApi) -> None:
        self._api = api
        self.writes: list[Write] = []
        self.conditions: list[Condition] = []

    def put(self, space: str, key: bytes, value: bytes) -> TransactionBuilder:
        """Set a key."""
        self.writes.append(Write(space, key, value))
        return self

    def delete(self, space: str, key: bytes) -> TransactionBuilder:
        """Delete a key, if it is there."""
        self.writes.append(Write(space, key, None))
        return self

    def expect(
        self,
        space: str,
        key: bytes,
        *,
        value: bytes | _Unset | None = _UNSET,
        position: int | None = None,
        exists: bool | None = None,
    ) -> TransactionBuilder:
        """Require the value of a key (None: there is none), or the position it was written at (0:
        there is none), or whether it exists. Exactly one of the three.

        Raises ValueError.
        """
        given = [not isinstance(value, _Unset), position is not None, exists is not None]
        if sum(given) != 1:
            raise ValueError("expect exactly one of value, position and exists")
        if not isinstance(value, _Unset):
            condition = Condition(space, key, "value", value)
        elif position is not None:
            condition = Condition(space, key, "position", None, position)
        else:
            condition = Condition(space, key, "exists", None, int(bool(exists)))
        self.conditions.append(condition)
        return self

    async def submit(
        self,
        *,
        order: Order = "ordered",
        wait: Wait = "complete",
        timeout_s: float | None = 5.0,
    ) -> Receipt | Submission:
        """As `LimboApi.submit`."""
        return await self._api.submit(
            self.writes, self.conditions, order=order, wait=wait, timeout_s=timeout_s
        )
