"""What a forked child closes: the lock, the ports and the connections of its parent's nodes."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import weakref
from typing import Any, Protocol

__all__ = ["not_for_children"]

# Where the system lists the descriptors of the process that reads it.
_DIRECTORIES = ("/proc/self/fd", "/dev/fd")
_FAMILIES = (socket.AF_INET, socket.AF_INET6)
_WILDCARDS = ("0.0.0.0", "::")  # noqa: S104  # compared with, never bound

# (family, host, port); the host is None for a listener on all addresses of its family.
_Address = tuple[int, str | None, int]


class Descriptors(Protocol):
    """What holds open files that are not for a forked child."""

    def descriptors(self) -> list[int]: ...


_not_for_children: weakref.WeakSet[Any] = weakref.WeakSet()


def not_for_children(holder: Descriptors) -> None:
    """Have a forked child close these files: of a lock, of a port, of connections.

    A child, such as a worker of a process pool, shares them. It would keep the lock, and the port
    with connections that it never answers, when this process has ended. The connections that an
    open listener accepted are found by its address and need no holder.
    """
    _not_for_children.add(holder)


def _release() -> None:
    """In the child: put /dev/null in their place, for their numbers must not be used again."""
    numbers = {
        number
        for holder in list(_not_for_children)
        for number in holder.descriptors()
        if number >= 0
    }
    if not numbers:
        return
    listening = {address for number in numbers if (address := _listens_on(number)) is not None}
    # Looked for, not registered: the system accepts a connection while no Python code runs, and
    # a fork may come between that and the first line of code that knows it.
    numbers.update(_accepted(listening))
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    try:
        for number in sorted(numbers):
            os.dup2(null, number, inheritable=False)
    finally:
        os.close(null)


def _listens_on(number: int) -> _Address | None:
    """The address of a listening socket, else None."""
    found = _socket(number)
    if found is None:
        return None
    try:
        if not _listens(found):
            return None
        host, port = found.getsockname()[:2]
        return (found.family, None if host in _WILDCARDS else host, port)
    finally:
        found.detach()


def _accepted(listening: set[_Address]) -> list[int]:
    """The connections of this process that a listener on one of these addresses accepted."""
    found = []
    for number in _open_descriptors() if listening else ():
        connection = _socket(number)
        if connection is None:
            continue
        try:
            family = connection.family
            host, port = connection.getsockname()[:2]
            known = not {(family, host, port), (family, None, port)}.isdisjoint(listening)
            if known and not _listens(connection):
                found.append(number)
        except OSError:
            pass  # it was closed by the other side
        finally:
            connection.detach()
    return found


def _listens(found: socket.socket) -> bool:
    return bool(found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


def _socket(number: int) -> socket.socket | None:
    """A descriptor as a socket of TCP, which the caller detaches; None if it is none."""
    with contextlib.suppress(OSError):
        if stat.S_ISSOCK(os.fstat(number).st_mode):
            found = socket.socket(fileno=number)
            if found.type == socket.SOCK_STREAM and found.family in _FAMILIES:
                return found
            found.detach()
    return None


def _open_descriptors() -> list[int]:
    for directory in _DIRECTORIES:
        with contextlib.suppress(OSError):
            return [int(name) for name in os.listdir(directory)]
    return []


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_release)
