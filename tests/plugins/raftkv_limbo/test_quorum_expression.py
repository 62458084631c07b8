"""The arithmetic of quorums: what it computes, what it refuses, and that it cannot run code."""

from __future__ import annotations

import random
from fractions import Fraction
from math import ceil, floor

import pytest

from raftkv_limbo.quorum_expression import (
    DEPTH_MAX,
    LETTERS_MAX,
    N_MAX,
    BadExpression,
    nodes_needed,
    value_of,
    why_not,
)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("N / 2 + 1", {1: 1, 2: 2, 3: 2, 4: 3, 7: 4}),
        ("N/2+1", {1: 1, 2: 2, 7: 4}),
        ("N", {1: 1, 5: 5}),
        ("2", {1: 2, 5: 2}),
        ("ceil(N * 2 / 3)", {1: 1, 2: 2, 3: 2, 4: 3, 7: 5}),
        ("max(1, N - 1)", {1: 1, 2: 1, 5: 4}),
        ("min(N, 3, 2 + 2)", {1: 1, 2: 2, 9: 3}),
        ("floor(N / 2) + floor(N / 2) + 1", {3: 3, 4: 5}),
        ("N / 2 + N / 2", {3: 3, 5: 5}),  # nothing is rounded on the way
        ("(N + 1) / (1 + 1)", {3: 2, 4: 2}),
        ("8 / 4 / 2 * N", {3: 3}),  # from left to right
        ("10 - 4 - 3 - N + N", {3: 3}),
        ("\t N\t", {4: 4}),
    ],
)
def test_values(text: str, values: dict[int, int]) -> None:
    assert {n: value_of(text, n) for n in values} == values


def test_random_expressions_have_the_value_of_exact_arithmetic() -> None:
    chance = random.Random(7)

    def make(depth: int, n: int) -> tuple[str, Fraction]:
        kind = chance.randrange(7) if depth else chance.randrange(2)
        if kind == 0:
            return "N", Fraction(n)
        if kind == 1:
            number = chance.randrange(1, 9)
            return str(number), Fraction(number)
        (one, a), (other, b) = make(depth - 1, n), make(depth - 1, n)
        if kind == 2:
            function, math = chance.choice((("floor", floor), ("ceil", ceil)))
            return f"{function}({one})", Fraction(math(a))
        if kind == 3:
            return f"min({one},{other})", min(a, b)
        if kind == 4:
            return f"max( {one} , {other} )", max(a, b)
        if kind == 5 and b:
            return f"({one}) / ({other})", a / b
        sign = chance.choice("+-*")
        value = {"+": a + b, "-": a - b, "*": a * b}[sign]
        return f"({one}) {sign} ({other})", value

    tried = 0
    for _ in range(600):
        n = chance.randrange(1, 32)
        text, value = make(3, n)
        if len(text) <= LETTERS_MAX:
            tried += 1
            assert value_of(text, n) == floor(value), (text, n)
    assert tried > 400


@pytest.mark.parametrize(
    "text", ["N / 2 + 1", "N", "1", "31", "max(2, N / 3)", "ceil(N / 4) * 4 / 4"]
)
def test_these_can_be_quorums(text: str) -> None:
    assert why_not(text) is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("N - 1", "is 0 for 1 nodes"),
        ("N + 1", "is 32 for 31 nodes"),
        ("0", "is 0 for 1 nodes"),
        ("32", "is 32 for 1 nodes"),
        ("aaa", "'aaa' where a number"),
        ("n", "'n' where a number"),
        ("", "ends where"),
        ("   ", "ends where"),
        ("N N", "'N' where it should end"),
        ("2 +", "ends where"),
        ("* 2", "'*' where a number"),
        ("-1", "'-' where a number"),
        ("(N", "its end where ')' should be"),
        ("N)", "')' where it should end"),
        ("max()", "')' where a number"),
        ("max(1,)", "')' where a number"),
        ("floor(1, 2)", "gives floor 2 values"),
        ("max 1", "'1' where '(' should be"),
        ("N / (N - 1)", "divides by 0 for 1 nodes"),
        ("1.5", "'.', which means nothing"),
        ("N ** 2", "'*' where a number"),
        ("N % 2", "'%', which means nothing"),
        ("9999999", "a number above 1000000"),
        ("9" * 150, "a number above 1000000"),
        ("*".join(["1000000"] * 4), "too large a number on the way"),
        ("1" + "+1" * LETTERS_MAX, f"longer than {LETTERS_MAX} letters"),
        ("(" * (DEPTH_MAX + 1) + "N" + ")" * (DEPTH_MAX + 1), "nested deeper"),
        ("__import__('os')", "'__import__' where a number"),
        ("random(N)", "'random' where a number"),
        ("N if N else 1", "'if' where it should end"),
        ("N\n", "'\\n', which means nothing"),
        ("٣", "which means nothing"),  # a digit, but none of ours
    ],
)
def test_these_cannot(text: str, reason: str) -> None:
    found = why_not(text)
    assert found is not None
    assert reason in found


def test_the_deepest_nesting_is_fine() -> None:
    assert value_of("(" * DEPTH_MAX + "N" + ")" * DEPTH_MAX, 3) == 3


def test_beyond_the_tried_sizes_nothing_fails() -> None:
    """What cannot be computed there counts as all, and nothing is less than one."""
    assert why_not("max(1, 31 / (32 - N))") is None
    with pytest.raises(BadExpression):
        value_of("max(1, 31 / (32 - N))", N_MAX + 1)
    assert nodes_needed("max(1, 31 / (32 - N))", N_MAX + 1) == N_MAX + 1
    assert nodes_needed("32 - N", 40) == 1
    assert nodes_needed("N", 0) == 1
