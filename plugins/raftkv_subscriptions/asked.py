"""What people type for `raftkv topic`, `raftkv sub` and `raftkv region`, as the door wants it."""

from __future__ import annotations

import base64
import math
import sys
from collections.abc import Iterable, Sequence
from typing import Any, BinaryIO, Final

from raftkv.errors import ConfigError

__all__ = ["bodies_of", "headers_of", "messages_of", "place_of", "seconds_of", "value_of"]

_DIGITS_MAX: Final = 19
_WORDS: Final = {"true": True, "false": False}


def messages_of(
    bodies: Sequence[bytes], key: str, headers: Iterable[tuple[str, str]]
) -> list[dict[str, Any]]:
    """The messages of a publication; all have the same key and the same headers."""
    pairs = [list(pair) for pair in headers]
    encoded = (base64.b64encode(each).decode("ascii") for each in bodies)
    return [{"body": body, "key": key, "headers": pairs} for body in encoded]


def bodies_of(given: Sequence[str], *, lines: bool, stdin: BinaryIO | None = None) -> list[bytes]:
    """The bodies of the command line; none, or "-", means stdin: whole, or line by line.

    Bytes that the shell gave and that are no UTF-8 stay what they were. Raises ConfigError.
    """
    from_stdin = not given or list(given) == ["-"]
    if from_stdin:
        data = (stdin or sys.stdin.buffer).read()
        return data.splitlines() if lines else [data]
    if "-" in given:
        raise ConfigError("- stands for the whole of stdin: give no other body beside it")
    if lines:
        raise ConfigError("--lines reads stdin: leave out either it or the bodies")
    return [each.encode("utf-8", "surrogateescape") for each in given]


def headers_of(given: Iterable[str]) -> list[tuple[str, str]]:
    """Headers of "NAME=VALUE". Raises ConfigError."""
    pairs = []
    for each in given:
        name, equals, value = each.partition("=")
        if not (name and equals):
            raise ConfigError(f"--header {each!r} has no name and value: say NAME=VALUE")
        pairs.append((name, value))
    return pairs


def place_of(text: str) -> int | str:
    """A position, or "earliest", or "latest". Raises ConfigError."""
    if text in ("earliest", "latest"):
        return text
    if not _is_number(text):
        raise ConfigError(f"{text!r} is no position: say a number, earliest, or latest")
    return int(text)


def seconds_of(option: str, seconds: float) -> float:
    """What an option says, in seconds: "nan" is a number for the shell, too. Raises ConfigError."""
    if not math.isfinite(seconds):
        raise ConfigError(f"{option} is {seconds:g}: say a number of seconds")
    return seconds


def value_of(key: str, text: str) -> Any:
    """A setting's value: "default", a number, true or false, or a word. Raises ConfigError."""
    if text == "default":
        return None
    if text in _WORDS:
        return _WORDS[text]
    if text.isalpha():
        return text
    if not _is_number(text):
        raise ConfigError(f"{text!r} is no value of {key}: say a number, a word, or default")
    return int(text)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= _DIGITS_MAX
