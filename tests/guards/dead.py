"""Modules that nothing uses: no other code imports them, and no file names them.

Commands, entry points and late imports name a module as text: `bench.profile`, `bench/profile.py`,
or in quotes, `"watch"`. A module that only tests use is dead as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from tests.guards.measure import Measure, counted
from tests.guards.sources import Import, Source, graph


class Dead:
    """Counts the modules that nothing outside the tests uses."""

    def __init__(self) -> None:
        self._imports: dict[str, list[Import]] = {}
        self._paths: dict[str, str] = {}
        self._texts: dict[str, str] = {}

    def add(self, source: Source) -> None:
        if source.is_code:
            self._imports[source.name] = source.imports
            self._paths[source.name] = source.path
        if source.is_code or not source.path.startswith("tests/"):
            self._texts[source.path] = source.text

    def measures(self) -> Iterator[Measure]:
        used = {target for targets in graph(self._imports).values() for target in targets}
        dead = [
            path
            for name, path in self._paths.items()
            if name not in used
            and not path.endswith(("/__init__.py", "/__main__.py"))
            and not self._is_named(name, path)
        ]
        yield counted("modules.dead", "modules that nothing but tests uses", dead)

    def _is_named(self, name: str, path: str) -> bool:
        stem = name.rpartition(".")[2]
        words = "|".join(map(re.escape, {name, path.removesuffix(".py"), f'"{stem}"'}))
        # Behind a name with a dot or slash there may be more: `bench.profile.main`.
        pattern = re.compile(rf"(?<![\w.])(?:{words})(?!\w)")
        return any(
            stem in text and pattern.search(text)
            for other, text in self._texts.items()
            if other != path
        )
