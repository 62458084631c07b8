"""Callers inside a raftkv node that read, check and write: what `bench peers mnesia` asks for.

Four ways, each on a key of the caller's own or on one hot key for all of them:

    connect   the registry's: `LcrApi.connect` with a new channel of a client id. A local read, then
              a command that names what was read; it is compared and written in the log.
    clean     the registry's, too: `LcrApi.open` with a clean start. It continues nothing, so it
              names nobody and reads nothing first: the log takes the place of whoever is there, and
              nobody loses.
    swap      `kv.txn` that writes if the key still has the revision that a local read showed.
    in log    `kv.txn` that writes if the key exists, and answers what was there before: the check
              is made where the write is, so nobody loses. (bench/cas.py tells the two apart.)

A call has *won* if it wrote. Every other answer is a definite no, and is counted by its name.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from raftkv import Node
from raftkv.errors import RaftkvError
from raftkv.kv import Compare, PutOp

if TYPE_CHECKING:
    from raftkv_lcr import LcrApi

__all__ = ["WON", "ReadCheckWrite", "Took", "Way", "read_check_write"]

Way = Literal["connect", "clean", "swap", "in log"]

WON: Final = "won"
HOT: Final = b"hot"
OPEN_TIMEOUT_S: Final = 5.0

Call = Callable[[int, int], Awaitable[str]]
"""By the caller of this number, its call of that number; returns what it was answered."""


class ReadCheckWrite(msgspec.Struct, frozen=True, tag="read-check-write"):
    """So many callers, numbered from `first` on, for so long; numbers are own keys, too."""

    way: Way
    hot: bool
    callers: int
    seconds: float
    first: int = 0


class Took(msgspec.Struct, frozen=True):
    """How long every answered call took, won or not; what was answered how often.

    `*_late`: how many of them were answered after the time was up. `failed`: calls without a
    definite answer (a time-out, no leader).
    """

    won_us: list[int] = []
    lost_us: list[int] = []
    won_late: int = 0
    lost_late: int = 0
    failed: int = 0
    answers: dict[str, int] = {}


async def read_check_write(node: Node, lcr: LcrApi | None, asked: ReadCheckWrite) -> Took:
    """Run the callers to their end."""
    numbers = range(asked.first, asked.first + asked.callers)
    if asked.way in ("connect", "clean"):
        assert lcr is not None, "the node runs without the registry"
        call = (_connect if asked.way == "connect" else _clean)(lcr, asked.hot)
    else:
        for number in (0,) if asked.hot else numbers:
            await node.kv.put(_key(asked.hot, number), b"0")
        call = (_swap if asked.way == "swap" else _in_log)(node, asked.hot)
    return await _Callers(call, time.perf_counter() + asked.seconds).run(numbers)


class _Callers:
    """A closed loop: each has one call outstanding."""

    def __init__(self, call: Call, until_s: float) -> None:
        self._call = call
        self._until_s = until_s
        self._won_us: list[int] = []
        self._lost_us: list[int] = []
        self._answers: Counter[str] = Counter()
        self._late: Counter[bool] = Counter()
        self._failed = 0

    async def run(self, numbers: range) -> Took:
        await asyncio.gather(*(self._caller(number) for number in numbers))
        return Took(
            won_us=self._won_us, lost_us=self._lost_us, won_late=self._late[True],
            lost_late=self._late[False], failed=self._failed, answers=dict(self._answers),
        )  # fmt: skip

    async def _caller(self, number: int) -> None:
        clock, turn = time.perf_counter, 0
        began_s = clock()
        while began_s < self._until_s:
            try:
                answer = await self._call(number, turn)
            except RaftkvError:
                self._failed += 1
                await asyncio.sleep(0)  # it may have been refused without ever waiting
                began_s = clock()
                continue
            ended_s = clock()
            won = answer == WON
            (self._won_us if won else self._lost_us).append(round((ended_s - began_s) * 1e6))
            self._answers[answer] += 1
            if ended_s > self._until_s:
                self._late[won] += 1
            began_s, turn = ended_s, turn + 1


def _connect(lcr: LcrApi, hot: bool) -> Call:
    async def call(number: int, turn: int) -> str:
        result = await lcr.connect(_client(hot, number), f"{number}.{turn}")
        return WON if result.outcome == "ok" else result.outcome

    return call


def _clean(lcr: LcrApi, hot: bool) -> Call:
    # Here, because only a node with the registry has the plugin at hand.
    from bench.runner.product import Open, Registered

    async def call(number: int, turn: int) -> str:
        epoch = lcr.mode().epoch
        client, channel = _client(hot, number), f"{number}.{turn}"
        command = Open(client, channel, None, None, 0, False, epoch, clean=True)
        answer = await lcr.open(command, timeout_s=OPEN_TIMEOUT_S)
        return WON if isinstance(answer, Registered) else answer.outcome

    return call


def _client(hot: bool, number: int) -> str:
    return "hot" if hot else f"own-{number}"


def _key(hot: bool, number: int) -> bytes:
    return HOT if hot else b"own-%d" % number


def _swap(node: Node, hot: bool) -> Call:
    get, txn = node.kv.get, node.kv.txn

    async def call(number: int, turn: int) -> str:
        key = _key(hot, number)
        found = await get(key, consistency="local")
        known = 0 if found is None else found.mod_revision
        result = await txn([Compare(key, "mod", "=", known)], [PutOp(key, b"%d" % turn)])
        return WON if result.succeeded else "changed"

    return call


def _in_log(node: Node, hot: bool) -> Call:
    txn = node.kv.txn

    async def call(number: int, turn: int) -> str:
        key = _key(hot, number)
        put = PutOp(key, b"%d" % turn, prev_kv=True)
        result: Any = await txn([Compare(key, "version", ">", 0)], [put])
        return WON if result.succeeded else "absent"

    return call
