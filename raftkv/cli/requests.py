"""From the options of a command, or of a line of a transaction, to an operation of the keyspace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, get_args

from raftkv.errors import ConfigError
from raftkv.kv.commands import FROM_KEY, DeleteRangeOp, RangeOp, SortBy, prefix_end

if TYPE_CHECKING:
    from raftkv.plugin import Consistency

__all__ = ["bounds", "consistency_of", "delete_op", "lease_id", "lease_text", "range_op"]

_SORT_BY: Final[dict[str, SortBy]] = {name: name for name in get_args(SortBy)} | {"modify": "mod"}
_DESCENDING: Final = {"ascend": False, "descend": True}
_CONSISTENCY: Final[dict[str, Consistency]] = {
    "l": "linearizable",
    "linearizable": "linearizable",
    "s": "local",
    "serializable": "local",
    "local": "local",
    "lease": "lease",
}


def bounds(
    key: bytes, range_end: bytes | None, *, prefix: bool, from_key: bool
) -> tuple[bytes, bytes]:
    """The range in the keyspace's words. Raises `ConfigError`."""
    if prefix and from_key:
        raise ConfigError("--prefix and --from-key cannot both be given")
    if range_end is not None and (prefix or from_key):
        raise ConfigError("with --prefix or --from-key there is one KEY and no RANGE_END")
    if prefix:
        return (key, prefix_end(key)) if key else (b"\0", FROM_KEY)
    if from_key:
        return key or b"\0", FROM_KEY
    return key, range_end or b""


def range_op(
    key: bytes,
    range_end: bytes | None = None,
    *,
    prefix: bool = False,
    from_key: bool = False,
    limit: int = 0,
    sort_by: str | None = None,
    order: str | None = None,
    revision: int = 0,
    keys_only: bool = False,
    count_only: bool = False,
) -> RangeOp:
    """A read. `sort_by` and `order` in etcdctl's words, in any case. Raises `ConfigError`."""
    first, last = bounds(key, range_end, prefix=prefix, from_key=from_key)
    if keys_only and count_only:
        raise ConfigError("--keys-only and --count-only cannot both be given")
    by = _SORT_BY.get((sort_by or "key").lower())
    if by is None:
        raise ConfigError(f"--sort-by {sort_by} is not one of key, version, create, modify, value")
    descending = _DESCENDING.get((order or "ascend").lower())
    if descending is None:
        raise ConfigError(f"--order {order} is neither ascend nor descend")
    if limit < 0 or revision < 0:
        name, number = ("limit", limit) if limit < 0 else ("rev", revision)
        raise ConfigError(f"--{name} {number} is negative; 0 stands for none")
    return RangeOp(
        first,
        last,
        limit=limit,
        keys_only=keys_only,
        count_only=count_only,
        revision=revision,
        sort_by=by,
        descending=descending,
    )


def delete_op(
    key: bytes,
    range_end: bytes | None = None,
    *,
    prefix: bool = False,
    from_key: bool = False,
    prev_kv: bool = False,
) -> DeleteRangeOp:
    """A deletion. Raises `ConfigError`."""
    first, last = bounds(key, range_end, prefix=prefix, from_key=from_key)
    return DeleteRangeOp(first, last, prev_kv)


def consistency_of(text: str) -> Consistency:
    """etcdctl's l and s, or raftkv's own words. Raises `ConfigError`."""
    found = _CONSISTENCY.get(text)
    if found is None:
        raise ConfigError(f"--consistency {text} is not one of linearizable (l), lease, local (s)")
    return found


def lease_id(text: str) -> int:
    """A lease's number from its hexadecimal text, as etcdctl writes it. Raises `ConfigError`."""
    digits = text.lower().removeprefix("0x")
    if digits and all(digit in "0123456789abcdef" for digit in digits):
        number = int(digits, 16)
        if 0 < number < 1 << 64:
            return number - (number >> 63 << 64)
    raise ConfigError(f"{text!r} is not the id of a lease: hexadecimal digits, as lease list shows")


def lease_text(number: int) -> str:
    """A lease's number as etcdctl writes it: 16 hexadecimal digits.

    Of a negative one the two's complement: with a sign it would be taken for an option.
    """
    return f"{number & (1 << 64) - 1:016x}"
