"""Runs of statements that are repeated: the same shape with other names, strings and numbers.

A run has at least `STATEMENTS_MIN` statements and `NODES_MIN` nodes of syntax. Two runs are the
same if they differ in names, constants, and `async` with `await` only. Imports, docstrings,
constants and the fields of classes are left out: declarations look alike by nature.
"""

from __future__ import annotations

import ast
import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from tests.guards.measure import Measure
from tests.guards.sources import FOLDERS, Source, blocks

# Smaller runs are mostly idioms: six plain assignments, a property with another one behind it.
STATEMENTS_MIN = 6
NODES_MIN = 60
AREAS = (*FOLDERS, "testing")

_BLOCK_FIELDS = frozenset(("body", "handlers", "orelse", "finalbody", "cases"))


class Shape(NamedTuple):
    """A simple statement, or the head of a compound one: its hashed syntax and its lines."""

    syntax: int
    nodes: int
    first: int
    last: int


# Where a run is: the path, the index of its first statement, how many it has.
_Run = tuple[str, int, int]


class Clones:
    """Counts the lines of repeated runs."""

    def __init__(self) -> None:
        self._shapes: dict[str, list[Shape]] = {}
        self._areas: dict[str, str] = {}

    def add(self, source: Source) -> None:
        if source.is_code:
            self._shapes[source.path] = list(shapes(source.tree))
            self._areas[source.path] = source.area

    def measures(self) -> Iterator[Measure]:
        lines: dict[str, set[int]] = defaultdict(set)
        places = defaultdict(list)
        for runs in joined(repeated(self._shapes)):
            for path, start, count in runs:
                for shape in self._shapes[path][start : start + count]:
                    lines[path].update(range(shape.first, shape.last + 1))
            others = ", ".join(self._place(run) for run in runs[1:])
            for area in {self._areas[path] for path, _, _ in runs}:
                places[area].append(f"{self._place(runs[0])} ~ {others}")
        for area in dict.fromkeys([*AREAS, *sorted(self._areas.values())]):
            count = sum(len(found) for path, found in lines.items() if self._areas[path] == area)
            what = f"lines of repeated code in {area}"
            yield Measure(f"clones.{area}", what, count, tuple(sorted(places[area])))

    def _place(self, run: _Run) -> str:
        path, start, count = run
        shapes_of_file = self._shapes[path]
        return f"{path}:{shapes_of_file[start].first}-{shapes_of_file[start + count - 1].last}"


def shapes(parent: ast.AST) -> Iterator[Shape]:
    """The statements in a module or statement, at any depth, in the order of the source."""
    for block in blocks(parent):
        for node in block:
            if not _is_declaration(node, parent):
                syntax: list[str] = []
                _write_syntax(node, syntax)
                first, last = _lines_of_head(node)
                yield Shape(hash(tuple(syntax)), len(syntax), first, last)
                yield from shapes(node)


def _is_declaration(node: ast.AST, parent: ast.AST) -> bool:
    """Whether a statement is left out."""
    match node:
        case ast.Import() | ast.ImportFrom() | ast.Pass() | ast.Expr(value=ast.Constant()):
            return True
        case ast.ClassDef(body=body):
            return all(_is_declaration(each, node) for each in body)
        case ast.Assign(value=value) | ast.AnnAssign(value=value):
            if isinstance(parent, ast.Module):
                return isinstance(value, ast.Constant)
            return isinstance(parent, ast.ClassDef)
    return False


def _write_syntax(node: ast.AST, into: list[str]) -> None:
    """Append the kinds of the nodes below `node`, without its blocks, names and constants."""
    if isinstance(node, ast.Await):
        node = node.value
    into.append(node.__class__.__name__.removeprefix("Async"))
    for field in node._fields:
        value = getattr(node, field)
        if value.__class__ is list:
            if value and field not in _BLOCK_FIELDS:
                # Where a list ends: f(a, g(b)) and f(a, g(), b) have the same nodes.
                into.append("[")
                for each in value:
                    if isinstance(each, ast.AST):
                        _write_syntax(each, into)
                into.append("]")
        elif isinstance(value, ast.AST) and field != "ctx":
            _write_syntax(value, into)


def _lines_of_head(node: ast.AST) -> tuple[int, int]:
    """The lines of a statement up to the first one of its blocks."""
    first = _first_line(node)
    inner = next(blocks(node), None)
    if inner is None:
        return first, getattr(node, "end_lineno", first)
    return first, max(first, _first_line(inner[0]) - 1)


def _first_line(node: ast.AST) -> int:
    if isinstance(node, ast.match_case):
        return node.pattern.lineno
    line: int = getattr(node, "lineno", 1)
    return line


def repeated(files: dict[str, list[Shape]]) -> Iterator[list[_Run]]:
    """The runs that are found more than once, without overlapping themselves."""
    found: dict[tuple[int, ...], list[_Run]] = defaultdict(list)
    for path, of_file in files.items():
        for start in range(len(of_file)):
            count = _length_of_run(of_file, start)
            if count:
                key = tuple(shape.syntax for shape in of_file[start : start + count])
                before = found[key][-1] if found[key] else None
                if before is None or before[0] != path or before[1] + count <= start:
                    found[key].append((path, start, count))
    return (runs for runs in found.values() if len(runs) > 1)


def joined(found: Iterable[list[_Run]]) -> list[list[_Run]]:
    """The same runs, with those joined into one that continue each other in all their places."""
    result: list[list[_Run]] = []
    for runs in sorted(found):
        last = result[-1] if result else []
        if [path for path, _, _ in last] == [path for path, _, _ in runs]:
            steps = {
                start - before for (_, before, _), (_, start, _) in zip(last, runs, strict=True)
            }
            if len(steps) == 1 and steps.pop() <= last[0][2]:
                result[-1] = [
                    (path, before, start + count - before)
                    for (path, before, _), (_, start, count) in zip(last, runs, strict=True)
                ]
                continue
        result.append(runs)
    return result


def _length_of_run(of_file: Sequence[Shape], start: int) -> int:
    """How many statements the shortest run from `start` has; 0 if the file ends before."""
    nodes = 0
    for count, shape in enumerate(itertools.islice(of_file, start, None), 1):
        nodes += shape.nodes
        if count >= STATEMENTS_MIN and nodes >= NODES_MIN:
            return count
    return 0
