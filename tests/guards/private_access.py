"""Uses of private names of other modules: `x._y` where neither `x` nor this module owns `_y`.

Types are not known here. An attribute counts as this module's own if one of its classes has an
attribute of that name, whatever `x` is, unless `x` is named as a `Node` is; so a count is a lower
bound. Computed names, as in `getattr(x, name)`, and aliases of private names are not seen either.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from typing import NamedTuple

from tests.guards.measure import Measure, counted
from tests.guards.sources import Source, is_private, is_within, outer_statements

# The object whose private attributes are counted separately: a package or module, and a class.
HUB_MODULE = "raftkv.node"
HUB_CLASS = "Node"
# What an expression for it ends with: `node`, `self._node`, `self.nodes[name]`.
_HUB = re.compile(r"(?:^|[._])nodes?(?:\[.*\])?$")

# Only a module with such a text is looked at closer.
_CANDIDATE = re.compile(r"(?<!\bself)(?<!\bcls)\._[A-Za-z]|attr\(")
_BY_NAME = {"getattr", "setattr", "delattr", "hasattr"}
# Documented methods of named tuples.
_OF_NAMED_TUPLES = {"_asdict", "_fields", "_make", "_replace"}


class _Use(NamedTuple):
    area: str
    place: str
    receiver: str
    name: str
    # Whether a class of the module has an attribute of that name.
    may_be_own: bool


class PrivateAccess:
    """Counts them in the product, in test tools, and those that reach into a `Node`."""

    def __init__(self) -> None:
        self._uses: list[_Use] = []
        self._of_the_hub: set[str] = set()
        self._has_hub = False

    def add(self, source: Source) -> None:
        if not source.is_code:
            return
        is_hub = is_within(source.name, HUB_MODULE)
        if is_hub:
            self._read_hub(source)
        imports_some = any(is_private(name) for each in source.imports for name in each.names)
        if not imports_some and not _CANDIDATE.search(source.text):
            return
        reader = _Reader(source.tree)
        for line, receiver, name in reader.uses:
            text = f"{receiver}.{name}" if receiver else f"import {name}"
            place = f"{source.path}:{line}: {text}"
            may_be_own = bool(receiver) and name in reader.defined
            if not (may_be_own and is_hub):
                self._uses.append(_Use(source.area, place, receiver, name, may_be_own))

    def _read_hub(self, source: Source) -> None:
        for node in source.tree.body:
            if isinstance(node, ast.ClassDef) and node.name == HUB_CLASS:
                self._has_hub = True
                self._of_the_hub |= _Reader(node).defined

    def measures(self) -> Iterator[Measure]:
        if not self._has_hub:
            raise LookupError(f"no class {HUB_CLASS} in {HUB_MODULE}: name its module here")
        uses = [use for use in self._uses if not use.may_be_own or self._is_of_the_hub(use)]
        product = [use.place for use in uses if use.area != "testing"]
        testing = [use.place for use in uses if use.area == "testing"]
        hub = [use.place for use in uses if self._is_of_the_hub(use)]
        yield counted("private", "private names of other modules", product)
        yield counted("private.testing", "the same in test tools", testing)
        yield counted("private.node", f"private attributes of {HUB_CLASS}, everywhere", hub)

    def _is_of_the_hub(self, use: _Use) -> bool:
        return use.name in self._of_the_hub and bool(_HUB.search(use.receiver))


class _Reader:
    """The private attributes of a module's classes, and the private names that it uses."""

    def __init__(self, tree: ast.AST) -> None:
        self.defined: set[str] = set()
        self._standard: set[str] = set()
        self._found: list[tuple[int, str, str]] = []
        for node in ast.walk(tree):
            self._read(node)

    @property
    def uses(self) -> list[tuple[int, str, str]]:
        """(line, receiver, name); the receiver of an import is empty."""
        return sorted(
            (line, receiver, name)
            for line, receiver, name in self._found
            if receiver not in self._standard
        )

    def _read(self, node: ast.AST) -> None:
        match node:
            case ast.Attribute(attr=name, value=value, ctx=ctx) if is_private(name):
                if not _is_own(value):
                    if name not in _OF_NAMED_TUPLES:
                        self._found.append((node.lineno, ast.unparse(value), name))
                elif isinstance(ctx, ast.Store):
                    self.defined.add(name)
            case ast.Call(func=ast.Name(id=by), args=[value, ast.Constant(value=str(name)), *_]):
                if by in _BY_NAME and is_private(name) and not _is_own(value):
                    self._found.append((node.lineno, ast.unparse(value), name))
            case ast.ClassDef():
                self.defined.update(filter(is_private, _names_in_class(node)))
            case ast.Import():
                # `os._exit` and the like are documented.
                self._standard |= {
                    alias.asname or alias.name
                    for alias in node.names
                    if alias.name.partition(".")[0] in sys.stdlib_module_names
                }
            case ast.ImportFrom():
                for alias in node.names:
                    if is_private(alias.name):
                        self._found.append((node.lineno, "", alias.name))


def _names_in_class(of: ast.ClassDef) -> Iterator[str]:
    """What the body of a class defines, and its slots."""
    for node in outer_statements(of.body):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name
            case ast.Assign(targets=[ast.Name(id="__slots__")], value=value):
                for each in ast.walk(value):
                    if isinstance(each, ast.Constant) and isinstance(each.value, str):
                        yield each.value
            case ast.Assign(targets=targets):
                yield from (each.id for each in targets if isinstance(each, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name


def _is_own(value: ast.expr) -> bool:
    """Whether the receiver is the object or class of the method itself."""
    if isinstance(value, ast.Call):
        return isinstance(value.func, ast.Name) and value.func.id == "super"
    return isinstance(value, ast.Name) and value.id in ("self", "cls")
