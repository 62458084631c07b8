"""The arithmetic of quorums: "N / 2 + 1", "max(2, ceil(N * 2 / 3))", "3".

Rules of this file
1. Nothing can run code: there are whole numbers, N, + - * / ( ) and four functions, and no other
   name. There is no chance, no clock and no floating point: a quotient stays an exact fraction, so
   every node gets the same number. The result is rounded down, once, at the end.
2. All is bounded: the letters, the depth, the numbers on the way. What is too much is an error of
   the expression, found when it is set, and never a surprise at apply.
3. An expression is good if for every N from 1 to N_MAX the result is from 1 to N_MAX. It may exceed
   N: "2" is fine, and a single node then waits for the second one.

Clusters larger than N_MAX are possible, and the check did not see them. There `nodes_needed` does
not fail: what cannot be computed counts as all nodes, and less than one as one.

An expression is compiled into a sequence of steps for a stack (postfix), so that evaluating does
not recurse. Both are remembered by text, which changes nothing: they are functions of the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache
from math import ceil, floor
from typing import Final

__all__ = ["LETTERS_MAX", "N_MAX", "BadExpression", "nodes_needed", "value_of", "why_not"]

#: The largest N for which an expression is tried, and its largest result.
N_MAX: Final = 31
LETTERS_MAX: Final = 200
#: Brackets within brackets.
DEPTH_MAX: Final = 16
ARGUMENTS_MAX: Final = 16
LITERAL_MAX: Final = 1_000_000
#: Of a numerator or denominator on the way.
NUMBER_MAX: Final = 2**62

_TOKEN = re.compile(r"[0-9]+|[A-Za-z_]+|[-+*/(),]")
_SPACES = re.compile(r"[ \t]*")
#: Name -> how many arguments at most.
_FUNCTIONS: Final = {"floor": 1, "ceil": 1, "min": ARGUMENTS_MAX, "max": ARGUMENTS_MAX}

#: A number, or an operation on so many values of the stack.
_Step = tuple[str, int]


class BadExpression(ValueError):
    """The expression cannot be used; the text says why."""


def why_not(text: str) -> str | None:
    """Why an expression cannot be a quorum; None if it can. Takes 1 ms, the longest ones 10."""
    try:
        for n in range(1, N_MAX + 1):
            found = value_of(text, n)
            if not 1 <= found <= N_MAX:
                return f"is {found} for {n} nodes, and must be 1 to {N_MAX} for 1 to {N_MAX} nodes"
    except BadExpression as error:
        return str(error)
    return None


@lru_cache(maxsize=4 * N_MAX)
def nodes_needed(text: str, n: int) -> int:
    """The quorum of `n` nodes, at least 1. Never fails: what cannot be computed counts as `n`."""
    try:
        return max(1, value_of(text, n))
    except BadExpression:
        return max(1, n)


def value_of(text: str, n: int) -> int:
    """The value for `n` nodes, rounded down. Raises BadExpression."""
    stack: list[Fraction] = []
    for step, number in _compiled(text):
        if step == "number":
            stack.append(Fraction(number))
        elif step == "N":
            stack.append(Fraction(n))
        else:
            values = stack[-number:]
            del stack[-number:]
            result = _operate(step, values, n)
            if max(abs(result.numerator), result.denominator) > NUMBER_MAX:
                raise BadExpression(f"has too large a number on the way, for {n} nodes")
            stack.append(result)
    [result] = stack
    return floor(result)


def _operate(step: str, values: list[Fraction], n: int) -> Fraction:
    match step:
        case "+":
            return values[0] + values[1]
        case "-":
            return values[0] - values[1]
        case "*":
            return values[0] * values[1]
        case "/":
            if not values[1]:
                raise BadExpression(f"divides by 0 for {n} nodes")
            return values[0] / values[1]
        case "floor":
            return Fraction(floor(values[0]))
        case "ceil":
            return Fraction(ceil(values[0]))
        case "min":
            return min(values)
        case _:
            return max(values)


@lru_cache(maxsize=16)
def _compiled(text: str) -> tuple[_Step, ...]:
    """The steps of an expression. Raises BadExpression."""
    if len(text) > LETTERS_MAX:
        raise BadExpression(f"is longer than {LETTERS_MAX} letters")
    parser = _Parser(text)
    parser.sum(0)
    if parser.next:
        raise BadExpression(f"has {parser.next!r} where it should end")
    return tuple(parser.steps)


def _tokens(text: str) -> Iterator[str]:
    place = _SPACES.match(text, 0).end()  # type: ignore[union-attr]  # it matches nothing, too
    while place < len(text):
        found = _TOKEN.match(text, place)
        if found is None:
            raise BadExpression(f"has {text[place]!r}, which means nothing here")
        yield found[0]
        place = _SPACES.match(text, found.end()).end()  # type: ignore[union-attr]


class _Parser:
    """Recursive descent over sum, product, atom. `next` is the next token, "" at the end."""

    def __init__(self, text: str) -> None:
        self._left = _tokens(text)
        self.steps: list[_Step] = []
        self.next = ""
        self._advance()

    def _advance(self) -> str:
        passed, self.next = self.next, next(self._left, "")
        return passed

    def _expect(self, token: str) -> None:
        if self.next != token:
            found = repr(self.next) if self.next else "its end"
            raise BadExpression(f"has {found} where {token!r} should be")
        self._advance()

    def sum(self, depth: int) -> None:
        self._product(depth)
        while self.next in ("+", "-"):
            operation = self._advance()
            self._product(depth)
            self.steps.append((operation, 2))

    def _product(self, depth: int) -> None:
        self._atom(depth)
        while self.next in ("*", "/"):
            operation = self._advance()
            self._atom(depth)
            self.steps.append((operation, 2))

    def _atom(self, depth: int) -> None:
        if depth > DEPTH_MAX:
            raise BadExpression(f"is nested deeper than {DEPTH_MAX} brackets")
        word = self._advance()
        if word == "N":
            self.steps.append(("N", 0))
        elif word == "(":
            self.sum(depth + 1)
            self._expect(")")
        elif word in _FUNCTIONS:
            self._call(word, depth)
        elif word.isdigit():
            # The letters first: turning a very long number into an int takes its time.
            if len(word) > len(str(LITERAL_MAX)) or int(word) > LITERAL_MAX:
                raise BadExpression(f"has a number above {LITERAL_MAX}")
            self.steps.append(("number", int(word)))
        elif word:
            raise BadExpression(f"has {word!r} where a number, N or a function should be")
        else:
            raise BadExpression("ends where a number, N or a function should be")

    def _call(self, function: str, depth: int) -> None:
        self._expect("(")
        self.sum(depth + 1)
        arguments = 1
        while self.next == ",":
            self._advance()
            self.sum(depth + 1)
            arguments += 1
        self._expect(")")
        if arguments > _FUNCTIONS[function]:
            raise BadExpression(f"gives {function} {arguments} values")
        self.steps.append((function, arguments))
