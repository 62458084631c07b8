"""Keys and values as text: quoted as etcdctl quotes them, and read back.

etcdctl writes and reads Go's quoted strings: `"a\\n\\xff"`. What is printable stands as it is;
bytes that are no UTF-8 are written as \\xHH, so every key has a quoted form, and
`unquote(quote(key))` is the key again.
"""

from __future__ import annotations

import codecs
from typing import Final

__all__ = [
    "ESCAPES",
    "BadQuoting",
    "OpenQuote",
    "fitting",
    "hex_escaped",
    "printable",
    "printable_lines",
    "quote",
    "shown",
    "unquote",
]

_NAMED: Final = {
    "\a": "\\a", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\v": "\\v",
    "\\": "\\\\", '"': '\\"',
}  # fmt: skip
_PLAIN: Final = {text[1]: char for char, text in _NAMED.items()} | {"'": "'"}
# How many hexadecimal digits follow.
_HEX: Final = {"x": 2, "u": 4, "U": 8}


#: A handler of encoding errors: what an encoding lacks becomes an escape of `quote`.
ESCAPES: Final = "raftkv"


class BadQuoting(ValueError):
    """The text is not a quoted string; the message says why."""


class OpenQuote(BadQuoting):
    """The text ends inside a quoted string."""


def quote(data: bytes) -> str:
    """`data` in double quotes."""
    return f'"{_escaped(data, _NAMED)}"'


def shown(data: bytes) -> str:
    """`data` on one line without quotes, for a table; as it is if it is printable text."""
    return _escaped(data, {char: text for char, text in _NAMED.items() if char != '"'})


def _escaped(data: bytes, named: dict[str, str]) -> str:
    parts: list[str] = []
    # Bytes that are no UTF-8 come as lone surrogates, U+DC80 and up.
    for char in data.decode("utf-8", "surrogateescape"):
        if char in named:
            parts.append(named[char])
        elif char.isprintable():
            parts.append(char)
        else:
            parts.append(_escape_of(char))
    return "".join(parts)


def _escape_of(char: str) -> str:
    number = ord(char)
    if 0xDC80 <= number <= 0xDCFF:  # a byte of an argument that is not UTF-8
        return f"\\x{number - 0xDC00:02x}"
    if number < 0x20 or number == 0x7F:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def _escaping(error: UnicodeError) -> tuple[str | bytes, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(map(_escape_of, error.object[error.start : error.end])), error.end


codecs.register_error(ESCAPES, _escaping)


def fitting(text: str, encoding: str | None) -> str:
    """`text` with escapes for what the encoding of a stream lacks (None: UTF-8).

    `\\xHH` is a byte that is not UTF-8, `\\uHHHH` a character: `unquote` reads either.
    """
    encoding = encoding or "utf-8"
    return text.encode(encoding, ESCAPES).decode(encoding)


def printable(text: str) -> str:
    """`text` from elsewhere, as a terminal may get it: what is not printable is escaped.

    Else the text of an error, or a name, could move the cursor, or change what stands above.
    """
    if text.isprintable():
        return text
    return _escaped(text.encode("utf-8", "backslashreplace"), {"\n": "\\n", "\t": "\\t"})


def printable_lines(text: str) -> str:
    """The same for several lines, which may have tabs."""
    lines = ("\t".join(map(printable, line.split("\t"))) for line in text.split("\n"))
    return "\n".join(lines)


def hex_escaped(data: bytes) -> str:
    """Every byte as \\xHH: what `--hex` prints."""
    return "".join(f"\\x{byte:02x}" for byte in data)


def unquote(text: str) -> tuple[bytes, str]:
    """The bytes of the quoted string that `text` begins with, and the rest of `text`.

    Double quotes with escapes, or back quotes without any. Raises `BadQuoting`.
    """
    if text[:1] == "`":
        inside, end, rest = text[1:].partition("`")
        if not end:
            raise OpenQuote("the closing ` is missing")
        return inside.encode("utf-8", "surrogateescape"), rest
    if text[:1] != '"':
        raise BadQuoting('a string in double quotes is expected: "..."')
    found = bytearray()
    place = 1
    while place < len(text):
        char = text[place]
        if char == '"':
            return bytes(found), text[place + 1 :]
        if char == "\\":
            data, place = _escape(text, place + 1)
            found += data
        else:
            found += char.encode("utf-8", "surrogateescape")
            place += 1
    raise OpenQuote('the closing " is missing')


def _escape(text: str, place: int) -> tuple[bytes, int]:
    """What the escape behind a backslash means, and where it ends."""
    kind = text[place : place + 1]
    if kind in _PLAIN:
        return _PLAIN[kind].encode(), place + 1
    if kind in _HEX:
        digits = text[place + 1 : place + 1 + _HEX[kind]]
        number = _number(digits, _HEX[kind], 16, f"\\{kind}")
        end = place + 1 + _HEX[kind]
        if kind == "x":
            return bytes([number]), end
        if number > 0x10FFFF or 0xD800 <= number <= 0xDFFF:
            raise BadQuoting(f"\\{kind}{digits} is no character")
        return chr(number).encode(), end
    if kind and kind in "01234567":
        digits = text[place : place + 3]
        number = _number(digits, 3, 8, "\\")
        if number > 0xFF:
            raise BadQuoting(f"\\{digits} is more than a byte")
        return bytes([number]), place + 3
    raise BadQuoting(f"\\{kind} is no escape; a backslash is written \\\\")


def _number(digits: str, length: int, base: int, what: str) -> int:
    allowed = "0123456789abcdefABCDEF" if base == 16 else "01234567"
    if len(digits) != length or any(digit not in allowed for digit in digits):
        name = "hexadecimal" if base == 16 else "octal"
        raise BadQuoting(f"{what} must be followed by {length} {name} digits, not {digits!r}")
    return int(digits, base)
