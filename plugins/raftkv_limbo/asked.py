"""What people type for `raftkv limbo`, as the door wants it: keys, writes, conditions, counts."""

from __future__ import annotations

import base64
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from raftkv.errors import ConfigError

__all__ = ["base64_of", "longer_s", "named_counts", "submit_body"]

# The door waits no longer than that.
TIMEOUT_MAX_S = 600.0


def base64_of(text: str) -> str:
    """An argument as base64; what the shell gave that is no UTF-8 stays the bytes that it was."""
    return base64.b64encode(text.encode("utf-8", "surrogateescape")).decode("ascii")


def submit_body(
    writes: Sequence[str],
    *,
    deletes: Iterable[str],
    values: Iterable[str],
    some: Iterable[str],
    none: Iterable[str],
    positions: Iterable[str],
) -> dict[str, Any]:
    """The body of a submission. "-" alone reads all of it from stdin. Raises ConfigError."""
    conditions = [
        *({**_key(each, "--expect"), "value": _said(each, "--expect")} for each in values),
        *({**_key(each, "--expect-some", bare=True), "exists": True} for each in some),
        *({**_key(each, "--expect-none", bare=True), "exists": False} for each in none),
        *({**_key(each, "--expect-position"), "position": _number(each)} for each in positions),
    ]
    what = "a write"
    made: list[dict[str, str | None]] = [
        {**_key(each, what), "value": _said(each, what)} for each in writes if each != "-"
    ]
    made += [{**_key(each, "--delete", bare=True), "value": None} for each in deletes]
    if "-" in writes:
        if made or conditions:
            raise ConfigError("- reads the whole transaction from stdin: say nothing else of it")
        return _from_stdin()
    if not made:
        raise ConfigError("nothing is written: say SPACE/KEY=VALUE, or --delete SPACE/KEY")
    return {"writes": made, "conditions": conditions}


def longer_s(body: dict[str, Any], timeout_s: float) -> float:
    """How much longer than `timeout_s` a transaction from stdin asks the door to wait."""
    wanted = body.get("timeout_s")
    if not isinstance(wanted, int | float):
        return 0.0
    return max(0.0, min(wanted, TIMEOUT_MAX_S) - timeout_s)


def named_counts(
    option: str, present: Iterable[Sequence[Any]], given: Iterable[str], *, clear: bool
) -> dict[str, int]:
    """`present` (name, count), with those of `given` ("eu=1") in their place; 0 takes one out."""
    counts = {} if clear else {str(name): int(count) for name, count in present}
    for each in given:
        name, _, number = each.partition("=")
        if not name or not (number.isascii() and number.isdecimal() and len(number) <= 4):
            raise ConfigError(f"{option} is {each!r}: say NAME=N, as in eu=1")
        counts[name] = int(number)
    return {name: count for name, count in counts.items() if count}


def _key(text: str, what: str, *, bare: bool = False) -> dict[str, str]:
    """The space and the key of "SPACE/KEY" or "SPACE/KEY=VALUE": a key has no "=" in the latter."""
    space, slash, rest = text.partition("/")
    key = rest if bare else rest.partition("=")[0]
    if not space or not slash or not key:
        form = "SPACE/KEY" if bare else "SPACE/KEY=VALUE"
        raise ConfigError(f"{what} is not {form}: for other keys, give JSON on stdin (-)")
    return {"space": space, "key": base64_of(key)}


def _said(text: str, what: str) -> str:
    _, equals, value = text.partition("/")[2].partition("=")
    if not equals:
        raise ConfigError(f"{what} is not SPACE/KEY=VALUE: the value is missing")
    return base64_of(value)


def _number(text: str) -> int:
    number = text.rpartition("=")[2]
    if not (number.isascii() and number.isdecimal() and len(number) <= 19):
        raise ConfigError("--expect-position is not SPACE/KEY=N: say a position")
    return int(number)


def _from_stdin() -> dict[str, Any]:
    import msgspec

    try:
        body = msgspec.json.decode(sys.stdin.buffer.read(), type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"stdin is no JSON object: {type(error).__name__}") from None
    return body
