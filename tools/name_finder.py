"""Search the bytes of a simulated run for names of the code: they would make its digest depend on
a rename (run_digest.py).

Looked for are classes and private functions with names of at least `LENGTH_MIN` characters, and
files of modules. Other names of functions are words that tags, settings and metrics use as well.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from checkout import ROOT
from raftkv.replica import Replica
from raftkv.testing.disk import SimDisk
from raftkv.testing.patching import around
from raftkv.testing.pipe import Pipe
from run_digest import run, without_names

FOLDERS: Final = ("raftkv", "plugins")
#: A word of this length does not come up in random bytes by accident.
LENGTH_MIN: Final = 6

_DEFINITION = re.compile(r"^ *(?:class (\w+)|(?:async )?def (_\w+))", re.M)
_WORD = re.compile(rb"[A-Z_a-z][\w.]{%d,}" % (LENGTH_MIN - 1), re.ASCII)


def names_in_run(subject: str, seed: int) -> Counter[str]:
    """How often each name of the code is in the bytes that a run sends, logs and stores."""
    finder = Finder(set(names_of_code(ROOT)))
    with contextlib.ExitStack() as stack:
        stack.enter_context(without_names())
        stack.enter_context(around(Pipe, "send", finder.wrap(lambda data: data)))
        stack.enter_context(around(SimDisk, "write", finder.wrap(lambda inode, data: data)))
        stack.enter_context(around(Replica, "apply", finder.wrap(lambda index, body, term: body)))
        run(subject, seed)
    return finder.found


def names_of_code(root: Path) -> Iterator[str]:
    """Classes and private functions of the packages below `root`, and the files of modules."""
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*.py")):
            yield path.name
            for match in _DEFINITION.finditer(path.read_text(encoding="utf-8")):
                yield match[1] or match[2]


class Finder:
    """Counts names in bytes."""

    def __init__(self, names: set[str]) -> None:
        self.found: Counter[str] = Counter()
        self._names = {name.encode() for name in names if len(name) >= LENGTH_MIN}

    def look(self, data: bytes) -> None:
        """Count the names in `data`."""
        for word in _WORD.findall(data):
            if word in self._names:
                self.found[word.decode()] += 1

    def wrap(
        self, data_of: Callable[..., bytes]
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """A wrapper of methods; `data_of` gives the bytes among their arguments."""

        def wrapper(method: Callable[..., Any]) -> Callable[..., Any]:
            def looking(of: object, *arguments: Any) -> Any:
                self.look(data_of(*arguments))
                return method(of, *arguments)

            return looking

        return wrapper
