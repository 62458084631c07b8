"""What a forked child keeps of its parent's nodes: neither lock nor ports nor connections."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import stat
from collections.abc import Callable, Iterator

import pytest

from raftkv import fork
from raftkv.runtime import OsRuntime

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="for systems with fork")


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


def test_a_connection_to_another_node_is_not_kept(child: Callable[[], None]) -> None:
    async def main() -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        runtime = OsRuntime()
        transport = await runtime.connect(asyncio.Protocol, *listener.getsockname())
        accepted, _ = listener.accept()
        accepted.settimeout(30)
        child()
        transport.close()
        closed = asyncio.get_running_loop().run_in_executor(None, accepted.recv, 1)
        assert await closed == b"", "the child keeps the connection"
        runtime.close()
        accepted.close()
        listener.close()

    asyncio.run(main())


def test_a_listener_that_is_closed_holds_nothing_up(child: Callable[[], None]) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    holder = Holder(listener)
    listener.close()
    child()
    assert holder.descriptors() == [-1]
