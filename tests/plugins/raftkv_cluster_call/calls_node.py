"""Stands in for `python -m raftkv`: a node whose cluster calls leave marks in a file.

    mark    writes "ID KIND ATTEMPT" into the file `effects` beside the configuration, and returns
    hang    the same, and then, where the call begins, waits until there is a file `go`

A line is on the disk before the function goes on: so a test knows that the effect is there when it
kills the process, and nothing else has happened yet.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from pathlib import Path

import msgspec

from raftkv.config import NodeConfig, load_config
from raftkv.node import Node
from raftkv.server import door_of
from raftkv_cluster_call import Call, Calls, CallsApi

LOOK_S = 0.01


class Mark(msgspec.Struct, frozen=True):
    """What both functions are called with."""

    text: str


class Marks:
    """The functions of one node, and the file that they write."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = os.open(folder / "effects", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def register(self, calls: CallsApi) -> None:
        calls.function("mark", version=1)(self.mark)
        calls.function("hang", version=1)(self.hang)

    def _write(self, call: Call) -> None:
        os.write(self._file, f"{call.id} {call.kind} {call.attempt}\n".encode())
        os.fsync(self._file)

    def mark(self, args: Mark, call: Call) -> str:
        self._write(call)
        return args.text

    async def hang(self, args: Mark, call: Call) -> str:
        self._write(call)
        while call.kind == "initiate" and not (self._folder / "go").exists():
            await asyncio.sleep(LOOK_S)
        return args.text


async def serve(config: NodeConfig, marks: Marks) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with Node(config, plugins=[Calls]) as node:
        marks.register(node.plugin(Calls))
        door = door_of(node)
        await door.start()
        await stop.wait()
        await door.stop()


if __name__ == "__main__":
    assert sys.argv[1:3] == ["serve", "--config"]
    logging.basicConfig(level=logging.INFO)
    asyncio.run(serve(load_config(sys.argv[3]), Marks(Path(sys.argv[3]).parent)))
