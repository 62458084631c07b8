"""`raftkv txn`: a transaction in etcdctl's words, from a terminal or from stdin."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Final

import typer

from .options import At, connected, examples
from .saying import note

if TYPE_CHECKING:
    from raftkv.client import Client
    from raftkv.kv.commands import TxnResult

__all__ = ["register"]

# A line of a transaction holds a key and a value at most, written with escapes.
LINE_BYTES_MAX: Final = 16 * 1024 * 1024


def txn(
    at: At,
    interactive: Annotated[
        bool, typer.Option("--interactive", "-i", help="Ask for the three blocks in turn.")
    ] = False,
    hexed: Annotated[bool, typer.Option("--hex", help="Print bytes as \\xHH.")] = False,
) -> None:
    """Carry out a transaction read from stdin.

    Three blocks of lines, each ended by a blank line or the end of the input: the compares, what
    is done if they all hold, what is done if not. A compare is mod("key") > "0", or with create,
    version, value, lease, and with =, !=, <. An operation is put, get or del with their options.
    """
    from .connecting import run
    from .keys import show_result
    from .printing import Style
    from .txn_grammar import parse

    ask = interactive or sys.stdin.isatty()
    text = parse(_lines(), prompt=_prompt if ask else lambda block: None)

    async def act(client: Client) -> TxnResult:
        return await client.kv.txn(text.compare, text.success, text.failure)

    show_result(at, run(at, act), Style(hexed=hexed))


def _prompt(block: str) -> None:
    # On stderr, so that stdout stays the result.
    note(block)


def _lines() -> Iterator[str]:
    from raftkv.errors import TooLarge

    while line := sys.stdin.buffer.readline(LINE_BYTES_MAX + 1):
        if len(line) > LINE_BYTES_MAX:
            raise TooLarge(f"a line of the transaction exceeds {LINE_BYTES_MAX} bytes")
        yield os.fsdecode(line)


def register(app: typer.Typer) -> None:
    """Add the command to the top level."""
    text = examples(
        "raftkv txn --interactive --dir demo",
        """printf 'version("k") = "0"\\n\\nput k v\\n\\nget k\\n\\n' | raftkv txn --dir demo""",
    )
    app.command("txn", epilog=text)(connected("simple", "json", "fields")(txn))
