"""Lines for stderr, written by a thread of their own from a bounded queue.

What reads the log of a node may stop reading: a pipe then takes no more, and a node that writes it
on its event loop stands still with it. Here only the thread waits. Lines beyond the queue's bounds
are dropped and counted, and a line behind the next ones has their number.

A line that is in the queue when the process ends is written within FLUSH_S, or not at all.
"""

from __future__ import annotations

import atexit
import io
import logging
import os
import select
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import Final

__all__ = ["BYTES_MAX", "FLUSH_S", "LINES_MAX", "LogWriter", "QueuedLines", "QueuedText"]

#: Lines that wait at most, and their bytes: some minutes of a node in trouble.
LINES_MAX: Final = 10_000
BYTES_MAX: Final = 8 * 1024 * 1024
#: How long the end of the process waits for lines that are not written yet.
FLUSH_S: Final = 1.0
#: A line that gets no end is cut there, so that its begin cannot grow.
LINE_CHARS_MAX: Final = 64 * 1024
# The thread writes this amount at once, so that a line is not one system call.
WRITE_BYTES: Final = 64 * 1024


class LogWriter:
    """Writes lines to the file descriptor `fd`. `report` makes the line about dropped ones."""

    def __init__(
        self,
        fd: int,
        report: Callable[[int], str],
        *,
        lines_max: int = LINES_MAX,
        bytes_max: int = BYTES_MAX,
    ) -> None:
        self.fd = fd
        self._report = report
        self._lines_max = lines_max
        self._bytes_max = bytes_max
        self._changed = threading.Condition()
        self._lines: deque[bytes] = deque()
        self._bytes = 0
        self._writing = False
        # Dropped since the last report, and in all.
        self._dropped = 0
        self.dropped_total = 0
        # A daemon: a process that ends does not wait for a reader that does not read.
        threading.Thread(target=self._run, name="raftkv-log", daemon=True).start()

    def put(self, line: str) -> None:
        """Queue a line, which gets its end; or count it as dropped. Never waits."""
        data = line.encode("utf-8", "backslashreplace") + b"\n"
        with self._changed:
            if len(self._lines) >= self._lines_max or self._bytes + len(data) > self._bytes_max:
                self._dropped += 1
                self.dropped_total += 1
                return
            self._lines.append(data)
            self._bytes += len(data)
            self._changed.notify_all()

    def flush(self, timeout_s: float = FLUSH_S) -> bool:
        """Wait until all is written, or the time is up: whether all is."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._lines and not self._writing, timeout_s)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._writing = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._lines)
                self._writing = True
                lines, dropped = self._take()
            try:
                _write(self.fd, self._joined(lines, dropped))
            except OSError:
                # Nothing reads any more, or the disk of the log is full: the node goes on.
                with self._changed:
                    self._dropped += len(lines) + dropped
                    self.dropped_total += len(lines)

    def _take(self) -> tuple[list[bytes], int]:
        """The next lines, and how many were dropped since the last report."""
        lines: list[bytes] = []
        size = 0
        while self._lines and size < WRITE_BYTES:
            line = self._lines.popleft()
            lines.append(line)
            size += len(line)
        self._bytes -= size
        dropped, self._dropped = self._dropped, 0
        return lines, dropped

    def _joined(self, lines: list[bytes], dropped: int) -> bytes:
        """The lines, and the report about dropped ones behind them."""
        if dropped:
            try:
                report = self._report(dropped)
            except Exception as error:  # it must not end the thread
                report = f"{dropped} lines were dropped, and the report of it failed: {error!r}"
            lines = [*lines, report.encode("utf-8", "backslashreplace") + b"\n"]
        return b"".join(lines)


def _write(fd: int, data: bytes) -> None:
    """Write all of it. `fd` may be non-blocking: another process that has it may have set that."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:
            room = select.poll()
            room.register(fd, select.POLLOUT)
            room.poll()


class QueuedText(io.TextIOBase):
    """A text stream in the place of sys.stderr: whole lines go to a LogWriter, and no write waits.

    For what is not logged: the error that the command ends with, tracebacks of threads.
    """

    def __init__(self, writer: LogWriter) -> None:
        self._writer = writer
        self._begun = ""

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._writer.fd

    def write(self, text: str) -> int:
        *lines, begun = (self._begun + text).split("\n")
        if len(begun) > LINE_CHARS_MAX:
            lines, begun = [*lines, begun], ""
        self._begun = begun
        for line in lines:
            self._writer.put(line)
        return len(text)

    def take_over(self) -> None:
        """Be sys.stderr from now on; what is queued at the end of the process is still written."""
        sys.stderr = self
        atexit.register(self._writer.flush)


class QueuedLines(logging.Handler):
    """Formats a record where it is logged, and leaves the writing to a LogWriter."""

    def __init__(self, writer: LogWriter) -> None:
        super().__init__()
        self._writer = writer

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._writer.put(self.format(record))
        except Exception:
            self.handleError(record)
