"""How bugs are planted into the plugin, besides wrapping one function: `planted.py` says which.

They replace functions (`raftkv/testing/patching.py`), so a rename is an error and not a bug that is
never planted; the plugin itself has no switch for any of them.
"""

from __future__ import annotations

from collections.abc import Callable

from raftkv.testing.planting import Bugs, Wrap
from raftkv_subscriptions import plugin as plugin_module

__all__ = ["BUGS", "SEEDS_MAX", "applying", "everywhere", "patching", "wrapping"]

# Each must be found within so many seeds.
SEEDS_MAX = 60

BUGS = Bugs(SEEDS_MAX)
wrapping = BUGS.wrapping
patching = BUGS.patching
everywhere = BUGS.everywhere


def applying(name: str, what: str, *commands: type) -> Callable[[Wrap], Wrap]:
    """A bug that wraps what the plugin does for these commands."""
    return BUGS.applying(plugin_module._APPLY, *commands)(name, what)
