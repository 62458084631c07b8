"""The example's broker as a process, for real clients."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
START_S = 60.0
STOP_S = 30.0
NODES = 3


class BrokerProcess:
    """`mqtt_broker.py` with three nodes. `ports` are those of MQTT, `doors` those of HTTP."""

    def __init__(self) -> None:
        script = ROOT / "docs" / "examples" / "mqtt_broker.py"
        self._process = subprocess.Popen(
            [sys.executable, str(script), "--nodes", str(NODES), "--port", "0"],
            env={"PYTHONPATH": f"{ROOT}:{ROOT / 'plugins'}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.ports: list[int] = []
        self.doors: list[str] = []
        self._errors: list[str] = []
        self._drain = threading.Thread(target=self._read_errors, daemon=True)
        self._drain.start()
        watchdog = threading.Timer(START_S, self._process.kill)
        watchdog.start()
        assert self._process.stdout is not None
        for line in self._process.stdout:
            found = re.match(r"\w+: MQTT at 127\.0\.0\.1:(\d+), HTTP at (\S+)", line)
            if found:
                self.ports.append(int(found[1]))
                self.doors.append(found[2])
            if line == "ready\n":
                break
        watchdog.cancel()
        if len(self.ports) != NODES:
            self.stop()
            raise AssertionError(f"the broker did not start: {self.errors}")

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        self._errors.extend(self._process.stderr)

    @property
    def errors(self) -> str:
        """What it wrote to stderr so far."""
        return "".join(self._errors)

    def get(self, path: str, place: int = 0) -> Any:
        """One answer of a door."""
        with urllib.request.urlopen(f"{self.doors[place]}{path}", timeout=START_S) as answer:
            return json.load(answer)

    def post(self, path: str, body: Any, place: int = 0) -> Any:
        request = urllib.request.Request(
            f"{self.doors[place]}{path}", json.dumps(body).encode(), method="POST"
        )
        with urllib.request.urlopen(request, timeout=START_S) as answer:
            return json.load(answer)

    def stop(self) -> int:
        self._process.terminate()
        try:
            code = self._process.wait(STOP_S)
        finally:
            self._process.kill()
        self._drain.join()
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()
        return code


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    pytest.importorskip("amqtt", reason="amqtt is not installed (the extra `dev` names it)")
    started = BrokerProcess()
    yield started
    assert started.stop() == 0, started.errors
    assert "Traceback" not in started.errors
