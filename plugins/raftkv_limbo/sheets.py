"""The door's answers as tables and sentences, for `raftkv limbo` (cli.py).

Pure functions of decoded JSON. Cells are as they came: cli.py escapes what cannot be printed, and
shows an empty one as a dash.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any, NamedTuple

__all__ = [
    "Sheet",
    "changed_owner",
    "lack_words",
    "nodes_sheet",
    "queue_sheet",
    "quorum_words",
    "receipt_words",
    "results_sheet",
    "rows_sheet",
    "spaces_sheet",
    "status_words",
    "text_of",
    "verdict_words",
    "verdicts_sheet",
]

Answer = dict[str, Any]


class Sheet(NamedTuple):
    """A table; the columns in `numbers` are aligned to the right."""

    headings: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    numbers: tuple[str, ...] = ()


# --- status ---------------------------------------------------------------------------------------


def nodes_sheet(nodes: Sequence[Answer], owner: str) -> Sheet:
    rows = [
        (
            each["name"],
            each["role"],
            _yes(each["up"]),
            _yes(each["name"] == owner),
            _yes(each["counts"]),
            str(each["acked"]),
            str(each["lag"]),
            each["zone"],
            ",".join(each["validators"]),
        )
        for each in nodes
    ]
    headings = ("NODE", "ROLE", "UP", "OWNER", "COUNTS", "ACKED", "LAG", "ZONE", "VALIDATORS")
    return Sheet(headings, rows, ("ACKED", "LAG"))


def spaces_sheet(spaces: Sequence[Answer]) -> Sheet:
    rows = [
        (each["name"], _yes(each["sync"]), str(each["keys"]), str(each["pending"]))
        for each in spaces
    ]
    return Sheet(("SPACE", "SYNC", "KEYS", "PENDING"), rows, ("KEYS", "PENDING"))


def status_words(found: Answer) -> list[str]:
    """What holds for the whole queue, in a few lines."""
    queue = found["queue"]
    owner = f"owned by {found['owner']}" if found["owner"] else "owned by nobody"
    ever = f"{found['confirms']} confirmed and {found['rollbacks']} rolled back in all"
    lines = [
        f"{owner} in term {found['term']}; {quorum_words(found['quorum'])}",
        f"last position {found['last']}, confirmed {found['confirmed']}; {ever}",
    ]
    if queue["len"]:
        lines.append(
            f"{queue['len']} pending ({queue['bytes']} bytes, {queue['writes']} writes), the "
            f"oldest for {queue['age_ms'] / 1000:.1f} s"
        )
    else:
        lines.append("nothing is pending")
    if queue["waiting_for_room"]:
        lines.append(f"{queue['waiting_for_room']} wait for room on {found['node']}")
    return lines


def quorum_words(need: Answer) -> str:
    """The quorum as it is now: what it comes to, and how it is reached."""
    text = f"quorum {need['quorum']} of {need['n']} {need['over']} ({need['text']})"
    more = [f"{count} of zone {name}" for name, count in need["zones"]]
    more += [f"{count} approvals of {name}" for name, count in need["validators"]]
    if more:
        text += f", and {', '.join(more)}"
    return text + (": Raft's own commit is enough" if need["fast"] else "")


def results_sheet(results: Sequence[Sequence[int]], n: int) -> Sheet:
    rows = [(str(nodes), str(needed), "yes" if nodes == n else "") for nodes, needed in results]
    return Sheet(("N", "NEEDED", "NOW"), rows, ("N", "NEEDED"))


# --- positions ------------------------------------------------------------------------------------


def queue_sheet(entries: Sequence[Answer]) -> Sheet:
    rows = [
        (
            str(each["position"]),
            "sync" if each["sync"] else "async",
            ",".join(each["spaces"]),
            str(each["writes"]),
            str(each["bytes"]),
            str(each["term"]),
            f"{each['age_ms'] / 1000:.1f}",
            ",".join(each["holders"]),
        )
        for each in entries
    ]
    headings = ("POSITION", "KIND", "SPACES", "WRITES", "BYTES", "TERM", "S AGO", "ACKED BY")
    return Sheet(headings, rows, ("POSITION", "WRITES", "BYTES", "TERM", "S AGO"))


def lack_words(lacks: Sequence[Answer], head: int) -> list[str]:
    """What the oldest one waits for."""
    what = {
        "quorum": "acknowledgements",
        "zone": "acknowledgements from zone",
        "validator": "approvals of",
    }
    lines = []
    for each in lacks:
        line = f"position {head} has {each['have']} of {each['needed']} {what[each['what']]}"
        line += f" {each['name']}" if each["name"] else ""
        line += f"; missing: {', '.join(each['missing'])}" if each["missing"] else ""
        lines.append(line)
    return lines


def verdicts_sheet(runs: Sequence[Answer], now_ms: int) -> Sheet:
    rows = [
        (
            each["kind"],
            str(each["first"]),
            str(each["last"]),
            f"{max(0, now_ms - each['at_ms']) / 1000:.1f}" if each["at_ms"] else "",
            each["node"],
            each["reason"],
        )
        for each in runs
    ]
    headings = ("VERDICT", "FIRST", "LAST", "S AGO", "BY", "REASON")
    return Sheet(headings, rows, ("FIRST", "LAST", "S AGO"))


def verdict_words(found: Answer) -> str:
    """One verdict."""
    text = f"position {found['position']}: {found['fate']}"
    if found["fate"] == "rolled back":
        text += f" by {found['by'] or 'nobody'}: {found['reason']}"
    if found["fate"] == "confirmed" and found["index"]:
        text += f" at log index {found['index']} by {_cause_words(found)}"
    return text


def _cause_words(found: Answer) -> str:
    """What completed a quorum."""
    match found["cause"]:
        case "ack":
            return f"the acknowledgement of {found['by']}, up to {found['upto']}"
        case "submit":
            return f"its submission on {found['by']} (Raft's commit is the quorum)"
        case "declare":
            return f"the declaration of {found['by']}"
        case "member":
            return f"a change of the member {found['by']}"
        case "voters":
            return "a change of the voters"
    return f"the setting {found['by']}"


def receipt_words(done: Answer) -> str:
    """What came of a submission."""
    if not done["position"]:
        return "submitting: its position is not known yet"
    return f"position {done['position']}: {done['state']}"


def changed_owner(done: Answer, what: str) -> str:
    """What a promotion or demotion did."""
    text = f"{what} in term {done['term']}; all up to {done['confirmed']} is confirmed"
    return text + (f", {done['rolled_back']} rolled back" if done["rolled_back"] else "")


# --- data -----------------------------------------------------------------------------------------


def rows_sheet(rows: Sequence[Answer]) -> Sheet:
    cells = [(text_of(each["key"]), text_of(each["value"]), str(each["position"])) for each in rows]
    return Sheet(("KEY", "VALUE", "POSITION"), cells, ("POSITION",))


def text_of(data: str) -> str:
    """What base64 holds, as text; bytes that are no UTF-8 as lone surrogates."""
    return base64.b64decode(data).decode("utf-8", "surrogateescape")


# --- inside ---------------------------------------------------------------------------------------


def _yes(flag: bool) -> str:
    return "yes" if flag else "no"
