"""Stands in for `python -m raftkv`: a node of a region, with an agent that does what it is told.

A program that publishes and consumes lives in the process of its node, so this process is that
program: over a connection to 127.0.0.1 (the port is in the file `agent` beside the configuration)
it takes a line of JSON with a verb and its arguments, and answers a line. Calls of one connection
run one after the other. Consumers are this process's, whichever connection uses them.

When the process is killed the connection breaks, which is all that its users ever learn.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec

from raftkv.config import NodeConfig, load_config
from raftkv.errors import RaftkvError
from raftkv.node import Node
from raftkv.server import door_of
from raftkv_subscriptions import Message, Subscriptions

CALL_S = 60.0
LINE_BYTES_MAX = 16 * 1024 * 1024


class Agent:
    """What the connections of one process share."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._subs = node.plugin(Subscriptions)
        self._consumers: dict[int, Any] = {}
        self._verbs: dict[str, Callable[..., Awaitable[Any]]] = {
            name.removeprefix("do_"): getattr(self, name)
            for name in dir(self)
            if name.startswith("do_")
        }

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Whoever asked may have left: that is no error, and nobody else has a use for the answer.
        with contextlib.suppress(OSError):
            while line := await reader.readline():
                asked = json.loads(line)
                answer = await self._answer(asked.pop("do"), asked)
                writer.write(json.dumps(answer).encode() + b"\n")
                await writer.drain()
        writer.close()

    async def _answer(self, verb: str, asked: dict[str, Any]) -> Any:
        try:
            return {"ok": await self._verbs[verb](**asked)}
        except RaftkvError as error:
            return {"error": error.code, "text": str(error)}

    # -- publishing and consuming

    async def do_declare(self, topic: str, **limits: Any) -> None:
        await self._subs.declare(topic, timeout_s=CALL_S, **limits)

    async def do_publish(self, topic: str, texts: list[str], padding: int = 0) -> None:
        messages = [Message(text.encode() + b" " * padding) for text in texts]
        await self._subs.publish(topic, messages, timeout_s=CALL_S)

    async def do_subscribe(self, topic: str, sub: str, kind: str = "exclusive") -> None:
        await self._subs.subscribe(
            topic, sub, kind=kind, initial="earliest", replicate=True, timeout_s=CALL_S
        )

    async def do_consumer(self, topic: str, sub: str) -> int:
        consumer = await self._subs.consumer(topic, sub, subscribe=False, timeout_s=CALL_S)
        self._consumers[consumer.id] = consumer
        return int(consumer.id)

    async def do_receive(self, consumer: int, count: int, wait_s: float = 0.0) -> list[Any]:
        got = await self._consumers[consumer].receive(count=count, wait_s=wait_s)
        return [[each.position, each.body.decode().strip()] for each in got]

    async def do_ack(self, consumer: int, positions: list[int]) -> None:
        await self._consumers[consumer].ack(*positions, timeout_s=CALL_S)

    async def do_close(self, consumer: int) -> None:
        await self._consumers.pop(consumer).close(timeout_s=CALL_S)

    # -- looking at this node's own copy

    def _table(self, name: str) -> Any:
        return self._node.machine.view("subscriptions").table(name)

    async def do_log(self, topic: str) -> list[str]:
        """The bodies in the order of the positions; [] where the topic is not known."""
        row = self._table("topics").get(topic)
        return [
            stored.message.body.decode().strip()
            for (topic_id, _), stored in self._table("messages").scan()
            if row is not None and topic_id == row.id
        ]

    async def do_count(self, topic: str) -> int:
        row = self._table("topics").get(topic)
        return 0 if row is None else int(row.next) - 1

    async def do_vector(self, topic: str) -> list[Any]:
        """The last number that is here of each origin."""
        row = self._table("topics").get(topic)
        return [
            [origin, seq]
            for (topic_id, origin), seq in self._table("vectors").scan()
            if row is not None and topic_id == row.id
        ]

    async def do_mark(self, topic: str, sub: str) -> int:
        """-1: the subscription is not there."""
        row = self._table("topics").get(topic)
        found = None if row is None else self._table("subs").get((row.id, sub))
        return -1 if found is None else int(found.mark)

    async def do_known(self, topic: str, sub: str) -> list[str]:
        """The bodies of what is here and acknowledged."""
        topic_id = self._table("topics").get(topic).id
        row = self._table("subs").get((topic_id, sub))
        known: set[tuple[str, int]] = set()
        if row is not None:
            for (sub_id, origin), floor in self._table("floors").scan():
                if sub_id == row.id:
                    known |= {(origin, seq) for seq in range(floor.base + 1, floor.floor + 1)}
            for (sub_id, origin, first), last in self._table("acks").scan():
                if sub_id == row.id:
                    known |= {(origin, seq) for seq in range(first, last + 1)}
        return [
            stored.message.body.decode().strip()
            for (each, _), stored in self._table("messages").scan()
            if each == topic_id and (stored.origin, stored.seq) in known
        ]

    async def do_regions(self) -> Any:
        return [msgspec.to_builtins(row) for row in await self._subs.regions()]

    async def do_memory(self) -> int:
        """Bytes of this process that are in memory."""
        pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    async def do_state(self) -> dict[str, Any]:
        machine = self._node.machine
        return {
            "index": machine.index,
            "commit": self._node.status().commit_index,
            "digest": machine.digest(),
            "violated": list(Subscriptions().invariants(machine.view("subscriptions"))),
            "faults": [fault.detail for fault in machine.faults],
        }


async def serve(config: NodeConfig, folder: Path) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with Node(config, plugins=[Subscriptions]) as node:
        agent = Agent(node)
        server = await asyncio.start_server(agent.connected, "127.0.0.1", 0, limit=LINE_BYTES_MAX)
        door = door_of(node)
        await door.start()
        new = folder / "agent.new"
        new.write_text(f"{os.getpid()} {server.sockets[0].getsockname()[1]}", "ascii")
        new.rename(folder / "agent")
        await stop.wait()
        server.close()
        await door.stop()


if __name__ == "__main__":
    assert sys.argv[1:3] == ["serve", "--config"]
    logging.basicConfig(level=logging.INFO)
    asyncio.run(serve(load_config(sys.argv[3]), Path(sys.argv[3]).parent))
