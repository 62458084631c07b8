"""What the commands of `raftkv topic`, `sub` and `region` share."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Annotated, Any, Final

import typer

from raftkv.cli.kit import Ask, At, ask, note, path_part, print_json, print_table, say, shown
from raftkv.errors import ConfigError, RaftkvError

from .sheets import Sheet

__all__ = [
    "LIST_MAX",
    "Local",
    "Yes",
    "confirm",
    "one_node",
    "path",
    "patient",
    "print_sheet",
    "query",
    "tell",
]

LIST_MAX: Final = 1_000
# The door waits as long as the command may take; its answer needs this much longer to arrive.
ANSWER_S: Final = 5.0
# How long an endpoint has to answer before another one is taken for a consumer.
LOOK_S: Final = 2.0

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


def patient(at: At, more_s: float = 0.0) -> At:
    """The same, with time for an answer that comes when the time is up."""
    return At(
        endpoints=at.endpoints,
        directory=at.directory,
        timeout_s=at.timeout_s + more_s + ANSWER_S,
        tls=at.tls,
        output=at.output,
    )


def one_node(at: At) -> At:
    """The first endpoint that answers: a consumer lives at one node. Raises RaftkvError."""
    look = At(
        endpoints=at.endpoints,
        directory=at.directory,
        timeout_s=min(at.timeout_s, LOOK_S),
        tls=at.tls,
        output=at.output,
    )
    last: RaftkvError | None = None
    for place, _, error in Ask(look).each("GET", f"{path('settings')}?consistency=local"):
        if error is None:
            return At(endpoints=(place,), timeout_s=at.timeout_s, tls=at.tls, output=at.output)
        last = error
    raise last or RaftkvError("no endpoint is known")


def confirm(what: str, word: str) -> None:
    """On stderr, so that stdout stays the result. Raises ConfigError without a yes."""
    note(what)
    if not sys.stdin.isatty():
        raise ConfigError("nobody can be asked here: add --yes if this is what you want")
    if ask(f"Type {word} to go on") != word:
        raise ConfigError("nothing was changed")
