"""What the command prints: tables for people, JSON documents for programs.

Every table has a JSON document beside it (`--json`), whose shape is kept stable. Colours follow
rich: none when the output is not a terminal or NO_COLOR is set.
"""

from __future__ import annotations

import sys
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from .devcluster import ClusterStatus
from .door_client import Found

__all__ = ["console", "found_document", "print_json", "status_table", "write_line"]

# Without a terminal there is no width to fit into, and a cut column would be lost.
_WIDE = 200


def console() -> Console:
    """A console for stdout."""
    return Console(width=None if sys.stdout.isatty() else _WIDE, highlight=False)


def print_json(document: Any) -> None:
    """One JSON document on one line."""
    sys.stdout.write(msgspec.json.encode(document).decode() + "\n")


def write_line(data: bytes) -> None:
    """Bytes as they are, and a newline: a value need not be text."""
    sys.stdout.flush()
    sys.stdout.buffer.write(data + b"\n")
    sys.stdout.buffer.flush()


def found_document(found: Found) -> dict[str, Any]:
    """`get --json`: `key` and `value` are text, or null where the bytes are not UTF-8."""
    return {
        "key": _text(found.key),
        "value": _text(found.value),
        "key_base64": found.key,
        "value_base64": found.value,
        "create_revision": found.create_revision,
        "mod_revision": found.mod_revision,
        "version": found.version,
    }


def _text(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def status_table(status: ClusterStatus) -> Table:
    """The status of a cluster as a table, one node a row."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("NODE", "ROLE", "LEADER", "TERM", "APPLIED", "ENDPOINT", "PID", "RUNNING"):
        right = heading in ("TERM", "APPLIED", "PID")
        table.add_column(heading, justify="right" if right else "left", no_wrap=True)
    for node in status.nodes:
        leads = node.role == "leader"
        table.add_row(
            f"[bold]{node.name}[/bold]" if leads else node.name,
            f"[green]{node.role}[/green]" if leads else _cell(node.role),
            _cell(node.leader),
            _cell(node.term),
            _cell(node.applied_index),
            node.endpoint,
            _cell(node.pid),
            "yes" if node.running else "[red]no[/red]",
        )
    return table


def _cell(value: object) -> str:
    return "-" if value is None else str(value)
