"""The clients of a chaos run, and the books they keep of what they were told.

Two kinds of keys. *Registers* are few, and every client puts, compares and sets, deletes and reads
them: their history is recorded, for the linearizability checker. *Ledger* keys are written once, by
one client, and never again: of each it is known whether it was acknowledged (must be there for
ever), denied (must never be there) or neither (may be either), so a lost write is found by looking,
and named.

A run is cut into *slices* of some seconds, each with keys of its own: an operation of unknown
outcome stays open for ever, so the search would drown in a history without end; and a slice that
is over can be written to disk. Nothing is lost by that, for the keys of a slice are read once more,
through every node, at the end of the run.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from bench.chaos.cluster import ChaosCluster, ChaosError
from bench.chaos.door import DoorClient
from bench.history import write_history
from raftkv.errors import NotApplied, RaftkvError
from raftkv.kv.commands import RangeOp, prefix_end
from raftkv.testing.histories import Operation
from raftkv.testing.recorder import HistoryRecorder, RecordedClient

__all__ = ["RUN", "Load", "Slice", "ledger_value"]

RUN = "chaos"
REGISTERS = 12
"""Per slice: few enough that clients meet, many enough that a search stays short."""

LEDGER_SHARE = 0.3
RETRY_S = 0.05


def ledger_value(key: bytes) -> bytes:
    """What is written under a ledger key: nobody could write it by mistake."""
    return b"of " + key[::-1]


class Slice:
    """Some seconds of a run, with keys of its own."""

    def __init__(self, number: int, started: float) -> None:
        self.number = number
        self.started = started
        self.recorder = HistoryRecorder(time.monotonic)
        self.registers = [b"s%05d/%02d" % (number, n) for n in range(REGISTERS)]
        self.pending = 0
        self.acknowledged: set[bytes] = set()
        self.denied: set[bytes] = set()
        self.unknown: set[bytes] = set()

    @property
    def register_prefix(self) -> bytes:
        return b"s%05d/" % self.number

    @property
    def ledger_prefix(self) -> bytes:
        return b"l%05d/" % self.number

    def ledger_findings(self, node: str, found: dict[bytes, bytes]) -> list[str]:
        """What is wrong with the ledger keys of this slice as `node` has them."""
        keys = set(found)
        groups = {
            "acknowledged writes are lost": self.acknowledged - keys,
            "writes that were denied have been applied": self.denied & keys,
            "keys that nobody wrote": keys - self.acknowledged - self.unknown - self.denied,
            "other values than were written": {
                key for key in keys if found[key] != ledger_value(key)
            },
        }
        return [
            f"{node}: {len(wrong)} {what}, such as {min(wrong).decode()}"
            for what, wrong in groups.items()
            if wrong
        ]


class Load:
    """Clients through all nodes' doors, until `stop`. `rate` operations a second, all together.

    With `registers` False only the ledger is written. Histories go to `out` slice by slice.
    """

    def __init__(
        self,
        cluster: ChaosCluster,
        rng: random.Random,
        *,
        clients: int = 12,
        rate: float = 300.0,
        slice_s: float = 20.0,
        registers: bool = True,
        out: Path | None = None,
    ) -> None:
        self._cluster = cluster
        self._rng = rng
        self._slice_s = slice_s
        self._registers = registers
        self._out = out
        self._period_s = clients / rate
        self._stopping = False
        self._tasks: list[asyncio.Task[None]] = []
        self._clients = clients
        self._progress = asyncio.Condition()
        self.slices = [Slice(0, time.monotonic())]
        self._unwritten = [self.slices[0]]
        # The latest beginning of an operation that was acknowledged, by node.
        self._began_ok: dict[str, float] = {}
        self.outcomes: Counter[str] = Counter()
        # Acknowledged operations in each second since the start.
        self.per_second: Counter[int] = Counter()
        self.started = time.monotonic()

    def start(self) -> None:
        names = self._cluster.names
        self.started = time.monotonic()
        for number in range(self._clients):
            task = self._run(number, names[number % len(names)])
            self._tasks.append(asyncio.create_task(task))

    async def stop(self) -> None:
        """Let every client finish, then write what is left of the histories."""
        self._stopping = True
        await asyncio.gather(*self._tasks)
        await self._write(everything=True)

    @property
    def acknowledged(self) -> int:
        return self.outcomes["ok"]

    def elapsed_s(self) -> float:
        return time.monotonic() - self.started

    async def progress(self, names: Iterable[str], since: float, timeout_s: float) -> float:
        """Wait until each node has acknowledged something that began after `since`.

        Returns the seconds since then. Raises ChaosError naming the nodes that have not.
        """
        wanted = list(names)

        def missing() -> list[str]:
            return [name for name in wanted if self._began_ok.get(name, 0.0) < since]

        try:
            async with asyncio.timeout(timeout_s), self._progress:
                await self._progress.wait_for(lambda: not missing())
        except TimeoutError:
            raise ChaosError(
                f"no progress through {', '.join(missing())} within {timeout_s:g} s of healing"
            ) from None
        return time.monotonic() - since

    def next_slice(self) -> Slice:
        """Begin another slice now; returns the one that ends."""
        ended = self.slices[-1]
        self.slices.append(Slice(ended.number + 1, time.monotonic()))
        self._unwritten.append(self.slices[-1])
        return ended

    async def _run(self, number: int, node: str) -> None:
        client = DoorClient(self._cluster.endpoint(node))
        rng = random.Random(self._rng.getrandbits(64))
        count = 0
        try:
            while not self._stopping:
                due = time.monotonic() + self._period_s * (0.5 + rng.random())
                count += 1
                if not await self._operation(node, f"c{number}", count, client, rng):
                    due = max(due, time.monotonic() + RETRY_S)
                if number == 0:
                    await self._turn_over()
                await asyncio.sleep(max(0.0, due - time.monotonic()))
        finally:
            client.close()

    async def _turn_over(self) -> None:
        if time.monotonic() - self.slices[-1].started > self._slice_s and self._registers:
            self.next_slice()
        await self._write(everything=False)

    async def _operation(
        self, node: str, process: str, count: int, client: DoorClient, rng: random.Random
    ) -> bool:
        """One operation, filed; whether it was acknowledged."""
        current, began = self.slices[-1], time.monotonic()
        current.pending += 1
        try:
            if not self._registers or rng.random() < LEDGER_SHARE:
                await _ledger_put(current, b"%b%b-%d" % (
                    current.ledger_prefix, process.encode(), count
                ), client)  # fmt: skip
            else:
                # An unknown outcome leaves its client's name behind: it may still be at work.
                recorded = current.recorder.client(f"{process}-{count}", client)
                await _register_operation(current, recorded, b"%b-%d" % (
                    process.encode(), count
                ), rng)  # fmt: skip
        except NotApplied:
            self.outcomes["not_applied"] += 1
            return False
        except RaftkvError:
            self.outcomes["unknown"] += 1
            return False
        finally:
            current.pending -= 1
            async with self._progress:
                self._progress.notify_all()
        self.outcomes["ok"] += 1
        self.per_second[int(time.monotonic() - self.started)] += 1
        self._began_ok[node] = max(began, self._began_ok.get(node, 0.0))
        async with self._progress:
            self._progress.notify_all()
        return True

    async def _write(self, *, everything: bool) -> None:
        """Write the histories of slices that are over."""
        over = [one for one in self._unwritten if not one.pending and one is not self.slices[-1]]
        for one in self._unwritten if everything else over:
            self._unwritten = [other for other in self._unwritten if other is not one]
            history = one.recorder.history()
            one.recorder = HistoryRecorder(time.monotonic)
            if self._out is not None and history:
                await asyncio.to_thread(
                    write_history, self._out, RUN, f"slice-{one.number:05d}", history
                )

    # -- the end

    async def read_back(self, node: str, one: Slice) -> tuple[list[Operation], dict[bytes, bytes]]:
        """The registers of a slice as reads of `node`, for the history; and its ledger keys.

        Raises RaftkvError.
        """
        client = DoorClient(self._cluster.endpoint(node))
        try:
            ledger = await client.read(RangeOp(one.ledger_prefix, prefix_end(one.ledger_prefix)))
            reads = []
            if self._registers:
                start = int(time.monotonic() * 1_000_000)
                prefix = one.register_prefix
                found = await client.read(RangeOp(prefix, prefix_end(prefix)))
                end = int(time.monotonic() * 1_000_000) + 1
                values = {kv.key: kv.value for kv in found.kvs}
                reads = [
                    Operation(
                        f"final-{node}", "get", key, None, values.get(key), start, end,
                        "ok", found.revision,
                    )
                    for key in one.registers
                ]  # fmt: skip
        finally:
            client.close()
        return reads, {kv.key: kv.value for kv in ledger.kvs}


async def _ledger_put(current: Slice, key: bytes, client: DoorClient) -> None:
    try:
        await client.put(key, ledger_value(key))
    except NotApplied:
        current.denied.add(key)
        raise
    except BaseException:
        current.unknown.add(key)
        raise
    current.acknowledged.add(key)


async def _register_operation(
    current: Slice, client: RecordedClient, value: bytes, rng: random.Random
) -> None:
    key = rng.choice(current.registers)
    dice = rng.random()
    if dice < 0.4:
        await client.get(key)
    elif dice < 0.7:
        await client.put(key, value)
    elif dice < 0.8:
        await client.delete(key)
    else:
        # Read first, so that some of them match.
        expected = await client.get(key)
        await client.cas(key, expected, value)
