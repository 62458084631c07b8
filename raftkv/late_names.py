"""The public names of a package, imported when the first of them is used.

A command of the command line is a module of a plugin's package and uses none of its public names:
importing the package must not import the plugin.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

__all__ = ["late_names"]


def late_names(package: str) -> Callable[[str], Any]:
    """A `__getattr__` for the package (PEP 562); its public names are those of `public.py`."""

    def look_up(name: str) -> Any:
        # The import system asks for a module of the package first, and imports it then.
        if find_spec(f"{package}.{name}") is None:
            public = import_module(f"{package}.public")
            if hasattr(public, name):
                return getattr(public, name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return look_up
