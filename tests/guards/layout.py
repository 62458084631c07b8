"""Names and sizes of modules, and the lines of `__all__` that a private module does without."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.guards.measure import Measure, counted
from tests.guards.public_api import assignments_of_all, is_public_module
from tests.guards.sources import Source

LINES_MAX = 500
# Limits of counts of lines are multiples of it.
LINES_STEP = 1_000


class Layout:
    """Counts modules named "-ing", long modules, lines of `__all__`, and lines of code."""

    def __init__(self) -> None:
        self._ing: list[str] = []
        self._long: list[str] = []
        self._long_tests: list[str] = []
        self._exports: list[tuple[str, int]] = []
        self._code_lines = 0

    def add(self, source: Source) -> None:
        if not source.path.endswith(".py"):
            return
        lines = source.text.count("\n")
        if lines > LINES_MAX:
            place = f"{source.path}: {lines} lines"
            (self._long if source.is_code else self._long_tests).append(place)
        if not source.is_code:
            return
        if Path(source.path).stem.endswith("ing"):
            self._ing.append(source.path)
        if not is_public_module(source.name):
            exported = lines_of_all(source)
            if exported:
                self._exports.append((f"{source.path}: {exported} lines", exported))
        if not source.path.startswith("tests/"):
            self._code_lines += lines_of_code(source)

    def measures(self) -> Iterator[Measure]:
        yield counted("modules.ing", 'modules named "-ing"', self._ing)
        yield counted("modules.long", f"modules of more than {LINES_MAX} lines", self._long)
        yield counted("modules.long.tests", "the same in the tests", self._long_tests)
        exports = tuple(place for place, _ in self._exports)
        count = sum(lines for _, lines in self._exports)
        yield Measure(
            "all.lines", "lines of __all__ in modules that are not public", count, exports
        )
        what = "lines of code outside tests, without comments and docstrings"
        yield Measure("code.lines", what, self._code_lines, step=LINES_STEP)


def lines_of_all(source: Source) -> int:
    """The lines of the assignments to `__all__`."""
    return sum(
        (node.end_lineno or node.lineno) - node.lineno + 1 for node in assignments_of_all(source)
    )


def lines_of_code(source: Source) -> int:
    """Lines without those that are blank, a comment, or of a docstring."""
    lines = [line.strip() for line in source.text.splitlines()]
    for node in source.statements:
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            for number in range(node.lineno - 1, node.end_lineno or node.lineno):
                lines[number] = ""
    return sum(1 for line in lines if line and not line.startswith("#"))
