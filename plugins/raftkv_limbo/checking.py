"""What a caller hands over, checked before it shares a Submit with others.

One command carries the transactions of many callers. If one of them could not be encoded, or not be
decoded by the other nodes, all of them would fail with it. So types and the sizes that a batch
depends on are checked here, in the call that is at fault; whatever depends on replicated state
(spaces, settings, conditions) is decided at apply.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Literal

from .commands import BATCH_PARTS_MAX, INT_MAX, KEY_BYTES_MAX, Condition, Transaction, Write
from .refusals import EmptyTransaction, KeyTooLarge, TransactionTooLarge

__all__ = ["Order", "check_key", "checked", "writable"]

Order = Literal["ordered", "independent"]

_ORDERS: Final = {"ordered": False, "independent": True}
_KINDS: Final = ("value", "position", "exists")


def checked(
    writes: Iterable[Write], conditions: Sequence[Condition], order: Order
) -> tuple[Transaction, int]:
    """The transaction, and its bytes of keys and values, those of conditions included.

    Raises TypeError or ValueError for what is not of the right type, and refusals.
    """
    parts = tuple(writes)
    if not parts:
        raise EmptyTransaction
    size = 0
    for write in parts:
        if type(write) is not Write:
            raise TypeError(f"writes holds a {type(write).__name__}: make it of Write objects")
        key, value = write.key, write.value
        if type(key) is not bytes or type(write.space) is not str or not write.space.isascii():
            _bad_key(write.space, key)
        if len(key) > KEY_BYTES_MAX:
            raise KeyTooLarge(write.space, KEY_BYTES_MAX)
        size += len(key)
        if value is not None:
            if type(value) is not bytes:
                raise TypeError(f"a value is bytes or None, not {type(value).__name__}")
            size += len(value)
    required: tuple[Condition, ...] = ()
    if conditions:
        required = tuple(conditions)
        size += _check_conditions(required)
    if len(parts) + len(required) > BATCH_PARTS_MAX:
        raise TransactionTooLarge("writes and conditions", BATCH_PARTS_MAX)
    independent = _ORDERS.get(order)
    if independent is None:
        raise ValueError(f'order is "ordered" or "independent", not {order!r}')
    return Transaction(parts, required, independent), size


def _check_conditions(conditions: Sequence[Condition]) -> int:
    size = 0
    for condition in conditions:
        if type(condition) is not Condition:
            name = type(condition).__name__
            raise TypeError(f"conditions holds a {name}: make it of Condition objects")
        check_key(condition.space, condition.key)
        if condition.kind not in _KINDS:
            raise ValueError(f"the kind of a condition is one of {', '.join(_KINDS)}")
        if type(condition.position) is not int or not 0 <= condition.position <= INT_MAX:
            raise ValueError("the position of a condition is a number from 0 on")
        size += len(condition.key)
        if condition.value is not None:
            if type(condition.value) is not bytes:
                raise TypeError("the value of a condition is bytes or None")
            size += len(condition.value)
    return size


def check_key(space: str, key: bytes) -> None:
    """Raises TypeError, ValueError or KeyTooLarge."""
    if type(key) is not bytes or type(space) is not str or not space.isascii():
        _bad_key(space, key)
    if len(key) > KEY_BYTES_MAX:
        raise KeyTooLarge(space, KEY_BYTES_MAX)


def writable(reason: str) -> str:
    """What can be encoded of it: a lone surrogate cannot."""
    return reason.encode("utf-8", "replace").decode()


def _bad_key(space: object, key: object) -> None:
    if type(key) is not bytes:
        raise TypeError(f"a key is bytes, not {type(key).__name__}")
    if type(space) is not str:
        raise TypeError(f"a space is named by a str, not {type(space).__name__}")
    raise ValueError("the name of a space is ASCII")
