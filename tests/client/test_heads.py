"""The head of an answer is bounded: what answers at an endpoint need not be a node."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from raftkv.client.http import HEAD_BYTES_MAX, Excess, HttpEndpoint

Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]
BEGIN = b"HTTP/1.1 200 OK\r\n"


async def asked(answer: Answer) -> int:
    """The status that a client gets from a server that answers like this."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        try:
            await answer(writer)
        except ConnectionError:
            pass  # the client has hung up, as it should
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        endpoint = HttpEndpoint(f"http://127.0.0.1:{port}")
        try:
            deadline = asyncio.get_running_loop().time() + 20
            return (await endpoint.request(b"GET", b"/version", deadline=deadline)).status
        finally:
            endpoint.close()


async def endless_headers(writer: asyncio.StreamWriter) -> None:
    writer.write(BEGIN)
    while True:
        writer.write(b"x-filler: " + b"a" * 10_000 + b"\r\n")
        await writer.drain()


async def one_endless_header(writer: asyncio.StreamWriter) -> None:
    writer.write(BEGIN + b"x-filler: ")
    while True:
        writer.write(b"a" * 10_000)
        await writer.drain()


async def endless_words_before(writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n" * 400)
        await writer.drain()


async def endless_trailers(writer: asyncio.StreamWriter) -> None:
    writer.write(BEGIN + b"transfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n")
    while True:
        writer.write(b"x-filler: " + b"a" * 10_000 + b"\r\n")
        await writer.drain()


@pytest.mark.parametrize(
    "answer", [endless_headers, one_endless_header, endless_words_before, endless_trailers]
)
def test_a_head_without_end_is_given_up(answer: Answer) -> None:
    with pytest.raises(Excess, match=f"head of the answer exceeds {HEAD_BYTES_MAX} bytes"):
        asyncio.run(asked(answer))


def test_bodies_do_not_count() -> None:
    async def answer(writer: asyncio.StreamWriter) -> None:
        size = 5 * HEAD_BYTES_MAX
        head = BEGIN + b"x-filler: " + b"a" * 5_000 + b"\r\ncontent-length: %d\r\n\r\n" % size
        writer.write(head + b"x" * size)
        await writer.drain()

    assert asyncio.run(asked(answer)) == 200


def test_chunks_of_a_byte_do_not_count() -> None:
    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(BEGIN + b"transfer-encoding: chunked\r\n\r\n")
        writer.write(b"1\r\nx\r\n" * HEAD_BYTES_MAX + b"0\r\n\r\n")
        await writer.drain()

    assert asyncio.run(asked(answer)) == 200
