"""A store of one node without a cluster: the real keyspace, leases and watches on a virtual clock.

    async def test(store): ...
    run(test)

`node.kv` and `node.leases` are the real API objects, over a state machine that applies at once and
a lessor that is always the leader. Time is the loop's (raftkv.testing.clock), so a test that waits
for a lease to end takes no time. Faults are what a test puts into `faults`, one for each of the
next proposals.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Literal, TypeVar

import msgspec

from raftkv.errors import NoLeader, Refused, RemoteFailed, Timeout
from raftkv.kv import KV, KVApi, LeaseApi
from raftkv.kv.service import KVService
from raftkv.plugin import Outcome
from raftkv.state import Envelope, NodeUp, SetSetting, StateMachine, View, encode_batch
from raftkv.testing import clock

T = TypeVar("T")

#: What becomes of a proposal: refused before it left; applied, but the answer is lost; lost on its
#: way; applied later, after its caller was told that the outcome is unknown; applied and answered
#: later.
Fault = Literal["none", "no_leader", "answer_lost", "lost", "late", "slow"]

START_MS = 1_700_000_000_000
# How long a proposal or a read takes.
ROUND_S = 0.001
LATE_S = 1.0


class LoopRuntime:
    """The running loop as a `Runtime`, as far as leases and watches need one."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()

    def monotonic(self) -> float:
        return self._loop.time()

    def call_soon(self, callback: Callable[..., object], *args: Any) -> None:
        self._loop.call_soon(callback, *args)

    def call_later(self, delay_s: float, callback: Callable[..., object], *args: Any) -> Any:
        return self._loop.call_later(delay_s, callback, *args)

    def spawn(self, coroutine: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        return self._loop.create_task(coroutine, name=name)

    def future(self) -> asyncio.Future[Any]:
        return self._loop.create_future()

    async def sleep(self, delay_s: float) -> None:
        await asyncio.sleep(delay_s)


class LocalRpc:
    """Calls of a node to itself."""

    def __init__(self) -> None:
        self.handlers: dict[str, Callable[[str, bytes], Awaitable[bytes]]] = {}
        self.calls: list[tuple[str, bytes]] = []

    def register(self, method: str, handler: Callable[[str, bytes], Awaitable[bytes]]) -> None:
        self.handlers[method] = handler

    async def call(self, node: str, method: str, payload: bytes, timeout_s: float) -> bytes:
        self.calls.append((method, payload))
        try:
            async with asyncio.timeout(timeout_s):
                return await self.handlers[method]("node", payload)
        except TimeoutError:
            raise Timeout(f"{node} has not answered {method} in time") from None
        except Exception as error:
            raise RemoteFailed(f"{type(error).__name__}: {error}") from error


class MemoryStore:
    """The host of the keyspace's API and service, and the store that recipes work on."""

    name = "node"
    role = "core"
    incarnation = 1
    options = None
    log = logging.getLogger("test")

    def __init__(self) -> None:
        self.machine = StateMachine([KV()])
        self.runtime = LoopRuntime()
        self.rpc = LocalRpc()
        self.faults: deque[Fault] = deque()
        self.proposed: list[msgspec.Struct] = []
        self.is_leader = True
        # While this is False nothing is applied and no read is confirmed.
        self.has_quorum = True
        self.outcomes: dict[int, Any] = {}
        # How long a linearizable read takes.
        self.barrier_s = ROUND_S
        # What a jump of the log's clock adds, and how late the next stamps are.
        self.jump_ms = 0
        self._seq = 0
        self._tasks: set[asyncio.Task[None]] = set()
        up = NodeUp(1, "node", "core", "r", "h:1", None, (("kv", KV.version),))
        self._session = self._apply(0, 1, "core", up).session
        plugin = KV()
        self.kv: KVApi = plugin.open(self)  # type: ignore[arg-type]
        self.leases: LeaseApi = self.kv.leases
        self.service: KVService = plugin.service(self, self.kv)  # type: ignore[arg-type]

    async def start(self) -> None:
        await self.service.start()
        self.service.on_incarnation(1)
        self.service.on_leader()

    def set_leader(self, leads: bool) -> None:
        """Win or lose the office."""
        self.is_leader = leads
        if leads:
            self.service.on_leader()
        else:
            self.service.on_follower()

    # -- Host

    @property
    def leader(self) -> str | None:
        return "node" if self.is_leader else None

    @property
    def settings(self) -> Any:
        return self.view().settings

    @property
    def members(self) -> Any:
        return self.view().members

    def view(self, plugin: str | None = None) -> View:
        return self.machine.view("kv")

    def now_ms(self) -> int:
        return START_MS + self.jump_ms + int(self.runtime.monotonic() * 1000)

    def spawn(self, coroutine: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = self.runtime.spawn(coroutine, name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def propose(self, command: msgspec.Struct, *, timeout_s: float | None = None) -> Any:
        fault = self.faults.popleft() if self.faults else "none"
        await asyncio.sleep(ROUND_S)
        if fault == "no_leader":
            raise NoLeader("planted")
        self._seq += 1
        seq = self._seq
        self.proposed.append(command)
        if not self.has_quorum:
            fault = "lost"
        if fault == "lost":
            self.outcomes[seq] = None
        elif fault == "late":
            self.runtime.call_later(LATE_S, self._commit, seq, command)
        else:
            if fault == "slow":
                await asyncio.sleep(LATE_S)
            self._commit(seq, command)
        if fault in ("none", "slow"):
            return _given(self.outcomes[seq])
        raise Timeout("planted", session=self._session, seq=seq)

    def _commit(self, seq: int, command: msgspec.Struct) -> None:
        if seq in self.outcomes:
            return  # `outcome` has settled that it never will
        self.outcomes[seq] = self._apply(self._session, seq, "kv", command)
        self.service.on_progress(self.machine.index)

    async def outcome(self, session: int, seq: int, *, timeout_s: float | None = None) -> Outcome:
        await asyncio.sleep(ROUND_S)
        if not self.has_quorum:
            raise NoLeader("planted")
        found = self.outcomes.setdefault(seq, None)
        if found is None:
            return Outcome("not_applied")
        return Outcome("refused" if isinstance(found, Refused) else "applied", found)

    async def barrier(
        self, consistency: str = "linearizable", *, timeout_s: float | None = None
    ) -> None:
        if consistency == "local":
            return
        await asyncio.sleep(self.barrier_s)
        while not self.has_quorum:
            await asyncio.sleep(ROUND_S * 10)

    # -- the machine

    def apply(self, command: msgspec.Struct) -> Any:
        """A command of somebody else, applied now; its outcome, a refusal too."""
        self._seq += 1
        self._commit(self._seq, command)
        return self.outcomes[self._seq]

    def set(self, key: str, value: Any) -> None:
        """One of the keyspace's settings."""
        self._seq += 1
        command = SetSetting.of("kv", key, value)
        assert self._apply(self._session, self._seq, "core", command) is None

    def _apply(self, session: int, seq: int, plugin: str, command: msgspec.Struct) -> Any:
        envelope = Envelope(session, seq, 1, plugin, msgspec.msgpack.encode(command))
        body = encode_batch(max(self.machine.now, self.now_ms()), [envelope])
        return self.machine.apply(self.machine.index + 1, body)[0][2]


def _given(outcome: Any) -> Any:
    if isinstance(outcome, Refused):
        raise type(outcome)(*outcome.args)
    return outcome


def run(test: Callable[[MemoryStore], Coroutine[Any, Any, T]], seed: int = 0) -> T:
    """Run a test with a fresh store, on a virtual clock."""

    async def whole() -> T:
        store = MemoryStore()
        await store.start()
        return await test(store)

    return clock.run(whole(), seed)
