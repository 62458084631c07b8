"""The door's answers as tables and sentences, for `raftkv topic`, `sub` and `region` (cli.py).

Pure functions of decoded JSON. Cells are as they came: `cli_common.py` escapes what cannot be
printed, and shows an empty one as a dash.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

__all__ = [
    "Sheet",
    "consumers_sheet",
    "declared_words",
    "lag_sheet",
    "messages_sheet",
    "regions_sheet",
    "some",
    "status_words",
    "sub_words",
    "subs_sheet",
    "text_of",
    "topic_words",
    "topics_sheet",
]

Answer = Mapping[str, Any]

# How much of a body a table shows.
BODY_CHARS: Final = 60
# How many ranges a sentence names.
RANGES_SHOWN: Final = 8


class Sheet(NamedTuple):
    """A table; the columns in `numbers` are aligned to the right."""

    headings: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    numbers: tuple[str, ...] = ()


# --- topics ---------------------------------------------------------------------------------------


def topics_sheet(topics: Sequence[Answer]) -> Sheet:
    rows = [
        (
            each["name"],
            "yes" if each["replicated"] else "no",
            str(each["messages"]),
            str(each["bytes"]),
            str(each["first"]),
            str(each["next"]),
            str(each["subscriptions"]),
            _vector(each["vector"]),
        )
        for each in topics
    ]
    headings = ("TOPIC", "REPLICATED", "MESSAGES", "BYTES", "FIRST", "NEXT", "SUBS", "HAS")
    return Sheet(headings, rows, ("MESSAGES", "BYTES", "FIRST", "NEXT", "SUBS"))


def topic_words(found: Answer) -> list[str]:
    """One topic in a few lines: what is in it, from whom, and its limits."""
    kept = f"{some(found['messages'], 'message')} ({found['bytes']} bytes)"
    lines = [
        f"{kept}, positions {found['first']} to {found['next'] - 1}"
        if found["next"] > found["first"]
        else f"{kept}; the next position is {found['next']}",
        f"has, by region: {_vector(found['vector']) or 'nothing yet'}",
    ]
    if found["holes"]:
        gone = _ranges(found["holes"], found["holes_count"])
        lines.append(f"never came here, for it was removed before: {gone}")
    if found["compacted"]:
        lines.append(f"compacted: {some(found['keys'], 'key')}")
    lines.append(_limits(found))
    if not found["replicated"]:
        lines.append("of this region only: links do not carry it")
    if found["snapshot_age_ms"] is not None:
        lines.append(f"last snapshot {found['snapshot_age_ms'] / 1000:.1f} s ago")
    if found["pending"] is not None:
        lines.append("a snapshot is being made")
    return lines


def _limits(found: Answer) -> str:
    parts = []
    if found["retention_ms"]:
        parts.append(f"{found['retention_ms'] / 1000:g} s")
    if found["retention_bytes"]:
        parts.append(f"{found['retention_bytes']} bytes")
    text = f"kept for {' or '.join(parts)}" if parts else "kept without a limit"
    if found["backlog_bytes_max"]:
        text += (
            f"; backlog {found['backlog_bytes']} bytes, beyond {found['backlog_bytes_max']} "
            "publications are refused"
        )
    return text


def declared_words(done: Answer) -> str:
    """What a declaration did."""
    what = "created" if done["created"] else "changed" if done["changed"] else "was so already"
    return f"{done['topic']}: {what}"


def messages_sheet(messages: Sequence[Answer], now_ms: int) -> Sheet:
    rows = [
        (
            str(each["position"]),
            each["origin"],
            str(each["seq"]),
            f"{max(0, now_ms - each['at_ms']) / 1000:.1f}",
            each["key"],
            " ".join(f"{name}={value}" for name, value in each["headers"]),
            _cut(text_of(each["body"])),
        )
        for each in messages
    ]
    headings = ("POSITION", "ORIGIN", "SEQ", "S AGO", "KEY", "HEADERS", "BODY")
    return Sheet(headings, rows, ("POSITION", "SEQ", "S AGO"))


# --- subscriptions --------------------------------------------------------------------------------


def subs_sheet(subs: Sequence[Answer]) -> Sheet:
    rows = [
        (
            each["name"],
            each["kind"],
            "yes" if each["replicate"] else "no",
            str(each["mark"]),
            str(each["backlog"]),
            str(len(each["consumers"])),
        )
        for each in subs
    ]
    headings = ("SUBSCRIPTION", "KIND", "REPLICATED", "MARK", "BACKLOG", "CONSUMERS")
    return Sheet(headings, rows, ("MARK", "BACKLOG", "CONSUMERS"))


def sub_words(found: Answer) -> list[str]:
    """One subscription in a few lines: how far it is, and what it has beyond its mark."""
    replicated = "replicated" if found["replicate"] else "of this region only"
    lines = [
        f"{found['kind']}, {replicated}",
        f"done up to position {found['mark']}, {some(found['backlog'], 'message')} to go",
    ]
    if found["base"]:
        lines.append(f"began after: {_vector(found['base'])}")
    if found["ranges"]:
        lines.append(f"acknowledged: {_ranges(found['ranges'], found['ranges_count'])}")
    if found["locked"]:
        lines.append(f"in the hands of consumers: {some(found['locked'], 'message')}")
    if found["advancing"]:
        lines.append("its mark is still being moved")
    return lines


def consumers_sheet(consumers: Sequence[Answer]) -> Sheet:
    rows = [
        (
            str(each["id"]),
            each["name"],
            each["node"],
            str(each["priority"]),
            "yes" if each["active"] else "no",
            str(each["held"]),
        )
        for each in consumers
    ]
    headings = ("CONSUMER", "NAME", "NODE", "PRIORITY", "ACTIVE", "HOLDS")
    return Sheet(headings, rows, ("CONSUMER", "PRIORITY", "HOLDS"))


# --- regions --------------------------------------------------------------------------------------


def regions_sheet(regions: Sequence[Answer]) -> Sheet:
    rows = [_region_row(each) for each in regions]
    headings = ("REGION", "STATE", "LINK", "ENDPOINT", "S AGO", "LAG", "BEHIND", "LAST ERROR")
    return Sheet(headings, rows, ("S AGO", "LAG", "BEHIND"))


def _region_row(each: Answer) -> tuple[str, ...]:
    if each["own"]:
        return (each["name"], "own", "", "", "", "", "", "")
    link: Answer | None = each["link"]
    behind = str(sum(messages for _, messages in each["behind"])) if each["fetches"] else ""
    if link is None:
        return (each["name"], each["state"], "?", "", "", "", behind, "")
    ago = link["last_contact_ms"]
    return (
        each["name"],
        each["state"],
        link["state"],
        link["endpoint"] or "",
        "" if ago is None else f"{ago / 1000:.1f}",
        str(sum(messages for _, _, messages in link["lag"])),
        behind,
        link["last_error"] or "",
    )


def lag_sheet(regions: Sequence[Answer]) -> Sheet:
    """What is not here yet, and what others have not fetched from here, per topic."""
    rows = []
    for each in regions:
        if each["link"] is not None:
            for topic, origin, messages in each["link"]["lag"]:
                rows.append((topic, each["name"], origin, str(messages), ""))
        for topic, messages in each["behind"]:
            rows.append((topic, each["name"], "", "", str(messages)))
    return Sheet(("TOPIC", "REGION", "ORIGIN", "LAG", "BEHIND"), rows, ("LAG", "BEHIND"))


def status_words(found: Answer) -> list[str]:
    """A region in a few lines."""
    off = "" if found["enabled"] else "; replication of subscriptions is off"
    held = f"{some(found['topics'], 'topic')}, {some(found['consumers'], 'consumer')}"
    came = f"published {found['published']}, delivered by links {found['delivered']}"
    lines = [f"region {found['region']}, mode {found['mode']}{off}", f"{held}; {came}"]
    if found["mode"] == "snapshot":
        lines.append(
            f"snapshots {found['snapshots']}, timed out {found['timed_out']}, "
            f"updates {found['updates']}, "
            f"cache hits {found['cache_hits']}, misses {found['cache_misses']}"
        )
    lines += [f"warning: {each}" for each in found.get("warnings", ())]
    return lines


# --- inside ---------------------------------------------------------------------------------------


def some(count: int, what: str) -> str:
    """Like "1 message" and "2 messages"."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def text_of(data: str) -> str:
    """What base64 holds, as text; bytes that are no UTF-8 as lone surrogates."""
    return base64.b64decode(data).decode("utf-8", "surrogateescape")


def _cut(text: str) -> str:
    return text if len(text) <= BODY_CHARS else text[: BODY_CHARS - 3] + "..."


def _vector(vector: Mapping[str, int]) -> str:
    return " ".join(f"{origin}:{seq}" for origin, seq in vector.items())


def _ranges(ranges: Sequence[tuple[str, int, int]], count: int) -> str:
    shown = [
        f"{origin}:{first}" if first == last else f"{origin}:{first}-{last}"
        for origin, first, last in ranges[:RANGES_SHOWN]
    ]
    more = count - len(shown)
    return " ".join(shown) + (f" and {more} more" if more else "")


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
