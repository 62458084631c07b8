"""Producers and consumers at raftkv's door in a process of their own: what `amqp_client` is to
RabbitMQ.

    python -m bench.peers.door_client SETUP.json

A producer has a session of its own and one request outstanding; all of them share a
`raftkv.Client`. A TX is one request: the commit that brings its operations. A consumer asks for a
number of messages, and then accepts them in batches, a few requests at a time.
"""

from __future__ import annotations

import asyncio
import base64
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from bench.control import LINE_BYTES_MAX
from bench.txqueue_asked import ConsumeBatches, ProduceBatches, TxqueueTold
from raftkv import Client
from raftkv.errors import RaftkvError

__all__ = ["DoorSetup", "DoorTold"]

TIMEOUT_S: Final = 30.0
ACCEPTS_AT_ONCE: Final = 4
"""Of one consumer: as many connections for 16 of them as the client keeps."""


class DoorSetup(msgspec.Struct, frozen=True):
    """The process's file: the door that is asked."""

    endpoint: str


class DoorTold(TxqueueTold, frozen=True, kw_only=True):
    """The answer; `error`: it could not be done."""

    error: str = ""


class _Failed(Exception):
    """The door answered what it should not."""


class _Door:
    def __init__(self, client: Client, endpoint: str) -> None:
        self._client = client
        self._endpoint = endpoint

    async def ask(self, method: Literal["POST", "DELETE"], path: str, body: Any = None) -> Any:
        """What the door answers. Raises `_Failed`, RaftkvError."""
        answer = await self._client.call(
            method, f"/v1/txqueue/{path}", body, at=self._endpoint, timeout_s=TIMEOUT_S
        )
        if answer.status != 200:
            raise _Failed(f"{method} {path}: {answer.status} {answer.body}")
        return answer.body

    async def open(self, kind: str, count: int) -> list[dict[str, Any]]:
        return [await self.ask("POST", "sessions", {"kind": kind}) for _ in range(count)]

    async def close(self, sessions: list[dict[str, Any]]) -> None:
        for each in sessions:
            await self.ask("DELETE", f"sessions/{each['session']}")


async def _produce(door: _Door, asked: ProduceBatches) -> DoorTold:
    body = base64.b64encode(b"v" * asked.value_bytes).decode()
    messages = [{"body": body}] * asked.batch
    request = {
        "operations": [{"publish": asked.queue, "messages": messages}],
        "timeout_s": TIMEOUT_S,
    }
    sessions = await door.open("tx", asked.producers)
    took_us: list[int] = []
    answers: Counter[str] = Counter()
    late = published = 0
    first_s = time.perf_counter()
    until_s = first_s + asked.seconds

    async def producer(txid: str) -> None:
        nonlocal late, published
        began_s = time.perf_counter()
        while began_s < until_s and not 0 < asked.most <= published:
            answer = await door.ask("POST", f"tx/{txid}/commit", request)
            ended_s = time.perf_counter()
            if answer["state"] == "committed":
                took_us.append(round((ended_s - began_s) * 1e6))
                late += ended_s > until_s
                published += asked.batch
            else:
                answers[answer["state"]] += 1
            txid, began_s = answer["next"], ended_s

    await asyncio.gather(*(producer(each["txid"]) for each in sessions))
    seconds = time.perf_counter() - first_s
    await door.close(sessions)
    return DoorTold(
        took_us=took_us, late=late, answers=dict(answers), messages=published, seconds=seconds
    )


async def _consume(door: _Door, asked: ConsumeBatches) -> DoorTold:
    sessions = await door.open("plain", asked.consumers)
    taken = 0

    async def get(session: str) -> list[int]:
        wanted = {"queue": asked.queue, "count": max(1, asked.prefetch // 2), "wait_s": 0}
        answer = await door.ask("POST", f"sessions/{session}/get", wanted)
        return [each["seq"] for each in answer["messages"]]

    async def accept(session: str, seqs: list[int], free: asyncio.Semaphore) -> None:
        async with free:
            await door.ask(
                "POST",
                f"sessions/{session}/settle",
                {"queue": asked.queue, "seqs": seqs, "how": "accept"},
            )

    async def consumer(session: str) -> None:
        nonlocal taken
        free = asyncio.Semaphore(ACCEPTS_AT_ONCE)
        seqs = await get(session)
        while seqs:
            taken += len(seqs)
            coming = asyncio.ensure_future(get(session))
            parts = (
                seqs[first : first + asked.batch] for first in range(0, len(seqs), asked.batch)
            )
            await asyncio.gather(*(accept(session, part, free) for part in parts))
            seqs = await coming

    began_s = time.perf_counter()
    await asyncio.gather(*(consumer(each["session"]) for each in sessions))
    seconds = time.perf_counter() - began_s
    await door.close(sessions)
    return DoorTold(messages=taken, seconds=seconds)


async def _run(setup: DoorSetup) -> None:
    reader = asyncio.StreamReader(limit=LINE_BYTES_MAX)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    decode = msgspec.json.Decoder(ProduceBatches | ConsumeBatches).decode
    # Retries are the caller's to make here: a commit is decided once, whoever repeats it.
    async with Client(setup.endpoint, exactly_once=False, connections_max=1024) as client:
        door = _Door(client, setup.endpoint)
        _say(DoorTold())
        while line := await reader.readline():
            asked = decode(line)
            try:
                produce = isinstance(asked, ProduceBatches)
                told = await (_produce(door, asked) if produce else _consume(door, asked))
            except (RaftkvError, _Failed) as error:
                told = DoorTold(error=f"{type(error).__name__}: {error}")
            _say(told)


def _say(told: DoorTold) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(told) + b"\n")
    sys.stdout.buffer.flush()


def main() -> int:
    """Answer to the end of the standard input."""
    import uvloop

    setup = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=DoorSetup)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_run(setup))
    return 0


if __name__ == "__main__":
    sys.exit(main())
