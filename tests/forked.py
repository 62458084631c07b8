"""Forked children of tests, and what they have open."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import stat
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import uvloop

from raftkv import fork

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


def run(loop: str, main: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(main)


class Holder:
    def __init__(self, *sockets: socket.socket) -> None:
        self.sockets = sockets
        fork.not_for_children(self)

    def descriptors(self) -> list[int]:
        return [each.fileno() for each in self.sockets]


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


def paths(directory: Path) -> list[str]:
    """The files in the directory that this process has open."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found.append(os.readlink(f"/proc/self/fd/{name}"))
    return sorted(each for each in found if each.startswith(str(directory)))


def listening() -> list[int]:
    """The ports on which this process listens."""
    ports = []
    for number in map(int, os.listdir("/dev/fd")):
        with contextlib.suppress(OSError):  # it was of the listing
            if is_socket(number):
                found = socket.socket(fileno=number)
                if found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    ports.append(found.getsockname()[1])
                found.detach()
    return ports


def family_of(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
