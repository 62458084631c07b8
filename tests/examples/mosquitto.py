"""Debian's MQTT clients, mosquitto_pub and mosquitto_sub, as processes of a test.

Had like the other programs of Debian (bench/peers/debian.py): taken as installed, or downloaded and
unpacked without root.
"""

from __future__ import annotations

import queue
import subprocess
import threading
import time
from pathlib import Path

import pytest

from bench.peers import debian
from bench.peers.debian import Missing, Package, Program

__all__ = ["Missing", "Subscriber", "mosquitto", "publish"]

TIMEOUT_S = 30.0
# For a client that has got SIGTERM.
ENDING_S = 10.0

# The option ends with 1 although it was understood.
CLIENTS = Package(
    ("mosquitto-clients", "libmosquitto1", "libcjson1"),
    "usr/bin/mosquitto_sub",
    ("--help",),
    codes=(0, 1),
)


def mosquitto(name: str) -> Program:
    """`mosquitto_pub` or `mosquitto_sub`. Raises `Missing` with the reason."""
    table = {**debian.PROGRAMS, "mosquitto_sub": CLIENTS}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(debian, "PROGRAMS", table)
        found = debian.find("mosquitto_sub")
    # Both come in one package.
    return Program(str(Path(found.path).with_name(name)), found.environment)


def publish(port: int, topic: str, message: str, *more: str) -> None:
    """Publish with QoS 1 and wait for the acknowledgement."""
    program = mosquitto("mosquitto_pub")
    done = subprocess.run(
        [program.path, "-p", str(port), "-q", "1", "-t", topic, "-m", message, *more],
        env=program.env,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr


class Subscriber:
    """mosquitto_sub with a session (-c), its output line by line. A context."""

    def __init__(self, port: int, client_id: str, topic: str, *more: str) -> None:
        program = mosquitto("mosquitto_sub")
        # -d tells of packets, so that a test sees SUBACK.
        arguments = ["-p", str(port), "-i", client_id, "-c", "-q", "1", "-t", topic, "-d", *more]
        self._process = subprocess.Popen(
            # Line by line although it is no terminal.
            ["stdbuf", "-oL", program.path, *arguments],
            env=program.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._lines: queue.Queue[str | None] = queue.Queue()
        self.seen: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    def __enter__(self) -> Subscriber:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def until(self, *wanted: str) -> str:
        """The next line that holds one of `wanted`; fails when it does not come."""
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            try:
                line = self._lines.get(timeout=max(0.01, deadline - time.monotonic()))
            except queue.Empty:
                line = None
            assert line is not None, f"{wanted} did not come; there was {self.seen}"
            self.seen.append(line)
            if any(each in line for each in wanted):
                return line

    def ended(self) -> int:
        """Wait until it has ended by itself: its exit code."""
        code = self._process.wait(TIMEOUT_S)
        self._reader.join(TIMEOUT_S)
        while (line := self._lines.get(timeout=TIMEOUT_S)) is not None:
            self.seen.append(line)
        return code

    def stop(self, *, kill: bool = False) -> None:
        """End it: with DISCONNECT, or without a word."""
        if self._process.poll() is None:
            self._process.kill() if kill else self._process.terminate()
        try:
            self._process.wait(ENDING_S)
        except subprocess.TimeoutExpired:
            # Its signal handler calls its library, which takes locks that it may hold already:
            # probably why it sometimes never ends.
            self._process.kill()
            self._process.wait(TIMEOUT_S)
        self._reader.join(TIMEOUT_S)
        if self._process.stdout is not None:
            self._process.stdout.close()
