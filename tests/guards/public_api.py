"""Public names without a docstring: in all modules, and among those that users import.

A method that overrides a documented one inherits its docstring, as `help()` shows it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from tests.guards.measure import Measure, counted
from tests.guards.sources import Import, Source, is_public, name_of, outer_statements

# What programs and plugins import; besides, the module `public` of each plugin.
PUBLIC_MODULES = {
    "raftkv",
    "raftkv.blocking",
    "raftkv.blocking.recipes",
    "raftkv.cli.kit",
    "raftkv.client",
    "raftkv.errors",
    "raftkv.kv",
    "raftkv.late_names",
    "raftkv.plugin",
    "raftkv.recipes",
    "raftkv.testing",
    "raftkv.validation",
    "raftkv_lcr.testing",
}

_Function = ast.FunctionDef | ast.AsyncFunctionDef
_Assignment = ast.Assign | ast.AnnAssign | ast.AugAssign
_UNDOCUMENTED_DECORATORS = {"overload", "setter", "deleter"}


def is_public_module(name: str) -> bool:
    return name in PUBLIC_MODULES or name.endswith(".public")


class Definition(NamedTuple):
    """A public class or function of a module; the methods are the public ones."""

    place: str
    name: str
    is_documented: bool
    methods: Mapping[str, tuple[str, bool]]
    bases: tuple[str, ...]


class _Module(NamedTuple):
    definitions: dict[str, Definition]
    imports: list[Import]
    exported: tuple[str, ...] | None


class PublicApi:
    """Counts undocumented public names."""

    def __init__(self) -> None:
        self._modules: dict[str, _Module] = {}

    def add(self, source: Source) -> None:
        if source.is_code:
            self._modules[source.name] = _Module(
                definitions(source), source.imports, exported_by(source)
            )

    def measures(self) -> Iterator[Measure]:
        everywhere = [
            place
            for name, module in sorted(self._modules.items())
            for each in module.definitions.values()
            for place in self._undocumented(name, each)
        ]
        yield counted("undocumented", "public names without docstring", everywhere)
        of_the_api = {
            place
            for name in filter(is_public_module, self._modules)
            for home, each in self._api_of(name)
            for place in self._undocumented(home, each)
        }
        yield counted("undocumented.api", "the same in the public API", sorted(of_the_api))

    def _undocumented(self, module: str, found: Definition) -> Iterator[str]:
        if not found.is_documented:
            yield f"{found.place}: {found.name}"
        for method, (place, is_documented) in found.methods.items():
            if not is_documented and not self._is_inherited(module, found, method):
                yield f"{place}: {found.name}.{method}"

    def _is_inherited(self, module: str, found: Definition, method: str) -> bool:
        for base in found.bases:
            resolved = self._resolve(module, base)
            if resolved is not None:
                home, definition = resolved
                if definition.methods.get(method, ("", False))[1]:
                    return True
                if definition is not found and self._is_inherited(home, definition, method):
                    return True
        return False

    def _api_of(self, name: str) -> Iterator[tuple[str, Definition]]:
        module = self._modules[name]
        names = module.definitions if module.exported is None else module.exported
        for each in names:
            resolved = self._resolve(name, each)
            if resolved is not None:
                yield resolved

    def _resolve(
        self, module: str, name: str, seen: frozenset[str] = frozenset()
    ) -> tuple[str, Definition] | None:
        """The definition that a name has in a module, through imports; None if there is none."""
        known = self._modules.get(module)
        if known is None or module in seen:
            return None
        if name in known.definitions:
            return module, known.definitions[name]
        for each in known.imports:
            if name in each.names or "*" in each.names:
                found = self._resolve(each.module, name, seen | {module})
                if found is not None:
                    return found
        return None


def definitions(source: Source) -> dict[str, Definition]:
    """The public classes and functions of a module."""
    found = {}
    for node in outer_statements(source.tree.body):
        if isinstance(node, _Function | ast.ClassDef) and is_public(node.name):
            methods = {}
            bases: tuple[str, ...] = ()
            if isinstance(node, ast.ClassDef):
                methods = _methods(source.path, node)
                bases = tuple(filter(None, map(name_of, node.bases)))
            place = f"{source.path}:{node.lineno}"
            found[node.name] = Definition(place, node.name, _has_docstring(node), methods, bases)
    return found


def _methods(path: str, of: ast.ClassDef) -> dict[str, tuple[str, bool]]:
    found: dict[str, tuple[str, bool]] = {}
    for node in outer_statements(of.body):
        if not isinstance(node, _Function) or not is_public(node.name):
            continue
        if not {name_of(each) for each in node.decorator_list} & _UNDOCUMENTED_DECORATORS:
            found[node.name] = (f"{path}:{node.lineno}", _has_docstring(node))
    return found


def _has_docstring(node: _Function | ast.ClassDef) -> bool:
    """Whether it has a docstring with a text in it."""
    return bool((ast.get_docstring(node, clean=False) or "").strip())


def exported_by(source: Source) -> tuple[str, ...] | None:
    """The names in `__all__`; None if the module has none."""
    assignments = assignments_of_all(source)
    if not assignments:
        return None
    return tuple(
        each.value
        for node in assignments
        for each in ast.walk(node.value or node)
        if isinstance(each, ast.Constant) and isinstance(each.value, str)
    )


def assignments_of_all(source: Source) -> list[_Assignment]:
    """The assignments to `__all__`, and the additions to it."""
    return [
        node
        for node in outer_statements(source.tree.body)
        if isinstance(node, _Assignment) and any(map(_is_all, _targets(node)))
    ]


def _targets(node: _Assignment) -> list[ast.expr]:
    return node.targets if isinstance(node, ast.Assign) else [node.target]


def _is_all(target: ast.expr) -> bool:
    return isinstance(target, ast.Name) and target.id == "__all__"
