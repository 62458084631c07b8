"""Accepting at a door with TLS: being stopped while somebody comes, and a lack of descriptors."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
import uvloop

from raftkv.server import accepting
from raftkv.server.accepting import TlsAccepting
from raftkv.server.app import App
from raftkv.server.bounded import DoorState
from tests.server.conftest import Stand

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}

Unhandled = list[dict[str, Any]]


@pytest.fixture(params=sorted(LOOPS))
def in_loop(request: pytest.FixtureRequest) -> Callable[[Callable[[], Awaitable[None]]], Unhandled]:
    """Runs a test in a loop of either kind; gives what the loop's exception handler was told."""

    def run(test: Callable[[], Awaitable[None]]) -> Unhandled:
        unhandled: Unhandled = []
        with asyncio.Runner(loop_factory=LOOPS[request.param]) as runner:
            runner.get_loop().set_exception_handler(lambda loop, told: unhandled.append(told))
            runner.run(test())
        return unhandled

    return run


class Listener(socket.socket):
    """One whose accepts fail as told."""

    failures: list[OSError]

    def accept(self) -> tuple[socket.socket, Any]:
        if self.failures:
            raise self.failures.pop(0)
        return super().accept()


@contextlib.contextmanager
def standing(*failures: OSError) -> Iterator[tuple[DoorState, Listener, TlsAccepting]]:
    state = DoorState(App(Stand()))
    with Listener() as listener:
        listener.failures = list(failures)
        listener.bind(("127.0.0.1", 0))
        listener.listen(100)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        # No handshake gets to its end here.
        make: Any = asyncio.Protocol
        yield state, listener, TlsAccepting(state, listener, lambda: context, make)


def connected(listener: socket.socket) -> socket.socket:
    return socket.create_connection(listener.getsockname(), timeout=10)


async def stopped(task: asyncio.Task[None]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def some_turns() -> None:
    """What is ready is done, and what that leads to."""
    for _ in range(10):
        await asyncio.sleep(0)


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not true():
            await asyncio.sleep(0.001)


def test_stopped_in_the_turn_in_which_somebody_connects(in_loop: Any) -> None:
    """The loop knows that the listener is ready, and the one who accepts is cancelled first."""

    async def test() -> None:
        for turns in range(4):
            with standing() as (state, listener, made):
                task = asyncio.get_running_loop().create_task(made.run())
                await some_turns()
                with connected(listener):
                    for _ in range(turns):
                        await asyncio.sleep(0)
                    await stopped(task)
                    await some_turns()
                assert state.handshakes == 0

    assert in_loop(test) == []


def test_a_crowd_is_accepted_and_let_go_at_the_end(in_loop: Any) -> None:
    async def test() -> None:
        with standing() as (state, listener, made):
            task = asyncio.get_running_loop().create_task(made.run())
            crowd = [connected(listener) for _ in range(2 * accepting.ACCEPTS_MAX + 1)]
            await until(lambda: state.handshakes == len(crowd))
            await stopped(task)
            assert state.handshakes == 0
            for client in crowd:
                with client:
                    assert client.recv(1) == b""

    assert in_loop(test) == []


def test_without_descriptors_it_rests_and_goes_on(
    in_loop: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        too_many = OSError(errno.EMFILE, "too many open files")
        monkeypatch.setattr(accepting, "ACCEPT_PAUSE_S", 60)
        with standing(too_many) as (state, listener, made), connected(listener):
            task = asyncio.get_running_loop().create_task(made.run())
            await until(lambda: not listener.failures)
            # It does not ask again and again while it rests, and can be stopped.
            await some_turns()
            assert state.handshakes == 0
            await stopped(task)
        monkeypatch.setattr(accepting, "ACCEPT_PAUSE_S", 0.001)
        gone = ConnectionAbortedError()
        with standing(too_many, gone, too_many) as (state, listener, made), connected(listener):
            task = asyncio.get_running_loop().create_task(made.run())
            await until(lambda: state.handshakes == 1)
            await stopped(task)

    assert in_loop(test) == []
