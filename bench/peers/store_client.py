"""A Python program that uses a store over the network, in a process of its own.

    python -m bench.peers.store_client SETUP.json

One process, one event loop or connection thread, so many calls at once, each caller with one
outstanding: `kazoo` at a server of ZooKeeper, `raftkv.Client` at a door. One JSON object a line on
the standard input and output, one answer for each request; the first comes unasked.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import statistics
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

__all__ = ["Answer", "Asked", "Setup", "Word", "main"]

Word = Literal["put", "get", "get-local", "swap"]
#: Shared, and of each caller.
KEY: Final = "k%d"
OWN: Final = "own%d"
# Beyond the time of the load.
GRACE_S: Final = 30.0


class Setup(msgspec.Struct, frozen=True):
    """The process's file: which client, and where its server is."""

    client: Literal["kazoo", "raftkv"]
    address: str


class Asked(msgspec.Struct, frozen=True):
    """So many callers for so long, on random keys of `keys`; "swap": each on a key of its own.

    With `make` the keys are made first, and nothing is measured.
    """

    word: Word
    keys: int
    value_bytes: int
    seconds: float
    in_flight: int
    make: bool = False


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """`failed`: calls that were refused, or not answered in time."""

    error: str = ""
    done: int = 0
    failed: int = 0
    seconds: float = 0.0
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    cpu_s: float = 0.0


class Tally:
    """What callers count; asked by one thread at a time."""

    def __init__(self, seconds: float) -> None:
        self.took_s: list[float] = []
        self.failed = 0
        self._cpu_s = time.process_time()
        self._began_s = time.perf_counter()
        self.until_s = self._began_s + seconds

    def answer(self) -> Answer:
        seconds = time.perf_counter() - self._began_s
        took = sorted(self.took_s)
        return Answer(
            done=len(took),
            failed=self.failed,
            seconds=seconds,
            p50_ms=statistics.median(took) * 1000 if took else 0.0,
            p99_ms=took[int(len(took) * 0.99)] * 1000 if took else 0.0,
            cpu_s=time.process_time() - self._cpu_s,
        )


class Side(ABC):
    """A connected client."""

    @abstractmethod
    def make(self, names: list[str], value: bytes) -> None:
        """Have these keys."""

    @abstractmethod
    def measure(self, asked: Asked, value: bytes) -> Answer:
        """Let the callers call."""

    @abstractmethod
    def close(self) -> None: ...


class Kazoo(Side):
    """Its calls are answered on a thread of its own, which makes the next one at once."""

    def __init__(self, address: str) -> None:
        from kazoo.client import KazooClient

        self._client = KazooClient(hosts=address, timeout=30.0)
        self._client.start(timeout=GRACE_S)

    def make(self, names: list[str], value: bytes) -> None:
        from kazoo.exceptions import NodeExistsError

        for answer in [self._client.create_async(f"/{name}", value) for name in names]:
            try:
                answer.get(timeout=GRACE_S)
            except NodeExistsError:
                continue

    def measure(self, asked: Asked, value: bytes) -> Answer:
        tally = Tally(asked.seconds)
        running = asked.in_flight
        ended = threading.Event()

        def caller(number: int) -> None:
            call = self._call(asked, value, number)

            def once() -> None:
                sent_s = time.perf_counter()

                def answered(answer: Any) -> None:
                    nonlocal running
                    now_s = time.perf_counter()
                    if answer.exception is not None:
                        tally.failed += 1
                    else:
                        tally.took_s.append(now_s - sent_s)
                        if now_s < tally.until_s:
                            once()
                            return
                    running -= 1
                    if not running:
                        ended.set()

                call(answered)

            once()

        for number in range(asked.in_flight):
            caller(number)
        if not ended.wait(asked.seconds + GRACE_S):
            tally.failed += running
        return tally.answer()

    def _call(
        self, asked: Asked, value: bytes, number: int
    ) -> Callable[[Callable[[Any], None]], None]:
        """A function that makes one call, and has the other one called with its answer."""
        client, chance, keys = self._client, random.Random(number), asked.keys

        def put(answered: Callable[[Any], None]) -> None:
            client.set_async("/" + KEY % chance.randrange(keys), value).rawlink(answered)

        def get_local(answered: Callable[[Any], None]) -> None:
            client.get_async("/" + KEY % chance.randrange(keys)).rawlink(answered)

        def get(answered: Callable[[Any], None]) -> None:
            path = "/" + KEY % chance.randrange(keys)
            # A server answers in order: both can be on their way.
            client.sync_async(path)
            client.get_async(path).rawlink(answered)

        own = "/" + OWN % number
        version = client.exists(own).version if asked.word == "swap" else 0

        def swap(answered: Callable[[Any], None]) -> None:
            def seen(answer: Any) -> None:
                nonlocal version
                if answer.exception is None:
                    version = answer.value.version
                answered(answer)

            client.set_async(own, value, version=version).rawlink(seen)

        return {"put": put, "get": get, "get-local": get_local, "swap": swap}[asked.word]

    def close(self) -> None:
        self._client.stop()
        self._client.close()


class Raftkv(Side):
    """Tasks that share a client."""

    def __init__(self, address: str) -> None:
        import uvloop

        from raftkv import Client

        self._runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)

        async def connected() -> Client:
            return Client(address, timeout_s=GRACE_S, connections_max=1024)

        self._client: Client = self._runner.run(connected())

    def make(self, names: list[str], value: bytes) -> None:
        async def work() -> None:
            for name in names:
                await self._client.kv.put(name.encode(), value)

        self._runner.run(work())

    def measure(self, asked: Asked, value: bytes) -> Answer:
        return self._runner.run(self._measure(asked, value))

    async def _measure(self, asked: Asked, value: bytes) -> Answer:
        from raftkv.errors import RaftkvError

        tally = Tally(asked.seconds)

        async def caller(number: int) -> None:
            call = await self._call(asked, value, number)
            began_s = time.perf_counter()
            while began_s < tally.until_s:
                try:
                    await call()
                except RaftkvError:
                    tally.failed += 1
                    return
                ended_s = time.perf_counter()
                tally.took_s.append(ended_s - began_s)
                began_s = ended_s

        await asyncio.gather(*(caller(number) for number in range(asked.in_flight)))
        return tally.answer()

    async def _call(self, asked: Asked, value: bytes, number: int) -> Callable[[], Any]:
        from raftkv.kv import Compare, PutOp

        kv, chance, keys = self._client.kv, random.Random(number), asked.keys

        async def put() -> None:
            await kv.put((KEY % chance.randrange(keys)).encode(), value)

        async def get() -> None:
            await kv.get((KEY % chance.randrange(keys)).encode())

        async def get_local() -> None:
            await kv.get((KEY % chance.randrange(keys)).encode(), consistency="local")

        own = (OWN % number).encode()
        found = await kv.get(own) if asked.word == "swap" else None
        revision = 0 if found is None else found.mod_revision

        async def swap() -> None:
            nonlocal revision
            done = await kv.txn([Compare(own, "mod", "=", revision)], [PutOp(own, value)])
            assert done.succeeded, "a key of one's own"
            revision = done.revision

        return {"put": put, "get": get, "get-local": get_local, "swap": swap}[asked.word]

    def close(self) -> None:
        self._runner.run(self._client.close())
        self._runner.close()


def main() -> int:
    """Run to the end of the standard input."""
    setup = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Setup)
    side: Side = Kazoo(setup.address) if setup.client == "kazoo" else Raftkv(setup.address)
    _say(Answer())
    decode = msgspec.json.Decoder(Asked).decode
    for line in sys.stdin.buffer:
        asked = decode(line)
        value = os.urandom(asked.value_bytes)
        if asked.make:
            shared = (KEY % number for number in range(asked.keys))
            side.make([*itertools.chain(shared, map(OWN.__mod__, range(asked.in_flight)))], value)
            _say(Answer())
        else:
            _say(side.measure(asked, value))
    side.close()
    return 0


def _say(answer: Answer) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    sys.exit(main())
