"""What a forked child keeps of its parent's nodes: neither lock nor ports nor connections."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

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
