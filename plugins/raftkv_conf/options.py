"""The local options of the plugin, `[options.conf]`: what one node keeps to itself.

    [options.conf.local]
    "log.level" = "debug"

A value that stands here wins over the cluster's, on this node alone; `raftkv conf diff` shows it.
"""

from __future__ import annotations

from typing import Any

import msgspec

__all__ = ["ConfOptions"]


class ConfOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[options.conf]`. `local`: whole dotted path -> value."""

    local: dict[str, Any] = {}
