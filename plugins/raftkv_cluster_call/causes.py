"""Causes in the log of calls, as earlier releases have put them there: with a file and a line."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["without_place"]

_PLACE: Final = re.compile(r" at (?:.*\.py\w*|.*<[^>]*>):\d+(?= in |$)")


def without_place(cause: str) -> str:
    """The cause without file and line, which are for the log of the node that failed."""
    return _PLACE.sub("", cause)
