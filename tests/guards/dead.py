"""Modules that nothing uses: none of the entry points leads to them.

Entry points are those of setup.cfg, every `__main__.py`, what users import, what a script names,
and what a document runs. From there, the imports lead on, and so do late imports and subprocesses,
which name a module as text: `bench.profile`, `bench/profile.py`, or in quotes, `"watch"`. A test
uses test tools; a module of the product that only tests use is dead.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from tests.guards.measure import Measure, counted
from tests.guards.public_api import is_public_module
from tests.guards.sources import Import, Source, graph, reachable
from tests.guards.wheel import PUBLIC

_ENTRY_POINT = re.compile(r"^[\w ]+ = ([\w.]+):\w", re.M)
_RUN = re.compile(r"-m ([\w.]+)|python\S* ([\w/]+\.py)")
# Without a parse: the trees of all tests would double the time of the guards.
_IMPORT = re.compile(r"^ *(?:from ([\w.]+) )?import (\([^)]*\)|.*)", re.M)
_DOTTED = re.compile(r"\w+(?:\.\w+)+")


class Dead:
    """Counts the modules that no entry point leads to."""

    def __init__(self) -> None:
        self._imports: dict[str, list[Import]] = {}
        self._paths: dict[str, str] = {}
        self._testing: set[str] = set()
        self._texts: dict[str, str] = {}
        self._scripts: list[str] = []
        self._roots: set[str] = set()
        self._named_by_tests: set[str] = set()

    def add(self, source: Source) -> None:
        if source.is_code:
            name = source.name
            self._imports[name] = source.imports
            self._paths[name] = source.path
            self._texts[name] = source.text
            if source.area == "testing":
                self._testing.add(name)
            if source.path.endswith("/__main__.py") or is_public_module(name) or name in PUBLIC:
                self._roots.add(name)
        elif source.path == "setup.cfg":
            self._roots.update(_ENTRY_POINT.findall(source.text))
        elif source.path.startswith("tests/"):
            if source.path.endswith(".py"):
                self._named_by_tests.update(_names_in_test(source.text))
        elif source.path.endswith((".md", ".py")):
            for module, path in _RUN.findall(source.text):
                self._roots.add(module or path.removesuffix(".py").replace("/", "."))
        else:
            self._scripts.append(source.text)

    def measures(self) -> Iterator[Measure]:
        used = self._used()
        dead = [
            path
            for name, path in self._paths.items()
            if name not in used and not path.endswith("/__init__.py")
        ]
        yield counted("modules.dead", "modules that no entry point leads to", dead)

    def _used(self) -> set[str]:
        edges = graph(self._imports)
        for name, targets in edges.items():
            # To import a module is to run its packages.
            targets.update(package for package in _packages_of(name) if package in edges)
        used = reachable(edges, self._roots | self._testing & self._named_by_tests)
        found = self._named(edges.keys() - used, self._scripts)
        read: set[str] = set()
        while found or used - read:
            used |= reachable(edges, found)
            texts = [self._texts[name] for name in sorted(used - read)]
            read |= used
            found = self._named(edges.keys() - used, texts)
        return used

    def _named(self, names: Iterable[str], texts: Iterable[str]) -> set[str]:
        """The modules among `names` that one of the texts names."""
        found = set()
        for name in names:
            stem = name.rpartition(".")[2]
            path = self._paths[name].removesuffix(".py")
            words = "|".join(map(re.escape, {name, path, f'"{stem}"'}))
            # Behind a name with a dot or slash there may be more: `bench.profile.main`.
            pattern = re.compile(rf"(?<![\w.])(?:{words})(?!\w)")
            if any(stem in text and pattern.search(text) for text in texts):
                found.add(name)
        return found


def _packages_of(name: str) -> Iterator[str]:
    while name := name.rpartition(".")[0]:
        yield name


def _names_in_test(text: str) -> Iterator[str]:
    """The modules that a test may import or name."""
    yield from _DOTTED.findall(text)
    for module, names in _IMPORT.findall(text):
        for name in re.findall(r"\w+", names):
            yield f"{module}.{name}" if module else name
