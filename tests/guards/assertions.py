"""Assertions of invariants in the engine and the state machine, per function.

Only assertions that can fire count: `assert x is not None` and `assert isinstance(x, T)` inform the
type checker.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.guards.measure import Measure
from tests.guards.sources import Source, is_within

PACKAGES = ("raftkv.raft", "raftkv.state")
PER_FUNCTIONS = 1_000


class Assertions:
    """Relates the assertions to the functions of the packages."""

    def __init__(self) -> None:
        self._functions = 0
        self._places: list[str] = []

    def add(self, source: Source) -> None:
        if not source.is_code or not is_within(source.name, *PACKAGES):
            return
        for node in source.statements:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                self._functions += 1
            elif isinstance(node, ast.Assert) and not is_narrowing(node.test):
                self._places.append(f"{source.path}:{node.lineno}: {ast.unparse(node.test)}")

    def measures(self) -> Iterator[Measure]:
        rate = len(self._places) * PER_FUNCTIONS // max(1, self._functions)
        what = f"assertions of invariants per {PER_FUNCTIONS:,} functions in raft and state"
        yield Measure("assertions", what, rate, tuple(self._places), kind="floor")


def is_narrowing(test: ast.expr) -> bool:
    """Whether an assertion of it only narrows a type."""
    match test:
        case ast.Compare(ops=[ast.IsNot()], comparators=[ast.Constant(value=None)]):
            return True
        case ast.Call(func=ast.Name(id="isinstance")):
            return True
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return isinstance(operand, ast.Call) and is_narrowing(operand)
        case ast.BoolOp(values=values):
            return all(map(is_narrowing, values))
    return False
