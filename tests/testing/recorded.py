"""Reads the recorded histories of tests/histories; its README says where they come from."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from raftkv.testing.histories import Operation

FOLDER = Path(__file__).resolve().parents[1] / "histories"

JEPSEN_LINE = re.compile(r"INFO\s+jepsen\.util - (\d+)\s+:(\w+)\s+:(\w+)\s+(.+?)\s*")
KV_LINE = re.compile(r'\{:process (\d+), :type :(\w+), :f :(\w+), :key "(.*?)", :value (.+)\}')


def verdicts() -> Iterator[tuple[str, bool]]:
    """The name of each history, and whether it is linearizable."""
    with (FOLDER / "verdicts.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            yield row["history"], row["linearizable"] == "true"


def read_history(name: str) -> list[Operation]:
    text = (FOLDER / name).read_text(encoding="utf-8")
    return list(_operations(_kv_events(text) if name.startswith("kv/") else _jepsen_events(text)))


# (line, process, type, op, key, value); types are invoke, ok, fail and info.
Event = tuple[int, int, str, str, str, Any]


def _jepsen_events(text: str) -> Iterator[Event]:
    for number, line in enumerate(text.splitlines(), 1):
        match = JEPSEN_LINE.fullmatch(line)
        if match is None:
            continue  # other words of the program that recorded it
        process, kind, op, value = match.groups()
        if value in ("nil", ":timed-out"):
            parsed: Any = None
        elif value.startswith("["):
            expected, new = value.strip("[]").split()
            parsed = (int(expected), int(new))
        else:
            parsed = int(value)
        yield number, int(process), kind, op, "register", parsed


def _kv_events(text: str) -> Iterator[Event]:
    for number, line in enumerate(text.splitlines(), 1):
        match = KV_LINE.fullmatch(line.strip())
        assert match is not None, f"line {number} is no event: {line}"
        process, kind, op, key, value = match.groups()
        yield number, int(process), kind, op, key, None if value == "nil" else value.strip('"')


def _operations(events: Iterator[Event]) -> Iterator[Operation]:
    calls: dict[int, Event] = {}
    for event in events:
        number, process, kind, op, _, value = event
        if kind == "invoke":
            assert process not in calls, f"line {number}: process {process} is still busy"
            calls[process] = event
        elif kind == "info":
            yield _operation(calls.pop(process), None, "unknown", None)
        elif kind == "fail" and op != "cas":
            yield _operation(calls.pop(process), number, "not_applied", None)
        else:
            output = kind == "ok" if op == "cas" else value if op in ("read", "get") else None
            yield _operation(calls.pop(process), number, "ok", output)
    for call in calls.values():
        yield _operation(call, None, "unknown", None)


def _operation(call: Event, end: int | None, outcome: Any, output: Any) -> Operation:
    start, process, _, op, key, value = call
    return Operation(process, op, key, value, output, start, end, outcome)
