"""The hot parts of a call: log, codec, checks of arguments, puts and gets through three cores.

A round is a batch (its size stands in `extra_info`): divide its time by the size for one operation.
The cluster here shares one process and one event loop with its callers, so its figures are for
comparing one version with the next; the figures for users come from `python -m bench run`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from raftkv import Node
from raftkv.kv.commands import PutOp
from raftkv.raft import wire
from raftkv.raft.wal import Wal
from raftkv.runtime import OsFiles
from raftkv.testing.local_cluster import LocalCluster
from raftkv.validation import require

Benchmark = Any

VALUE = bytes(64)
ENTRY_BYTES = 256


class LoopThread:
    """An event loop in a thread of its own: pytest-benchmark times plain functions."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(120)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


# The log -----------------------------------------------------------------------------------------


@pytest.fixture
def wal(tmp_path: Path) -> Iterator[Wal]:
    opened = Wal.open(OsFiles(), str(tmp_path / "wal"))
    yield opened
    opened.close()


@pytest.mark.benchmark(group="wal append and sync")
@pytest.mark.parametrize("entries", [1, 16, 256])
def test_wal_append_and_sync(benchmark: Benchmark, wal: Wal, entries: int) -> None:
    """Entries that share one write and one fdatasync."""
    payload = bytes(ENTRY_BYTES)

    def append_and_sync() -> None:
        for _ in range(entries):
            wal.append(payload, wal.last_index + 1, 1)
        pending = wal.take()
        assert pending is not None
        wal.write(pending)
        wal.written(pending)

    benchmark.extra_info.update(entries=entries, entry_bytes=ENTRY_BYTES)
    benchmark.pedantic(append_and_sync, rounds=200, warmup_rounds=5)
    assert wal.durable_index == wal.last_index


@pytest.mark.benchmark(group="wal recovery")
def test_wal_recovery(benchmark: Benchmark, tmp_path: Path) -> None:
    """Opening a log of 20,000 entries: what a node reads when it starts."""
    entries = 20_000
    directory = str(tmp_path / "wal")
    wal = Wal.open(OsFiles(), directory)
    for _ in range(entries):
        wal.append(bytes(ENTRY_BYTES), wal.last_index + 1, 1)
    pending = wal.take()
    assert pending is not None
    wal.write(pending)
    wal.written(pending)
    last_index = wal.last_index
    wal.close()

    def recover() -> None:
        opened = Wal.open(OsFiles(), directory)
        assert opened.last_index == last_index
        opened.close()

    benchmark.extra_info.update(entries=entries, entry_bytes=ENTRY_BYTES)
    benchmark.pedantic(recover, rounds=5, warmup_rounds=1)


# The codec ---------------------------------------------------------------------------------------

MESSAGES: dict[str, wire.Message] = {
    "heartbeat": wire.Append(7, 1_000_000, 7, 999_999, 4711, []),
    "one batch": wire.Append(7, 1_000_000, 7, 999_999, 4711, [(7, bytes(16 * 1024))]),
    "proposal of 256": wire.Propose([bytes(120)] * 256),
}

# Fixed, because pytest-benchmark would choose so many rounds that its file grows to megabytes.
CODEC = {"rounds": 100, "iterations": 500, "warmup_rounds": 5}


@pytest.mark.benchmark(group="codec")
@pytest.mark.parametrize("name", MESSAGES)
def test_encode(benchmark: Benchmark, name: str) -> None:
    frame = benchmark.pedantic(wire.encode, (MESSAGES[name],), **CODEC)
    benchmark.extra_info["frame_bytes"] = len(frame)


@pytest.mark.benchmark(group="codec")
@pytest.mark.parametrize("name", MESSAGES)
def test_decode(benchmark: Benchmark, name: str) -> None:
    body = wire.encode(MESSAGES[name])[4:]
    message = benchmark.pedantic(wire.decode, (body,), **CODEC)
    assert message == MESSAGES[name]


# Checks of arguments -----------------------------------------------------------------------------


@pytest.mark.benchmark(group="check of 100 arguments")
@pytest.mark.parametrize("hint", [Sequence[bytes], Sequence[PutOp]])
def test_check_of_arguments(benchmark: Benchmark, hint: Any) -> None:
    """A sequence of plain values, and one of structs, as a call hands them over."""
    values = [VALUE] * 100 if hint == Sequence[bytes] else [PutOp(b"k", VALUE)] * 100
    benchmark.extra_info["values"] = len(values)
    benchmark.pedantic(require, (hint, "values", values), rounds=100, iterations=100)


# Three cores -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def loop() -> Iterator[LoopThread]:
    thread = LoopThread()
    yield thread
    thread.close()


@pytest.fixture(scope="module")
def cluster(loop: LoopThread, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    directory = str(tmp_path_factory.mktemp("cluster"))

    async def started() -> LocalCluster:
        return await LocalCluster(cores=3, directory=directory).__aenter__()

    running: LocalCluster = loop.run(started())
    yield running
    loop.run(running.close())


def batches_of(
    call: Callable[[bytes], Coroutine[Any, Any, Any]], in_flight: int, calls: int
) -> Callable[[], Coroutine[Any, Any, None]]:
    """A coroutine that makes so many calls, `in_flight` at a time, each caller one by one."""

    async def caller(number: int) -> None:
        for turn in range(calls // in_flight):
            await call(b"bench/%d/%d" % (number, turn % 64))

    async def batch() -> None:
        await asyncio.gather(*(caller(number) for number in range(in_flight)))

    return batch


@pytest.mark.cluster
@pytest.mark.benchmark(group="put through 3 cores, one process")
@pytest.mark.parametrize("in_flight", [1, 16, 256])
@pytest.mark.parametrize("place", ["leader", "follower"])
def test_put_through_three_cores(
    benchmark: Benchmark, loop: LoopThread, cluster: LocalCluster, place: str, in_flight: int
) -> None:
    """Puts until acknowledged, fsync on, all three logs on one disk."""
    node = node_at(cluster, place)
    puts = max(50, in_flight * 8) // in_flight * in_flight
    batch = batches_of(lambda key: node.kv.put(key, VALUE), in_flight, puts)
    benchmark.extra_info.update(puts=puts, in_flight=in_flight, value_bytes=len(VALUE))
    benchmark.pedantic(lambda: loop.run(batch()), rounds=5, warmup_rounds=1)


@pytest.mark.cluster
@pytest.mark.benchmark(group="linearizable get through 3 cores, one process")
@pytest.mark.parametrize("in_flight", [1, 16, 256])
@pytest.mark.parametrize("place", ["leader", "follower"])
def test_get_through_three_cores(
    benchmark: Benchmark, loop: LoopThread, cluster: LocalCluster, place: str, in_flight: int
) -> None:
    """Gets that see everything acknowledged before them; nothing is written."""
    node = node_at(cluster, place)
    gets = max(100, in_flight * 32) // in_flight * in_flight
    batch = batches_of(node.kv.get, in_flight, gets)
    benchmark.extra_info.update(gets=gets, in_flight=in_flight)
    benchmark.pedantic(lambda: loop.run(batch()), rounds=5, warmup_rounds=1)


def node_at(cluster: LocalCluster, place: str) -> Node:
    leader = cluster.leader()
    assert leader is not None
    return leader if place == "leader" else next(n for n in cluster.cores if n is not leader)
