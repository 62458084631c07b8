"""Three real nodes with doors, and `raftkv <group> ...` run against them in this process.

For the command lines of `calls` and `conf`. The nodes live on a loop of their own in a thread,
since commands block. At each node stands a `Workshop`: a function that can be broken, and the state
that it makes.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
import pytest

from raftkv.cli import groups
from raftkv.cli import main as cli
from raftkv.config import RaftTimes
from raftkv.plugin import Plugin
from raftkv.server import Door, door_of
from raftkv.testing.local_cluster import LocalCluster, free_ports
from raftkv_cluster_call import Call, Calls, CallsApi

__all__ = ["Nodes", "Shell", "Work", "Workshop"]

TIMEOUT_S = 60.0
# A node that was killed is declared dead after this time.
NODE_DOWN_MS = 2_000
T = TypeVar("T")


class Work(msgspec.Struct, frozen=True):
    """What `work` is called with."""

    key: str
    value: str = ""


class Workshop:
    """What stands outside raftkv at one node; it outlives the node."""

    name = "workshop"

    def __init__(self) -> None:
        self.items: dict[str, bytes] = {}
        self.at = 0
        self.broken = False

    def take(self, calls: CallsApi) -> None:
        calls.function("work", version=1)(self.work)
        calls.function("free", version=1)(self.free)
        calls.state(self)

    def work(self, args: Work, call: Call) -> str:
        """Put the value under the key."""
        if self.broken:
            raise OSError(f"no space left for {args.value}")
        self.items[args.key] = args.value.encode()
        return args.value

    def free(self, args: None, call: Call) -> int:
        return call.id

    async def as_of(self) -> int | None:
        return self.at

    async def dump(self) -> Mapping[str, bytes]:
        return dict(self.items)

    async def load(self, items: Mapping[str, bytes], as_of: int) -> None:
        self.items, self.at = dict(items), as_of

    async def passed(self, id: int) -> None:
        self.at = id


class Nodes:
    """Three cores on a loop of their own. `options`: by node; `ready` runs when all have begun."""

    def __init__(
        self,
        plugins: Sequence[Plugin[Any]],
        options: Mapping[str, dict[str, Any]] | None = None,
        ready: Callable[[LocalCluster], None] = lambda cluster: None,
    ) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.cluster = LocalCluster(3, plugins=plugins, raft=RaftTimes(node_down_ms=NODE_DOWN_MS))
        for name, given in (options or {}).items():
            config = self.cluster.configs[name]
            self.cluster.configs[name] = msgspec.structs.replace(config, options=given)
        self.shops = {name: Workshop() for name in self.cluster.configs}
        self._doors: dict[str, Door] = {}
        self._ready = ready
        self.call(self._start())
        self.endpoints = [self._doors[name].endpoint for name in self.shops]

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run it where the nodes live."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(TIMEOUT_S)

    def calls(self, name: str) -> CallsApi:
        return self.cluster.running[name].plugin(Calls)

    async def _start(self) -> None:
        configs = self.cluster.configs
        for (name, config), port in zip(list(configs.items()), free_ports(3), strict=True):
            configs[name] = msgspec.structs.replace(config, http_address=f"127.0.0.1:{port}")
        await asyncio.gather(*(self._start_one(name) for name in configs))
        await self.cluster.wait_ready()
        self._ready(self.cluster)

    async def _start_one(self, name: str) -> None:
        node = await self.cluster.start(name)
        self.shops[name].take(node.plugin(Calls))
        self._doors[name] = door_of(node)
        await self._doors[name].start()

    def start(self, name: str) -> None:
        self.call(self._start_one(name))

    def kill(self, name: str) -> None:
        async def kill() -> None:
            await self._doors.pop(name).stop()
            await self.cluster.kill(name)

        self.call(kill())

    def until(self, condition: Callable[[CallsApi], bool]) -> None:
        """Wait for something that a node shows."""
        node = next(iter(self.cluster.running))

        async def look() -> bool:
            return condition(self.calls(node))

        deadline = time.monotonic() + TIMEOUT_S
        while not self.call(look()):
            assert time.monotonic() < deadline, "it did not come true"
            time.sleep(0.02)

    def follow(self) -> None:
        """Wait until all nodes are up and follow."""
        self.until(
            lambda calls: all(
                node.up and node.state == "following" and not node.lag
                for node in calls.status().nodes
            )
        )

    def stop(self) -> None:
        async def stop() -> None:
            for door in self._doors.values():
                await door.stop()
            await self.cluster.close()

        self.call(stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Entry:
    """What an installed plugin announces."""

    def __init__(self, plugin: type[Plugin[Any]]) -> None:
        self.name = plugin.name
        self._plugin = plugin

    def load(self) -> type[Plugin[Any]]:
        return self._plugin


class Shell:
    """Commands of one group in this process; stderr of the last one is `err`."""

    def __init__(
        self,
        nodes: Nodes,
        plugin: type[Plugin[Any]],
        capsys: pytest.CaptureFixture[str],
        patch: pytest.MonkeyPatch,
    ) -> None:
        self._nodes = nodes
        self._group = plugin.name
        self._capsys = capsys
        self._patch = patch
        self.err = ""
        patch.setattr(groups, "entry_points", lambda group, name=None: [Entry(plugin)])
        # A group that another test added already must not be there twice.
        patch.setattr(cli.app, "registered_groups", list(cli.app.registered_groups))

    def __call__(
        self, *arguments: str, code: int = 0, at: str | None = None, connected: bool = True
    ) -> str:
        endpoints = self._nodes.endpoints
        if at is not None:
            endpoints = [endpoints[list(self._nodes.shops).index(at)]]
        place = ["--endpoint", ",".join(endpoints)] if connected else []
        self._patch.setattr(sys, "argv", ["raftkv", self._group, *arguments, *place])
        self._capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        said = self._capsys.readouterr()
        self.err = said.err
        assert (ended.value.code or 0) == code, said.err
        assert "Traceback" not in said.err
        return said.out

    def json(self, *arguments: str, code: int = 0, at: str | None = None) -> Any:
        return json.loads(self(*arguments, "--json", code=code, at=at))
