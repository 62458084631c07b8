"""Logging of the `raftkv` command: one JSON object per line on stderr.

A library never configures logging; the command does. One line is one record, also with an
exception in it, so that a log can be cut, counted and read by programs.
"""

from __future__ import annotations

import logging
import sys
import time
from typing import Final

import msgspec

__all__ = ["JsonLines", "configure"]

_encode = msgspec.json.Encoder().encode
_OUR_LEVELS: Final = {"uvicorn.error": logging.WARNING, "asyncio": logging.WARNING}


class JsonLines(logging.Formatter):
    """ts (UTC), level, node, logger, msg, and `error` with the traceback if there is one."""

    def __init__(self, node: str) -> None:
        super().__init__()
        self._node = node

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, str] = {
            "ts": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "node": self._node,
            "logger": record.name,
            "msg": record.getMessage(),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return _encode(line).decode("utf-8", "replace")


def configure(node: str, level: int = logging.INFO) -> None:
    """Send all log records to stderr as JSON lines. Called once, by the command."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines(node))
    logging.basicConfig(level=level, handlers=[handler], force=True)
    for name, quieter in _OUR_LEVELS.items():
        logging.getLogger(name).setLevel(quieter)
