"""The text of a transaction, as etcdctl reads it: three blocks of lines, each ended by a blank one.

    value("greeting") = "hello"         the compares; all must hold
    mod("greeting") > "0"

    put greeting "good bye"             what is done then
    get greeting

    get greeting                        what is done otherwise

A compare is TARGET(KEY) OPERATOR OPERAND. TARGET is c or create, m or mod, ver or version, val or
value, lease; OPERATOR =, !=, < or >; KEY is a string in Go's quotes, and so is OPERAND, but a
number may stand without quotes. The operand of lease is hexadecimal, as leases are written.

An operation is a `put`, `get` or `del` with the options that the command of that name has for
what is asked of the keyspace; how the answer is printed is said once, for the whole transaction. A
word in double quotes is read with its escapes, one in single quotes as it is; either may go over
several lines. Quoted words are never options, and behind a lone -- none is.

The end of the text ends the blocks that are still open. `parse` stops behind the third block and
reads no further. Every error names its line.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Literal, NamedTuple

from raftkv.errors import ConfigError
from raftkv.kv.commands import Compare, DeleteRangeOp, PutOp, RangeOp

from .quoting import BadQuoting, OpenQuote, unquote
from .requests import delete_op, lease_id, range_op

__all__ = ["BLOCKS", "SimpleOperation", "TxnText", "parse", "parse_compare", "parse_operation"]

SimpleOperation = PutOp | RangeOp | DeleteRangeOp
Target = Literal["value", "version", "create", "mod", "lease"]

#: What etcdctl asks for in turn.
BLOCKS: Final = (
    "compares:",
    "success requests (get, put, del):",
    "failure requests (get, put, del):",
)

_TARGETS: Final[dict[str, Target]] = {
    "c": "create",
    "create": "create",
    "m": "mod",
    "mod": "mod",
    "val": "value",
    "value": "value",
    "ver": "version",
    "version": "version",
    "lease": "lease",
}
_OPERATORS: Final[tuple[Literal["!=", "=", "<", ">"], ...]] = ("!=", "=", "<", ">")
_INT64_MAX: Final = 2**63 - 1
_DIGITS_MAX: Final = 19

# The options of each operation: name -> does a value follow?
_FLAGS: Final[dict[str, dict[str, bool]]] = {
    "put": {"lease": True, "prev-kv": False, "ignore-value": False, "ignore-lease": False},
    "get": {
        "prefix": False,
        "from-key": False,
        "limit": True,
        "sort-by": True,
        "order": True,
        "rev": True,
        "keys-only": False,
        "count-only": False,
    },
    "del": {"prefix": False, "from-key": False, "prev-kv": False},
}


class TxnText(NamedTuple):
    """A transaction as it was written."""

    compare: tuple[Compare, ...]
    success: tuple[SimpleOperation, ...]
    failure: tuple[SimpleOperation, ...]


class _Word(NamedTuple):
    text: str
    quoted: bool


def parse(lines: Iterable[str], *, prompt: Callable[[str], None] = lambda block: None) -> TxnText:
    """Read a transaction. `prompt` is called with each of `BLOCKS` before it is read.

    Lines are text with surrogate escapes. Raises `ConfigError` with the number of the line.
    """
    numbered = enumerate(lines, 1)
    prompt(BLOCKS[0])
    compare = tuple(_block(numbered, parse_compare))
    prompt(BLOCKS[1])
    success = tuple(_block(numbered, parse_operation))
    prompt(BLOCKS[2])
    failure = tuple(_block(numbered, parse_operation))
    return TxnText(compare, success, failure)


def _block(numbered: Iterator[tuple[int, str]], read: Callable[[str], Any]) -> Iterator[Any]:
    for number, line in numbered:
        if not line.strip():
            return
        try:
            found = _read_lines(line, numbered, read)
        except (BadQuoting, ConfigError) as error:
            raise ConfigError(f"line {number}: {error}") from None
        yield found


def _read_lines(line: str, more: Iterator[tuple[int, str]], read: Callable[[str], Any]) -> Any:
    """Parse a line; a quoted word may hold ends of lines, and then `more` of them follow."""
    while True:
        try:
            return read(line.strip())
        except OpenQuote:
            following = next(more, None)
            if following is None:
                raise
            line = f"{line.removesuffix(chr(10))}\n{following[1]}"


def parse_compare(line: str) -> Compare:
    """One condition. Raises `BadQuoting` or `ConfigError`."""
    name, parenthesis, rest = line.partition("(")
    if not parenthesis:
        raise ConfigError(f'{line!r} is no compare: write for example value("key") = "text"')
    target = _TARGETS.get(name.strip().lower())
    if target is None:
        raise ConfigError(
            f"{name.strip()!r} cannot be compared: it is create, mod, version, value or lease"
        )
    key, rest = unquote(rest.lstrip())
    rest = rest.lstrip()
    if not rest.startswith(")"):
        raise ConfigError(f"a ) must follow the key, not {rest!r}")
    rest = rest[1:].lstrip()
    operator = next((each for each in _OPERATORS if rest.startswith(each)), None)
    if operator is None:
        raise ConfigError(f"one of = != < > must follow the key, not {rest!r}")
    return Compare(key, target, operator, _operand(target, rest[len(operator) :].strip()))


def _operand(target: Target, text: str) -> bytes | int:
    if target == "value" or text[:1] in ('"', "`"):
        data, rest = unquote(text)
        if rest:
            raise ConfigError(f"nothing may follow the compare: {rest.strip()!r}")
        if target == "value":
            return data
        text = os.fsdecode(data)
    if target == "lease":
        # No lease at all is number 0, which is no lease's id.
        return 0 if text.strip("0") == "" and text else lease_id(text)
    number = _number(text.removeprefix("-"))
    if number is None:
        raise ConfigError(f"{target} is compared with a number, not {text!r}")
    return -number if text.startswith("-") else number


def _number(digits: str) -> int | None:
    """The number, unless it is none or does not fit into 64 bits."""
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= _DIGITS_MAX):
        return None
    number = int(digits)
    return number if number <= _INT64_MAX else None


def parse_operation(line: str) -> SimpleOperation:
    """One put, get or del. Raises `BadQuoting` or `ConfigError`."""
    verb, *words = _words(line)
    name = verb.text.lower()
    if name not in _FLAGS:
        raise ConfigError(f"{verb.text!r} is no operation of a transaction: put, get or del")
    arguments, flags = _sorted_out(name, words)
    match name:
        case "put":
            return _put(arguments, flags)
        case "get":
            key, range_end = _key_and_end(name, arguments)
            return range_op(
                key,
                range_end,
                prefix="prefix" in flags,
                from_key="from-key" in flags,
                limit=_integer(flags, "limit"),
                sort_by=flags.get("sort-by"),
                order=flags.get("order"),
                revision=_integer(flags, "rev"),
                keys_only="keys-only" in flags,
                count_only="count-only" in flags,
            )
    key, range_end = _key_and_end(name, arguments)
    return delete_op(
        key,
        range_end,
        prefix="prefix" in flags,
        from_key="from-key" in flags,
        prev_kv="prev-kv" in flags,
    )


def _put(arguments: list[bytes], flags: dict[str, str]) -> PutOp:
    ignore_value = "ignore-value" in flags
    if len(arguments) != (1 if ignore_value else 2):
        what = "a KEY alone (with --ignore-value)" if ignore_value else "a KEY and a VALUE"
        raise ConfigError(f"put takes {what}; text with spaces stands in quotes")
    ignore_lease = "ignore-lease" in flags
    if ignore_lease and "lease" in flags:
        raise ConfigError("--lease and --ignore-lease cannot both be given")
    return PutOp(
        arguments[0],
        b"" if ignore_value else arguments[1],
        prev_kv="prev-kv" in flags,
        lease=lease_id(flags["lease"]) if "lease" in flags else 0,
        ignore_value=ignore_value,
        ignore_lease=ignore_lease,
    )


def _key_and_end(name: str, arguments: list[bytes]) -> tuple[bytes, bytes | None]:
    if not 1 <= len(arguments) <= 2:
        raise ConfigError(f"{name} takes a KEY, or a KEY and a RANGE_END")
    return arguments[0], arguments[1] if len(arguments) == 2 else None


def _integer(flags: dict[str, str], name: str) -> int:
    number = _number(flags.get(name, "0"))
    if number is None:
        raise ConfigError(f"--{name} takes a number, not {flags[name]!r}")
    return number


def _sorted_out(verb: str, words: list[_Word]) -> tuple[list[bytes], dict[str, str]]:
    """The arguments and the options of an operation."""
    arguments: list[bytes] = []
    flags: dict[str, str] = {}
    waiting = iter(words)
    plain = False
    for word in waiting:
        if plain or word.quoted or not word.text.startswith("--"):
            arguments.append(os.fsencode(word.text))
            continue
        if word.text == "--":
            plain = True
            continue
        name, given, value = word.text[2:].partition("=")
        takes_value = _FLAGS[verb].get(name)
        if takes_value is None:
            raise ConfigError(f"{verb} has no option --{name} in a transaction")
        if takes_value and not given:
            following = next(waiting, None)
            if following is None:
                raise ConfigError(f"--{name} needs a value")
            value = following.text
        elif given and not takes_value:
            raise ConfigError(f"--{name} takes no value")
        flags[name] = value
    return arguments, flags


def _words(line: str) -> list[_Word]:
    """The words of a line; the first one begins at its beginning."""
    words: list[_Word] = []
    rest = line
    while rest := rest.lstrip():
        quoted = rest[0] in "\"'"
        if rest[0] == '"':
            data, rest = unquote(rest)
            text = os.fsdecode(data)
        elif quoted:
            text, end, rest = rest[1:].partition("'")
            if not end:
                raise OpenQuote("the closing ' is missing")
        else:
            text = rest.split(maxsplit=1)[0]
            rest = rest[len(text) :]
        if quoted and rest and not rest[0].isspace():
            raise BadQuoting(f"a space must follow the closing quote, not {rest!r}")
        words.append(_Word(text, quoted))
    return words
