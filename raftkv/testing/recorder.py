"""Records what clients ask of a keyspace and what they are answered, as a history for checkers.

    recorder = HistoryRecorder(lambda: world.loop.now)
    client = recorder.client("c1", node.kv)
    await client.put(b"k", b"v")
    check_per_key(recorder.history(), KeyValueStore())

Time-stamps: one clock for all clients, in seconds. In a simulated world that is the world's own
clock, because the clocks of its hosts differ; between real processes of one machine, the monotonic
clock of the system. A recorder sees its events one after the other, and so gives each a stamp of
its own even if the clock stands still; `alone=False` leaves equal stamps equal, for a recorder
whose history is put together with that of others.

What is certain is recorded as such, everything else as unknown: a call that raised `NotApplied`, or
that the keyspace refused, did nothing; a `Timeout`, a crash, a cancellation and a call that never
came back may have done it, or may do it yet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from raftkv.errors import NotApplied
from raftkv.kv.commands import (
    Compare,
    DeleteRangeOp,
    DeleteRangeResult,
    DuplicateKey,
    EmptyKey,
    LimitExceeded,
    PutOp,
    PutResult,
    RangeOp,
    RangeResult,
    TxnResult,
)
from raftkv.kv.commands import (
    Operation as Change,
)
from raftkv.testing.histories import Operation, Outcome

__all__ = ["HistoryRecorder", "KeyValueCalls", "RecordedClient"]

NOTHING_HAPPENED = (NotApplied, EmptyKey, LimitExceeded, DuplicateKey)


class KeyValueCalls(Protocol):
    """What a client is to offer: `node.kv`, or a client of the network door in its shape."""

    async def put(self, key: bytes, value: bytes, *, timeout_s: float | None) -> PutResult: ...

    async def read(self, operation: RangeOp, *, timeout_s: float | None) -> RangeResult: ...

    async def delete(self, key: bytes, *, timeout_s: float | None) -> DeleteRangeResult: ...

    async def txn(
        self,
        compare: Sequence[Compare],
        success: Sequence[Change],
        failure: Sequence[Change],
        *,
        timeout_s: float | None,
    ) -> TxnResult: ...


class HistoryRecorder:
    """Collects the operations of any number of clients on one event loop."""

    def __init__(self, clock: Callable[[], float], *, alone: bool = True) -> None:
        self._clock = clock
        self._alone = alone
        self._last_us = -1
        self._operations: list[Operation] = []
        self._pending: dict[int, Operation] = {}
        self._number = 0

    def client(self, process: str, kv: KeyValueCalls) -> RecordedClient:
        """A client that records what it does under the name `process`."""
        return RecordedClient(self, process, kv)

    def history(self) -> list[Operation]:
        """What was recorded so far; what has not come back has an unknown outcome."""
        return [*self._operations, *self._pending.values()]

    def begin(self, operation: Operation) -> int:
        """An operation is asked for now. Returns the number that `end` needs."""
        self._number += 1
        start = self._now_us()
        self._pending[self._number] = msgspec.structs.replace(
            operation, start=start, outcome="unknown"
        )
        return self._number

    def end(
        self, number: int, outcome: Outcome, output: Any = None, revision: int | None = None
    ) -> Operation:
        """The operation has come back now."""
        ended = msgspec.structs.replace(
            self._pending.pop(number),
            output=output,
            end=self._now_us() if outcome == "ok" else None,
            outcome=outcome,
            revision=revision,
        )
        self._operations.append(ended)
        return ended

    def _now_us(self) -> int:
        now = int(self._clock() * 1_000_000)
        if self._alone and now <= self._last_us:
            now = self._last_us + 1
        self._last_us = now
        return now


class RecordedClient:
    """The calls of one client. Each raises what the call itself raises, once it is recorded."""

    def __init__(self, recorder: HistoryRecorder, process: str, kv: KeyValueCalls) -> None:
        self._recorder = recorder
        self._process = process
        self._kv = kv

    async def put(self, key: bytes, value: bytes, *, timeout_s: float | None = None) -> None:
        """Set a key."""
        with self._call("put", key, value) as call:
            result = await self._kv.put(key, value, timeout_s=timeout_s)
            call.answer(None, result.revision)

    async def get(self, key: bytes, *, timeout_s: float | None = None) -> bytes | None:
        """The value of a key, read linearizably, or None."""
        with self._call("get", key, None) as call:
            # Not `get`: only a range tells the revision of a key that does not exist.
            result = await self._kv.read(RangeOp(key), timeout_s=timeout_s)
            value = result.kvs[0].value if result.kvs else None
            call.answer(value, result.revision)
        return value

    async def delete(self, key: bytes, *, timeout_s: float | None = None) -> bool:
        """Delete a key; returns whether it existed."""
        with self._call("delete", key, None) as call:
            result = await self._kv.delete(key, timeout_s=timeout_s)
            existed = result.deleted == 1
            call.answer(existed, result.revision)
        return existed

    async def cas(
        self,
        key: bytes,
        expected: bytes | None,
        new: bytes | None,
        *,
        timeout_s: float | None = None,
    ) -> bool:
        """Replace `expected` by `new`, where None stands for no key; returns whether it matched."""
        if expected is None:
            compare = Compare(key, "version", "=", 0)
        else:
            compare = Compare(key, "value", "=", expected)
        change = DeleteRangeOp(key) if new is None else PutOp(key, new)
        with self._call("cas", key, (expected, new)) as call:
            result = await self._kv.txn([compare], [change], [], timeout_s=timeout_s)
            call.answer(result.succeeded, result.revision)
        return result.succeeded

    def _call(self, op: str, key: bytes, given: Any) -> _Call:
        return _Call(self._recorder, Operation(self._process, op, key, given))


class _Call:
    """One call between its beginning and its answer, or the lack of one."""

    def __init__(self, recorder: HistoryRecorder, operation: Operation) -> None:
        self._recorder = recorder
        self._number = recorder.begin(operation)
        self._answered = False

    def answer(self, output: Any, revision: int) -> None:
        self._answered = True
        self._recorder.end(self._number, "ok", output, revision)

    def __enter__(self) -> _Call:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        if not self._answered:
            nothing = isinstance(error, NOTHING_HAPPENED)
            self._recorder.end(self._number, "not_applied" if nothing else "unknown")
