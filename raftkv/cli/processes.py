"""Node processes and what can be known about them from outside: their pid, their command line.

A pid file says which process was started once. The number may meanwhile belong to any other
program, so nobody is ever signalled or counted as running unless the command line of the process
names this very node's configuration file. When a pid file is missing or stale, the processes of
the machine are searched for that command line, because a node must not be started twice.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from typing import Final

from raftkv.errors import NodeFault
from raftkv.security.ownership import open_own

__all__ = ["exclusive", "find_pid", "start", "terminate"]

_PROC: Final = "/proc"
# Between two looks at a process that is about to end.
POLL_S: Final = 0.02
# What the kernel may take to start a program, or to release what a dead one held: milliseconds.
SETTLE_TIMEOUT_S: Final = 2.0


def start(command: Sequence[str], config_path: str, log_path: str) -> subprocess.Popen[bytes]:
    """Start one node in a session of its own, so that Ctrl-C in a terminal does not reach it."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    with open(open_own(log_path, flags), "ab") as log:
        return subprocess.Popen(
            [*command, "serve", "--config", config_path],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=_environment(),
            start_new_session=True,
        )


def _environment() -> dict[str, str]:
    """The environment for a child that must import the same raftkv as this process."""
    here = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    environment = dict(os.environ)
    if os.path.basename(here) not in ("site-packages", "dist-packages"):
        known = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = here if not known else f"{here}{os.pathsep}{known}"
    return environment


def find_pid(config_path: str, pid_path: str) -> int | None:
    """The pid of the running node with this configuration file, or None."""
    try:
        with open(pid_path, encoding="ascii") as file:
            noted = int(file.read().strip())
    except (OSError, ValueError):
        noted = 0
    if noted > 1:
        _settle(noted)
        if _serves(noted, config_path):
            return noted
    if os.path.isdir(_PROC):
        for name in os.listdir(_PROC):
            if name.isdecimal() and int(name) != noted and _serves(int(name), config_path):
                return int(name)
    return None


def _serves(pid: int, config_path: str) -> bool:
    """Whether the process is `raftkv serve --config config_path`. A zombie has no command line."""
    arguments = _command_line(pid)
    return "serve" in arguments and config_path in arguments


def _settle(pid: int) -> None:
    """Wait while a process is between two states and has no command line.

    One that is ending may still hold its locks and ports; one that is starting has not been given
    its command line yet. Bounded, because kernel threads never have one.
    """
    deadline = time.monotonic() + SETTLE_TIMEOUT_S
    while _exists(pid) and not any(_command_line(pid)) and time.monotonic() < deadline:
        time.sleep(POLL_S)


def _exists(pid: int) -> bool:
    """Whether the process still holds resources: it is there and not a zombie."""
    if not os.path.isdir(_PROC):
        return bool(_command_line(pid))
    try:
        with open(f"{_PROC}/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except (OSError, IndexError):
        return False


def _command_line(pid: int) -> list[str]:
    if os.path.isdir(_PROC):
        try:
            with open(f"{_PROC}/{pid}/cmdline", "rb") as file:
                return os.fsdecode(file.read()).split("\0")
        except OSError:
            return []
    found = subprocess.run(
        ["ps", "-o", "command=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return found.stdout.split()


def terminate(pid: int, config_path: str, sent: signal.Signals, timeout_s: float) -> bool:
    """Send a signal and wait until the node has ended: whether it did within `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    if not _serves(pid, config_path):
        return True
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, sent)
    while _serves(pid, config_path):
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    _settle(pid)
    return True


@contextlib.contextmanager
def exclusive(path: str, timeout_s: float) -> Iterator[None]:
    """Hold a lock file, so that two commands do not start or stop the same nodes at once."""
    deadline = time.monotonic() + timeout_s
    with open(open_own(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "ab") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise NodeFault(
                        f"another raftkv command has been working on {os.path.dirname(path)} "
                        f"for {timeout_s:.0f} s: wait for it or stop it"
                    ) from None
                time.sleep(POLL_S)
        yield
