"""`raftkv region up` as somebody tries it: regions of real processes, and a consumer that moves.

What is typed here is what docs/subscriptions.md shows.
"""

from __future__ import annotations

import configparser
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from raftkv.cli.localclusters import LocalClusters

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parent.parent.parent.parent
TIMEOUT_S = 90.0


class Typist:
    """Types commands in a directory of its own, with the plugins that setup.cfg announces."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        announced = directory / "announced" / "raftkv-0.dist-info"
        announced.mkdir(parents=True)
        (announced / "METADATA").write_text("Metadata-Version: 2.1\nName: raftkv\nVersion: 0\n")
        setup = configparser.ConfigParser()
        setup.read(ROOT / "setup.cfg", encoding="utf-8")
        points = setup["options.entry_points"]
        (announced / "entry_points.txt").write_text(
            "".join(f"[{group}]{points[group]}\n" for group in points)
        )
        paths = (str(announced.parent), str(ROOT), str(ROOT / "plugins"))
        self.env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "raftkv", *words],
            cwd=self.directory,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __call__(self, *words: str, code: int = 0) -> str:
        """What a command says on stdout."""
        child = self.start(*words)
        out, err = child.communicate(timeout=TIMEOUT_S)
        assert child.returncode == code, (words, out, err)
        assert "Traceback" not in err
        return out

    def json(self, *words: str) -> Any:
        return json.loads(self(*words, "--json"))

    def backlog(self, region: str, topic: str = "orders", sub: str = "billing") -> int | None:
        """None: the subscription is not there yet."""
        found = self.json("sub", "list", topic, "--dir", f"demo/{region}")["subs"]
        backlogs = [int(each["backlog"]) for each in found if each["name"] == sub]
        return backlogs[0] if backlogs else None


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.05)


@pytest.fixture
def typed(tmp_path: Path) -> Iterator[Typist]:
    typist = Typist(tmp_path)
    yield typist
    clusters = LocalClusters(tmp_path / "demo")
    if clusters.exists:
        clusters.down()


def test_three_regions_and_a_consumer_that_moves(typed: Typist) -> None:
    child = typed.start("region", "up", "--dir", "demo", "--detach")
    _, err = child.communicate(timeout=TIMEOUT_S)
    assert child.returncode == 0, err
    assert "regions a, b, c take writes" in err
    assert "is not there yet" not in err
    # What it advises is what is typed next.
    advised = [line.split() for line in err.splitlines() if line.startswith("  raftkv ")]
    assert [words[1:3] for words in advised] == [
        ["topic", "declare"], ["topic", "publish"], ["sub", "consume"], ["sub", "consume"],
    ]  # fmt: skip

    typed("topic", "declare", "orders", "--dir", "demo/a")
    typed("topic", "publish", "orders", "order 1", "order 2", "--dir", "demo/a")
    until(lambda: bool(typed.json("topic", "list", "--dir", "demo/b")["topics"]))
    read = ("topic", "read", "orders", "--from", "2", "--wait", "30", "--dir", "demo/b")
    assert "order 2" in typed(*read)
    consume = ("sub", "consume", "orders", "billing")
    first = typed(*consume, "--initial", "earliest", "--replicate", "--dir", "demo/b")
    assert first == "order 1\n"
    until(lambda: typed.backlog("a") == 1)
    assert typed(*consume, "--dir", "demo/a") == "order 2\n"
    until(lambda: typed.backlog("c") == 0)

    # c is excluded in a and b: they go on without it, and it comes back.
    for region in "ab":
        typed("region", "exclude", "c", "--yes", "--dir", f"demo/{region}")
    (row,) = (
        each
        for each in typed.json("region", "list", "--dir", "demo/a")["regions"]
        if each["name"] == "c"
    )
    assert row["state"] == "excluded"
    typed("topic", "publish", "orders", "order 3", "--dir", "demo/a")
    assert typed(*consume, "--wait", "30", "--dir", "demo/b") == "order 3\n"
    for region in "ab":
        typed("region", "include", "c", "--dir", f"demo/{region}")
    read = ("topic", "read", "orders", "--from", "3", "--wait", "60", "--dir", "demo/c")
    assert "order 3" in typed(*read)
    until(lambda: typed.backlog("c") == 0)

    stopped = typed.json("region", "down", "--dir", "demo")["stopped"]
    assert stopped == ["a/core1", "b/core1", "c/core1"]
    assert typed("region", "down", "--dir", "demo") == "nothing was running\n"


def test_in_the_foreground_nothing_is_left_behind(typed: Typist) -> None:
    child = typed.start("region", "up", "--dir", "demo", "--name", "eu", "--name", "us")
    assert child.stdout is not None
    # The tables come once all is up.
    assert child.stdout.readline() == "eu:\n"
    clusters = LocalClusters(typed.directory / "demo")
    assert clusters.names == ("eu", "us")
    options = clusters.cluster("us").config("core1").options["subscriptions"]
    assert options == {
        "region": "us",
        "links": {"eu": {"endpoints": clusters.cluster("eu").endpoints()}},
    }
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=TIMEOUT_S)
    assert "stopping" in err
    assert "Traceback" not in err
    assert clusters.down() == []


def test_what_cannot_be_is_told(typed: Typist) -> None:
    assert typed("region", "down", "--dir", "demo", code=2) == ""
    typed("region", "up", "--dir", "demo", "--name", "../a", code=2)
    typed("region", "up", "--dir", "demo", "--name", "a", "--name", "a", code=2)
    assert not LocalClusters(typed.directory / "demo").exists
