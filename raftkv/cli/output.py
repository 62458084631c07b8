"""What the command prints: tables for people, JSON documents for programs.

Every table has a JSON document beside it (`--json`), whose shape is kept stable. On a terminal a
table has rich's colours, none when NO_COLOR is set. Into a file or a pipe it goes as plain aligned
columns, however wide; rich is not even imported then.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from .quoting import fitting, printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from .devcluster import ClusterStatus

__all__ = [
    "Styled",
    "cell",
    "console",
    "print_json",
    "print_status",
    "print_table",
    "rich_table",
    "status_table",
    "write_bytes",
]

_STATUS_HEADINGS = ("NODE", "ROLE", "LEADER", "TERM", "APPLIED", "ENDPOINT", "PID", "RUNNING")
_ELLIPSIS = "\u2026"
_STATUS_NUMBERS = ("TERM", "APPLIED", "PID")


class Styled(NamedTuple):
    """A cell's text and how it looks on a terminal: a style of rich."""

    text: str
    style: str


Row = Sequence[str | Styled]


def cell(value: object) -> str:
    """A cell's text; what is not known is a dash."""
    return "-" if value is None else str(value)


def _shown(each: str | Styled) -> str:
    """Names and texts come from the cluster. What the encoding lacks is escaped before the columns
    are made, because an escape is wider."""
    text = printable(each.text if isinstance(each, Styled) else each)
    return fitting(text, sys.stdout.encoding)


def console() -> Console:
    """A console for stdout, which is a terminal."""
    from rich.console import Console

    return Console(highlight=False)


def print_table(headings: Sequence[str], rows: Iterable[Row], numbers: Sequence[str] = ()) -> None:
    """A table on stdout; the columns in `numbers` are aligned to the right."""
    if sys.stdout.isatty():
        console().print(rich_table(headings, rows, numbers))
    else:
        sys.stdout.write(_plain_table(headings, rows, numbers))


def rich_table(headings: Sequence[str], rows: Iterable[Row], numbers: Sequence[str] = ()) -> Table:
    """The table as rich draws it."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    # rich cuts a cell that is too wide with an ellipsis; where there is none it goes on below.
    cuts = fitting(_ELLIPSIS, sys.stdout.encoding) == _ELLIPSIS
    overflow: Any = "ellipsis" if cuts else "fold"
    for heading in headings:
        justify: Any = "right" if heading in numbers else "left"
        table.add_column(heading, justify=justify, no_wrap=cuts, overflow=overflow)
    for row in rows:
        # As text, because a key or a name may hold what rich would take for markup.
        cells = (
            Text(_shown(each), style=each.style if isinstance(each, Styled) else "") for each in row
        )
        table.add_row(*cells)
    return table


def _plain_table(headings: Sequence[str], rows: Iterable[Row], numbers: Sequence[str]) -> str:
    lines = [tuple(headings)]
    for row in rows:
        lines.append(tuple(_shown(each) for each in row))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = []
    for line in lines:
        cells = (
            part.rjust(width) if heading in numbers else part.ljust(width)
            for part, width, heading in zip(line, widths, headings, strict=True)
        )
        text.append("  ".join(cells).rstrip() + "\n")
    return "".join(text)


def print_json(document: Any) -> None:
    """One JSON document on one line, in UTF-8 whatever the terminal or the pipe has."""
    import msgspec

    write_bytes(msgspec.json.encode(document) + b"\n")


def write_bytes(data: bytes) -> None:
    """Bytes as they are: a value need not be text."""
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def print_status(status: ClusterStatus) -> None:
    """The status of a development cluster, one node a row."""
    print_table(_STATUS_HEADINGS, _status_rows(status), _STATUS_NUMBERS)


def status_table(status: ClusterStatus) -> Table:
    """The same as rich draws it, to be drawn again and again."""
    return rich_table(_STATUS_HEADINGS, _status_rows(status), _STATUS_NUMBERS)


def _status_rows(status: ClusterStatus) -> Iterable[Row]:
    for node in status.nodes:
        leads = node.role == "leader"
        yield (
            Styled(node.name, "bold") if leads else node.name,
            Styled("leader", "green") if leads else cell(node.role),
            cell(node.leader),
            cell(node.term),
            cell(node.applied_index),
            node.endpoint,
            cell(node.pid),
            "yes" if node.running else Styled("no", "red"),
        )
