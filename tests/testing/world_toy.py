"""A toy for test_world.py: a counter replicated from one host to the others by ping and pong.

Not a consensus protocol: the first host is the primary for ever. It keeps its count on disk, sends
it to every other host on a stream of length-prefixed frames, and counts on when all have answered.
Each replica keeps what it has acknowledged. What must hold through all faults: nobody forgets what
it has acknowledged, and after healing the count goes on. Also runs as a program, `SEED`, and prints
the digest of its trace.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import sys

from raftkv.runtime import File
from raftkv.testing.nemesis import Nemesis
from raftkv.testing.runtime import SimRuntime
from raftkv.testing.world import World

PORT = 7000
NAMES = ("a", "b", "c")
RETRY_S = 0.2
ANSWER_TIMEOUT_S = 1.0


def frame(number: int) -> bytes:
    body = b"%d" % number
    return len(body).to_bytes(2, "big") + body


async def read_frame(reader: asyncio.StreamReader) -> int:
    size = int.from_bytes(await reader.readexactly(2), "big")
    return int(await reader.readexactly(size))


class Store:
    """The largest number that is safe on disk: one line per number, the torn last one ignored."""

    def __init__(self, runtime: SimRuntime) -> None:
        self._runtime = runtime
        files = runtime.files
        files.makedirs("/data")
        self._file: File = files.open("/data/numbers", "a")
        files.sync_dir("/data")
        lines = self._file.pread(0, self._file.size()).split(b"\n")
        self.number = int(lines[-2]) if len(lines) > 1 else 0
        self._file.truncate(self._file.size() - len(lines[-1]))

    async def save(self, number: int) -> None:
        await self._runtime.offload(self._save, number)
        self.number = number

    def _save(self, number: int) -> None:
        self._file.write(b"%d\n" % number)
        self._file.datasync()


async def replica(runtime: SimRuntime) -> None:
    """Save what the primary sends, then send it back."""
    store = Store(runtime)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                number = await read_frame(reader)
                assert number <= store.number + 1, f"{number} after {store.number}"
                if number > store.number:
                    await store.save(number)
                writer.write(frame(number))
        writer.close()

    def accept() -> asyncio.StreamReaderProtocol:
        return asyncio.StreamReaderProtocol(asyncio.StreamReader(), serve)

    await runtime.listen(accept, runtime.host, PORT)
    await runtime.future()


async def follow(runtime: SimRuntime, name: str, store: Store, seen: dict[str, int]) -> None:
    """Keep a stream to one replica; send it every number until it has answered."""
    while True:
        reader = asyncio.StreamReader()
        accept = functools.partial(asyncio.StreamReaderProtocol, reader)
        transport: asyncio.Transport | None = None
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            transport = await runtime.connect(accept, name, PORT)
            while True:
                if seen[name] < store.number:
                    transport.write(frame(store.number))
                    async with asyncio.timeout(ANSWER_TIMEOUT_S):
                        seen[name] = await read_frame(reader)
                else:
                    await runtime.sleep(0.001)
        if transport is not None:
            transport.abort()
        await runtime.sleep(runtime.rng.uniform(0, RETRY_S))


async def primary(runtime: SimRuntime) -> None:
    """Count on whenever every replica has acknowledged the number before."""
    store = Store(runtime)
    seen = dict.fromkeys(NAMES[1:], 0)
    for name in seen:
        runtime.spawn(follow(runtime, name, store, seen), f"follow {name}")
    while True:
        if all(number == store.number for number in seen.values()):
            await store.save(store.number + 1)
        await runtime.sleep(0.001)


def number_on(world: World, name: str) -> int:
    """What a host's disk holds now."""
    lines = world.host(name).disk.open("/data/numbers", "r")
    numbers = lines.pread(0, lines.size()).split(b"\n")
    return int(numbers[-2]) if len(numbers) > 1 else 0


def storm(seed: int, seconds: float) -> tuple[str, dict[str, int], dict[str, int]]:
    """One run under faults: (digest of the trace, counts of faults, numbers at the end)."""
    with World(seed) as world:
        world.start("a", primary)
        for name in NAMES[1:]:
            world.start(name, replica)
        world.run(1)
        nemesis = Nemesis(world, NAMES)
        nemesis.run(seconds)
        reached = number_on(world, "a")
        assert reached > 1, "nothing happened under faults"
        world.wait(
            lambda: min(number_on(world, name) for name in NAMES) > reached,
            timeout_s=30,
            what="progress after healing",
        )
        numbers = {name: number_on(world, name) for name in NAMES}
        assert max(numbers.values()) - min(numbers.values()) <= 1
        return world.trace.digest(), nemesis.counts, numbers


if __name__ == "__main__":
    print(storm(int(sys.argv[1]), 10)[0])
