"""How bugs are planted into the plugin, besides wrapping one function: `planted.py` says which.

They replace functions (`raftkv/testing/patching.py`), so a rename is an error and not a bug that is
never planted; the plugin itself has no switch for any of them.
"""

from __future__ import annotations

import contextlib
from typing import Any

from raftkv.testing.patching import around_entry
from raftkv.testing.planting import Bugs, Wrap
from raftkv_txqueue import plugin as plugin_module

__all__ = ["BUGS", "SEEDS_MAX", "applying", "everywhere", "nothing", "patching", "wrapping"]

# Each must be found within so many seeds.
SEEDS_MAX = 60

BUGS = Bugs(SEEDS_MAX)
wrapping = BUGS.wrapping
patching = BUGS.patching
everywhere = BUGS.everywhere


def nothing(*given: Any, **more: Any) -> None:
    """What some functions do when they are broken."""
    return None


def applying(command: type, wrap: Wrap) -> contextlib.AbstractContextManager[None]:
    """What the plugin does for a command is wrapped."""
    return around_entry(plugin_module._APPLY, command, wrap)
