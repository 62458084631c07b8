"""What people type for `raftkv queue` and `raftkv dtx`, as the door wants it."""

from __future__ import annotations

import base64
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, BinaryIO

from raftkv.errors import ConfigError

from .xa import xid_from_text

__all__ = ["bodies_of", "header_pairs", "messages_of", "txid_of", "xid_of"]

_TXID = re.compile(r"[0-9]+(-[0-9a-f]+)?\.[0-9]+", re.ASCII)


def messages_of(
    bodies: Sequence[bytes],
    headers: Iterable[tuple[str, str]],
    times: Mapping[str, float | None] | None = None,
) -> list[dict[str, Any]]:
    """The messages of a publication; all have the same headers and `times` (None: none)."""
    more = {name: each for name, each in (times or {}).items() if each is not None}
    shared = {"headers": [list(pair) for pair in headers], **more}
    return [{"body": base64.b64encode(each).decode("ascii"), **shared} for each in bodies]


def bodies_of(given: Sequence[str], *, lines: bool, stdin: BinaryIO | None = None) -> list[bytes]:
    """The bodies named on the command line; "-" (or nothing) reads stdin, whole or line by line.

    What the shell gave that is no UTF-8 stays the bytes that it was. Raises ConfigError.
    """
    if not given or "-" in given:
        if len(given) > 1:
            raise ConfigError("- reads the message from stdin: name no other beside it")
        data = (stdin or sys.stdin.buffer).read()
        # A last line without an end is a line; one that is empty is an empty message.
        return data.splitlines() if lines else [data]
    if lines:
        raise ConfigError("--lines is for messages from stdin: leave the bodies out, or it")
    return [each.encode("utf-8", "surrogateescape") for each in given]


def header_pairs(given: Iterable[str]) -> list[tuple[str, str]]:
    """Headers of "NAME=VALUE". Raises ConfigError."""
    pairs = []
    for each in given:
        name, equals, value = each.partition("=")
        if not name or not equals:
            raise ConfigError(f"--header is {each!r}: say NAME=VALUE")
        pairs.append((name, value))
    return pairs


def xid_of(text: str) -> str:
    """A xid as it stands in a path, in its one spelling. Raises ConfigError."""
    try:
        return str(xid_from_text(text))
    except ValueError as error:
        raise ConfigError(str(error)) from None


def txid_of(text: str) -> str:
    """The id of a local transaction: 12.7, or as a client has it, with the secret of its session.

    Raises ConfigError.
    """
    if _TXID.fullmatch(text) is None:
        raise ConfigError(f"{text!r} is no transaction: say SESSION.COUNTER, like 12.7")
    return text
