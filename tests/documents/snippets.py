"""Runs the Python of a page, as it stands there, on the nodes of a real cluster.

A page's blocks are run in order, statement by statement, in one namespace. A stage gives the names
that the page's text takes for granted.

A loop whose body is `...` ends its statement when the body is reached: nothing else would. So does
the loop of a statement that the stage calls endless, after its body was run once.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import re
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from raftkv.node import Node

__all__ = ["ROOT", "Reached", "Snippet", "Stage", "Statement", "play", "snippets", "statements"]

ROOT = Path(__file__).resolve().parents[2]
# No statement takes so long, however slow the machine is.
STATEMENT_S = 60.0
_FENCE = re.compile(r"^ *```python\n(.*?)^ *```$", re.M | re.S)


class Reached(Exception):
    """The body of a loop that would go on for ever was run."""


class Snippet(NamedTuple):
    """A block of Python on a page; the first one is number 1."""

    page: str
    number: int
    line: int
    text: str

    @property
    def name(self) -> str:
        return f"{self.page}#{self.number}"


class Statement(NamedTuple):
    """One of its statements, compiled."""

    line: int
    code: Any
    waits: bool


class Names(NamedTuple):
    """What the statements of one node see."""

    node: Node
    names: dict[str, Any]


@dataclass
class Stage:
    """What a page's text takes for granted.

    `names` gives them for each node. `replaced`: addresses that are others in a test. `before`:
    what has to happen before a block; `beside`: what goes on during it; `after`: what its comments
    promise, as (expression, value). `everywhere`: blocks whose
    statements without an `await` are run for every node, as programs are that register something
    when they start. `endless`: blocks whose loops are left after the first pass. `threaded`: blocks
    without asyncio.
    """

    names: Callable[[Node], dict[str, Any]]
    replaced: dict[str, str] = field(default_factory=dict)
    before: dict[int, Callable[[Names], Coroutine[Any, Any, None]]] = field(default_factory=dict)
    beside: dict[int, Callable[[Names], Coroutine[Any, Any, None]]] = field(default_factory=dict)
    after: dict[int, tuple[tuple[str, object], ...]] = field(default_factory=dict)
    everywhere: frozenset[int] = frozenset()
    endless: frozenset[int] = frozenset()
    threaded: frozenset[int] = frozenset()


def snippets(page: str) -> list[Snippet]:
    """All blocks of Python of a page, in order."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = []
    for number, block in enumerate(_FENCE.finditer(text), 1):
        body = inspect.cleandoc("\n" + block[1]) + "\n"
        found.append(Snippet(page, number, text.count("\n", 0, block.start(1)) + 1, body))
    return found


def statements(snippet: Snippet, text: str, *, endless: bool) -> list[Statement]:
    """Its statements. Raises SyntaxError for what is no Python."""
    tree = _Loops(endless).visit(ast.parse(text))
    found = []
    for each in tree.body:
        module = ast.fix_missing_locations(ast.Module([each], []))
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        code = compile(module, snippet.name, "exec", flags)
        waits = bool(code.co_flags & inspect.CO_COROUTINE)
        found.append(Statement(snippet.line + each.lineno - 1, code, waits))
    return found


async def play(page: str, stage: Stage, nodes: list[Node], left_out: set[str]) -> None:
    """Run a page. Raises AssertionError with the line of the statement that failed."""
    everywhere = [Names(node, stage.names(node)) for node in nodes]
    for snippet in snippets(page):
        if snippet.name in left_out:
            continue
        first = everywhere[0]
        if snippet.number in stage.before:
            await stage.before[snippet.number](first)
        text = snippet.text
        for old, new in stage.replaced.items():
            text = text.replace(old, new)
        async with _beside(stage.beside.get(snippet.number), first):
            for each in statements(snippet, text, endless=snippet.number in stage.endless):
                threaded = snippet.number in stage.threaded
                await _run(snippet, each, first.names, threaded=threaded)
                if not each.waits and snippet.number in stage.everywhere:
                    for other in everywhere[1:]:
                        exec(each.code, other.names)
        for expression, promised in stage.after.get(snippet.number, ()):
            found = eval(expression, first.names)
            assert found == promised, f"{snippet.name}: {expression} is {found!r}"


async def _run(
    snippet: Snippet, statement: Statement, names: dict[str, Any], *, threaded: bool
) -> None:
    try:
        with contextlib.suppress(Reached):
            if threaded:
                await asyncio.wait_for(
                    asyncio.to_thread(_called, statement.code, names), STATEMENT_S
                )
            elif (waiting := eval(statement.code, names)) is not None:
                await asyncio.wait_for(waiting, STATEMENT_S)
    except Exception as error:
        raise AssertionError(
            f"{snippet.page}:{statement.line}: {type(error).__name__}: {error}"
        ) from error


def _called(code: Any, names: dict[str, Any]) -> None:
    """Run it in a thread, in which StopIteration and the like may be raised, too."""
    exec(code, names)


@contextlib.asynccontextmanager
async def _beside(
    work: Callable[[Names], Coroutine[Any, Any, None]] | None, names: Names
) -> AsyncIterator[None]:
    if work is None:
        yield
        return
    task = asyncio.ensure_future(work(names))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait((task,))
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error


class _Loops(ast.NodeTransformer):
    """Has loops end that would not."""

    def __init__(self, endless: bool) -> None:
        self._endless = endless

    def visit_For(self, node: ast.For) -> ast.AST:
        return self._loop(node)

    def visit_AsyncFor(self, node: ast.AsyncFor) -> ast.AST:
        return self._loop(node)

    def _loop(self, node: ast.For | ast.AsyncFor) -> ast.AST:
        self.generic_visit(node)
        end = ast.parse("raise Reached").body[0]
        if ast.unparse(node.body[0]) == "...":
            node.body = [end]
        elif self._endless and isinstance(node, ast.AsyncFor):
            node.body.append(end)
        return node
