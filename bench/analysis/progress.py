"""Progress on standard error: what is being done now, and how long the parts before took.

In a terminal the running step has a spinner; elsewhere (a file, a log of a build) each finished
step is one plain line. It writes to a duplicate of file descriptor 2, because the descriptor itself
points elsewhere while the JVM starts (bench.analysis.session).
"""

from __future__ import annotations

import os
import time

from rich.console import Console
from rich.markup import escape
from rich.status import Status

__all__ = ["Progress"]


class Progress:
    """A context manager; `step` ends the step before and begins the next."""

    def __init__(self) -> None:
        self._file = os.fdopen(os.dup(2), "w", encoding="utf-8", errors="replace")
        self._console = Console(file=self._file, highlight=False)
        self._status: Status | None = None
        self._step = ""
        self._began = 0.0

    def step(self, text: str) -> None:
        """Begins a step; `text` says what happens, without a full stop."""
        self._finish()
        self._step, self._began = text, time.monotonic()
        if self._console.is_terminal:
            self._status = self._console.status(escape(text))
            self._status.start()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        self._finish(done=kind is None)
        self._file.close()

    def _finish(self, *, done: bool = True) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None
        if self._step and done:
            seconds = time.monotonic() - self._began
            self._console.print(f"  {escape(self._step)} [dim]{seconds:.1f} s[/dim]")
        self._step = ""
        self._file.flush()
