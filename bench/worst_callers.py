"""Callers of `python -m bench worst`, in a process of their own, through the HTTP API.

    python -m bench.worst_callers JSON      one `Load`; prints one `Figures` when the time is over

The worst callers look at ROWS rows with each transaction, which also writes: as much as a cluster
allows, and as 0.1.0 allowed too.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Final, Literal

import msgspec
import uvloop

from raftkv import Client
from raftkv.errors import RaftkvError
from raftkv.kv import Compare, PutOp, RangeOp

__all__ = ["KEYS", "Figures", "Load", "Role", "fill", "key_of"]

Role = Literal["worst", "bystander", "transactions", "ranges"]

#: Rows that one of the worst transactions looks at. Those of 0.1.0 may touch 100,000, puts counted.
ROWS: Final = 99_900
KEYS: Final = 100_000
#: Puts of one legitimate transaction, and keys of one legitimate range.
TXN_PUTS: Final = 100
RANGE_KEYS: Final = 10_000
PREFIX: Final = b"worst/"
FILL_CALLERS: Final = 16
BYSTANDER_PAUSE_S: Final = 0.01
TIMEOUT_S: Final = 30.0

Call = Callable[[], Awaitable[object]]


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """What is called, by how many callers, and for how long."""

    role: Role
    endpoints: list[str]
    callers: int
    seconds: float
    keys: int
    seed: int


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it. Times are those of answered calls; `errors` by class."""

    role: Role
    done: int
    seconds: float
    p50_ms: float
    p99_ms: float
    worst_ms: float
    errors: dict[str, int]

    @property
    def per_s(self) -> float:
        return self.done / self.seconds


def key_of(number: int) -> bytes:
    """The key of that number, of those that `fill` writes."""
    return PREFIX + b"%08d" % number


async def fill(client: Client, keys: int) -> None:
    """Write the keys that the worst transactions look at."""
    starts = iter(range(0, keys, TXN_PUTS))

    async def some() -> None:
        for first in starts:
            numbers = range(first, min(keys, first + TXN_PUTS))
            puts = [PutOp(key_of(number), b"%064d" % number) for number in numbers]
            await client.kv.txn([], puts, [], timeout_s=TIMEOUT_S)

    await asyncio.gather(*(some() for _ in range(FILL_CALLERS)))


class _Caller:
    """Makes the calls of one role; `number` tells the callers of a process apart."""

    def __init__(self, load: Load, client: Client, number: int) -> None:
        self._kv = client.kv
        self._rng = random.Random(f"{load.seed}/{load.role}/{number}")
        self._own = b"%s/%d" % (load.role.encode(), number)
        self._load = load
        self._rows = min(ROWS, load.keys)
        calls: dict[Role, list[Call]] = {
            "worst": [self._compared, self._values_compared, self._sorted],
            "bystander": [self._put],
            "transactions": [self._transaction],
            "ranges": [self._range],
        }
        self._calls = calls[load.role]

    async def call(self) -> None:
        await self._rng.choice(self._calls)()
        if self._load.role == "bystander":
            await asyncio.sleep(BYSTANDER_PAUSE_S)

    def _low(self, rows: int) -> int:
        return self._rng.randint(0, self._load.keys - rows)

    async def _put(self) -> object:
        return await self._kv.put(self._own, b"x" * 64, timeout_s=TIMEOUT_S)

    async def _write(self, compare: list[Compare], *ranges: RangeOp) -> object:
        put = PutOp(self._own, b"")
        return await self._kv.txn(compare, [put, *ranges], [put], timeout_s=TIMEOUT_S)

    async def _compared(self) -> object:
        low = self._low(self._rows)
        high = key_of(low + self._rows)
        return await self._write([Compare(key_of(low), "version", ">", 0, high)])

    async def _values_compared(self) -> object:
        low = self._low(self._rows)
        high = key_of(low + self._rows)
        return await self._write([Compare(key_of(low), "value", "<", b"1" * 64, high)])

    async def _sorted(self) -> object:
        low = self._low(self._rows)
        high = key_of(low + self._rows)
        best = RangeOp(key_of(low), high, limit=1, sort_by="value", descending=True)
        return await self._write([], best)

    async def _transaction(self) -> object:
        numbers = self._rng.sample(range(self._load.keys), min(TXN_PUTS, self._load.keys))
        puts = [PutOp(key_of(number), b"%064d" % number) for number in numbers]
        return await self._kv.txn([], puts, [], timeout_s=TIMEOUT_S)

    async def _range(self) -> object:
        rows = min(RANGE_KEYS, self._load.keys)
        low = self._low(rows)
        found = RangeOp(key_of(low), key_of(low + rows), limit=rows, keys_only=True)
        return await self._write([], found)


async def run(given: Load) -> Figures:
    """Make the calls until the time is over; one that has begun is waited for."""
    took_ms: list[float] = []
    errors: Counter[str] = Counter()
    began = time.monotonic()
    async with Client(given.endpoints, connections_max=given.callers) as client:

        async def go(number: int) -> None:
            caller = _Caller(given, client, number)
            while (at := time.monotonic()) < began + given.seconds:
                try:
                    await caller.call()
                except RaftkvError as error:
                    errors[type(error).__name__] += 1
                else:
                    took_ms.append((time.monotonic() - at) * 1000)

        await asyncio.gather(*(go(number) for number in range(given.callers)))
    took_ms.sort()
    return Figures(
        role=given.role,
        done=len(took_ms),
        seconds=time.monotonic() - began,
        p50_ms=_share(took_ms, 0.5),
        p99_ms=_share(took_ms, 0.99),
        worst_ms=_share(took_ms, 1.0),
        errors=dict(sorted(errors.items())),
    )


def _share(took_ms: list[float], share: float) -> float:
    """The time that this share of the calls took at most; 0 without any."""
    return took_ms[min(len(took_ms) - 1, int(share * len(took_ms)))] if took_ms else 0.0


def main() -> None:
    given = msgspec.json.decode(sys.argv[1], type=Load)
    with contextlib.suppress(KeyboardInterrupt):
        print(msgspec.json.encode(uvloop.run(run(given))).decode(), flush=True)


if __name__ == "__main__":
    main()
