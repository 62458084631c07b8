"""The state machine alone: batches of puts, transactions, walking and reading a snapshot.

One round of a batch is 256 commands, so divide its time by 256 for the cost of one command.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from raftkv.kv import KV, Compare, Put, PutOp, Txn
from raftkv.state import Envelope, NodeUp, StateMachine, encode_batch

COMMANDS = 256
VALUE = b"x" * 100

Benchmark = Callable[..., Any]


class Log:
    """Makes the batches of one session and applies them."""

    def __init__(self, keys: int) -> None:
        self.machine = StateMachine([KV()])
        self.seq = 0
        up = NodeUp(1, "n", "core", "r", "h:1", None, (("kv", KV.version),))
        body = encode_batch(1, [Envelope(0, 1, 0, "core", msgspec.msgpack.encode(up))])
        self.session = self.machine.apply(1, body)[0][2].session
        for start in range(0, keys, COMMANDS):
            numbers = range(start, min(start + COMMANDS, keys))
            self.apply(self.batch([Put(key(number), VALUE) for number in numbers]))

    def batch(self, commands: list[Any]) -> bytes:
        floor = self.seq
        envelopes = []
        for command in commands:
            data = msgspec.msgpack.encode(command)
            envelopes.append(Envelope(self.session, self.seq, floor, "kv", data))
            self.seq += 1
        return encode_batch(1, envelopes)

    def apply(self, body: bytes) -> None:
        self.machine.apply(self.machine.index + 1, body)


def key(number: int) -> bytes:
    return b"key/%08d" % number


@pytest.fixture(params=[1_000, 100_000], ids=["1e3 keys", "1e5 keys"])
def size(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def rounds_of(benchmark: Benchmark, log: Log, make: Callable[[], list[Any]]) -> None:
    """Each round applies a batch of its own, made outside of the measured time."""

    def prepare() -> tuple[tuple[bytes], dict[str, Any]]:
        return (log.batch(make()),), {}

    pedantic: Callable[..., Any] = benchmark.pedantic  # type: ignore[attr-defined]
    pedantic(log.apply, setup=prepare, rounds=100, warmup_rounds=5)


@pytest.mark.benchmark(group="state: a batch of 256 commands")
def test_apply_puts(benchmark: Benchmark, size: int) -> None:
    log, rng = Log(size), random.Random(1)
    rounds_of(
        benchmark, log, lambda: [Put(key(rng.randrange(size)), VALUE) for _ in range(COMMANDS)]
    )
    assert len(log.machine.view("kv").table("keys")) == size


@pytest.mark.benchmark(group="state: a batch of 256 commands")
def test_apply_puts_of_new_keys(benchmark: Benchmark, size: int) -> None:
    log = Log(size)
    numbers = iter(range(size, size + COMMANDS * 200))
    rounds_of(benchmark, log, lambda: [Put(key(next(numbers)), VALUE) for _ in range(COMMANDS)])


@pytest.mark.benchmark(group="state: a batch of 256 commands")
def test_apply_puts_while_a_listener_hears_changes(benchmark: Benchmark, size: int) -> None:
    log, rng, heard = Log(size), random.Random(1), [0]

    def listen(index: int, changes: Any) -> None:
        heard[0] += len(changes)

    log.machine.subscribe(listen)
    rounds_of(
        benchmark, log, lambda: [Put(key(rng.randrange(size)), VALUE) for _ in range(COMMANDS)]
    )
    assert heard[0] > 0


@pytest.mark.benchmark(group="state: a batch of 256 commands")
def test_apply_puts_during_a_snapshot(benchmark: Benchmark, size: int) -> None:
    log, rng = Log(size), random.Random(1)
    frozen = log.machine.freeze()
    slices = frozen.slices(rows_max=100)
    next(slices)
    next(slices)
    rounds_of(
        benchmark, log, lambda: [Put(key(rng.randrange(size)), VALUE) for _ in range(COMMANDS)]
    )
    frozen.close()


@pytest.mark.benchmark(group="state: a batch of 256 commands")
def test_apply_compare_and_set(benchmark: Benchmark, size: int) -> None:
    log, rng = Log(size), random.Random(1)

    def make() -> list[Any]:
        commands = []
        for _ in range(COMMANDS):
            name = key(rng.randrange(size))
            compare = (Compare(name, "version", ">", 0),)
            commands.append(Txn(compare, (PutOp(name, VALUE),)))
        return commands

    rounds_of(benchmark, log, make)


@pytest.mark.benchmark(group="state: snapshot")
def test_walk_a_snapshot(benchmark: Benchmark, size: int) -> None:
    log = Log(size)

    def walk() -> int:
        return sum(map(len, log.machine.freeze().slices()))

    assert benchmark(walk) > size * len(VALUE)


@pytest.mark.benchmark(group="state: one slice of a snapshot")
def test_one_slice(benchmark: Benchmark, size: int) -> None:
    """How long the event loop stands still for a snapshot at a time."""
    log = Log(size)
    before_keys = 5  # the header and what "core" has
    walks: list[Iterator[bytes]] = []

    def prepare() -> tuple[tuple[Iterator[bytes]], dict[str, Any]]:
        walks[:] = [log.machine.freeze().slices()]
        for _ in range(before_keys):
            next(walks[0])
        return (walks[0],), {}

    pedantic: Callable[..., Any] = benchmark.pedantic  # type: ignore[attr-defined]
    assert len(pedantic(next, setup=prepare, rounds=100, warmup_rounds=5)) > 500 * len(VALUE)


@pytest.mark.benchmark(group="state: snapshot")
def test_restore_a_snapshot(benchmark: Benchmark, size: int) -> None:
    log = Log(size)
    chunks = list(log.machine.freeze().slices())

    def restore() -> StateMachine:
        other = StateMachine([KV()])
        other.restore(chunks, log.machine.index)
        return other

    assert benchmark(restore).digest() == log.machine.digest()
