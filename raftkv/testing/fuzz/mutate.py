"""Damage to bytes, and to msgpack documents so that they stay msgpack.

Rules: pure functions of the generator; what comes out is small unless it is asked to be large.

Bytes alone rarely get past the first check of a decoder: most such damage is a truncated document.
Damage to a decoded document changes what a field *is* (its type, size, sign, depth) and leaves the
rest whole, so that it gets as far as a message of somebody malicious could.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Final

import msgspec

__all__ = ["STRANGE", "damaged", "damaged_document", "lied"]

_INTERESTING: Final = (0, 1, 0x7F, 0x80, 0x90, 0x9F, 0xA0, 0xC0, 0xC1, 0xC4, 0xC6, 0xDD, 0xDF, 0xFF)
_NUMBERS: Final = (
    0,
    1,
    4,
    255,
    4096,
    65535,
    1 << 20,
    1 << 24,
    1 << 31,
    (1 << 31) - 1,
    (1 << 32) - 1,
)
_LIES: Final = (0, 1, 2, 100, 1000, 999_999, 1 << 32, 1 << 48, 10**16 - 2, 10**16 - 1)
_DEEP: Final = 3000

# Stand-ins for a field: every type of msgpack, with its extremes, and lengths that lie.
STRANGE: Final[tuple[Any, ...]] = (
    None,
    True,
    False,
    0,
    1,
    -1,
    127,
    -129,
    1 << 16,
    (1 << 53) + 1,
    (1 << 63) - 1,
    1 << 63,
    (1 << 64) - 1,
    -(1 << 63),
    0.0,
    1.5,
    float("nan"),
    float("inf"),
    "",
    "x",
    "a-b-c",
    "\0",
    "x" * 300,
    b"",
    b"\0",
    b"\1",
    b"\2",
    b"\3",
    b"\0" + b"x" * 300,
    [],
    [[]],
    [None],
    [[0, b""]],
    [[1, b"\0"]],
    [[1, b"\2\x93\x91\xa1a\x90\x90"]],
    [[1 << 63, b"\1"]],
    [[-1, b"\1"]],
    [[1]],
    [[1, b"\1", 2]],
    {},
    {"a": 1},
    {1: {}},
    msgspec.msgpack.Ext(1, b"x"),
    msgspec.msgpack.Ext(-1, b"\0\0\0\0"),
    msgspec.Raw(b"\xc1"),  # the one byte that msgpack never uses
    msgspec.Raw(b"\xa2\xff\xfe"),  # no UTF-8
    msgspec.Raw(b"\xd9\xff"),
    msgspec.Raw(b"\xdb\xff\xff\xff\xff"),
    msgspec.Raw(b"\xc6\xff\xff\xff\xff"),
    msgspec.Raw(b"\xc6\x7f\xff\xff\xffx"),
    msgspec.Raw(b"\xdd\xff\xff\xff\xff"),
    msgspec.Raw(b"\xdd\x00\x10\x00\x00\x92"),
    msgspec.Raw(b"\xdf\xff\xff\xff\xff\x01"),
    msgspec.Raw(b"\xc9\xff\xff\xff\xff\x01"),
    msgspec.Raw(b"\x91" * _DEEP + b"\xc0"),
    msgspec.Raw(b"\x81\xc0" * _DEEP + b"\xc0"),
    msgspec.Raw(b"\xdd\x00\x00\x00\x01" * _DEEP),
)

_encode = msgspec.msgpack.Encoder().encode


def damaged(data: bytes, rng: random.Random, other: bytes = b"", times: int = 0) -> bytes:
    """`data` with one to four kinds of damage (or `times`); `other` is what may be spliced in."""
    content = bytearray(data)
    for _ in range(times or 1 + int(rng.random() ** 2 * 4)):
        size = len(content)
        if not size:
            return rng.randbytes(1 + int(rng.random() * 12))
        at = int(rng.random() * size)
        match int(rng.random() * 10):
            case 0 | 1:
                content[at] ^= 1 << int(rng.random() * 8)
            case 2:
                content[at] = int(rng.random() * 256)
            case 3:
                content[at] = _INTERESTING[int(rng.random() * len(_INTERESTING))]
            case 4:
                del content[at:]
            case 5:
                del content[at : at + 1 + int(rng.random() ** 2 * 16)]
            case 6:
                content[at:at] = rng.randbytes(1 + int(rng.random() ** 2 * 16))
            case 7:
                piece = content[at : at + 1 + int(rng.random() * 32)]
                place = int(rng.random() * size)
                content[place:place] = piece
            case 8:
                number = _NUMBERS[int(rng.random() * len(_NUMBERS))]
                order = "little" if rng.random() < 0.5 else "big"
                content[at : at + 4] = number.to_bytes(4, order)  # type: ignore[arg-type]
            case 9:
                start = int(rng.random() * (len(other) + 1))
                piece = bytearray(other[start : start + 1 + int(rng.random() * 64)])
                if rng.random() < 0.5:
                    content[at : at + len(piece)] = piece
                else:
                    content[at:at] = piece
    return bytes(content)


def damaged_document(document: Any, rng: random.Random, others: Sequence[Any] = ()) -> bytes:
    """A msgpack document with fields exchanged, removed, doubled, or of another type."""
    changed = document
    for _ in range(1 + int(rng.random() ** 3 * 3)):
        changed = _change(changed, rng, others, 0)
    return _encode(changed)


def lied(document: list[Any], rng: random.Random) -> bytes:
    """The same kind of message, with one to three fields of the same type but another value."""
    tag, *fields = document
    for _ in range(1 + int(rng.random() ** 2 * 3)):
        if fields:
            at = int(rng.random() * len(fields))
            fields[at] = _lie(fields[at], rng)
    return _encode([tag, *fields])


def _lie(value: Any, rng: random.Random) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        draw = int(rng.random() * 8)
        number = value + draw - 3 if draw < 6 else value * 2 if draw < 7 else rng.choice(_LIES)
        return max(0, number)
    if isinstance(value, str):
        return rng.choice(("", value[:-1], value + "x", "core1", "core2-00", "raft", "-"))
    if isinstance(value, bytes):
        body = damaged(value[1:], rng, value, times=1)
        # The first byte is the kind of an entry: seldom another one.
        return (value[:1] if rng.random() < 0.8 else bytes([int(rng.random() * 5)])) + body
    if isinstance(value, list) and value:
        items = list(value)
        at = int(rng.random() * len(items))
        match int(rng.random() * 5):
            case 0:
                del items[at]
            case 1:
                items.insert(at, items[int(rng.random() * len(items))])
            case _:
                items[at] = _lie(items[at], rng)
        return items
    return value


def _change(value: Any, rng: random.Random, others: Sequence[Any], depth: int) -> Any:
    """One change, somewhere inside `value`."""
    if isinstance(value, list) and value and depth < 6 and rng.random() < 0.9:
        items = list(value)
        at = int(rng.random() * len(items))
        match int(rng.random() * 10):
            case 0:
                del items[at]
            case 1:
                items.insert(at, items[int(rng.random() * len(items))])
            case 2:
                place = int(rng.random() * len(items))
                items[at], items[place] = items[place], items[at]
            case 3:
                items += items[at:] if len(items) < 64 else []
            case 4:
                items.insert(at, _strange(rng, others))
            case _:
                items[at] = _change(items[at], rng, others, depth + 1)
        return items
    if isinstance(value, bool):
        return not value if rng.random() < 0.5 else _strange(rng, others)
    if isinstance(value, int) and rng.random() < 0.4:
        return _near(value, rng)
    if isinstance(value, bytes) and value and rng.random() < 0.4:
        return damaged(value, rng, times=1)
    return _strange(rng, others)


def _near(value: int, rng: random.Random) -> int:
    number = value + int(rng.random() * 7) - 3
    # What msgpack can hold.
    return min(max(number, -(1 << 63)), (1 << 64) - 1)


def _strange(rng: random.Random, others: Sequence[Any]) -> Any:
    if others and rng.random() < 0.2:
        found = others[int(rng.random() * len(others))]
        return found[int(rng.random() * len(found))] if isinstance(found, list) and found else found
    return STRANGE[int(rng.random() * len(STRANGE))]
