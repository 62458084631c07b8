"""The half of a plugin that applies commands imports nothing of the half that serves a node.

The apply half consists of the modules in a folder `machine`, and of what the module of the plugin's
class imports, at any distance, of its own package. The search stops at modules of the node half,
and each import that leads to one is a violation.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from tests.guards.measure import Measure, counted
from tests.guards.sources import Import, Source, is_within, name_of, outer_statements

# Names of modules and folders of a plugin that are its node half.
NODE_HALF = {
    "api",
    "cli",
    "door",
    "http",
    "links",
    "metrics",
    "node",
    "options",
    "service",
    "status",
}
# All that an apply half imports from outside this repository. What gives time, chance, an
# environment, processes or streams is left out: each node must decide alike.
ALLOWED = {
    "__future__",
    "abc",
    "array",
    "bisect",
    "collections",
    "contextlib",
    "copy",
    "dataclasses",
    "enum",
    "fractions",
    "functools",
    "hashlib",
    "heapq",
    "itertools",
    "math",
    "msgspec",
    "operator",
    "re",
    "sortedcontainers",
    "string",
    "struct",
    "types",
    "typing",
    "zlib",
}
# Modules and names of this repository that only a node half, a client or a command needs.
FORBIDDEN = (
    "raftkv.blocking",
    "raftkv.cli",
    "raftkv.client",
    "raftkv.Client",
    "raftkv.node",
    "raftkv.Node",
    "raftkv.plugin.Host",
    "raftkv.plugin.Proposer",
    "raftkv.plugin.Request",
    "raftkv.plugin.Response",
    "raftkv.plugin.Route",
    "raftkv.plugin.Rpc",
    "raftkv.plugin.Service",
    "raftkv.rpc",
    "raftkv.runtime",
    "raftkv.server",
)


class ApplyHalf:
    """Counts the imports of apply halves that lead to a node half."""

    def __init__(self) -> None:
        self._imports: dict[str, list[Import]] = {}
        self._paths: dict[str, str] = {}
        self._plugins: list[str] = []

    def add(self, source: Source) -> None:
        if source.is_code and source.area != "testing":
            self._imports[source.name] = source.imports
            self._paths[source.name] = source.path
            if defines_plugin(source):
                self._plugins.append(source.name)

    def measures(self) -> Iterator[Measure]:
        if not self._plugins:
            raise LookupError("no module defines a plugin: this guard would check nothing")
        found = {place for plugin in self._plugins for place in self._violations(plugin)}
        what = "imports by apply halves of node, HTTP or command line"
        yield counted("apply.imports", what, sorted(found))

    def _violations(self, plugin: str) -> Iterator[str]:
        own = plugin.rpartition(".")[0]
        waiting = [name for name in self._imports if is_within(name, f"{own}.machine")]
        waiting += [
            target
            for target in self._own_targets(own, self._imports[plugin])
            if not _is_of_node_half(own, target)
        ]
        seen = {plugin, own}
        while waiting:
            name = waiting.pop()
            if name in seen:
                continue
            seen.add(name)
            for each in self._imports[name]:
                targets = set(self._own_targets(own, [each]))
                of_node_half = {target for target in targets if _is_of_node_half(own, target)}
                waiting += targets - of_node_half
                wrong = of_node_half or {t for t in _bound(each) if is_forbidden(t)}
                if wrong:
                    yield f"{self._paths[name]}:{each.line}: imports {min(wrong)}"

    def _own_targets(self, own: str, imports: Iterable[Import]) -> Iterator[str]:
        for each in imports:
            for target in each.targets(self._imports):
                if is_within(target, own):
                    yield target


def is_forbidden(name: str) -> bool:
    """Whether an apply half may not import the module or name, which is not of its node half."""
    first = name.partition(".")[0]
    if first == "raftkv" or first.startswith("raftkv_"):
        return is_within(name, *FORBIDDEN)
    return first not in ALLOWED


def _bound(each: Import) -> Iterator[str]:
    """What an import may bind, with its module: `raftkv.plugin.Host`."""
    yield each.module
    yield from (f"{each.module}.{name}" for name in each.names)


def _is_of_node_half(own: str, name: str) -> bool:
    first = name.removeprefix(own).lstrip(".").partition(".")[0]
    return first.partition("_")[0] in NODE_HALF


def defines_plugin(source: Source) -> bool:
    """Whether the module has a class with the base `Plugin` that applies commands."""
    return any(
        isinstance(each, ast.FunctionDef) and each.name == "apply"
        for node in outer_statements(source.tree.body)
        if isinstance(node, ast.ClassDef) and "Plugin" in map(name_of, node.bases)
        for each in node.body
    )
