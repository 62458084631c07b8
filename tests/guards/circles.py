"""Circles of imports: modules of which none can be read, or moved, without all of the others.

Imports in functions and under TYPE_CHECKING count: a type that a module names is a dependency.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from tests.guards.measure import Measure, counted
from tests.guards.sources import Import, Source, graph, reachable


class Circles:
    """Counts circles of imports, and the modules in them."""

    def __init__(self) -> None:
        self._imports: dict[str, list[Import]] = {}

    def add(self, source: Source) -> None:
        if source.is_code:
            self._imports[source.name] = source.imports

    def measures(self) -> Iterator[Measure]:
        found = circles(graph(self._imports))
        yield counted("circles", "circles of imports", map(", ".join, found))
        modules = sorted(name for circle in found for name in circle)
        yield counted("circles.modules", "modules in circles of imports", modules)


def circles(edges: Mapping[str, Collection[str]]) -> list[list[str]]:
    """The strongly connected components with more than one node."""
    forward = _without_ends(edges)
    backward = _reversed(forward)
    found: list[list[str]] = []
    done: set[str] = set()
    for node in sorted(forward):
        if node not in done:
            circle = reachable(forward, [node]) & reachable(backward, [node])
            done |= circle
            if len(circle) > 1:
                found.append(sorted(circle))
    return found


def _without_ends(edges: Mapping[str, Collection[str]]) -> dict[str, set[str]]:
    """Remove the nodes that nothing leads to, or that lead to nothing, until none is left."""
    left = {node: set(targets) & edges.keys() for node, targets in edges.items()}
    while True:
        led_to = {target for targets in left.values() for target in targets}
        inner = {node for node, targets in left.items() if targets and node in led_to}
        if len(inner) == len(left):
            return left
        left = {node: left[node] & inner for node in inner}


def _reversed(edges: Mapping[str, Collection[str]]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {node: set() for node in edges}
    for node, targets in edges.items():
        for target in targets:
            found[target].add(node)
    return found
