"""What a guard of the structure counts: measures with a ceiling, or a floor."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, Protocol

from tests.guards.sources import Source

Kind = Literal["ceiling", "floor"]


@dataclass(frozen=True)
class Measure:
    """A count of something, where it was found, and in which direction it may move.

    Limits are multiples of `step`: a large step leaves room for changes of a count that varies
    with every commit.
    """

    name: str
    what: str
    count: int
    places: tuple[str, ...] = ()
    kind: Kind = "ceiling"
    step: int = 1


class Guard(Protocol):
    """Reads all files of the repository, one after the other, and then gives its measures."""

    def add(self, source: Source) -> None: ...

    def measures(self) -> Iterable[Measure]: ...


def counted(name: str, what: str, places: Iterable[str]) -> Measure:
    """A measure whose count is the number of its places."""
    found = tuple(places)
    return Measure(name, what, len(found), found)


def measure(files: Iterable[Source], by: Iterable[Guard]) -> dict[str, Measure]:
    """The measures of the guards `by`, in their order, under their names."""
    by = list(by)
    for source in files:
        for guard in by:
            guard.add(source)
    return {each.name: each for guard in by for each in guard.measures()}
