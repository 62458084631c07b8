"""What a forked child keeps of its parent's nodes: neither lock nor ports nor connections."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
import stat
import sys
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop

from raftkv import fork
from raftkv.streams import OsStreams

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="for systems with fork")


LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


def run(loop: str, main: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(main)


class Resolving:
    """An event loop with other names; uvloop's takes no attributes."""

    def __init__(self, loop: asyncio.AbstractEventLoop, getaddrinfo: Any) -> None:
        self._loop, self.getaddrinfo = loop, getaddrinfo

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)


class Holder:
    def __init__(self, *sockets: socket.socket) -> None:
        self.sockets = sockets
        fork.not_for_children(self)

    def descriptors(self) -> list[int]:
        return [each.fileno() for each in self.sockets]


@pytest.fixture
def child() -> Iterator[Callable[[], None]]:
    """A child that lives until the test has ended."""
    read, write = os.pipe()
    children = []

    def start() -> None:
        ready = os.pipe()
        number = os.fork()
        if number == 0:
            os.close(write)
            os.write(ready[1], b"x")
            os.read(read, 1)
            os._exit(0)
        children.append(number)
        assert os.read(ready[0], 1) == b"x"
        for each in ready:
            os.close(each)

    yield start
    os.close(write)
    for number in children:
        assert os.waitpid(number, 0)[1] == 0
    os.close(read)


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "::1", "::"])
def test_a_connection_that_no_code_knows_yet_is_not_kept(
    host: str, child: Callable[[], None]
) -> None:
    """The system accepts it in another thread; a fork came before the loop's first callback."""
    listener = socket.create_server((host, 0), family=_family(host), reuse_port=False)
    reached = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    client = socket.create_connection((reached, listener.getsockname()[1]), timeout=30)
    accepted, _ = listener.accept()
    other = socket.create_server((host, 0), family=_family(host))
    unrelated = socket.create_connection((reached, other.getsockname()[1]), timeout=30)
    served, _ = other.accept()
    holder = Holder(listener)
    child()
    accepted.close()
    assert client.recv(1) == b"", "the child keeps the connection"
    served.close()
    unrelated.settimeout(0.2)
    with pytest.raises(TimeoutError):  # what is not of a node stays the child's
        unrelated.recv(1)
    del holder
    for each in (listener, other, client, unrelated):
        each.close()


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def in_child(report: Callable[[], object]) -> str:
    """What the function gives in a child, as text."""
    read, write = os.pipe()
    number = os.fork()
    if number == 0:
        try:
            text = repr(report())
        except BaseException as error:
            text = repr(error)
        os.write(write, text.encode())
        os._exit(0)
    os.close(write)
    with open(read, "rb") as answer:
        text = answer.read().decode()
    assert os.waitpid(number, 0)[1] == 0
    return text


def is_socket(number: int) -> bool:
    return stat.S_ISSOCK(os.fstat(number).st_mode)


def test_other_sockets_on_the_number_of_the_port_stay_the_childs() -> None:
    """UDP has ports of its own, and so has IPv6."""
    with contextlib.ExitStack() as opened:
        listener = opened.enter_context(socket.create_server(("0.0.0.0", 0)))
        port = listener.getsockname()[1]
        holder = Holder(listener)
        datagrams = opened.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        datagrams.bind(("127.0.0.1", port))
        other = opened.enter_context(socket.create_server(("::1", port), family=socket.AF_INET6))
        opened.enter_context(socket.create_connection(("::1", port), timeout=30))
        served = opened.enter_context(other.accept()[0])
        numbers = [each.fileno() for each in (datagrams, other, served)]
        assert in_child(lambda: [is_socket(each) for each in numbers]) == "[True, True, True]"
        assert in_child(lambda: is_socket(listener.fileno())) == "False"
        del holder


def test_without_a_free_descriptor_a_child_keeps_nothing() -> None:
    """The known files and the accepted connections alike."""
    listener = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(listener.getsockname(), timeout=30)
    accepted, _ = listener.accept()
    holder = Holder(listener)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    def kept() -> list[bool]:
        return [is_socket(each.fileno()) for each in (listener, accepted, client)]

    read, write = os.pipe()
    held = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(read, write) + 8, hard))
    try:
        with contextlib.suppress(OSError):
            while True:
                held.append(os.dup(read))
        assert held
        child = os.fork()
        if child == 0:
            os.write(write, repr(kept()).encode())
            os._exit(0)
    finally:
        for number in held:
            os.close(number)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert os.waitpid(child, 0)[1] == 0
    assert os.read(read, 100) == b"[False, False, True]"
    del holder
    for each in (listener, client, accepted):
        each.close()
    os.close(read)
    os.close(write)


def test_without_a_null_device_a_child_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a chroot, say."""
    monkeypatch.setattr(os, "devnull", "/nonexistent/null")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        holder = Holder(listener)
        assert "Bad file descriptor" in in_child(lambda: os.fstat(listener.fileno()))
        del holder


def test_a_holder_that_fails_leaves_the_others_to_be_released(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Broken:
        def descriptors(self) -> list[int]:
            raise ValueError("it cannot say")

    seen: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", seen.append)
    broken = [Broken(), Broken()]
    with socket.create_server(("127.0.0.1", 0)) as listener:
        fork.not_for_children(broken[0])
        holder = Holder(listener)
        fork.not_for_children(broken[1])
        try:
            assert in_child(lambda: is_socket(listener.fileno())) == "False"
            errors = in_child(lambda: [repr(each) for each in seen[0].exc_value.exceptions])
            assert errors.count("it cannot say") == 2
        finally:
            broken.clear()
        del holder


def test_a_child_of_the_child_keeps_its_own_files(tmp_path: Path) -> None:
    """A daemon closes all numbers and opens files of its own, which get the numbers of the node."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        holder = Holder(listener)
        number = listener.fileno()
        path = tmp_path / "log"

        def child() -> str:
            os.close(number)
            file = os.open(path, os.O_RDWR | os.O_CREAT)
            os.dup2(file, number)
            return in_child(lambda: os.write(number, b"a line"))

        assert in_child(child) == repr("6")
        assert path.read_bytes() == b"a line"
        del holder


def test_a_child_releases_what_it_opened_itself_in_its_own_child() -> None:
    def child() -> str:
        with socket.create_server(("127.0.0.1", 0)) as own:
            holder = Holder(own)
            text = in_child(lambda: is_socket(own.fileno()))
            assert holder.descriptors() == [own.fileno()]
            return text

    with socket.create_server(("127.0.0.1", 0)) as listener:
        holder = Holder(listener)
        assert in_child(child) == repr("False")
        del holder


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
        family = _family(host)
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


def listening() -> list[int]:
    """The ports on which this process listens."""
    ports = []
    for name in os.listdir("/dev/fd"):
        with contextlib.suppress(OSError):
            with socket.socket(fileno=os.dup(int(name))) as found:
                if found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    ports.append(found.getsockname()[1])
    return ports


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


def test_a_listener_that_is_closed_holds_nothing_up(child: Callable[[], None]) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    holder = Holder(listener)
    listener.close()
    child()
    assert holder.descriptors() == [-1]
