"""Uses of private names of other modules: `x._y` where neither `x` nor this module owns `_y`.

Types are not known here. A name counts as this module's own if the module defines an attribute,
function, class or variable of that name; so a count is a lower bound.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import NamedTuple

from tests.guards.measure import Measure, counted
from tests.guards.sources import Source, is_private, is_within

# The object whose private attributes are counted separately: a package or module, and a class.
HUB_MODULE = "raftkv.node"
HUB_CLASS = "Node"
# What an expression for it ends with: `node`, `self._node`, `self.nodes[name]`.
_HUB = re.compile(r"(?:^|[._])nodes?(?:\[.*\])?$")
# What the names of this repository's modules begin with.
OWN = ("raftkv", "bench", "demo", "tests")

# Only a module with such a text is looked at closer.
_CANDIDATE = re.compile(r"(?<!\bself)(?<!\bcls)\._[A-Za-z]")
# Documented methods of named tuples.
_OF_NAMED_TUPLES = {"_asdict", "_fields", "_make", "_replace"}


class _Use(NamedTuple):
    area: str
    place: str
    receiver: str
    name: str


class PrivateAccess:
    """Counts them in the product, in test tools, and those that reach into a `Node`."""

    def __init__(self) -> None:
        self._uses: list[_Use] = []
        self._of_the_hub: set[str] = set()
        self._has_hub = False

    def add(self, source: Source) -> None:
        if not source.is_code:
            return
        if is_within(source.name, HUB_MODULE):
            self._read_hub(source)
        imports_some = any(is_private(name) for each in source.imports for name in each.names)
        if not imports_some and not _CANDIDATE.search(source.text):
            return
        reader = _Reader(source.tree)
        for line, receiver, name in reader.uses:
            text = f"{receiver}.{name}" if receiver else f"import {name}"
            place = f"{source.path}:{line}: {text}"
            self._uses.append(_Use(source.area, place, receiver, name))

    def _read_hub(self, source: Source) -> None:
        for node in source.tree.body:
            if isinstance(node, ast.ClassDef) and node.name == HUB_CLASS:
                self._has_hub = True
                self._of_the_hub |= _Reader(node).defined

    def measures(self) -> Iterator[Measure]:
        if not self._has_hub:
            raise LookupError(f"no class {HUB_CLASS} in {HUB_MODULE}: name its module here")
        product = [use.place for use in self._uses if use.area != "testing"]
        testing = [use.place for use in self._uses if use.area == "testing"]
        hub = [
            use.place
            for use in self._uses
            if use.name in self._of_the_hub and _HUB.search(use.receiver)
        ]
        yield counted("private", "private names of other modules", product)
        yield counted("private.testing", "the same in test tools", testing)
        yield counted("private.node", f"private attributes of {HUB_CLASS}, everywhere", hub)


class _Reader:
    """The private names that a module defines, and the other ones that it uses."""

    def __init__(self, tree: ast.AST) -> None:
        self.defined: set[str] = set()
        self._other_packages: set[str] = set()
        self._found: list[tuple[int, str, str]] = []
        for node in ast.walk(tree):
            self._read(node)

    @property
    def uses(self) -> list[tuple[int, str, str]]:
        """(line, receiver, name); the receiver of an import is empty."""
        return sorted(
            (line, receiver, name)
            for line, receiver, name in self._found
            if name not in self.defined and receiver not in self._other_packages
        )

    def _read(self, node: ast.AST) -> None:
        match node:
            case ast.Attribute(attr=name, value=value, ctx=ctx) if is_private(name):
                if not _is_own(value):
                    if name not in _OF_NAMED_TUPLES:
                        self._found.append((node.lineno, ast.unparse(value), name))
                elif isinstance(ctx, ast.Store):
                    self.defined.add(name)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                if is_private(node.name):
                    self.defined.add(node.name)
            case ast.Name(id=name, ctx=ast.Store()) if is_private(name):
                self.defined.add(name)
            case ast.Import():
                # `os._exit` and the like are documented.
                self._other_packages |= {
                    alias.asname or alias.name
                    for alias in node.names
                    if not alias.name.startswith(OWN)
                }
            case ast.ImportFrom():
                for alias in node.names:
                    if is_private(alias.name):
                        self._found.append((node.lineno, "", alias.name))


def _is_own(value: ast.expr) -> bool:
    """Whether the receiver is the object or class of the method itself."""
    if isinstance(value, ast.Call):
        return isinstance(value.func, ast.Name) and value.func.id == "super"
    return isinstance(value, ast.Name) and value.id in ("self", "cls")
