"""`raftkv serve`: one node and its door in this process, until a signal or a fault ends it.

SIGTERM and SIGINT stop cleanly: the door finishes its requests, then the node closes its log. A
second signal does not hurry: a node that hangs is killed by who started it. A fault of the node
ends the process with that error, because a node that stopped itself must not look alive.

SIGHUP makes a node with certificates read them again at once; it also notices by itself. Without
certificates, and while the node starts, SIGHUP does nothing: it never ends a node.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import signal
from collections.abc import Callable
from typing import Any

from raftkv.allocator import tune_malloc
from raftkv.collector import tune_gc
from raftkv.config import NodeConfig
from raftkv.descriptors import raise_limit
from raftkv.errors import RaftkvError
from raftkv.hugepages import use_huge_pages
from raftkv.node import Node
from raftkv.security.ownership import require_own
from raftkv.server import Door, door_of
from raftkv.switching import tune_threads

from .logs import Logging

__all__ = ["run"]

_log = logging.getLogger("raftkv.serve")

_reloads: set[asyncio.Task[None]] = set()


def run(config: NodeConfig, place: Logging | None = None) -> None:
    """Serve until SIGTERM or SIGINT. Raises `ConfigError` or `NodeFault` when that is the end.

    The process is the node's alone, so its allocator, its garbage collector, its threads and its
    pages of memory are arranged for a large state and many requests, and its limit of open files is
    raised.
    `place` gets the node, for the log. A data directory that other users may change is refused.
    """
    require_own(config.dir)
    raise_limit()
    tune_malloc()
    tune_gc()
    tune_threads()
    use_huge_pages()
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_until_signal(config, place))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop where it is installed; asyncio's own loop serves as well, more slowly."""
    try:
        uvloop: Any = importlib.import_module("uvloop")
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


async def _until_signal(config: NodeConfig, place: Logging | None) -> None:
    loop = asyncio.get_running_loop()
    signalled = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signalled.set)
    loop.add_signal_handler(signal.SIGHUP, _log.info, "SIGHUP: the node is starting")
    serving = loop.create_task(_serve(config, place), name="serve")
    asked = loop.create_task(signalled.wait(), name="signal")
    await asyncio.wait({serving, asked}, return_when=asyncio.FIRST_COMPLETED)
    asked.cancel()
    if not serving.done():
        _log.info("stopping on a signal")
        serving.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await serving
    _log.info("stopped")


async def _serve(config: NodeConfig, place: Logging | None) -> None:
    """Runs until it is cancelled, or until the node's fault, which it raises."""
    node = Node(config)
    if place is not None:
        place.node = node
    async with node:
        if place is not None:
            node.metrics.add("log", place.metrics)
        door: Door | None = None
        if config.http_address is not None:
            door = door_of(node)
            _log.info("serving at %s", door.endpoint)
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, _reload, node, door)
        try:
            fault = await node.fault
            if isinstance(fault, RaftkvError):
                raise fault
        finally:
            if door is not None:
                await door.stop()


def _reload(node: Node, door: Door | None) -> None:
    if node.config.tls is None and node.config.http_tls is None:
        _log.info("SIGHUP: this node has no certificates to read again")
        return
    task = asyncio.get_running_loop().create_task(_reloaded(node, door), name="reload certificates")
    # The loop keeps only weak references to tasks.
    _reloads.add(task)
    task.add_done_callback(_reloads.discard)


async def _reloaded(node: Node, door: Door | None) -> None:
    # A file that cannot be used is logged where it is read, and the former ones stay in force.
    if node.config.tls is not None:
        with contextlib.suppress(RaftkvError):
            await node.reload_certificates()
    if door is not None:
        with contextlib.suppress(RaftkvError):
            await door.reload_certificates()
