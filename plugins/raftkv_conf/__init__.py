"""Cluster-wide configuration on top of cluster calls.

    from raftkv_conf import Conf
    conf = node.plugin(Conf)                      # plugins has "calls" and "conf", as by default
    conf.handler("smtp.port", int, default=25, apply=reconnect, doc="Port of the mail server.")
    await conf.set("smtp.port", 587)              # or: raftkv conf set smtp.port 587

docs/conf.md explains it. The public names are those below; everything else may change.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .public import *  # noqa: F403  # all of its names, and no others
else:

    def __getattr__(name: str) -> Any:
        """A public name. A command of the command line uses none, and imports no plugin."""
        if find_spec(f"{__name__}.{name}") is not None:
            raise AttributeError(name)  # a module of the package, which Python imports then
        return getattr(import_module(f"{__name__}.public"), name)
