"""Code that searches for faults of raftkv itself, and is installed with it.

`testing` packages are for users: what their public modules import, at any distance, belongs there.
The other modules of these packages are verification.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.guards.layout import LINES_STEP
from tests.guards.measure import Measure, counted
from tests.guards.sources import Import, Source, graph, reachable

SHIPPED = ("raftkv/", "plugins/")
# What users import for tests of their programs and plugins.
PUBLIC = (
    "raftkv.testing",
    "raftkv.testing.distance",
    "raftkv.testing.linearizability",
    "raftkv.testing.plugin_cluster",
    "raftkv_lcr.testing",
)


class Wheel:
    """Counts the modules and lines of verification in the installed packages."""

    def __init__(self) -> None:
        self._imports: dict[str, list[Import]] = {}
        self._lines: dict[str, int] = {}

    def add(self, source: Source) -> None:
        if source.is_code and source.path.startswith(SHIPPED) and "/testing/" in source.path:
            self._imports[source.name] = source.imports
            self._lines[source.name] = source.text.count("\n")

    def measures(self) -> Iterator[Measure]:
        missing = [name for name in PUBLIC if name not in self._imports]
        if missing:
            raise LookupError(f"no modules {missing}: name the public test tools here")
        modules = sorted(self._imports.keys() - reachable(graph(self._imports), PUBLIC))
        yield counted("wheel.modules", "modules of verification in the wheel", modules)
        lines = sum(self._lines[name] for name in modules)
        yield Measure("wheel.lines", "their lines", lines, step=LINES_STEP)
