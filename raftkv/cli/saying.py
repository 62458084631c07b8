"""Lines on a terminal: the one way in which the command line prints text.

What is not printable, or not in the terminal's encoding, is escaped, because names and texts of
errors come from the cluster: they could move the cursor, or change what stands above.
`tests/cli/test_saying.py` finds whatever prints in another way. Values and keys have forms of their
own (printing.py, `output.write_bytes`).
"""

from __future__ import annotations

import sys
from typing import Final, TextIO

import typer

from raftkv.errors import ConfigError

from .quoting import fitting, printable, printable_lines

__all__ = ["ADVICE", "ask", "confirm", "note", "note_line", "say", "say_line"]

#: What to do about an unknown outcome, on the command line.
ADVICE: Final = "Read what it changes before it is repeated"


def say(text: str) -> None:
    """Lines on stdout."""
    _write(printable_lines(text), sys.stdout)


def say_line(text: str) -> None:
    """One line on stdout: a newline in `text` is escaped, too."""
    _write(printable(text), sys.stdout)


def note(text: str) -> None:
    """Lines on stderr: what is no result."""
    _write(printable_lines(text), sys.stderr)


def note_line(text: str) -> None:
    """One line on stderr."""
    _write(printable(text), sys.stderr)


def ask(text: str) -> str:
    """What is typed behind `text`, which is asked on stderr, so that stdout stays the result."""
    answer: str = typer.prompt(printable(text), err=True)
    return answer


def confirm(what: str, word: str) -> None:
    """Have `word` typed before `what` is done: asked on stderr, so that stdout stays the result.

    Raises ConfigError for another word, or where nothing can be typed.
    """
    note(what)
    if not sys.stdin.isatty():
        raise ConfigError(
            "standard input is no terminal, so this cannot be confirmed here: add --yes if it is "
            "what you want"
        )
    if ask(f"Type {word} to go on") != word:
        raise ConfigError("nothing was changed")


def _write(text: str, stream: TextIO) -> None:
    """A line, with escapes for what the stream's encoding does not have."""
    stream.write(fitting(text, stream.encoding) + "\n")
    stream.flush()
