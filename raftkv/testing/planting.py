"""How bugs are planted: each replaces functions of the real code for the time of a test.

    @wrapping("lose-tail", "recovery drops the newest batch", wal, "recover")
    def _lose_tail(recover): ...          # gives what stands in its place

    with planted("lose-tail"):
        ...                               # the simulation must notice

Production code has no switch for any of it (patching.py). The bugs themselves: planted.py,
planted_members.py and planted_watch.py; planted.py knows them all.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from raftkv.testing.patching import around

__all__ = ["BUGS", "Bug", "Bugs", "Patch", "Wrap", "planted", "pretending", "wrapping"]

Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]
Patch = Callable[[], contextlib.AbstractContextManager[None]]


class Bug(NamedTuple):
    """It is found within `seeds_max` seeds.

    `harsh`: it needs messages to be lost or doubled; `members`: cores that come and go.
    """

    what: str
    patch: Patch
    harsh: bool = False
    seeds_max: int = 10
    members: bool = False


class Bugs(dict[str, Bug]):
    """The bugs of one part of the code, by name; each is found within `seeds_max` seeds."""

    def __init__(self, seeds_max: int) -> None:
        super().__init__()
        self.seeds_max = seeds_max

    @contextlib.contextmanager
    def planted(self, name: str) -> Iterator[None]:
        """The bug of this name is in the code while this is entered."""
        with self[name].patch():
            yield

    def wrapping(
        self,
        name: str,
        what: str,
        owner: Any,
        function: str,
        *,
        harsh: bool = False,
        seeds_max: int | None = None,
        members: bool = False,
    ) -> Callable[[Wrap], Wrap]:
        """Register a bug that wraps `owner.function`."""
        most = self.seeds_max if seeds_max is None else seeds_max

        def register(wrap: Wrap) -> Wrap:
            self[name] = Bug(what, lambda: around(owner, function, wrap), harsh, most, members)
            return wrap

        return register


#: Those of raftkv itself.
BUGS = Bugs(seeds_max=10)
planted = BUGS.planted
wrapping = BUGS.wrapping


@contextlib.contextmanager
def pretending(thing: Any, field: str, value: Any) -> Iterator[None]:
    """An attribute of one object has another value for a moment."""
    before = getattr(thing, field)
    setattr(thing, field, value)
    try:
        yield
    finally:
        setattr(thing, field, before)
