"""Stands in for `python -m raftkv`: a node with the limbo that writes verdicts into a file.

Beside the configuration are `verdicts`, a line "LIFE POSITION confirmed" or "LIFE POSITION undone"
for every callback, and, if a test wants it, `closed`: while that file exists the validator `gate`
of this node does not come to a decision.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from pathlib import Path

from raftkv.config import NodeConfig, load_config
from raftkv.node import Node
from raftkv.server import door_of
from raftkv_limbo.api import LimboApi
from raftkv_limbo.hooks import Confirmed, Undone
from raftkv_limbo.plugin import Limbo
from raftkv_limbo.validators import Proposal

LOOK_S = 0.01


class Witness:
    """What one process hears, and its gate."""

    def __init__(self, folder: Path) -> None:
        self._closed = folder / "closed"
        self._file = os.open(folder / "verdicts", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._life = os.getpid()

    def register(self, limbo: LimboApi) -> None:
        limbo.on_confirm(self._confirmed)
        limbo.on_rollback(self._undone)
        limbo.validator("gate", self._gate)

    def _confirmed(self, event: Confirmed) -> None:
        os.write(self._file, f"{self._life} {event.position} confirmed\n".encode())

    def _undone(self, event: Undone) -> None:
        os.write(self._file, f"{self._life} {event.position} undone\n".encode())

    async def _gate(self, proposal: Proposal) -> None:
        while self._closed.exists():
            await asyncio.sleep(LOOK_S)


async def serve(config: NodeConfig, witness: Witness) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with Node(config, plugins=[Limbo]) as node:
        witness.register(node.plugin(Limbo))
        door = door_of(node)
        await door.start()
        await stop.wait()
        await door.stop()


if __name__ == "__main__":
    assert sys.argv[1:3] == ["serve", "--config"]
    logging.basicConfig(level=logging.INFO)
    asyncio.run(serve(load_config(sys.argv[3]), Witness(Path(sys.argv[3]).parent)))
