"""The built-in path `log.level`: the level of raftkv's own loggers, on all nodes at once."""

from __future__ import annotations

import logging
from typing import Literal, get_args

from .api import ConfApi

__all__ = ["Level", "register"]

Level = Literal["debug", "info", "warning", "error", "critical"]
_LOGGER = "raftkv"


def register(conf: ConfApi) -> None:
    """Register the path on this node."""
    logger = logging.getLogger(_LOGGER)
    # What the program had chosen before the cluster said anything.
    before: list[int] = []

    def apply(level: Level | None) -> None:
        if not before:
            before.append(logger.level)
        logger.setLevel(before[0] if level is None else level.upper())

    conf.handler(
        "log.level",
        Level,
        apply=apply,
        doc=f"Level of raftkv's own log: {', '.join(get_args(Level))}; unset: the program's own.",
    )
