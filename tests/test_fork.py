"""What a forked child keeps of its parent's nodes: neither lock nor ports nor connections."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import resource
import socket
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from raftkv import NodeConfig, fork
from raftkv.errors import DiskFailed
from raftkv.node import Node
from raftkv.runtime import OsFiles
from raftkv.testing.local_cluster import free_ports
from tests.forked import Holder, family_of, in_child, is_socket, listening, paths

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="for systems with fork")


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
    listener = socket.create_server((host, 0), family=family_of(host), reuse_port=False)
    reached = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    client = socket.create_connection((reached, listener.getsockname()[1]), timeout=30)
    accepted, _ = listener.accept()
    other = socket.create_server((host, 0), family=family_of(host))
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
    # Above all that are open: libuv, which an earlier test may have loaded, closes two of its own
    # in a child, opens two, and aborts if these lie beyond the limit.
    limit = max(int(number) for number in os.listdir("/proc/self/fd")) + 8
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
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


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="for systems with /proc")
def test_a_file_of_a_node_is_not_kept(tmp_path: Path) -> None:
    """A segment that is removed would hold its space as long as a child has it open."""
    files = OsFiles()
    file = files.open(str(tmp_path / "segment"), "w")
    lock = files.lock(str(tmp_path / "lock"))
    assert len(paths(tmp_path)) == 2
    assert in_child(lambda: paths(tmp_path)) == "[]"
    files.remove(str(tmp_path / "segment"))
    assert in_child(lambda: paths(tmp_path)) == "[]"
    file.close()
    lock.release()


def test_the_number_of_a_closed_file_is_the_childs(tmp_path: Path) -> None:
    files = OsFiles()
    closed = [files.open(str(tmp_path / name), "w") for name in "ab"]
    lock = files.lock(str(tmp_path / "lock"))
    with pytest.raises(BlockingIOError):
        files.lock(str(tmp_path / "lock"))
    for each in closed:
        each.close()
    lock.release()
    own = [os.open(tmp_path / name, os.O_RDWR | os.O_CREAT) for name in "cdef"]
    assert in_child(lambda: [os.write(each, b"a line") for each in own]) == "[6, 6, 6, 6]"
    assert {(tmp_path / name).read_bytes() for name in "cdef"} == {b"a line"}
    for number in own:
        os.close(number)


def test_a_directory_that_is_being_synced_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sync(number: int) -> None:
        kept.append(in_child(lambda: stat.S_ISDIR(os.fstat(number).st_mode)))

    kept: list[str] = []
    monkeypatch.setattr(os, "fsync", sync)
    OsFiles().sync_dir(str(tmp_path))
    assert kept == ["False"]


@pytest.mark.parametrize("kind", ["file", "lock"])
def test_a_fork_while_a_file_closes_takes_no_other_file(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread may open one under the number, and fork, before the closing one goes on."""

    def closed(number: int) -> None:
        close(number)
        if number in numbers:
            numbers.clear()
            own.append(os.open(tmp_path / "own", os.O_RDWR | os.O_CREAT))
            assert own == [number]
            kept.append(in_child(lambda: stat.S_ISREG(os.fstat(number).st_mode)))

    close = os.close
    kept: list[str] = []
    own: list[int] = []
    path = str(tmp_path / "closing")
    closing: Any = OsFiles().open(path, "w") if kind == "file" else OsFiles().lock(path)
    numbers = closing.descriptors()
    with monkeypatch.context() as patch:
        patch.setattr(os, "close", closed)
        closing.close() if kind == "file" else closing.release()
    assert kept == ["True"]
    os.close(own[0])


def test_a_lock_that_is_released_is_not_held_by_a_process_that_is_being_started(
    tmp_path: Path,
) -> None:
    """Between fork and exec it has the file, and no Python code runs in it."""
    files = OsFiles()
    lock = files.lock(str(tmp_path / "lock"))
    copy = os.dup(lock.descriptors()[0])
    lock.release()
    files.lock(str(tmp_path / "lock")).release()
    os.close(copy)


def test_a_fork_while_a_lock_is_taken_does_not_keep_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def locked(number: int, operation: int) -> None:
        flock(number, operation)
        kept.append(in_child(lambda: stat.S_ISREG(os.fstat(number).st_mode)))

    flock = fcntl.flock
    kept: list[str] = []
    monkeypatch.setattr(fcntl, "flock", locked)
    lock = OsFiles().lock(str(tmp_path / "lock"))
    assert kept == ["False"]
    lock.release()


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="for systems with /proc")
def test_a_child_keeps_nothing_of_a_whole_node(tmp_path: Path) -> None:
    """Whether it runs, has a fault or has stopped; nor does a program that is run."""
    port, http_port = free_ports(2)
    address = f"127.0.0.1:{port}"

    def kept() -> tuple[list[str], list[int]]:
        return paths(tmp_path), listening()

    async def main() -> None:
        config = NodeConfig(
            name="a",
            dir=str(tmp_path / "a"),
            peer_address=address,
            cores={"a": address},
            http_address=f"127.0.0.1:{http_port}",
        )
        before = {int(name) for name in os.listdir("/dev/fd")}
        node = Node(config, plugins=())
        await node.start()
        await node.kv.put(b"k", b"v")
        assert len(paths(tmp_path)) == 2
        assert {port, http_port} <= set(listening())
        assert in_child(kept) == "([], [])"
        assert await asyncio.to_thread(in_child, kept) == "([], [])"
        for number in {int(name) for name in os.listdir("/dev/fd")} - before:
            with contextlib.suppress(OSError):
                assert not os.get_inheritable(number)
        os.rename(tmp_path / "a", tmp_path / "b")
        assert type(await node.fault) is DiskFailed
        assert in_child(kept) == "([], [])"
        await node.stop()
        assert in_child(kept) == "([], [])"

    asyncio.run(main())


def test_a_listener_that_is_closed_holds_nothing_up(child: Callable[[], None]) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    holder = Holder(listener)
    listener.close()
    child()
    assert holder.descriptors() == [-1]
