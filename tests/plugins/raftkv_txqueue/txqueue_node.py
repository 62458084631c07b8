"""Stands in for `python -m raftkv`: a node with an agent that does what a test tells it.

A program that uses transactional queues lives in the process of its node, so this process is that
program: over a connection to 127.0.0.1 (the port is in the file `agent` beside the configuration)
it takes a line of JSON with a verb and its arguments, and answers a line. Calls of one connection
run one after the other. Sessions are this process's, whichever connection uses them.

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

from raftkv.config import NodeConfig, load_config
from raftkv.errors import RaftkvError
from raftkv.node import Node
from raftkv.server import door_of
from raftkv_txqueue.api import TxQueueApi
from raftkv_txqueue.commands import Message
from raftkv_txqueue.consuming import Delivery
from raftkv_txqueue.observers import TransactionObserver
from raftkv_txqueue.plugin import TxQueue
from raftkv_txqueue.session import Session
from raftkv_txqueue.views import browse
from raftkv_txqueue.xa import xid_from_text
from tests.plugins.raftkv_txqueue.residue import RESIDUE

CALL_S = 60.0
LINE_BYTES_MAX = 16 * 1024 * 1024


class Agent:
    """What the connections of one process share."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._txq: TxQueueApi = node.plugin(TxQueue)
        self._sessions: dict[int, Session] = {}
        self._deliveries: dict[tuple[int, str, int], Delivery] = {}
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
            told = {name: getattr(error, name, None) for name in ("txid", "cause", "reason", "xa")}
            return {"error": error.code, "text": str(error), **told}

    # -- queues and sessions

    async def do_declare(self, queue: str, **limits: Any) -> None:
        await self._txq.declare(queue, **limits)

    async def do_publish(self, queue: str, texts: list[str], session: int = 0) -> None:
        messages = [Message(text.encode()) for text in texts]
        if session:
            await self._sessions[session].publish(queue, messages, timeout_s=CALL_S)
        else:
            await self._txq.publish(queue, messages, timeout_s=CALL_S)

    async def do_session(self, kind: str) -> int:
        session = await self._txq.session(kind, timeout_s=CALL_S)
        self._sessions[session.id] = session
        return session.id

    async def do_get(self, session: int, queue: str, count: int, wait_s: float = 0.0) -> list[Any]:
        got = await self._sessions[session].get(queue, count=count, wait_s=wait_s)
        for each in got:
            self._deliveries[session, queue, each.seq] = each
        return [[each.seq, each.body.decode(), each.deliveries] for each in got]

    async def do_accept(self, session: int, queue: str, seqs: list[int]) -> None:
        found = [self._deliveries[session, queue, seq] for seq in seqs]
        await self._sessions[session].accept(*found)

    async def do_flush(self, session: int) -> None:
        await self._sessions[session].flush()

    async def do_commit(self, session: int, txid: str | None = None) -> str:
        return str((await self._sessions[session].commit(txid, timeout_s=CALL_S)).txid)

    async def do_txid(self, session: int) -> str:
        return self._sessions[session].txid

    async def do_close(self, session: int) -> None:
        await self._sessions.pop(session).close()

    async def do_outcome(self, txid: str) -> list[str]:
        fate = await self._txq.outcome(txid, timeout_s=CALL_S)
        return [fate.state, fate.cause]

    # -- branches

    async def do_start(self, session: int, xid: str) -> int:
        return int(await self._sessions[session].start(xid_from_text(xid)))

    async def do_end(self, session: int, xid: str) -> int:
        return int(await self._sessions[session].end(xid_from_text(xid)))

    async def do_dtx(self, call: str, xid: str, **more: Any) -> int:
        return int(await getattr(self._txq.dtx, call)(xid_from_text(xid), **more))

    async def do_recover(self) -> list[list[str]]:
        return [[str(branch.xid), branch.state] for branch in await self._txq.dtx.recover()]

    # -- taking part

    async def do_observe(self) -> None:
        """Be a participant, which prepares at once; return when the log knows it."""
        self._txq.observe(lambda opened: TransactionObserver())
        await self._txq.observing.taking_part(CALL_S)

    # -- looking at this node's own copy

    async def do_browse(self, queue: str, everything: bool = False) -> list[str]:
        view = self._node.machine.view("txqueue")
        rows = browse(view, queue, limit=1_000_000, everything=everything)
        return [row.message.body.decode() for row in rows]

    async def do_returned(self, queue: str) -> bool:
        """Whether nobody holds any message of the queue."""
        row = self._node.machine.view("txqueue").table("queues")[queue]
        return bool(row.ready == row.depth)

    async def do_state(self) -> dict[str, Any]:
        machine = self._node.machine
        view = machine.view("txqueue")
        return {
            "index": machine.index,
            "commit": self._node.status().commit_index,
            "digest": machine.digest(),
            "residue": [name for name in RESIDUE if len(view.table(name))],
            "violated": list(TxQueue().invariants(view)),
            "faults": [fault.detail for fault in machine.faults],
        }


async def serve(config: NodeConfig, folder: Path) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with Node(config, plugins=[TxQueue]) as node:
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
