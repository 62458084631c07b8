"""The proxy between the nodes: what is delivered, delayed, held back and cut."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from bench.chaos.proxy import ANYBODY, Network

TIMEOUT_S = 10.0


class Connection:
    """A connection from a to b through the proxy, with both ends in the test's hands."""

    def __init__(
        self,
        near: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        far: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        self.near_reader, self.near = near
        self.far_reader, self.far = far


@asynccontextmanager
async def world() -> AsyncIterator[tuple[Network, Callable[[], Awaitable[Connection]]]]:
    """Nodes a and b; b listens. Gives the network and how to connect."""
    accepted: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await accepted.put((reader, writer))

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    network = Network()
    network.sources = {"a": "127.0.0.1"}
    network.addresses["b"] = "127.0.0.1", server.sockets[0].getsockname()[1]
    host, _, port = (await network.listen("b")).rpartition(":")
    writers: list[asyncio.StreamWriter] = []

    async def connect() -> Connection:
        near = await asyncio.open_connection(host, int(port))
        far = await accepted.get()
        writers.extend((near[1], far[1]))
        return Connection(near, far)

    try:
        async with asyncio.timeout(TIMEOUT_S):
            yield network, connect
    finally:
        network.close()
        server.close()
        for writer in writers:
            writer.close()


async def turns() -> None:
    """Long enough for the loop to move what may move; nothing is asserted on its length."""
    for _ in range(50):
        await asyncio.sleep(0.001)


def test_both_directions_are_delivered_and_counted() -> None:
    async def whole() -> None:
        async with world() as (network, connect):
            link = await connect()
            link.near.write(b"there")
            assert await link.far_reader.readexactly(5) == b"there"
            link.far.write(b"back")
            assert await link.near_reader.readexactly(4) == b"back"
            assert (network.flow("a", "b").bytes, network.flow("b", "a").bytes) == (5, 4)
            assert network.evidence() == 0

    asyncio.run(whole())


def test_a_silent_direction_delivers_in_order_after_healing_and_the_other_one_at_once() -> None:
    async def whole() -> None:
        async with world() as (network, connect):
            link = await connect()
            network.set_state("a", "b", "silent")
            link.near.write(b"1")
            await turns()
            link.near.write(b"2")
            link.far.write(b"back")
            assert await link.near_reader.readexactly(4) == b"back"
            while network.flow("a", "b").bytes_held < 2:
                await asyncio.sleep(0.001)
            reading = asyncio.create_task(link.far_reader.readexactly(2))
            await turns()
            assert not reading.done()
            assert network.evidence() == 2
            network.heal()
            assert await reading == b"12"

    asyncio.run(whole())


def test_an_end_is_held_back_too_and_comes_behind_the_bytes() -> None:
    async def whole() -> None:
        async with world() as (network, connect):
            link = await connect()
            network.set_state("a", "b", "silent")
            link.near.write(b"last words")
            link.near.close()
            reading = asyncio.create_task(link.far_reader.read())
            await turns()
            assert not reading.done()
            network.heal()
            assert await reading == b"last words"

    asyncio.run(whole())


def test_through_a_silent_link_no_connection_is_made_until_it_heals() -> None:
    async def whole() -> None:
        async with world() as (network, connect):
            network.set_state("b", "a", "silent")
            connecting = asyncio.create_task(_connected(connect))
            await turns()
            assert not connecting.done()
            network.heal()
            link = await connecting
            link.near.write(b"x")
            assert await link.far_reader.readexactly(1) == b"x"

    asyncio.run(whole())


async def _connected(connect: Callable[[], Awaitable[Connection]]) -> Connection:
    return await connect()


def test_a_cut_resets_connections_and_refuses_new_ones() -> None:
    async def whole() -> None:
        async with world() as (network, connect):
            link = await connect()
            network.separate(["a"], ["b"], "cut")
            assert await _ended(link.near_reader)
            assert await _ended(link.far_reader)
            connecting = asyncio.create_task(_connected(connect))
            await turns()
            assert not connecting.done(), "the node behind the cut accepted a connection"
            connecting.cancel()
            assert network.evidence() >= 2
            network.heal()
            link = await connect()
            link.near.write(b"x")
            assert await link.far_reader.readexactly(1) == b"x"

    asyncio.run(whole())


async def _ended(reader: asyncio.StreamReader) -> bool:
    try:
        return await reader.read() == b""
    except ConnectionError:
        return True


@pytest.mark.parametrize(("delay_s", "rate"), [(0.05, 0.0), (0.0, 200.0)])
def test_a_slow_direction_is_slow_and_keeps_the_order(delay_s: float, rate: float) -> None:
    async def whole() -> None:
        async with world() as (network, connect):
            link = await connect()
            network.slow_down("a", "b", delay_s, rate)
            began = asyncio.get_running_loop().time()
            for number in range(10):
                link.near.write(b"%d" % number)
                await asyncio.sleep(0)
            assert await link.far_reader.readexactly(10) == b"0123456789"
            assert asyncio.get_running_loop().time() - began >= 0.045
            assert network.flow("a", "b").bytes_delayed == 10

    asyncio.run(whole())


def test_who_is_not_known_by_name_is_treated_as_its_target_is() -> None:
    network = Network()
    network.sources = {"a": "127.0.0.11"}
    assert (network.who("127.0.0.11"), network.who("127.0.0.1")) == ("a", ANYBODY)
    network.separate(["a"], ["b"], "silent")
    assert network.flow(ANYBODY, "b").state == "silent"
    assert network.flow("b", ANYBODY).state == "silent"
    network.heal()
    assert network.flow(ANYBODY, "b").state == "open"
