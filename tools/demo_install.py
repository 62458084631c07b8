"""The extra `bench` and Java, installed in the background while the live cluster is shown.

pip is asked for raw progress ("Progress 1024 of 4096"), which becomes one bar in the same display
as the show. Where standard output is no terminal, a line every few seconds takes its place.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, SpinnerColumn, TextColumn

__all__ = ["Installation"]

ROOT: Final = Path(__file__).resolve().parent.parent
REPORT_EVERY_S: Final = 10.0
LINES_KEPT: Final = 40

# The last line tells where Java is, because a child cannot set our environment.
SCRIPT: Final = """
. tools/lib.sh
install_extra bench --progress-bar raw || exit 1
ensure_java || exit 3
echo "JAVA_HOME ${JAVA_HOME:-}"
"""

_PROGRESS = re.compile(r"Progress (\d+) of (\d+)")
_DOWNLOADING = re.compile(r"\s*Downloading (\S+)")
_STEPS = (
    (re.compile(r"\s*Building wheel for (\S+)"), "building {}"),
    (re.compile(r"\s*Preparing metadata"), "unpacking"),
    (re.compile(r"Installing collected packages"), "copying packages"),
    (re.compile(r"==> (.*)"), "{}"),
)


class Installation:
    """Starts at once. `wait` returns when all is there; `error` then says what is not."""

    def __init__(self, console: Console, script: str = SCRIPT) -> None:
        self._console = console
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("Spark and plots", total=None)
        self._step = "starting"
        self._lines: list[str] = []
        self._reported_s = time.monotonic()
        self._process = subprocess.Popen(
            ["bash", "-c", script],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,  # so that `stop` reaches pip behind the shell
        )
        self._bar.start()
        self._reader = threading.Thread(target=self._read, name="installation", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            progress = _PROGRESS.match(line)
            if progress:
                done, total = int(progress[1]), int(progress[2])
                self._bar.update(self._task, completed=done, total=total)
                self._report(f"{self._step}: {done / 1e6:.0f} of {total / 1e6:.0f} MB")
                continue
            self._lines = [*self._lines[-LINES_KEPT:], line.rstrip()]
            if line.startswith("JAVA_HOME ") and line.split()[1:]:
                os.environ["JAVA_HOME"] = line.split()[1]
            downloading = _DOWNLOADING.match(line)
            if downloading:
                self._begin(f"downloading {downloading[1].rpartition('/')[2]}")
            for pattern, text in _STEPS:
                found = pattern.match(line)
                if found:
                    self._begin(text.format(*found.groups()))
        self._process.wait()

    def _begin(self, step: str) -> None:
        self._step = step
        self._bar.update(self._task, description=step, completed=0, total=None)
        self._report(step)

    def _report(self, text: str) -> None:
        """One line now and then where no bar can be drawn."""
        now = time.monotonic()
        if not self._console.is_terminal and now - self._reported_s >= REPORT_EVERY_S:
            self._reported_s = now
            self._console.print(f"    (meanwhile, {text})", style="dim", highlight=False)

    def wait(self) -> None:
        """Block until the installation has ended, one way or the other."""
        self._reader.join()
        self._bar.stop()

    def stop(self) -> None:
        """End it early, because the demonstration ends."""
        self._bar.stop()
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGTERM)

    @property
    def packages_ready(self) -> bool:
        """Whether the benchmark can run; Java may still be missing."""
        return self._process.poll() in (0, 3)

    @property
    def error(self) -> str | None:
        """What went wrong, in the installer's own words; None if nothing did."""
        if self._process.poll() in (0, None):
            return None
        errors = [line for line in self._lines if line.lower().startswith("error:")]
        return errors[-1] if errors else "\n".join(self._lines[-5:])
