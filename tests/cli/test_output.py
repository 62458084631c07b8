"""A10: what is printed on a stream whose encoding lacks some characters."""

from __future__ import annotations

import io
import sys

import pytest

from raftkv.cli.output import Styled, print_table, rich_table
from raftkv.cli.quoting import fitting, unquote
from raftkv.cli.saying import say_line

ROWS = [("k\u00e9\u2192", Styled("v", "red")), ("plain", "\U0001f600"), ("\\xff", "\u251c")]
HEADINGS = ("KEY", "VALUE")


class Stdout(io.TextIOWrapper):
    """A standard output that refuses what its encoding lacks."""

    def __init__(self, encoding: str, *, terminal: bool) -> None:
        self.data = io.BytesIO()
        super().__init__(self.data, encoding=encoding, errors="strict", newline="")
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal

    @property
    def lines(self) -> list[str]:
        self.flush()
        return self.data.getvalue().decode(self.encoding).splitlines()


@pytest.mark.parametrize("terminal", [False, True])
def test_a10_the_columns_of_a_table_fit_the_escapes(
    monkeypatch: pytest.MonkeyPatch, *, terminal: bool
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "dumb")
    stdout = Stdout("ascii", terminal=terminal)
    monkeypatch.setattr(sys, "stdout", stdout)
    print_table(HEADINGS, ROWS)
    assert [line.rstrip() for line in stdout.lines] == [
        "KEY            VALUE",
        "k\\u00e9\\u2192  v",
        "plain          \\U0001f600",
        "\\xff           \\u251c",
    ]


def test_a10_nothing_is_cut_off_where_there_is_no_ellipsis(monkeypatch: pytest.MonkeyPatch) -> None:
    from rich.console import Console

    monkeypatch.setattr(sys, "stdout", Stdout("ascii", terminal=True))
    out = io.StringIO()
    Console(file=out, width=20).print(rich_table(HEADINGS, [("k" * 30, "v" * 30)]))
    assert "\u2026" not in out.getvalue()
    assert out.getvalue().count("k") == out.getvalue().count("v") == 30


def test_a10_an_escape_is_read_back_as_what_it_stands_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """\\xe9 is the byte E9, and not the letter \u00e9, which is two bytes."""
    for encoding in ("ascii", "latin-1", "utf-8", None):
        shown = fitting("k\u00e9\u2192\U0001f600\udcff", encoding)
        data, rest = unquote(f'"{shown}"')
        assert (data, rest) == ("k\u00e9\u2192\U0001f600".encode() + b"\xff", ""), encoding
    stdout = Stdout("ascii", terminal=False)
    monkeypatch.setattr(sys, "stdout", stdout)
    say_line("k\u00e9")
    assert stdout.lines == ["k\\u00e9"]
