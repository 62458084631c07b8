"""How commands decode: a verdict of every node, which the version of msgspec must not change.

The vectors were recorded with msgspec 0.22.0 and hold for every version in the range that setup.cfg
allows. A version that judges one of them differently must not be allowed: two nodes of one
cluster could decide differently. New versions are tried with these before the range is widened.
"""

from __future__ import annotations

import configparser
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import pytest

#: The versions that these vectors were checked with. setup.cfg allows these and nothing newer.
CHECKED = ("0.20.0", "0.21.1", "0.22.0")


class Inner(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    number: int
    text: str = ""


class First(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="first"):
    number: int
    text: str
    data: bytes
    pairs: tuple[tuple[str, int], ...] = ()
    role: Literal["core", "replicant"] = "core"
    inner: Inner | None = None
    flag: bool = False
    share: float = 0.0


class Second(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="second"
):
    limited: Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
    named: Annotated[str, msgspec.Meta(min_length=1, max_length=4)] = "a"
    free: dict[str, int] = {}


decode = msgspec.msgpack.Decoder(First | Second).decode
encode = msgspec.msgpack.encode

FIRST: list[Any] = ["first", 1, "t", b"d"]
REFUSED = None

#: (bytes, what the command is encoded as again; None: it cannot be decoded)
VECTORS: dict[str, tuple[bytes, bytes | None]] = {
    "defaults": (
        encode(FIRST),
        encode([*FIRST, [], "core", None, False, 0.0]),
    ),
    "all fields": (
        encode([*FIRST, [["a", 1]], "replicant", [3], True, 1.5]),
        encode([*FIRST, [["a", 1]], "replicant", [3, ""], True, 1.5]),
    ),
    "a field too many": (encode([*FIRST, [], "core", None, False, 0.0, 1]), REFUSED),
    "a field too few": (encode(["first", 1, "t"]), REFUSED),
    "an unknown tag": (encode(["third", 1]), REFUSED),
    "no tag": (encode([1, "t", b"d"]), REFUSED),
    "a map": (encode({"type": "first", "number": 1, "text": "t", "data": b"d"}), REFUSED),
    "empty": (b"", REFUSED),
    "bytes behind it": (encode(FIRST) + b"\x01", REFUSED),
    "cut off": (encode(FIRST)[:-1], REFUSED),
    "a whole float for a number": (encode(["first", 1.0, "t", b"d"]), REFUSED),
    "a broken float for a number": (encode(["first", 1.5, "t", b"d"]), REFUSED),
    "a truth value for a number": (encode(["first", True, "t", b"d"]), REFUSED),
    "a number for a truth value": (encode([*FIRST, [], "core", None, 1]), REFUSED),
    "a number for a float": (
        encode([*FIRST, [], "core", None, False, 2]),
        encode([*FIRST, [], "core", None, False, 2.0]),
    ),
    "not a number for a float": (
        encode([*FIRST, [], "core", None, False, float("nan")]),
        encode([*FIRST, [], "core", None, False, float("nan")]),
    ),
    "text for a number": (encode(["first", "1", "t", b"d"]), REFUSED),
    "null for a number": (encode(["first", None, "t", b"d"]), REFUSED),
    "the largest number": (
        encode(["first", 2**64 - 1, "t", b"d"]),
        encode(["first", 2**64 - 1, "t", b"d", [], "core", None, False, 0.0]),
    ),
    "the smallest number": (
        encode(["first", -(2**63), "t", b"d"]),
        encode(["first", -(2**63), "t", b"d", [], "core", None, False, 0.0]),
    ),
    "a number in more bytes than it needs": (
        b"\x94\xa5first\xcd\x00\x01\xa1t\xc4\x01d",
        encode([*FIRST, [], "core", None, False, 0.0]),
    ),
    "bytes for text": (b"\x94\xa5first\x01\xc4\x01t\xc4\x01d", REFUSED),
    "text for bytes": (b"\x94\xa5first\x01\xa1t\xa1d", REFUSED),
    "text that is no UTF-8": (b"\x94\xa5first\x01\xa1\xff\xc4\x01d", REFUSED),
    "a surrogate in UTF-8": (b"\x94\xa5first\x01\xa3\xed\xa0\x80\xc4\x01d", REFUSED),
    "another role": (encode([*FIRST, [], "leader"]), REFUSED),
    "a pair of one": (encode([*FIRST, [["a"]]]), REFUSED),
    "a pair of three": (encode([*FIRST, [["a", 1, 2]]]), REFUSED),
    "an inner field too many": (encode([*FIRST, [], "core", [1, "", 2]]), REFUSED),
    "an extension": (b"\x94\xa5first\xd4\x05\x01\xa1t\xc4\x01d", REFUSED),
    "a timestamp": (b"\x94\xa5first\xd6\xff\x00\x00\x00\x01\xa1t\xc4\x01d", REFUSED),
    "the unused byte": (b"\x94\xa5first\xc1\xa1t\xc4\x01d", REFUSED),
    "an array that claims to be huge": (b"\xdd\xff\xff\xff\xff", REFUSED),
    "deeper than any stack": (b"\x91" * 100_000, REFUSED),
    "within bounds": (encode(["second", 0]), encode(["second", 0, "a", {}])),
    "below a bound": (encode(["second", -1]), REFUSED),
    "at an open bound": (encode(["second", 2**31]), REFUSED),
    "an empty name": (encode(["second", 0, ""]), REFUSED),
    "four letters, more bytes": (
        encode(["second", 0, "äöüß"]),
        encode(["second", 0, "äöüß", {}]),
    ),
    "five letters": (encode(["second", 0, "abcde"]), REFUSED),
    "one key twice": (
        b"\x94\xa6second\x00\xa1a\x82\xa1k\x01\xa1k\x02",
        encode(["second", 0, "a", {"k": 2}]),
    ),
    "a number for a key": (b"\x94\xa6second\x00\xa1a\x81\x01\x01", REFUSED),
}


@pytest.mark.parametrize("name", VECTORS)
def test_what_a_command_is(name: str) -> None:
    body, expected = VECTORS[name]
    try:
        found = decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        assert expected is None
    else:
        assert encode(found) == expected


def test_only_versions_that_the_vectors_were_checked_with_are_allowed() -> None:
    setup = configparser.ConfigParser()
    setup.read(Path(__file__).resolve().parents[2] / "setup.cfg")
    (allowed,) = [
        line
        for line in setup["options"]["install_requires"].splitlines()
        if line.startswith("msgspec")
    ]
    lowest, newest = CHECKED[0], CHECKED[-1]
    major, minor, _ = newest.split(".")
    assert allowed == f"msgspec>={lowest},<{major}.{int(minor) + 1}"
    assert msgspec.__version__ in CHECKED
