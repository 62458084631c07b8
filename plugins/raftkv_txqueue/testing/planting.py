"""How bugs are planted into the plugin, besides wrapping one function: `planted.py` says which.

They replace functions (`raftkv/testing/patching.py`), so a rename is an error and not a bug that is
never planted; the plugin itself has no switch for any of them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from raftkv.testing.patching import around
from raftkv.testing.planting import Bug, Bugs, Wrap
from raftkv_txqueue import plugin as plugin_module

__all__ = ["BUGS", "SEEDS_MAX", "applying", "everywhere", "nothing", "patching", "wrapping"]

# Each must be found within so many seeds.
SEEDS_MAX = 60

BUGS = Bugs(SEEDS_MAX)
wrapping = BUGS.wrapping


def patching(name: str, what: str, patch: Callable[[], Any]) -> None:
    """Register a bug that is there while what `patch` makes is entered."""
    BUGS[name] = Bug(what, patch, seeds_max=SEEDS_MAX)


def nothing(*given: Any, **more: Any) -> None:
    """What some functions do when they are broken."""
    return None


def everywhere(function: str, *modules: Any) -> Callable[[str, str], Callable[[Wrap], Wrap]]:
    """A bug that wraps a function in each module that has taken it by its name."""

    def registering(name: str, what: str) -> Callable[[Wrap], Wrap]:
        def register(wrap: Wrap) -> Wrap:
            @contextlib.contextmanager
            def patch() -> Iterator[None]:
                with contextlib.ExitStack() as stack:
                    for module in modules:
                        stack.enter_context(around(module, function, wrap))
                    yield

            patching(name, what, patch)
            return wrap

        return register

    return registering


@contextlib.contextmanager
def applying(command: type, wrap: Wrap) -> Iterator[None]:
    """What the plugin does for a command is wrapped."""
    before = plugin_module._APPLY[command]
    plugin_module._APPLY[command] = wrap(before)
    try:
        yield
    finally:
        plugin_module._APPLY[command] = before
