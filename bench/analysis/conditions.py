"""The conditions of a run in words: figures mean nothing without them.

The driver writes `conditions.json` as it likes; nothing here depends on a key being there. Nested
objects are flattened (`arguments.clients`), sizes in bytes are written as people read them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

from bench.analysis.formats import bytes_size, number

__all__ = [
    "CLUSTER_CALL_WORDS",
    "LIMBO_WORDS",
    "PUT_WORDS",
    "SESSION_WORDS",
    "UNKNOWN",
    "condition_line",
    "flattened",
    "is_quick",
    "when",
]

UNKNOWN = "The conditions of this run were not recorded (there is no conditions.json)."

ARGUMENTS = "arguments"

MACHINE_WORDS = {
    "cores": "{} CPU cores shared by all nodes and clients",
    "memory_bytes": "{} of memory",
    "python": "Python {}",
}
CONNECT_WORDS = {
    "clients": "{} clients for each driver",
    "seconds": "{} s for each load",
    "lag_ms": "{} ms of replication lag injected into the replicants",
}
SESSION_WORDS = {
    "clients": "{} clients for each of three drivers",
    "session_seconds": "{} s for each load",
    "think_ms": "a client comes back after {} ms",
}
CLUSTER_CALL_WORDS = {"cluster_call_seconds": "{} s for each load"}
LIMBO_WORDS = {"value_bytes": "values of {}", "limbo_seconds": "{} s for each load"}
PUT_WORDS = {"value_bytes": "values of {}", "put_seconds": "{} s for each load"}
"""What stands beside pictures, if it is known. Puts and gets run without injected lag and have no
clients with ids. All other conditions are in the table."""


def flattened(conditions: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Every condition with its name and its value in words."""
    for key, value in conditions.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from flattened(value, f"{name}.")
        else:
            yield _readable(name), _value(key, value)


def condition_line(conditions: Mapping[str, Any], words: Mapping[str, str] = CONNECT_WORDS) -> str:
    """The most important conditions in one line, for captions. Empty if there are none.

    `words` says which arguments belong to it: those of connects, PUT_WORDS, SESSION_WORDS,
    CLUSTER_CALL_WORDS or LIMBO_WORDS.
    """
    found = conditions.get(ARGUMENTS)
    arguments: Mapping[str, Any] = found if isinstance(found, Mapping) else {}
    parts = [*_known(conditions, MACHINE_WORDS)]
    if isinstance(conditions.get("fsync"), bool):
        parts.append("fsync before acknowledging" if conditions["fsync"] else "without fsync")
    sync = conditions.get("fdatasync")
    if conditions.get("fsync") and isinstance(sync, Mapping) and "median_us" in sync:
        parts.append(f"one fdatasync {number(sync['median_us'])} \N{MICRO SIGN}s")
    parts += _known(arguments, words)
    line = ", ".join(parts)
    return f"{line[:1].upper()}{line[1:]}." if line else ""


def is_quick(conditions: Mapping[str, Any]) -> bool:
    """Whether the driver said that this run was too short for stable figures."""
    arguments = conditions.get(ARGUMENTS)
    return isinstance(arguments, Mapping) and arguments.get("quick") is True


def _known(values: Mapping[str, Any], words: Mapping[str, str]) -> list[str]:
    return [
        wording.format(_value(key, values[key]))
        for key, wording in words.items()
        if values.get(key) is not None
    ]


def when(conditions: Mapping[str, Any]) -> str:
    """The date of the run as people read it; as it is, if it is no date."""
    text = str(conditions.get("date") or "")
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return text
    zone = " UTC" if moment.utcoffset() == timedelta(0) else ""
    return f"{moment:%d %B %Y, %H:%M}{zone}".removeprefix("0")


def _readable(name: str) -> str:
    return name.removesuffix("_bytes").replace("_", " ").replace(".", ": ", 1)


def _value(key: str, value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if key.endswith("_bytes") and isinstance(value, int | float):
        return bytes_size(value)
    if isinstance(value, float):
        return f"{value:,g}"
    if isinstance(value, list | tuple):
        return " ".join(str(item) for item in value)
    return "none" if value is None else str(value)
