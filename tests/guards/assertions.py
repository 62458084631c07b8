"""Assertions of invariants in the engine and the state machine, per function.

Only assertions that can fire count. `assert x is not None` and `assert isinstance(x, T)` inform the
type checker; `assert 1 == 1`, `assert x == x` and `assert (x, "text")` always hold.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.guards.measure import Measure
from tests.guards.sources import Source, is_within

PACKAGES = ("raftkv.raft", "raftkv.state")
PER_FUNCTIONS = 1_000

_NARROWING_CALLS = {"isinstance", "issubclass", "callable"}


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
            elif isinstance(node, ast.Assert) and can_fire(node.test):
                self._places.append(f"{source.path}:{node.lineno}: {ast.unparse(node.test)}")

    def measures(self) -> Iterator[Measure]:
        rate = len(self._places) * PER_FUNCTIONS // max(1, self._functions)
        what = f"assertions of invariants per {PER_FUNCTIONS:,} functions in raft and state"
        yield Measure("assertions", what, rate, tuple(self._places), kind="floor")


def can_fire(test: ast.expr) -> bool:
    """Whether an assertion of it tests a value that varies, and more of it than its type."""
    match test:
        case ast.BoolOp(op=ast.And(), values=values):
            return any(map(can_fire, values))
        case ast.BoolOp(values=values):
            # One that always holds is enough for all of them.
            return not any(map(is_constant, values)) and any(map(can_fire, values))
    return not is_constant(test) and not is_narrowing(test)


def is_constant(test: ast.expr) -> bool:
    """Whether it names nothing that can vary, or compares a value with itself."""
    match test:
        case ast.Tuple(elts=[_, *_]):
            return True
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return is_constant(operand)
        case ast.Compare(left=left, comparators=[right]) if ast.dump(left) == ast.dump(right):
            return True
    return not any(isinstance(node, ast.Name) for node in ast.walk(test))


def is_narrowing(test: ast.expr) -> bool:
    """Whether an assertion of it only narrows a type."""
    match test:
        case ast.Compare(left=left, ops=[ast.IsNot() | ast.NotEq()], comparators=[right]):
            return _is_none(left) or _is_none(right)
        case ast.Call(func=ast.Name(id=name)):
            return name in _NARROWING_CALLS
        case ast.UnaryOp(op=ast.Not(), operand=ast.Call() as operand):
            return is_narrowing(operand)
        case ast.UnaryOp(op=ast.Not(), operand=ast.Compare(left, [ast.Is() | ast.Eq()], [right])):
            return _is_none(left) or _is_none(right)
    return False


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None
