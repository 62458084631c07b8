"""TCP streams on both event loops, of which a forked child keeps none."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from typing import Any

import pytest

from raftkv.streams import OsStreams
from tests.forked import LOOPS, family_of, in_child, is_socket, listening, run

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="for systems with fork")


class Resolving:
    """An event loop with other names; uvloop's takes no attributes."""

    def __init__(self, loop: asyncio.AbstractEventLoop, getaddrinfo: Any) -> None:
        self._loop, self.getaddrinfo = loop, getaddrinfo

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)


@pytest.mark.parametrize("loop", LOOPS)
def test_a_connection_to_another_node_is_not_kept(loop: str) -> None:
    async def main() -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        streams = OsStreams(asyncio.get_running_loop())
        transport = await streams.connect(asyncio.Protocol, *listener.getsockname())
        found = transport.get_extra_info("socket")
        assert found.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        number = found.fileno()
        assert streams.descriptors() == [number]
        assert in_child(lambda: is_socket(number)) == "False"
        transport.abort()
        while streams.descriptors():  # the number may be of another file by then
            await asyncio.sleep(0)
        listener.close()

    run(loop, main())


@pytest.mark.parametrize("loop", LOOPS)
def test_a_connection_under_way_is_not_kept(loop: str) -> None:
    """To a listener whose queue is full, which takes it later."""

    async def main() -> None:
        with contextlib.ExitStack() as opened:
            listener = opened.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
            for _ in range(3):
                filling = opened.enter_context(socket.socket())
                filling.setblocking(False)
                filling.connect_ex(listener.getsockname())
            streams = OsStreams(asyncio.get_running_loop())
            connect = streams.connect(asyncio.Protocol, *listener.getsockname())
            connecting = asyncio.create_task(connect)
            for _ in range(1000):
                if not streams.descriptors():
                    await asyncio.sleep(0)
            (number,) = streams.descriptors()
            assert in_child(lambda: is_socket(number)) == "False"
            assert not connecting.done()
            connecting.cancel()
            await asyncio.wait([connecting])
            assert connecting.cancelled()
            with pytest.raises(OSError, match="Bad file descriptor"):
                os.fstat(number)

    run(loop, main())


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "two.example"])
def test_a_connection_goes_to_the_address_that_takes_it(
    host: str, loop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a name with several, here: the first of another family, where no node listens."""

    async def main() -> None:
        family = family_of(host)
        with socket.create_server(("" if "." in host else host, 0), family=family) as listener:
            port = listener.getsockname()[1]
            streams = OsStreams(asyncio.get_running_loop())

            async def resolved(host: str, port: int, **_: Any) -> list[Any]:
                return [
                    (each, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (address, port))
                    for each, address in (
                        (socket.AF_INET6, "::1"),
                        (socket.AF_INET, "127.0.0.1"),
                    )
                ]

            monkeypatch.setattr(streams, "_loop", Resolving(streams._loop, resolved))
            transport = await streams.connect(asyncio.Protocol, host, port)
            reached = "127.0.0.1" if host == "two.example" else host
            assert transport.get_extra_info("peername")[:2] == (reached, port)
            assert len(streams.descriptors()) == 1
            transport.abort()

    run(loop, main())


@pytest.mark.parametrize("loop", LOOPS)
def test_a_port_is_not_kept_from_its_first_moment(loop: str) -> None:
    async def main() -> None:
        streams = OsStreams(asyncio.get_running_loop())
        opening = asyncio.create_task(streams.listen(asyncio.Protocol, "127.0.0.1", 0))
        while not opening.done():
            assert in_child(listening) == "[]"
            await asyncio.sleep(0)
        assert opening.result().port in listening()
        assert in_child(listening) == "[]"
        opening.result().close()

    run(loop, main())


@pytest.mark.parametrize("loop", LOOPS)
def test_a_connection_that_outlives_its_listener_is_not_kept(loop: str) -> None:
    """What is still to be sent goes out after a node has closed its port."""

    class Peer(asyncio.Protocol):
        def __init__(self) -> None:
            self.made = asyncio.get_running_loop().create_future()
            self.received = asyncio.get_running_loop().create_future()

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self.made.set_result(transport)

        def data_received(self, data: bytes) -> None:
            self.received.set_result(data)

    async def main() -> None:
        streams, peer = OsStreams(asyncio.get_running_loop()), Peer()
        listener = await streams.listen(lambda: peer, "127.0.0.1", 0)
        with socket.create_connection(("127.0.0.1", listener.port), timeout=30) as client:
            transport = await peer.made
            number = transport.get_extra_info("socket").fileno()
            listener.close()
            assert in_child(lambda: is_socket(number)) == "False"
            client.sendall(b"data")
            assert await peer.received == b"data"
            assert streams.descriptors() == [number]
            transport.abort()
            while streams.descriptors():
                await asyncio.sleep(0)

    run(loop, main())
