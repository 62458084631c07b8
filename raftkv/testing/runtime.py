"""`raftkv.runtime.Runtime` for one process on one simulated host.

Everything asked of it from outside (a test that calls a node's method) still runs as the process:
callbacks and tasks get its context, so that they end with it.

A host's clocks: `monotonic` starts somewhere and runs a little fast or slow (`rate`), `wall_ms` is
off by a skew that the world may change at any time. Delays given to a host's timers are in its own
seconds. asyncio's own timers (`asyncio.sleep`, `asyncio.wait_for`) run on the world's clock
instead.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from contextvars import Context, copy_context
from dataclasses import dataclass
from typing import Any

from raftkv.runtime import Files, Listener, ProtocolFactory, Timer
from raftkv.testing.clock import SimLoop
from raftkv.testing.current import CURRENT
from raftkv.testing.gate import Gate
from raftkv.testing.network import SimNetwork
from raftkv.testing.process import PROCESS, Process
from raftkv.testing.worker import SimWorker

__all__ = ["HostClock", "SimRuntime"]

# 2023-11-14: the wall clock of a world begins here, whatever today is.
WALL_EPOCH_MS = 1_700_000_000_000


@dataclass(slots=True)
class HostClock:
    """The clocks of one machine; they outlive its processes."""

    loop: SimLoop
    start_s: float = 0.0
    rate: float = 1.0
    skew_ms: int = 0

    def monotonic(self) -> float:
        return self.start_s + self.loop.now * self.rate

    def wall_ms(self) -> int:
        return WALL_EPOCH_MS + self.skew_ms + int(self.loop.now * self.rate * 1000)


class SimRuntime:
    """What a node on a simulated host asks of the world. Dies with its process."""

    def __init__(
        self,
        host: str,
        process: Process,
        loop: SimLoop,
        network: SimNetwork,
        files: Files,
        clock: HostClock,
        seed: str,
    ) -> None:
        self.host = host
        self.process = process
        self.gate = Gate(files, process)
        self.files: Files = self.gate
        self.has_tls = False
        self.rng = random.Random(f"{seed}/rng")
        self.worker = SimWorker(loop, random.Random(f"{seed}/worker"))
        self.bulk_worker = SimWorker(loop, random.Random(f"{seed}/bulk"))
        self._tokens = random.Random(f"{seed}/token")
        self._loop = loop
        self._network = network
        self._clock = clock
        self._closed = False
        self._context = Context()
        self._context.run(PROCESS.set, process)
        self._context.run(CURRENT.set, self)

    def context(self) -> Context:
        """The running context if it is this process's, else a fresh one that is."""
        return copy_context() if PROCESS.get() is self.process else self._context.copy()

    def monotonic(self) -> float:
        """The host's clock; processor time of the running callback has passed on it already."""
        return self._clock.monotonic() + self._owed_s * self._clock.rate

    @property
    def _owed_s(self) -> float:
        return 0.0 if self.process.busy else self.process.owed_s

    def wall_ms(self) -> int:
        return self._clock.wall_ms()

    def token(self, count: int) -> bytes:
        return self._tokens.randbytes(count)

    def call_soon(self, callback: Callable[..., object], *args: Any) -> None:
        self._loop.call_soon(callback, *args, context=self.context())

    def call_later(self, delay_s: float, callback: Callable[..., object], *args: Any) -> Timer:
        return self._loop.call_later(
            delay_s / self._clock.rate + self._owed_s, callback, *args, context=self.context()
        )

    def spawn(self, coroutine: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        return self._loop.create_task(coroutine, name=name, context=self.context())

    def future(self) -> asyncio.Future[Any]:
        return self._loop.create_future()

    def offload(self, function: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        if self._closed:
            raise RuntimeError("the runtime is closed: its worker takes no more work")
        return self.worker.submit(self.context(), function, *args)

    def offload_bulk(self, function: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        if self._closed:
            raise RuntimeError("the runtime is closed: its worker takes no more work")
        return self.bulk_worker.submit(self.context(), function, *args)

    def stall_disk(self, seconds: float) -> None:
        """No blocking work ends before `seconds` have passed."""
        self.worker.stall(seconds)
        self.bulk_worker.stall(seconds)

    def die(self) -> None:
        """The process ends in the middle of its blocking work; nothing of it runs again."""
        self.worker.crash(self.gate)
        self.bulk_worker.crash(self.gate)

    async def sleep(self, delay_s: float) -> None:
        await asyncio.sleep(delay_s / self._clock.rate + self._owed_s)

    async def listen(self, factory: ProtocolFactory, host: str, port: int) -> Listener:
        return self.context().run(self._network.listen, factory, self.host, port)

    async def connect(self, factory: ProtocolFactory, host: str, port: int) -> asyncio.Transport:
        return await self._network.connect(self.host, factory, host, port)

    def close(self) -> None:
        self._closed = True
