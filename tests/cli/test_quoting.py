"""Quoted strings: what Go writes, and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftkv.cli.quoting import (
    BadQuoting,
    hex_escaped,
    printable,
    printable_lines,
    quote,
    shown,
    unquote,
)


@pytest.mark.parametrize(
    ("data", "quoted"),
    [
        (b"", '""'),
        (b"plain text", '"plain text"'),
        (b'say "hi" \\', r'"say \"hi\" \\"'),
        (b"\a\b\f\n\r\t\v", r'"\a\b\f\n\r\t\v"'),
        (b"\x00\x1f\x7f", r'"\x00\x1f\x7f"'),
        ("grün ☃ 𝄞".encode(), '"grün ☃ 𝄞"'),
        (b"\xff\xfe", r'"\xff\xfe"'),
        ("\u00a0\u200b\U000e0001".encode(), r'"\u00a0\u200b\U000e0001"'),
    ],
)
def test_bytes_are_quoted_as_go_quotes_them(data: bytes, quoted: str) -> None:
    assert quote(data) == quoted
    assert unquote(quoted) == (data, "")


@given(st.binary(max_size=40), st.text(max_size=5))
def test_whatever_was_quoted_comes_back_and_the_rest_is_left(data: bytes, rest: str) -> None:
    assert unquote(quote(data) + rest) == (data, rest)


@given(st.binary(max_size=40))
def test_a_quoted_string_is_one_printable_line(data: bytes) -> None:
    assert quote(data).isprintable()
    assert shown(data).isprintable()


@pytest.mark.parametrize(
    ("text", "data"),
    [
        (r'"\x41\101\u00fc\U0001d11e\'"', "AAü𝄞'".encode()),
        (r"`raw \n`", b"raw \\n"),
    ],
)
def test_the_other_forms_of_go_are_read(text: str, data: bytes) -> None:
    assert unquote(text) == (data, "")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "double quotes is expected"),
        ("bare", "double quotes is expected"),
        ('"open', 'closing " is missing'),
        ("`open", "closing ` is missing"),
        ('"\\', "is no escape"),
        (r'"\q"', r"\\q is no escape"),
        (r'"\x4"', "2 hexadecimal digits"),
        (r'"\x+4"', "2 hexadecimal digits"),
        (r'"\u12"', "4 hexadecimal digits"),
        (r'"\ud800"', "is no character"),
        (r'"\U00110000"', "is no character"),
        (r'"\400"', "more than a byte"),
        (r'"\08"', "3 octal digits"),
    ],
)
def test_what_is_no_quoted_string_says_why(text: str, problem: str) -> None:
    with pytest.raises(BadQuoting, match=problem):
        unquote(text)


@given(st.text(max_size=30))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        data, rest = unquote(text)
    except BadQuoting:
        return
    assert text.endswith(rest)
    assert isinstance(data, bytes)


def test_hexadecimal_is_for_every_byte() -> None:
    assert hex_escaped(b"a\xff") == "\\x61\\xff"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("plain \u00e4 text", "plain \u00e4 text"),
        ("red \x1b[31m", "red \\x1b[31m"),
        ("over\rwritten\n", "over\\x0dwritten\\n"),
        ("\u202ereversed", "\\u202ereversed"),
        ("\udc80 and \ud800", "\\udc80 and \\ud800"),
    ],
)
def test_text_from_elsewhere_moves_no_cursor(text: str, found: str) -> None:
    assert printable(text) == found


def test_lines_and_tabs_stay() -> None:
    assert printable_lines("a\tb\n\x07c") == "a\tb\n\\x07c"
