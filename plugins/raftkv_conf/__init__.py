"""Cluster-wide configuration on top of cluster calls.

    from raftkv_conf import Conf
    conf = node.plugin(Conf)                      # plugins has "calls" and "conf", as by default
    conf.handler("smtp.port", int, default=25, apply=reconnect, doc="Port of the mail server.")
    await conf.set("smtp.port", 587)              # or: raftkv conf set smtp.port 587

docs/conf.md explains it. The public names are those below; everything else may change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raftkv.late_names import late_names

if TYPE_CHECKING:
    from .public import *  # noqa: F403  # all of its names, and no others
else:
    __getattr__ = late_names(__name__)
