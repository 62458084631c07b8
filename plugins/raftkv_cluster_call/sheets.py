"""The door's answers as tables and sentences, for `raftkv calls` (cli.py).

Pure functions of decoded JSON. Cells are as they came: cli.py escapes what cannot be printed, and
shows an empty one as a dash.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

__all__ = [
    "Sheet",
    "advice",
    "attempts_sheet",
    "call_sheet",
    "calls_sheet",
    "functions_sheet",
    "keys_sheet",
    "log_words",
    "nodes_sheet",
    "operated_words",
    "result_sheet",
    "unchanged",
    "verdicts_sheet",
]

# Longer causes are cut in tables: the class comes first. `query` and --json have them whole.
CAUSE_CHARS: Final = 60

Answer = dict[str, Any]


class Sheet(NamedTuple):
    """A table; the columns in `numbers` are aligned to the right."""

    headings: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    numbers: tuple[str, ...] = ()


def nodes_sheet(nodes: Sequence[Answer]) -> Sheet:
    rows = [
        (
            each["name"],
            each["role"],
            "yes" if each["up"] else "no",
            each["state"],
            _number(each["cursor"]),
            _number(each["lag"]),
            _number(each["failing"] or None),
            _number(each["attempts"] or None),
            ",".join(map(str, each["skipped"])),
            _cut(each["cause"]),
        )
        for each in nodes
    ]
    headings = (
        "NODE", "ROLE", "UP", "STATE", "CURSOR", "LAG", "FAILING", "ATTEMPTS", "SKIPPED", "CAUSE",
    )  # fmt: skip
    return Sheet(headings, rows, ("CURSOR", "LAG", "FAILING", "ATTEMPTS"))


def calls_sheet(calls: Sequence[Answer], now_ms: int) -> Sheet:
    rows = [
        (
            str(each["id"]),
            each["function"],
            str(each["version"]),
            each["initiator"],
            each["state"],
            f"{max(0, now_ms - each['created_ms']) / 1000:.1f}",
            ",".join(each["pending_nodes"]),
            _cut(each["cause"]),
        )
        for each in calls
    ]
    headings = ("ID", "FUNCTION", "VERSION", "INITIATOR", "STATE", "S AGO", "PENDING", "CAUSE")
    return Sheet(headings, rows, ("ID", "VERSION", "S AGO"))


def call_sheet(found: Answer) -> Sheet:
    rows = [
        ("id", str(found["id"])),
        ("function", f"{found['function']} version {found['version']}"),
        ("initiator", found["initiator"]),
        ("state", found["state"] + (" (by fix)" if found["kind"] == "force" else "")),
        ("cause", found["cause"]),
        ("created_ms", str(found["created_ms"])),
        ("decided_ms", _number(found["decided_ms"] or None)),
        ("pending", ", ".join(found["pending_nodes"]) or "none"),
    ]
    return Sheet(("FIELD", "VALUE"), rows)


def result_sheet(done: Answer) -> Sheet:
    rows = [
        ("outcome", done["outcome"]),
        ("id", _number(done["id"] or None)),
        ("result", json.dumps(done["result"], ensure_ascii=False)),
        ("nodes", ", ".join(done["nodes"])),
    ]
    return Sheet(("FIELD", "VALUE"), rows)


def functions_sheet(answers: Sequence[Answer]) -> Sheet:
    """What the nodes have, and which have it: one that lacks a function fails its calls."""
    found: dict[tuple[str, int], Answer] = {}
    having: dict[tuple[str, int], set[str]] = {}
    for answer in answers:
        for each in answer["functions"]:
            key = (each["name"], each["version"])
            found.setdefault(key, each)
            having.setdefault(key, set()).add(answer["node"])
    nodes = {answer["node"] for answer in answers}
    rows = [
        (
            name,
            str(version),
            "keyspace" if each["effect"] else "",
            each["argument"],
            "all" if having[name, version] == nodes else ",".join(sorted(having[name, version])),
            each["doc"],
        )
        for (name, version), each in sorted(found.items(), key=lambda item: item[0])
    ]
    headings = ("FUNCTION", "VERSION", "EFFECT", "ARGUMENTS", "NODES", "WHAT IT DOES")
    return Sheet(headings, rows, ("VERSION",))


def attempts_sheet(attempts: Sequence[Answer]) -> Sheet:
    rows = [
        (
            str(each["id"]),
            each["function"],
            "succeeded" if each["ok"] else "failed",
            f"{each['error']} {each['place']}".strip(),
        )
        for each in attempts
    ]
    return Sheet(("ID", "FUNCTION", "ATTEMPT", "ERROR"), rows, ("ID",))


def verdicts_sheet(found: Answer) -> Sheet:
    """A line for each node: what `fix` found there, and did."""
    words = {each["node"]: each["reason"] for each in found["absent"]}
    words |= dict.fromkeys(found["forwarded"], "was behind, had the same data")
    words |= dict.fromkeys(found["synced"], "was behind, has a copy now")
    words |= dict.fromkeys(found["copying"], "was behind, is copying")
    words |= {each["node"]: "differs, not changed" for each in unchanged(found)}
    if found["lead"]:
        words[found["lead"]] = "the most advanced one"
    return Sheet(("NODE", "FOUND"), sorted(words.items()))


def keys_sheet(found: Answer) -> Sheet:
    rows = []
    for each in found["differing"]:
        rows += [(each["node"], key) for key in each["keys"]]
        if each["more"]:
            rows.append((each["node"], f"... and {each['more']} more"))
    return Sheet(("NODE", "DIFFERING KEY"), rows)


def unchanged(found: Answer) -> list[Answer]:
    """The differing nodes that `fix` did not change."""
    return [each for each in found["differing"] if each["node"] not in found["synced"]]


def log_words(found: Answer) -> str:
    last, oldest = found["last"], found["oldest"]
    if not last:
        return "no call was made yet"
    kept = f"records from {oldest}" if oldest <= last else "no records"
    running = f"{found['granted']} is running" if found["granted"] else "none is running"
    return f"last id {last}, {kept}; {running}, {found['queue']} waiting"


def advice(found: Answer) -> list[str]:
    """A line for everything that needs somebody, and what to do."""
    lines = []
    for each in found["nodes"]:
        name = each["name"]
        if each["failing"]:
            lines.append(
                f"{name} fails to execute call {each['failing']}: mend what it needs there, or "
                f"`raftkv calls skip {name}`"
            )
        elif each["state"] == "gap":
            lines.append(
                f"{name} needs a copy of the others' state and gets it by itself; without any "
                f"state to copy: `raftkv calls fast-forward {name} {max(each['as_of'], 1)}`"
            )
    for row in found["lost"]:
        lines.append(
            f"call {row['id']} ({row['function']}) was aborted, {row['node']} may have run it: "
            f"look there, then `raftkv calls acknowledge {row['id']}`"
        )
    return lines


def operated_words(found: Answer) -> str:
    words = {
        "reset": "the records are forgotten, all nodes follow",
        "leave": "has left the calls",
        "rejoin": "takes part again",
        "force-leave": "has lost its place",
        "acknowledge": "the alarm is cleared",
    }
    who = f"{found['node']}: " if found["node"] else ""
    done = words[found["verb"]] if found["done"] else "nothing to do"
    return f"{who}{done}, the last id is {found['last']}"


def _number(value: int | None) -> str:
    return "" if value is None else str(value)


def _cut(cause: str) -> str:
    return cause if len(cause) <= CAUSE_CHARS else cause[: CAUSE_CHARS - 3] + "..."
