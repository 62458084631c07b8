"""What the commands of `raftkv topic`, `sub` and `region` share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

import typer

from raftkv.cli.kit import At, first_answering, path_part, print_json, print_table, say, shown

from .sheets import Sheet

__all__ = [
    "LIST_MAX",
    "Local",
    "Yes",
    "one_node",
    "path",
    "print_sheet",
    "query",
    "tell",
]

LIST_MAX: Final = 1_000

Yes = Annotated[bool, typer.Option("--yes", help="Do not ask; for scripts.")]
Local = Annotated[
    bool, typer.Option("--local", help="From the copy of the node that is asked: may be stale.")
]


def path(*parts: str) -> str:
    """Below /v1/subscriptions/, each part one segment."""
    return "/".join(("/v1/subscriptions", *(path_part(part) for part in parts)))


def query(local: bool, *parts: str) -> str:
    """The end of a path."""
    said = [*parts, *(("consistency=local",) if local else ())]
    return f"?{'&'.join(said)}" if said else ""


def print_sheet(sheet: Sheet) -> None:
    """A table, what cannot be printed escaped; no headings for nothing."""
    if sheet.rows:
        rows = [tuple(shown(each) or "-" for each in row) for row in sheet.rows]
        print_table(sheet.headings, rows, sheet.numbers)


def tell(at: At, answer: Mapping[str, Any], text: str) -> None:
    """The answer, or what it says."""
    if at.output == "json":
        print_json(answer)
    else:
        say(shown(text))


def one_node(at: At) -> At:
    """The first endpoint that answers: a consumer lives at one node. Raises RaftkvError."""
    found, silent = first_answering(at, f"{path('settings')}?consistency=local")
    if found is None:
        raise silent[-1][1]
    return found
