"""Every plugin has the same parts, so that what is found in one is found in all.

A part is a module or a folder of that name. A plugin that applies no commands of its own, because
it is made of another one, has neither an apply half nor a node half.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.guards.apply_half import defines_plugin
from tests.guards.measure import Measure, counted
from tests.guards.sources import Source

FOLDER = "plugins/"
PARTS = ("plugin", "api", "errors", "http", "cli")
HALVES = ("machine", "node")


class Skeleton:
    """Counts the parts that plugins lack."""

    def __init__(self) -> None:
        self._parts: dict[str, set[str]] = {}
        self._applying: set[str] = set()

    def add(self, source: Source) -> None:
        if not source.is_code or not source.path.startswith(FOLDER):
            return
        _, plugin, part, *_ = [*source.path.split("/"), ""]
        self._parts.setdefault(plugin, set()).add(part.removesuffix(".py"))
        if defines_plugin(source):
            self._applying.add(plugin)

    def measures(self) -> Iterator[Measure]:
        lacking = [
            f"{FOLDER}{plugin}: {part}"
            for plugin, parts in sorted(self._parts.items())
            for part in (*PARTS, *(HALVES if plugin in self._applying else ()))
            if part not in parts
        ]
        yield counted("plugins.parts", "parts that plugins lack", lacking)
