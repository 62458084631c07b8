"""How bugs are planted: each replaces functions of the real code for the time of a test.

    @wrapping("lose-tail", "recovery drops the newest batch", wal, "recover")
    def _lose_tail(recover): ...          # gives what stands in its place

    with planted("lose-tail"):
        ...                               # the simulation must notice

Production code has no switch for any of it (patching.py). A bug whose own code fails is not found
but reported as such (own_errors.py). The bugs themselves: planted.py, planted_members.py and
planted_watch.py; planted.py knows them all.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any, NamedTuple

from raftkv.testing import patching
from raftkv.testing.own_errors import file_of, watched
from raftkv.testing.patching import around, around_entry

__all__ = ["BUGS", "Bug", "Bugs", "Patch", "Wrap", "planted", "pretending", "wrapping"]

Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]
Patch = Callable[[], contextlib.AbstractContextManager[None]]
_Register = Callable[[Wrap], Wrap]


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
        # Where their code is written. What replaces functions for it fails for its sake only.
        self._files = {__file__, patching.__file__}

    def __setitem__(self, name: str, bug: Bug) -> None:
        self._files.add(file_of(bug.patch))
        super().__setitem__(name, bug)

    def planted(self, name: str) -> contextlib.AbstractContextManager[None]:
        """The bug of this name is in the code while this is entered.

        Raises BugFailed at the end if it was the bug's own code that failed.
        """
        return watched(name, self[name].patch, self._files)

    def patching(self, name: str, what: str, patch: Patch) -> None:
        """Register a bug that is there while what `patch` makes is entered."""
        self[name] = Bug(what, patch, seeds_max=self.seeds_max)

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
            self._files.add(file_of(wrap))
            self[name] = Bug(what, lambda: around(owner, function, wrap), harsh, most, members)
            return wrap

        return register

    def everywhere(self, function: str, *modules: Any) -> Callable[[str, str], _Register]:
        """A bug that wraps a function in each module that has taken it by its name."""
        return self._registering(
            lambda wrap: [around(module, function, wrap) for module in modules]
        )

    def applying(
        self, table: MutableMapping[Any, Callable[..., Any]], *commands: type
    ) -> Callable[[str, str], _Register]:
        """A bug that wraps what a plugin does for these commands."""
        return self._registering(
            lambda wrap: [around_entry(table, command, wrap) for command in commands]
        )

    def _registering(
        self, patches: Callable[[Wrap], list[contextlib.AbstractContextManager[None]]]
    ) -> Callable[[str, str], _Register]:
        def registering(name: str, what: str) -> _Register:
            def register(wrap: Wrap) -> Wrap:
                @contextlib.contextmanager
                def patch() -> Iterator[None]:
                    with contextlib.ExitStack() as stack:
                        for each in patches(wrap):
                            stack.enter_context(each)
                        yield

                self._files.add(file_of(wrap))
                self.patching(name, what, patch)
                return wrap

            return register

        return registering


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
