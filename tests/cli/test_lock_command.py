"""`raftkv lock NAME -- COMMAND`: the command is a process group that signals reach as a whole and
that does not outlive the lock."""

from __future__ import annotations

import base64
import os
import pty
import signal
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from raftkv.cli.devcluster import DevCluster
from tests.cli.conftest import ROOT
from tests.cli.test_real_commands import TIMEOUT_S, line_of, started

pytestmark = pytest.mark.cluster

# A shell with a child; both note the signals that they get in the file of their own.
NOTING = """
note() { for s in TERM INT HUP QUIT USR1 USR2 WINCH; do trap "echo $s >> $1" $s; done; }
note "$0.shell"
(note "$0.child"; echo ready; while :; do sleep 0.02; done) &
while :; do wait; done
"""
# A service as many are: the shell waits for what does the work.
SERVICE = 'sleep 300 & echo "$!"; wait'


@pytest.fixture(scope="module")
def dev(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevCluster]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        cluster = DevCluster(tmp_path_factory.mktemp("lock"))
        cluster.up(cores=1, replicants=0, fsync="off", plugins=[], timeout_s=TIMEOUT_S)
        yield cluster
        cluster.down()


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until(condition: Callable[[], object]) -> None:
    for _ in range(400):
        if condition():
            return
        signal.sigtimedwait((), 0.05)
    raise AssertionError("it did not happen")


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_each_signal_reaches_every_process_of_the_command(dev: DevCluster, tmp_path: Path) -> None:
    files = [tmp_path / "n.shell", tmp_path / "n.child"]
    behind = ("--", "sh", "-c", NOTING, str(tmp_path / "n"))
    with started(dev, "lock", "each", behind=behind) as locking:
        assert line_of(locking.stdout) == "ready"
        for number in ("TERM", "INT", "HUP", "QUIT", "USR1", "USR2", "WINCH"):
            locking.send_signal(getattr(signal, f"SIG{number}"))
            # A shell has its background jobs ignore two of them.
            of_all = files[:1] if number in ("INT", "QUIT") else files
            wait_until(partial(_all_noted, of_all, number))
        (child,) = _children(locking.pid)
        try:
            locking.send_signal(signal.SIGTSTP)
            wait_until(lambda: state(child) == "T")
            assert state(locking.pid) != "T", "without a terminal it holds the lock on"
            locking.send_signal(signal.SIGCONT)
            wait_until(lambda: state(child) != "T")
            locking.kill()  # and with it the shell
            wait_until(lambda: not lives(child))
        finally:
            os.killpg(child, signal.SIGKILL)  # the shell's child, which the kernel does not end


def _all_noted(files: list[Path], number: str) -> bool:
    return all(file.exists() and number in file.read_text().split() for file in files)


def _children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_a_signal_ends_a_service_whole_and_gives_its_code(dev: DevCluster, number: int) -> None:
    with started(dev, "lock", "whole", behind=("--", "sh", "-c", SERVICE)) as locking:
        worker = int(line_of(locking.stdout))
        locking.send_signal(number)
        _, err = locking.communicate(timeout=TIMEOUT_S)
        assert (locking.returncode, err) == (128 + number, b"")
        wait_until(lambda: not lives(worker))


def test_a_lost_lock_ends_the_whole_group(dev: DevCluster) -> None:
    with started(dev, "lock", "lost", "--ttl", "2", behind=("--", "sh", "-c", SERVICE)) as locking:
        worker = int(line_of(locking.stdout))
        revoke = [sys.executable, "-m", "raftkv", "lease", "revoke", _lease_of(dev, b"lost/")]
        subprocess.run(
            [*revoke, "--dir", dev.directory],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            check=True,
        )
        _, err = locking.communicate(timeout=TIMEOUT_S)
        assert locking.returncode == 3
        assert b"lease was lost" in err
        assert not lives(worker)


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM])
def test_a_signal_while_it_waits_releases_its_place(dev: DevCluster, number: int) -> None:
    with started(dev, "lock", "place", behind=("--", "sh", "-c", "echo ready; sleep 300")) as first:
        assert line_of(first.stdout) == "ready"
        with started(dev, "lock", "place", behind=("--", "true")) as second:
            wait_until(lambda: _keys(dev, b"place/") == 2)
            second.send_signal(signal.SIGUSR1)  # for the command, which does not run yet
            second.send_signal(number)
            second.communicate(timeout=TIMEOUT_S)
            assert second.returncode == 128 + number
        assert _keys(dev, b"place/") == 1
        first.send_signal(signal.SIGTERM)
        first.communicate(timeout=TIMEOUT_S)


def _found(dev: DevCluster, prefix: bytes) -> list[dict[str, str]]:
    """The keys with this prefix, which ends with a slash."""
    from raftkv.cli.door_client import request

    key, end = (base64.b64encode(each).decode() for each in (prefix, prefix[:-1] + b"0"))
    found = request(dev.endpoint("core1"), "POST", "/v3/kv/range", {"key": key, "range_end": end})
    return list(found.get("kvs", ()))


def _keys(dev: DevCluster, prefix: bytes) -> int:
    return len(_found(dev, prefix))


def _lease_of(dev: DevCluster, prefix: bytes) -> str:
    """In hexadecimal, as the command line takes it."""
    (found,) = _found(dev, prefix)
    return f"{int(found['lease']):016x}"


def test_at_a_terminal_the_command_is_in_the_foreground_and_stops_as_one_job(
    dev: DevCluster,
) -> None:
    """The shell of the terminal is this test: it continues the job as `fg` does."""
    # Not a shell: one that stops while it waits for its vfork is not reported as stopped.
    script = (
        "import signal, sys\n"
        "signal.signal(signal.SIGINT, lambda *_: sys.exit(9))\n"
        "print('ready', flush=True)\n"
        "while True: signal.pause()"
    )
    command = [sys.executable, "-m", "raftkv", "lock", "tty", "--dir", dev.directory]
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ["PYTHONPATH"] = str(ROOT)
        # The session's leader, as a shell is, with the job in the foreground.
        job = os.fork()
        if job == 0:
            os.setpgid(0, 0)
            signal.signal(signal.SIGTTOU, signal.SIG_IGN)
            os.tcsetpgrp(0, os.getpgrp())
            signal.signal(signal.SIGTTOU, signal.SIG_DFL)
            os.execv(sys.executable, [*command, "--", sys.executable, "-c", script])
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        _, status = os.waitpid(job, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        assert os.tcgetpgrp(0) == job, "it gave the terminal back"
        os.tcsetpgrp(0, os.getpgrp())
        os.write(1, b"stopped\n")
        os.read(0, 10)
        os.tcsetpgrp(0, job)
        os.killpg(job, signal.SIGCONT)
        os.write(1, b"continued\n")
        _, status = os.waitpid(job, 0)
        os._exit(os.waitstatus_to_exitcode(status))
    said = b""

    def read_until(word: bytes) -> None:
        nonlocal said
        while word not in said:
            said += os.read(terminal, 1000)

    try:
        read_until(b"ready")
        suspend, interrupt = termios.tcgetattr(terminal)[6][termios.VSUSP], b"\x03"
        os.write(terminal, suspend)
        read_until(b"stopped")
        os.write(terminal, b"fg\n")
        read_until(b"continued")
        (job,) = _children(pid)
        wait_until(lambda: [state(each) for each in _children(job)] != ["T"])
        os.write(terminal, interrupt)
        _, status = os.waitpid(pid, 0)
    finally:
        os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 9
