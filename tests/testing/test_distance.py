"""The proxy between real processes: what it delays, what it loses, what it keeps in order.

Times are compared with the delay that was asked for as a lower bound only: a slow machine makes
everything later, and nothing earlier.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from raftkv.testing.distance import BUFFER_BYTES, Distance

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while chunk := await reader.read(65536):
            writer.write(chunk)
            await writer.drain()
    except OSError:
        pass  # cut
    finally:
        writer.close()


@asynccontextmanager
async def far(serve: Serve, *, delay_s: float = 0.0) -> AsyncIterator[Distance]:
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    distance = Distance("127.0.0.1", server.sockets[0].getsockname()[1], delay_s=delay_s)
    await distance.start()
    try:
        yield distance
    finally:
        await distance.close()
        server.close()


async def exchange(distance: Distance) -> bytes | None:
    """One byte there and back on a new connection; None: it was reset."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", distance.port)
        writer.write(b"c")
        answer = await reader.readexactly(1)
        writer.close()
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    return answer


def run(main: Awaitable[None]) -> None:
    asyncio.run(asyncio.wait_for(main, 30))


def test_both_directions_are_delayed_and_nothing_is_changed() -> None:
    async def main() -> None:
        async with far(echo, delay_s=0.05) as distance:
            reader, writer = await asyncio.open_connection("127.0.0.1", distance.port)
            began = time.monotonic()
            writer.write(b"hello")
            assert await reader.readexactly(5) == b"hello"
            assert time.monotonic() - began >= 0.1
            writer.close()

    run(main())


def test_a_delay_costs_no_throughput() -> None:
    """A hundred small pieces in one go: they arrive one delay later, not a hundred delays."""

    async def main() -> None:
        async with far(echo, delay_s=0.2) as distance:
            reader, writer = await asyncio.open_connection("127.0.0.1", distance.port)
            began = time.monotonic()
            for _ in range(100):
                writer.write(b"x" * 100)
                await asyncio.sleep(0)
            await reader.readexactly(10_000)
            assert 0.4 <= time.monotonic() - began < 100 * 0.2
            writer.close()

    run(main())


def test_order_and_content_survive_a_change_of_delay() -> None:
    async def main() -> None:
        async with far(echo, delay_s=0.1) as distance:
            reader, writer = await asyncio.open_connection("127.0.0.1", distance.port)
            sent = b"".join(hashlib.sha256(b"%d" % n).digest() for n in range(20_000))
            half = len(sent) // 2
            writer.write(sent[:half])
            await writer.drain()
            distance.delay_s = 0.0
            writer.write(sent[half:])
            writer.write_eof()
            assert await reader.read(-1) == sent
            assert distance.passed == 2 * len(sent)
            writer.close()

    run(main())


def test_a_cut_resets_what_is_open_and_refuses_what_is_new() -> None:
    async def main() -> None:
        async with far(echo) as distance:
            reader, writer = await asyncio.open_connection("127.0.0.1", distance.port)
            writer.write(b"a")
            assert await reader.readexactly(1) == b"a"
            distance.cut()
            with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                await reader.readexactly(1)
            assert await exchange(distance) is None
            distance.heal()
            assert await exchange(distance) == b"c"
            writer.close()

    run(main())


def test_a_muted_way_is_silent_and_loses_nothing() -> None:
    async def main() -> None:
        async with far(echo) as distance:
            reader, writer = await asyncio.open_connection("127.0.0.1", distance.port)
            distance.mute()
            writer.write(b"later")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(reader.readexactly(5), 0.1)
            assert distance.open_connections == 1
            distance.heal()
            assert await reader.readexactly(5) == b"later"
            writer.close()

    run(main())


def test_a_target_that_does_not_read_stops_the_sender() -> None:
    """What is on its way is bounded: the proxy is no store."""

    async def main() -> None:
        release = asyncio.Event()

        async def deaf(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await release.wait()
            writer.close()

        async with far(deaf) as distance:
            _, writer = await asyncio.open_connection("127.0.0.1", distance.port)
            sent = 0
            try:
                while sent < 8 * BUFFER_BYTES:
                    writer.write(b"x" * 1_000_000)
                    sent += 1_000_000
                    await asyncio.wait_for(writer.drain(), 1)
            except TimeoutError:
                pass  # the sender was stopped
            assert sent < 4 * BUFFER_BYTES
            release.set()
            writer.transport.abort()

    run(main())


def test_one_side_may_end_and_still_be_answered() -> None:
    async def main() -> None:
        async def answer_at_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            said = await reader.read(-1)
            writer.write(said.upper())
            writer.close()

        async with far(answer_at_end, delay_s=0.01) as distance:
            reader, writer = await asyncio.open_connection("127.0.0.1", distance.port)
            writer.write(b"end")
            writer.write_eof()
            assert await reader.read(-1) == b"END"
            writer.close()

    run(main())
