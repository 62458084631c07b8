"""etcdctl's text of a transaction: read as it is meant, refused with the line and the reason."""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftkv.cli.quoting import BadQuoting, quote
from raftkv.cli.txn_grammar import BLOCKS, TxnText, parse, parse_compare, parse_operation
from raftkv.errors import ConfigError
from raftkv.kv.commands import FROM_KEY, Compare, DeleteRangeOp, PutOp, RangeOp


def lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def test_the_example_of_etcdctl() -> None:
    text = parse(
        lines(
            'mod("key1") > "0"\n'
            "\n"
            'put key1 "overwrote-key1"\n'
            "\n"
            'put key1 "created-key1"\n'
            "put key2 'some extra key'\n"
            "\n"
        )
    )
    assert text == TxnText(
        (Compare(b"key1", "mod", ">", 0),),
        (PutOp(b"key1", b"overwrote-key1"),),
        (PutOp(b"key1", b"created-key1"), PutOp(b"key2", b"some extra key")),
    )


def test_each_block_is_asked_for_and_nothing_is_read_behind_the_third() -> None:
    asked: list[str] = []
    given_lines = iter(lines("\nput a b\n\n\nnever read\n"))
    text = parse(given_lines, prompt=asked.append)
    assert asked == list(BLOCKS)
    assert text == TxnText((), (PutOp(b"a", b"b"),), ())
    assert next(given_lines) == "never read\n"


def test_the_end_of_the_text_ends_what_is_open() -> None:
    assert parse([]) == TxnText((), (), ())
    assert parse(['version("k") = 0']) == TxnText((Compare(b"k", "version", "=", 0),), (), ())


@pytest.mark.parametrize(
    ("line", "compare"),
    [
        ('c("k") = "5"', Compare(b"k", "create", "=", 5)),
        ('create("k") != 5', Compare(b"k", "create", "!=", 5)),
        ('m("k")<"5"', Compare(b"k", "mod", "<", 5)),
        ('MOD ( "k" ) > "5"', Compare(b"k", "mod", ">", 5)),
        ('ver("k") > "-1"', Compare(b"k", "version", ">", -1)),
        ('val("a b") = "x\\ny"', Compare(b"a b", "value", "=", b"x\ny")),
        ('value("k") < "="', Compare(b"k", "value", "<", b"=")),
        ('lease("k") = "694d8a1b"', Compare(b"k", "lease", "=", 0x694D8A1B)),
        ('lease("k") = 0', Compare(b"k", "lease", "=", 0)),
    ],
)
def test_compares(line: str, compare: Compare) -> None:
    assert parse_compare(line) == compare


@pytest.mark.parametrize(
    ("line", "operation"),
    [
        ("put k v", PutOp(b"k", b"v")),
        ("put k ''", PutOp(b"k", b"")),
        ('put "a b" "c\\td" --prev-kv', PutOp(b"a b", b"c\td", prev_kv=True)),
        ("put --lease=1f k v", PutOp(b"k", b"v", lease=31)),
        ("put k v --lease 1f", PutOp(b"k", b"v", lease=31)),
        ("put k --ignore-value --ignore-lease", PutOp(b"k", b"", False, 0, True, True)),
        ("put -- k --prev-kv", PutOp(b"k", b"--prev-kv")),
        ('put k "--prev-kv"', PutOp(b"k", b"--prev-kv")),
        ("put k -5", PutOp(b"k", b"-5")),
        ('PUT it\'s o"k"', PutOp(b"it's", b'o"k"')),
        ("get k", RangeOp(b"k")),
        ("get a b --limit=3", RangeOp(b"a", b"b", limit=3)),
        ("get a --prefix --keys-only", RangeOp(b"a", b"b", keys_only=True)),
        ('get "" --prefix --count-only', RangeOp(b"\0", FROM_KEY, count_only=True)),
        (
            "get a --from-key --sort-by MODIFY --order descend --rev 9",
            RangeOp(b"a", FROM_KEY, sort_by="mod", descending=True, revision=9),
        ),
        ("del k --prev-kv", DeleteRangeOp(b"k", prev_kv=True)),
        ("del a --from-key", DeleteRangeOp(b"a", FROM_KEY)),
        ("del a b", DeleteRangeOp(b"a", b"b")),
    ],
)
def test_operations(line: str, operation: object) -> None:
    assert parse_operation(line) == operation


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("nonsense", "is no compare"),
        ('size("k") = "5"', "'size' cannot be compared"),
        ("mod(k) = 5", "double quotes is expected"),
        ('mod("k" = 5', "a \\) must follow"),
        ('mod("k") ~ 5', "one of = != < >"),
        ('mod("k")', "one of = != < >"),
        ('mod("k") = five', "compared with a number"),
        ('mod("k") = "5" or so', "nothing may follow"),
        ('mod("k") = 5 or so', "compared with a number"),
        ('mod("k") = ""', "compared with a number"),
        ('mod("k") = -', "compared with a number"),
        ('mod("k") = 9223372036854775808', "compared with a number"),
        ('mod("k") = ' + "9" * 5000, "compared with a number"),
        ('mod("k") = ٣', "compared with a number"),
        ('value("k") = bare', "double quotes is expected"),
        ('lease("k") = "xyz"', "not the id of a lease"),
    ],
)
def test_a_bad_compare_names_its_line_and_the_reason(line: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=f"line 2: .*{problem}"):
        parse(['value("k") = "v"\n', line + "\n"])


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("move a b", "'move' is no operation"),
        ("put k", "a KEY and a VALUE"),
        ("put k v w", "a KEY and a VALUE"),
        ("put k v --ignore-value", "a KEY alone"),
        ("put k v --lease 5 --ignore-lease", "cannot both be given"),
        ("put k v --lease", "--lease needs a value"),
        ("put k v --lease zz", "not the id of a lease"),
        ("put k v --prev-kv=yes", "takes no value"),
        ("put k v --prefix", "put has no option --prefix"),
        ("get", "get takes a KEY"),
        ("get a b c", "get takes a KEY"),
        ("get k --print-value-only", "get has no option --print-value-only"),
        ("get k --limit many", "--limit takes a number"),
        ("get k --rev -1", "--rev takes a number"),
        ("get a b --prefix", "one KEY and no RANGE_END"),
        ("get a --prefix --from-key", "cannot both be given"),
        ("get a --order sideways", "neither ascend nor descend"),
        ("get a --sort-by colour", "--sort-by colour is not one of"),
        ("get a --keys-only --count-only", "cannot both be given"),
        ("del", "del takes a KEY"),
        ("del k --limit 5", "del has no option --limit"),
        ("put 'open v", "closing ' is missing"),
        ('put "open v', 'closing " is missing'),
        ('put "k"v w', "a space must follow"),
    ],
)
def test_a_bad_operation_names_its_line_and_the_reason(line: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=f"line 3: .*{problem}"):
        parse(["\n", "put a b\n", line + "\n"])


# Properties --------------------------------------------------------------------------------------

some_bytes = st.binary(max_size=12)
numbers = st.integers(0, 2**63 - 1)
leases = st.integers(0, 2**63 - 1)


@st.composite
def compares(draw: Any) -> Compare:
    target = draw(st.sampled_from(["value", "version", "create", "mod", "lease"]))
    operand = draw(some_bytes if target == "value" else numbers)
    return Compare(draw(some_bytes), target, draw(st.sampled_from(["=", "!=", "<", ">"])), operand)


puts = st.builds(PutOp, some_bytes, some_bytes, st.booleans(), leases)
gets = st.builds(
    RangeOp,
    some_bytes,
    some_bytes,
    numbers,
    st.booleans(),
    st.just(False),
    numbers,
    st.sampled_from(["key", "version", "create", "mod", "value"]),
    st.booleans(),
)
deletions = st.builds(DeleteRangeOp, some_bytes, some_bytes, st.booleans())
blocks = st.lists(puts | gets | deletions, max_size=4).map(tuple)
texts = st.builds(TxnText, st.lists(compares(), max_size=4).map(tuple), blocks, blocks)


def written(text: TxnText) -> str:
    """The text that means this transaction."""
    parts = [map(_compare, text.compare), map(_operation, text.success)]
    parts.append(map(_operation, text.failure))
    return "".join("".join(line + "\n" for line in part) + "\n" for part in parts)


def _compare(compare: Compare) -> str:
    operand = compare.operand
    if isinstance(operand, int):
        operand = (f"{operand:x}" if compare.target == "lease" else str(operand)).encode()
    return f"{compare.target}({quote(compare.key)}) {compare.op} {quote(operand)}"


def _operation(operation: object) -> str:
    match operation:
        case PutOp():
            options = f" --lease={operation.lease:x}" if operation.lease else ""
            options += " --prev-kv" if operation.prev_kv else ""
            return f"put{options} {quote(operation.key)} {quote(operation.value)}"
        case RangeOp():
            options = " --keys-only" if operation.keys_only else ""
            options += f" --limit={operation.limit} --rev {operation.revision}"
            options += f" --sort-by={operation.sort_by}"
            options += f" --order {'descend' if operation.descending else 'ascend'}"
            return f"get {quote(operation.key)} {quote(operation.range_end)}{options}"
        case DeleteRangeOp():
            options = " --prev-kv" if operation.prev_kv else ""
            return f"del {quote(operation.key)} {quote(operation.range_end)}{options}"
    raise AssertionError(operation)


@given(texts)
def test_what_was_written_is_what_is_read(text: TxnText) -> None:
    # Split as the command does, at newlines only: other line breaks may stand in a key.
    assert parse(written(text).split("\n")) == text


@given(st.binary(max_size=60))
def test_any_bytes_are_a_transaction_or_an_error_with_a_line(data: bytes) -> None:
    problem = ""
    try:
        parse(os.fsdecode(data).split("\n"))
    except ConfigError as error:
        problem = str(error)
    assert not problem or problem.startswith("line ")


@given(st.text(alphabet="pudget \"'\\-=k5(<", max_size=30))
def test_any_line_is_an_operation_or_an_error(line: str) -> None:
    for read in (parse_operation, parse_compare):
        outcome = ""
        try:
            outcome = repr(read(line.strip() or "x"))
        except (BadQuoting, ConfigError) as error:
            outcome = str(error)
        assert outcome
