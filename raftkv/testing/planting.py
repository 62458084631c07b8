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

__all__ = ["BUGS", "Bug", "Patch", "Wrap", "planted", "pretending", "wrapping"]

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


BUGS: dict[str, Bug] = {}


@contextlib.contextmanager
def planted(name: str) -> Iterator[None]:
    """The bug `name` (a key of BUGS) is in the code while this is entered."""
    with BUGS[name].patch():
        yield


def wrapping(
    name: str,
    what: str,
    owner: Any,
    function: str,
    *,
    harsh: bool = False,
    seeds_max: int = 10,
    members: bool = False,
) -> Callable[[Wrap], Wrap]:
    """Register a bug that wraps `owner.function`."""

    def register(wrap: Wrap) -> Wrap:
        BUGS[name] = Bug(what, lambda: around(owner, function, wrap), harsh, seeds_max, members)
        return wrap

    return register


@contextlib.contextmanager
def pretending(thing: Any, field: str, value: Any) -> Iterator[None]:
    """An attribute of one object has another value for a moment."""
    before = getattr(thing, field)
    setattr(thing, field, value)
    try:
        yield
    finally:
        setattr(thing, field, before)
