"""Stands in for `python -m raftkv`: serves one node's configuration without a cluster.

Each process is a node of its own with the real door. What a test wants of it stands in a file
`fault` beside the configuration: `exit` ends it at once with a message, `deaf` makes it ignore
SIGTERM, `mute` leaves it without a leader.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from pathlib import Path

from raftkv.config import load_config, parse_address
from raftkv.errors import NoLeader
from raftkv.server import App, Door
from tests.server.solo import SoloNode


async def serve(path: str, fault: str) -> None:
    config = load_config(path)
    node = SoloNode(config.name, leader="core1")
    if fault == "mute":
        node.leader = None
        node.host.trouble = lambda: NoLeader("this fake has none")
    assert config.http_address is not None
    door = Door(App(node), *parse_address(config.http_address))
    await door.start()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, (lambda: None) if fault == "deaf" else stop.set)
    await stop.wait()
    await door.stop()


def main() -> None:
    verb, option, path = sys.argv[1:]
    assert (verb, option) == ("serve", "--config")
    fault = ""
    with contextlib.suppress(FileNotFoundError):
        fault = Path(path).with_name("fault").read_text(encoding="ascii")
    if fault == "exit":
        sys.exit("error: the fake was told to exit")
    asyncio.run(serve(path, fault))


if __name__ == "__main__":
    main()
