"""Lines on a terminal: the one way in which the command line prints text.

What is not printable is escaped, because names and texts of errors come from the cluster: they
could move the cursor, or change what stands above. `tests/cli/test_saying.py` finds whatever prints
in another way. Values and keys have forms of their own (printing.py, `output.write_bytes`).
"""

from __future__ import annotations

import typer

from .quoting import printable, printable_lines

__all__ = ["ask", "note", "note_line", "say", "say_line"]


def say(text: str) -> None:
    """Lines on stdout."""
    typer.echo(printable_lines(text))


def say_line(text: str) -> None:
    """One line on stdout: a newline in `text` is escaped, too."""
    typer.echo(printable(text))


def note(text: str) -> None:
    """Lines on stderr: what is no result."""
    typer.echo(printable_lines(text), err=True)


def note_line(text: str) -> None:
    """One line on stderr."""
    typer.echo(printable(text), err=True)


def ask(text: str) -> str:
    """What is typed behind `text`, which is asked on stderr, so that stdout stays the result."""
    answer: str = typer.prompt(printable(text), err=True)
    return answer
