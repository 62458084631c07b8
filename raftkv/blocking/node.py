"""`raftkv.blocking.Node`."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Literal, Self

import msgspec

from raftkv.config import NodeConfig
from raftkv.errors import NodeFault, Stopped
from raftkv.node import Node as AsyncNode
from raftkv.plugin import Consistency, Outcome, Plugin
from raftkv.status import Status
from raftkv.validation import require_timeout

from .kv import KV
from .leases import Leases
from .portal import Portal

__all__ = ["Node"]


class Node:
    """`raftkv.Node` without asyncio: a node on an event loop of its own, in a thread of its own.

        with raftkv.blocking.Node(config) as node:
            node.kv.put(b"k", b"v")

    Entering starts it and waits until it can take calls, `ready_timeout_s` at most (0: does not
    wait). The node shares the interpreter with the program: code that holds it for long, and
    long collections of garbage, delay heartbeats. After a fork the child must not use it.
    """

    def __init__(
        self,
        config: NodeConfig,
        *,
        plugins: Sequence[type[Plugin[Any]] | Plugin[Any]] | None = None,
        ready_timeout_s: float = 30.0,
    ) -> None:
        self._node = AsyncNode(config, plugins=plugins)
        if ready_timeout_s != 0:
            require_timeout(ready_timeout_s)
        self._ready_timeout_s = ready_timeout_s
        # Taken by the first `start`, for good: of two threads one starts the node.
        self._first = threading.Lock()
        self._running: Portal | None = None
        self.name = config.name

    def start(self) -> None:
        """Start the node. Raises ConfigError, NodeFault, or NoLeader when it is not ready.

        Raises RuntimeError if the node was started before: that changes nothing.
        """
        if not self._first.acquire(blocking=False):
            raise RuntimeError(
                f"the node {self.name} was started already; a node is started once: make another "
                f"Node to start again"
            )
        # Whatever ends the loop, the data directory is let go.
        ending = functools.partial(self._node.stop, hand_over=False)
        portal = self._running = Portal(f"raftkv node {self.name}", ending)
        try:
            portal.call(self._node.start())
            if self._ready_timeout_s:
                portal.call(self._node.wait_ready(self._ready_timeout_s))
        except BaseException:
            self.stop()
            raise

    @property
    def _portal(self) -> Portal:
        if self._running is None:
            raise Stopped("the node has not been started: use `with` or `start()`")
        return self._running

    def stop(self, *, hand_over: bool = True) -> None:
        """Stop the node and end the thread. Calls of other threads end with an error.

        Nothing if it was not started or has stopped. A signal handler and `__del__` may call it;
        while the interpreter exits it does nothing, for the node's thread does not run any more.
        """
        if self._running is not None:
            self._running.finish(lambda: self._node.stop(hand_over=hand_over))

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def kv(self) -> KV:
        """The keyspace. Raises Stopped before the node was started."""
        return KV(self._portal, self._node.kv)

    @property
    def leases(self) -> Leases:
        """Leases. Raises Stopped before the node was started."""
        return Leases(self._portal, self._node.leases)

    @property
    def role(self) -> Literal["core", "replicant"]:
        """What the node is: as configured, or a core that began as a replicant."""
        return self._node.role

    @property
    def leader(self) -> str | None:
        """The leader's name, as far as this node knows."""
        return self._node.leader

    @property
    def fault(self) -> NodeFault | None:
        """Why the node has stopped itself; None while it has not."""
        fault = vars(self._node).get("_fault")
        return fault.result() if fault and fault.done() and not fault.cancelled() else None

    def wait_ready(self, timeout_s: float = 30.0) -> None:
        """Return once this node has a session, so that calls succeed. Raises NoLeader."""
        self._portal.call(self._node.wait_ready(timeout_s))

    def propose(
        self, plugin: str, command: msgspec.Struct, *, timeout_s: float | None = None
    ) -> Any:
        """Send a plugin's command through the log; its result, once applied on this node."""
        return self._portal.call(self._node.propose(plugin, command, timeout_s=timeout_s))

    def outcome(self, session: int, seq: int, *, timeout_s: float | None = None) -> Outcome:
        """What became of a command that ended in `Timeout`. After "not_applied" it never will."""
        return self._portal.call(self._node.outcome(session, seq, timeout_s=timeout_s))

    def barrier(
        self, consistency: Consistency = "linearizable", *, timeout_s: float | None = None
    ) -> None:
        """Return when a read of this node's state is as fresh as asked. Raises ReadTimeout."""
        self._portal.call(self._node.barrier(consistency, timeout_s=timeout_s))

    def status(self) -> Status:
        """What this node knows of itself and of the cluster."""
        return self._portal.run(self._node.status)

    def _behind(self) -> tuple[Portal, AsyncNode]:
        """For raftkv.blocking.recipes."""
        return self._portal, self._node

    def run(self, function: Callable[[AsyncNode], Any]) -> Any:
        """Call `function(node)` on the node's loop, and await what it gives if that can be awaited.

        For what has no blocking form, as a plugin's API:
        `node.run(lambda n: n.plugin(LCR).lookup("client"))`.
        """

        async def turn() -> Any:
            result = function(self._node)
            return await result if hasattr(result, "__await__") else result

        return self._portal.call(turn())
