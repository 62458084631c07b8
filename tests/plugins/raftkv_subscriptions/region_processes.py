"""Regions of whole processes (region_node.py), with ways between them that can be cut.

`Agent` is a program's connection to the process of one node: its calls block, and raise `Gone` when
the process is, `Failed` with the error's code when the node said so. The ways run in a thread of
the test's own process, so they outlive whatever is killed.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from raftkv.cli.devcluster import DevCluster
from raftkv.testing.distance import Distance

__all__ = ["DEADLINE_S", "Agent", "Failed", "Gone", "Processes", "started", "until"]

ROOT = Path(__file__).resolve().parents[3]
NODE = Path(__file__).with_name("region_node.py")
DEADLINE_S = 60.0
# How long a node that does not answer holds the others up, at most.
NODE_DOWN_MS = 3_000
_POLL_S = 0.02


class Gone(Exception):
    """The connection broke, or nothing came over it in time: nobody knows what was done."""


class Failed(Exception):
    """The node answered with this error."""

    def __init__(self, answer: dict[str, Any]) -> None:
        super().__init__(answer)
        self.code: str = answer["error"]


class Agent:
    """One connection to the process of one node."""

    def __init__(self, dev: DevCluster, at: str, *, timeout_s: float = 2 * DEADLINE_S) -> None:
        self.at = at
        self._socket: socket.socket | None = None
        pid = dev.pid(at)
        deadline = time.monotonic() + DEADLINE_S
        while True:
            with suppress(OSError, ValueError):
                told = Path(dev.config_path(at)).with_name("agent").read_text("ascii").split()
                if int(told[0]) == pid:
                    address = ("127.0.0.1", int(told[1]))
                    self._socket = socket.create_connection(address, timeout=timeout_s)
                    self._file = self._socket.makefile("rwb")
                    return
            if pid is None or dev.pid(at) != pid or time.monotonic() > deadline:
                raise Gone(f"{at} does not answer")
            time.sleep(_POLL_S)

    def __call__(self, verb: str, **asked: Any) -> Any:
        try:
            self._file.write(json.dumps({"do": verb, **asked}).encode() + b"\n")
            self._file.flush()
            line = self._file.readline()
        except OSError as error:
            raise Gone(str(error)) from None
        if not line.endswith(b"\n"):
            raise Gone(f"{self.at} has closed the connection")
        answer = json.loads(line)
        if "error" in answer:
            raise Failed(answer)
        return answer["ok"]

    def close(self) -> None:
        with suppress(OSError):
            self._file.close()
        if self._socket is not None:
            self._socket.close()

    def __enter__(self) -> Agent:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class _Ways:
    """The proxies, on an event loop of their own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._all: list[Distance] = []

    def make(self) -> Distance:
        """To nowhere yet."""
        made = Distance("127.0.0.1", 1)
        self._all.append(made)
        asyncio.run_coroutine_threadsafe(made.start(), self._loop).result(DEADLINE_S)
        return made

    def call(self, what: Callable[[], None]) -> None:
        async def called() -> None:
            what()

        asyncio.run_coroutine_threadsafe(called(), self._loop).result(DEADLINE_S)

    def close(self) -> None:
        for each in self._all:
            asyncio.run_coroutine_threadsafe(each.close(), self._loop).result(DEADLINE_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(DEADLINE_S)
        self._loop.close()


class Processes:
    """Regions that pull from each other, each a cluster of processes."""

    def __init__(self, directory: Path, cores: Mapping[str, int]) -> None:
        self.regions = {
            name: DevCluster(directory / name, command=[sys.executable, str(NODE)])
            for name in cores
        }
        self._cores = dict(cores)
        self._ways = _Ways()
        self.ways: dict[tuple[str, str], list[Distance]] = {}

    def up(self) -> None:
        # The proxies first: nobody has chosen a port yet that they might take.
        for target in self.regions:
            for source in self.regions:
                if source != target:
                    self.ways[target, source] = [
                        self._ways.make() for _ in range(self._cores[source])
                    ]
        for name, region in self.regions.items():
            region.create(cores=self._cores[name], replicants=0, plugins=[])
        for target, region in self.regions.items():
            text = f"\n[raft]\nnode_down_ms = {NODE_DOWN_MS}\n"
            text += f'\n[options.subscriptions]\nregion = "{target}"\nreport_s = 0.1\n'
            for source, other in self.regions.items():
                if source == target:
                    continue
                hops = self.ways[target, source]
                for hop, endpoint in zip(hops, other.endpoints(), strict=True):
                    hop.retarget(int(endpoint.rpartition(":")[2]))
                endpoints = [f"http://127.0.0.1:{hop.port}" for hop in hops]
                text += f"\n[options.subscriptions.links.{source}]\n"
                text += f"endpoints = {json.dumps(endpoints)}\n"
            for node in region.names:
                with open(region.config_path(node), "a", encoding="utf-8") as file:
                    file.write(text)
        for region in self.regions.values():
            region.up(timeout_s=DEADLINE_S)

    def down(self) -> None:
        for region in self.regions.values():
            region.down()
        self._ways.close()

    # -- ways

    def apart(self, one: str, other: str) -> None:
        """Neither reaches the other."""
        for pair in ((one, other), (other, one)):
            for hop in self.ways[pair]:
                self._ways.call(hop.cut)

    def together(self, one: str, other: str) -> None:
        for pair in ((one, other), (other, one)):
            for hop in self.ways[pair]:
                self._ways.call(hop.heal)

    # -- asking

    def node(self, region: str) -> str:
        """One that runs."""
        dev = self.regions[region]
        return next(name for name in dev.names if dev.pid(name) is not None)

    def agent(self, region: str, at: str | None = None) -> Agent:
        return Agent(self.regions[region], at or self.node(region))

    def ask(self, region: str, verb: str, **asked: Any) -> Any:
        """One call over a connection of its own, to a node that runs."""
        with self.agent(region) as agent:
            return agent(verb, **asked)

    def agree(self) -> None:
        """The nodes of each region have the same lawful state."""
        for name, dev in self.regions.items():
            seen: list[Any] = []

            def same(dev: DevCluster = dev, seen: list[Any] = seen) -> bool:
                seen.clear()
                for node in dev.names:
                    with Agent(dev, node) as agent:
                        seen.append(agent("state"))
                return all(each["index"] == seen[0]["index"] == seen[0]["commit"] for each in seen)

            until(same, f"the nodes of {name} have the same")
            for state in seen:
                assert state["digest"] == seen[0]["digest"], name
                assert not state["violated"], (name, state["violated"])
                assert not state["faults"], (name, state["faults"][0])


def until(condition: Callable[[], bool], what: str, timeout_s: float = DEADLINE_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {what}"
        time.sleep(_POLL_S)


@contextmanager
def started(directory: Path, cores: Mapping[str, int]) -> Iterator[Processes]:
    """Regions of so many cores, each a process; all are ended in the end."""
    former = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = f"{ROOT}{os.pathsep}{ROOT / 'plugins'}"
    made = Processes(directory, cores)
    try:
        made.up()
        yield made
    finally:
        made.down()
        if former is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = former
