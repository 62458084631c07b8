"""Programs that embed a blocking node or client, each run by a test in a process of its own.

python -m tests.blocking.programs NAME DIRECTORY
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from raftkv import blocking
from raftkv.errors import RaftkvError, Stopped
from tests.blocking.alone import config, open_door

# What a program leaves to the interpreter's exit.
kept: list[Any] = []

NOWHERE = "http://127.0.0.1:9"


class Wrapper:
    """Calls what it holds when it is finalized, as a program's own class may."""

    def __init__(self, held: Any, ending: Callable[[], object]) -> None:
        self.held = held
        self.ending = ending

    def __del__(self) -> None:
        try:
            self.ending()
        except Stopped:
            os.write(1, b"stopped\n")


def node_in_del(directory: Path) -> None:
    """The exit finds a running node, whose wrapper stops it from `__del__`."""
    node = blocking.Node(config(directory), plugins=())
    node.start()
    kept.append(Wrapper(node, node.stop))


def client_in_del(directory: Path) -> None:
    client = blocking.Client(NOWHERE)
    kept.append(Wrapper(client, client.close))


def call_in_del(directory: Path) -> None:
    """A call, not an end: it cannot be done any more, and must say so at once."""
    client = blocking.Client(NOWHERE, timeout_s=60)
    kept.append(Wrapper(client, lambda: client.kv.get(b"k")))


def suspended_generator(directory: Path) -> None:
    def generate() -> Iterator[blocking.Client]:
        with blocking.Client(NOWHERE) as client:
            yield client

    made = generate()
    next(made)
    kept.append(made)


def dropped(directory: Path) -> None:
    """What nothing refers to any more ends its thread and lets the directory go, with a warning."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        node = blocking.Node(config(directory), plugins=())
        node.start()
        client = blocking.Client(NOWHERE)
        keys = client.kv
        del client
        gc.collect()
        assert not caught, "its keyspace still refers to it"
        del node, keys
        gc.collect()
    told = sorted(str(each.message) for each in caught if each.category is ResourceWarning)
    names = ("client", "node alone")
    assert told == [f"the raftkv {name} was not closed" for name in names], told
    for thread in threading.enumerate():
        if thread.name.startswith("raftkv client") or thread.name.startswith("raftkv node"):
            thread.join(20)
            assert not thread.is_alive()
    with blocking.Node(config(directory), plugins=()) as again:
        again.kv.put(b"k", b"v")


def never_started(directory: Path) -> None:
    """A node that was never started has nothing to close."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        node = blocking.Node(config(directory), plugins=())
        del node
        gc.collect()


def handler_calls(directory: Path) -> None:
    """A handler calls the node in whose call its thread is, at every place that it can meet."""
    node = blocking.Node(config(directory), plugins=())
    node.start()
    node.kv.put(b"k", b"v")
    handled = 0

    def handler(number: int, frame: Any) -> None:
        nonlocal handled
        node.kv.get(b"k", consistency="local")
        handled += 1

    signal.signal(signal.SIGALRM, handler)
    calls = 0
    while handled < 400:
        armed = handled
        signal.setitimer(signal.ITIMER_REAL, 0.0002 + (calls % 97) * 0.00001)
        while handled == armed:
            node.kv.get(b"k", consistency="local")
            calls += 1
    node.stop()


def handler_stops(directory: Path) -> None:
    """SIGTERM's handler stops the node while the main thread waits in a call."""
    node = blocking.Node(config(directory), plugins=())
    node.start()
    signal.signal(signal.SIGTERM, lambda number, frame: node.stop())
    with node.kv.watch(b"k") as watch:
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()
        try:
            watch.next()
        except RaftkvError as error:
            print("the call ended:", type(error).__name__)
    node.stop()


def exit_in_run(directory: Path) -> None:
    """SystemExit of a function on the loop is the caller's; the node runs on until its stop."""
    node = blocking.Node(config(directory), plugins=())
    node.start()
    with pytest.raises(SystemExit):
        node.run(lambda inner: sys.exit(3))
    node.kv.put(b"k", b"v")
    node.stop()
    with blocking.Node(config(directory), plugins=()) as again:
        assert again.kv.get(b"k") is not None


def exit_in_callback(directory: Path) -> None:
    """SystemExit of something on the loop that is no call ends the loop, and so the node."""
    node = blocking.Node(config(directory), plugins=())
    node.start()

    def leave() -> None:
        sys.exit(3)

    node.run(lambda inner: inner.runtime.call_soon(leave))
    until = time.monotonic() + 20
    while time.monotonic() < until:
        try:
            node.status()
        except RaftkvError:
            break
        time.sleep(0.01)
    node._portal._inner.thread.join(20)
    with blocking.Node(config(directory), plugins=()) as again:
        again.kv.put(b"k", b"v")


def forked_child(directory: Path) -> None:
    """A child, as a process pool's worker, keeps neither the lock nor the ports of the node."""
    settings = config(directory)
    node = blocking.Node(settings, plugins=())
    node.start()
    api = node.run(open_door)
    waiting = socket.create_connection(("127.0.0.1", api.port))
    runs, ends = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.write(runs[1], b"x")
        os.close(ends[1])
        os.read(ends[0], 1)  # until the parent has ended, or has seen what it wants
        os._exit(0)
    assert os.read(runs[0], 1) == b"x"
    node.run(lambda inner: api.stop())
    node.stop()
    assert waiting.recv(1) == b"", "the child keeps the connection"
    with blocking.Node(settings, plugins=()) as again, socket.socket() as listener:
        again.kv.put(b"k", b"v")
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", api.port))
        listener.listen()
    os.close(ends[1])
    assert os.waitpid(child, 0)[1] == 0


PROGRAMS: dict[str, Callable[[Path], None]] = {
    each.__name__: each
    for each in (
        node_in_del,
        client_in_del,
        call_in_del,
        suspended_generator,
        dropped,
        never_started,
        handler_calls,
        handler_stops,
        exit_in_run,
        exit_in_callback,
        forked_child,
    )
}

if __name__ == "__main__":
    PROGRAMS[sys.argv[1]](Path(sys.argv[2]))
    print("end", flush=True)
