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
from raftkv_subscriptions import plugin as plugin_module

__all__ = ["BUGS", "SEEDS_MAX", "applying", "everywhere", "patching", "wrapping"]

# Each must be found within so many seeds.
SEEDS_MAX = 60

BUGS = Bugs(SEEDS_MAX)
wrapping = BUGS.wrapping


def patching(name: str, what: str, patch: Callable[[], Any]) -> None:
    """Register a bug that is there while what `patch` makes is entered."""
    BUGS[name] = Bug(what, patch, seeds_max=SEEDS_MAX)


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


def applying(name: str, what: str, *commands: type) -> Callable[[Wrap], Wrap]:
    """A bug that wraps what the plugin does for these commands."""

    def register(wrap: Wrap) -> Wrap:
        @contextlib.contextmanager
        def patch() -> Iterator[None]:
            before = {command: plugin_module._APPLY[command] for command in commands}
            plugin_module._APPLY.update({each: wrap(step) for each, step in before.items()})
            try:
                yield
            finally:
                plugin_module._APPLY.update(before)

        patching(name, what, patch)
        return wrap

    return register
