"""Logging of the `raftkv` command: one JSON object per line on stderr.

A library never configures logging; the command does. raftkv itself logs to the standard `logging`
(loggers below "raftkv") with a NullHandler, so a program that embeds a node decides itself what
becomes of the lines. docs/logs.md lists the fields.

One line is one record, also with an exception in it, so that a log can be cut, counted and read by
programs. Every line says where the node stood when it was written: its role, its term and the last
entry that it had applied. These are read at that moment, by whichever thread logs.

structlog was looked at and left out: what it would do here is this formatter, and it would be one
more package that every installation pulls in.

A thread writes the lines (log_writer.py), because stderr may be a pipe that is not read.

`Flood` bounds what one place in the code may write, because a log that others can fill costs the
disk. The lines of which there could be most are bounded where
they are written, too (raftkv/repeats.py, raftkv/raft/complaints.py): that also serves programs that
embed a node.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, Final, Protocol

import msgspec

from raftkv.plugin import Metric

from .log_writer import LogWriter, QueuedLines

__all__ = ["BURST_LINES", "LINES_PER_S", "Flood", "JsonLines", "Logging", "Place", "configure"]

_encode = msgspec.json.Encoder().encode
_OUR_LEVELS: Final = {"uvicorn.error": logging.WARNING, "asyncio": logging.WARNING}

STDERR: Final = 2

# From one place in the code at once, and steadily: a start or an election is told in full.
BURST_LINES: Final = 100
LINES_PER_S: Final = 1.0


class Standing(Protocol):
    """The part of a node that the log needs."""

    @property
    def standing(self) -> tuple[str, int, int]:
        """Role, term, applied index."""


class Place:
    """Which node writes the lines. It has no standing until it is made."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.node: Standing | None = None

    def fields(self) -> dict[str, Any]:
        role, term, index = ("starting", 0, 0) if self.node is None else self.node.standing
        return {"node": self.name, "role": role, "term": term, "index": index}


class JsonLines(logging.Formatter):
    """time (UTC), level, node, role, term, index, logger, message, and where there is one: error
    (the traceback) and left_out (lines like this one that were not written)."""

    def __init__(self, place: Place) -> None:
        super().__init__()
        self._place = place

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, Any] = {
            "time": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            **self._place.fields(),
            "logger": record.name,
            "message": _writable(record.getMessage()),
        }
        if record.exc_info:
            line["error"] = _writable(self.formatException(record.exc_info))
        left_out = getattr(record, "left_out", 0)
        if left_out:
            line["left_out"] = left_out
        return _encode(line).decode()


def _writable(text: str) -> str:
    """Without what UTF-8 cannot say: the name of a file may hold any bytes."""
    return text.encode("utf-8", "backslashreplace").decode()


class Flood(logging.Filter):
    """Lets each place in the code write BURST_LINES at once, then LINES_PER_S.

    The first line after a gap says with `left_out` how many there would have been. Debugging lines
    are not bounded.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._monotonic = monotonic
        # By file and line: what it may still write, as of when, and what was left out since.
        self._places: dict[tuple[str, int], tuple[float, float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno <= logging.DEBUG:
            return True  # whoever asks for them wants all of them
        now = self._monotonic()
        place = (record.pathname, record.lineno)
        allowance, at, left_out = self._places.pop(place, (float(BURST_LINES), now, 0))
        allowance = min(float(BURST_LINES), allowance + (now - at) * LINES_PER_S)
        said = allowance >= 1
        if said:
            record.left_out = left_out
            self._places[place] = allowance - 1, now, 0
        else:
            self._places[place] = allowance, now, left_out + 1
        return said


class Logging(Place):
    """The place, and the writer of its lines."""

    writer: LogWriter

    def metrics(self) -> list[Metric]:
        """What the program that made it gives to `node.metrics.add`."""
        count = self.writer.dropped_total
        return [Metric("lines_dropped", "counter", count, "Lines of the log that were dropped.")]


def configure(node: str, level: int = logging.INFO) -> Logging:
    """Send all log records to stderr as JSON lines, by a thread. Called once, by the command.

    The caller sets `node` of what is returned once there is a Node. Warnings of Python are records,
    too.
    """
    place = Logging(node)
    formatter = JsonLines(place)

    def report(dropped: int) -> str:
        text = f"{dropped} lines were dropped: stderr was not read fast enough"
        record = logging.LogRecord("raftkv.log", logging.WARNING, __file__, 0, text, (), None)
        return formatter.format(record)

    place.writer = LogWriter(STDERR, report)
    handler = QueuedLines(place.writer)
    handler.setFormatter(formatter)
    handler.addFilter(Flood())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    logging.captureWarnings(True)
    for name, quieter in _OUR_LEVELS.items():
        logging.getLogger(name).setLevel(quieter)
    return place
