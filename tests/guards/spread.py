"""How many files name one thing: what a new command, plugin or workload would have to touch.

The things are examples, listed as data below. A file names one if its text or path matches.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from tests.guards.measure import Measure, counted
from tests.guards.sources import FOLDERS, Source

# These describe former releases, old words and measurements, or are the guards themselves.
EXEMPT = ("CHANGELOG.md", "docs/glossary.md", "docs/results/", "tests/guards/")


class Thing(NamedTuple):
    """What is looked for: a pattern of lower case text, and the places that do not count."""

    name: str
    pattern: re.Pattern[str]
    without: tuple[str, ...] = ()

    def is_named_in(self, source: Source, lower: str) -> bool:
        if source.path.startswith(self.without):
            return False
        return bool(self.pattern.search(lower) or self.pattern.search(source.path.lower()))


# In the places left out, to compact is to shorten a log of Raft, a journal or a list of messages.
COMMAND = Thing(
    "compact",
    re.compile(r"\bcompact(?:result)?\b|\bkv/compaction\b"),
    (
        "raftkv/freeing.py",
        "raftkv/raft/",
        "plugins/",
        "bench/loopwatch.py",
        "tests/plugins/",
        "tests/raft/",
        "docs/internals/log.md",
        "docs/internals/snapshots.md",
    ),
)
PLUGIN = Thing(
    "limbo", re.compile("limbo"), ("plugins/raftkv_limbo/", "tests/plugins/raftkv_limbo/")
)
WORKLOADS = tuple(
    Thing(name, re.compile(pattern), (f"bench/workloads/{name}/",))
    for name, pattern in {
        "calls": r"cluster[ _]?call",
        "limbo": r"limbo",
        "registry": r"registries|(?<![a-z])lcr",
        "subscriptions": r"subscriptions",
        "txqueue": r"tx_?queue",
    }.items()
)


class Spread:
    """Counts the files that name a command, a plugin, and the workloads of the benchmark."""

    def __init__(self) -> None:
        self._command: list[str] = []
        self._plugin: list[str] = []
        self._workloads: list[str] = []

    def add(self, source: Source) -> None:
        if source.path.startswith(EXEMPT):
            return
        lower = source.text.lower()
        if COMMAND.is_named_in(source, lower):
            self._command.append(source.path)
        if PLUGIN.is_named_in(source, lower):
            self._plugin.append(source.path)
        if source.is_code and source.area == "bench":
            self._workloads += [
                f"{source.path}: {each.name}"
                for each in WORKLOADS
                if each.is_named_in(source, lower)
            ]

    def measures(self) -> Iterator[Measure]:
        product = [path for path in self._command if path.split("/")[0] in FOLDERS]
        what = f"files of the product that name the command {COMMAND.name!r}"
        yield counted("files.command.product", what, product)
        yield counted("files.command", "the same with tests and documents", self._command)
        what = f"files outside its folders that name the plugin {PLUGIN.name!r}"
        yield counted("files.plugin", what, self._plugin)
        what = "files of the benchmark outside its folder that name a workload, for each"
        yield counted("files.workload", what, self._workloads)
