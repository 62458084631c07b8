"""The door's answers as tables and sentences, for `raftkv queue` and `raftkv dtx` (cli.py).

Pure functions of decoded JSON. Cells are as they came: cli.py escapes what cannot be printed, and
shows an empty one as a dash.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

__all__ = [
    "Sheet",
    "branches_sheet",
    "browsed_sheet",
    "content_sheet",
    "declared_words",
    "fate_words",
    "outcome_words",
    "queue_words",
    "queues_sheet",
    "some",
    "status_words",
    "text_of",
]

Answer = dict[str, Any]

# How much of a body a table shows.
BODY_CHARS: Final = 60


class Sheet(NamedTuple):
    """A table; the columns in `numbers` are aligned to the right."""

    headings: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    numbers: tuple[str, ...] = ()


# --- queues ---------------------------------------------------------------------------------------


def queues_sheet(queues: Sequence[Answer]) -> Sheet:
    rows = [
        (
            each["name"],
            str(each["depth"]),
            str(each["ready"]),
            str(each["acquired"]),
            str(each["bytes"]),
            str(each["reserved"]),
            _limit(each["depth_max"]),
            each["overflow"],
            each["dead_letter"],
        )
        for each in queues
    ]
    headings = (
        "QUEUE", "DEPTH", "READY", "ACQUIRED", "BYTES", "RESERVED", "LIMIT", "OVERFLOW", "DEAD TO",
    )  # fmt: skip
    return Sheet(headings, rows, ("DEPTH", "READY", "ACQUIRED", "BYTES", "RESERVED", "LIMIT"))


def queue_words(found: Answer) -> list[str]:
    """One queue in a few lines: what is in it, what was, and its limits."""
    held = f"{found['ready']} available, {found['acquired']} acquired"
    if found.get("delayed"):
        held = f"{held}, {found['delayed']} delayed"
    what = f"{some(found['depth'], 'message')} ({found['bytes']} bytes): {held}"
    lines = [f"{what}; the next is number {found['next_seq']}"]
    if found["reserved"]:
        lines.append(f"room for {found['reserved']} more is promised to prepared transactions")
    if found["transactions"]:
        undecided = some(found["transactions"], "undecided transaction")
        lines.append(f"with content of it: {undecided}")
    if found["dropped"] or found["dead"]:
        lines.append(f"ever dropped {found['dropped']}, dead {found['dead']}")
    lines.append(_limits(found))
    return lines


def _limits(found: Answer) -> str:
    parts = []
    if found["depth_max"]:
        parts.append(some(found["depth_max"], "message"))
    if found["bytes_max"]:
        parts.append(f"{found['bytes_max']} bytes")
    if parts:
        then = "then refused" if found["overflow"] == "refuse" else "then the oldest go"
        text = f"at most {' and '.join(parts)}, {then}"
    else:
        text = "no limit"
    if found["deliveries_max"]:
        text += f"; dead after {found['deliveries_max']} deliveries"
    if found["dead_letter"]:
        text += f"; dead ones go to {found['dead_letter']}"
    if found["ack_timeout_ms"]:
        text += f"; a session that holds one for {found['ack_timeout_ms']} ms is ended"
    if found["ttl_ms"]:
        text += f"; dead after {found['ttl_ms']} ms"
    return text


def declared_words(done: Answer) -> str:
    """What a declaration did."""
    what = "created" if done["created"] else "changed" if done["changed"] else "was so already"
    return f"{done['queue']}: {what}"


def browsed_sheet(messages: Sequence[Answer], now_ms: int, holders: bool = False) -> Sheet:
    """`holders`: with who has them, since how many seconds, in which transaction."""
    rows = [
        (
            str(each["seq"]),
            each["state"],
            str(each["deliveries"]),
            _ago(now_ms, each["at_ms"]),
            *(_holder(each["holder"], now_ms) if holders else ()),
            " ".join(f"{name}={value}" for name, value in each["headers"]),
            _cut(text_of(each["body"])),
        )
        for each in messages
    ]
    who = ("SESSION", "KIND", "NODE", "S HELD", "TRANSACTION") if holders else ()
    headings = ("SEQ", "STATE", "DELIVERIES", "S AGO", *who, "HEADERS", "BODY")
    return Sheet(headings, rows, ("SEQ", "DELIVERIES", "S AGO", "SESSION", "S HELD"))


def _holder(holder: Answer | None, now_ms: int) -> tuple[str, ...]:
    if holder is None:
        return ("",) * 5
    since_ms = holder["since_ms"]
    return (
        str(holder["session"]),
        holder["kind"],
        holder["node"],
        _ago(now_ms, since_ms) if since_ms else "",
        holder["transaction"],
    )


def _ago(now_ms: int, at_ms: int) -> str:
    return f"{max(0, now_ms - at_ms) / 1000:.1f}"


def status_words(found: Answer) -> list[str]:
    """What holds for all queues and transactions, in a few lines."""
    sums = found["totals"]
    messages = f"{some(sums['messages'], 'message')} ({sums['bytes']} bytes)"
    states = ("active", "preparing", "prepared", "failed")
    counts = [f"{sums[state]} {state}" for state in states]
    lines = [
        f"{some(sums['queues'], 'queue')}, {messages}, {sums['ready']} available",
        f"{some(found['sessions'], 'session')}; held: {some(found['acquired'], 'message')}",
        f"transactions: {', '.join(counts)}, {sums['heuristic']} decided by hand",
    ]
    if sums["prepared"]:
        lines.append(
            f"the oldest prepared one is {sums['prepared_age_ms'] / 1000:.0f} s old: see "
            "`raftkv dtx recover`"
        )
    if sums["unfolding"]:
        lines.append(f"{sums['unfolding']} decided ones are still being moved")
    if found["participants"]:
        lines.append(f"participants: {', '.join(found['participants'])}")
    return lines


# --- transactions ---------------------------------------------------------------------------------


def fate_words(found: Answer) -> str:
    """What became of a local transaction."""
    text = f"transaction {found['txid']}: {found['state']}"
    return text + _why(found["cause"], found["reason"])


def branches_sheet(branches: Sequence[Answer], now_ms: int) -> Sheet:
    rows = [
        (
            each["xid"],
            each["state"],
            str(each["queues"]),
            str(each["rows"]),
            str(each["bytes"]),
            _cut(_content(each["content"])),
            f"{max(0, now_ms - each['opened_ms']) / 1000:.0f}",
            ",".join(str(number) for number in each["sessions"]),
            ",".join(each["waits_for"]),
            each["why"],
        )
        for each in branches
    ]
    headings = (
        "XID", "STATE", "QUEUES", "MESSAGES", "BYTES", "CONTENT", "S AGO", "SESSIONS", "WAITS FOR",
        "WHY",
    )  # fmt: skip
    return Sheet(headings, rows, ("QUEUES", "MESSAGES", "BYTES", "S AGO"))


def outcome_words(found: Answer) -> str:
    """What became of a branch."""
    text = f"{found['xid']}: {found['state']}"
    if found["by"]:
        text += f" by {found['by']}"
    return text + (f": {found['reason']}" if found["reason"] else "")


def content_sheet(content: Sequence[Answer]) -> Sheet:
    """What a branch does to each queue, with the seqs of what it accepts."""
    rows = [
        (
            each["queue"],
            str(each["publishes"]),
            str(each["publish_bytes"]),
            str(each["accepts"]),
            str(each["accept_bytes"]),
            _seqs(each["seqs"], each["next"]),
        )
        for each in content
    ]
    headings = ("QUEUE", "PUBLISHES", "BYTES", "ACCEPTS", "BYTES ACCEPTED", "NUMBERS ACCEPTED")
    return Sheet(headings, rows, ("PUBLISHES", "BYTES", "ACCEPTS", "BYTES ACCEPTED"))


# --- inside ---------------------------------------------------------------------------------------


def some(count: int, what: str) -> str:
    """Like "1 message" and "2 messages"."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def text_of(data: str) -> str:
    """What base64 holds, as text; bytes that are no UTF-8 as lone surrogates."""
    return base64.b64decode(data).decode("utf-8", "surrogateescape")


def _cut(text: str) -> str:
    return text if len(text) <= BODY_CHARS else text[: BODY_CHARS - 3] + "..."


def _content(parts: Sequence[Answer] | None) -> str:
    """Like "orders +2 -1": two messages are published to it, and one of it is accepted."""
    if parts is None:
        return "..."
    texts = []
    for each in parts:
        signs = (("+", each["publishes"]), ("-", each["accepts"]))
        texts.append(" ".join([each["queue"], *(f"{sign}{n}" for sign, n in signs if n)]))
    return ", ".join(texts)


def _seqs(seqs: Sequence[int], more: int) -> str:
    """Like "1-3,7", with the first one that is left out."""
    runs: list[list[int]] = []
    for seq in seqs:
        if runs and seq == runs[-1][1] + 1:
            runs[-1][1] = seq
        else:
            runs.append([seq, seq])
    texts = [str(a) if a == b else f"{a}-{b}" for a, b in runs]
    return ",".join([*texts, f"and more from {more}"] if more else texts)


def _limit(number: int) -> str:
    return str(number) if number else ""


def _why(cause: str, reason: str) -> str:
    if not cause:
        return ""
    return f" ({cause}: {reason})" if reason else f" ({cause})"
