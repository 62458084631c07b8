"""A call that every node runs, one that gets stuck on a node, and how it is passed.

    python docs/examples/cluster_calls.py

Three nodes in one process; in a deployment each is a process of its own (docs/operations.md), and
all of them register the same functions.
"""

import asyncio
from typing import Any

import msgspec

from raftkv.kv import Put
from raftkv.testing import LocalCluster
from raftkv_cluster_call import Call, Calls, CallsApi


class Plugin(msgspec.Struct):
    """What the functions are called with."""

    name: str


class Machine:
    """What stands outside raftkv at one node: here, the plugins that it has loaded."""

    def __init__(self, calls: CallsApi) -> None:
        self.loaded: list[str] = []
        self.broken = False
        calls.function("plugin.load", version=1)(self.load)
        calls.function("plugin.note", version=1, effect=True)(self.note)

    async def load(self, plugin: Plugin, call: Call) -> int:
        if call.kind == "initiate" and plugin.name in self.loaded:
            raise ValueError(f"{plugin.name} is loaded already")
        if self.broken:
            raise OSError("no space left")
        if plugin.name not in self.loaded:
            self.loaded.append(plugin.name)
        return len(self.loaded)

    def note(self, plugin: Plugin, call: Call) -> Put:
        # Its only effect is on the keyspace: the change and the node's progress are one entry.
        return Put(f"loaded/{call.node}/{plugin.name}".encode(), str(call.id).encode())


async def all_follow(calls: CallsApi) -> None:
    # Until then a call would be for those alone that take part already.
    while True:
        if all(node.state == "following" for node in calls.status().nodes):
            return
        await asyncio.sleep(0.02)


async def main() -> None:
    async with LocalCluster(cores=3, plugins=[Calls()]) as cluster:
        apis = [node.plugin(Calls) for node in cluster.nodes]
        machines = [Machine(calls) for calls in apis]
        calls = apis[0]
        await all_follow(calls)

        done = await calls.call("plugin.load", Plugin("auth"))
        print(done.id, done.outcome, done.result, [machine.loaded for machine in machines])

        again = await calls.call("plugin.load", Plugin("auth"))
        print(again.outcome, again.error and again.error.reason)

        machines[1].broken = True
        lagging: Any = await calls.call("plugin.load", Plugin("rules"), timeout_s=1)
        print(lagging.id, lagging.outcome, lagging.nodes)

        passed = await calls.skip(lagging.nodes[0])
        print(passed.node, passed.cursor, [(each.id, each.error) for each in passed.attempts])

        noted = await calls.call("plugin.note", Plugin("rules"))
        rows = (await cluster.nodes[0].kv.range(prefix=b"loaded/")).kvs
        print(noted.id, noted.outcome, [(row.key.decode(), row.value.decode()) for row in rows])


asyncio.run(main())
