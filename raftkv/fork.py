"""What a forked child closes: the lock, the files, the ports and the connections of nodes."""

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
    """Have a forked child close these files: of a lock, of the log, of a port, of connections.

    A child, such as a worker of a process pool, shares them. It would keep the lock, and the port
    with connections that it never answers, when this process has ended, and the space of a removed
    file. The connections that an open listener accepted are found by its address and need no
    holder.

    A holder forgets a number before it closes the file: then the number may be of another one. Not
    covered: a fork by another thread between the system's opening and this call.
    """
    _not_for_children.add(holder)


def _release() -> None:
    """In the child: let go of what is registered, whatever fails of it.

    The interpreter shows what this raises, and the child goes on.
    """
    numbers, errors = _numbers()
    # The child may close these numbers and use them for its own files before it forks in turn.
    _not_for_children.clear()
    if numbers:
        listening = {address for number in numbers if (address := _listens_on(number)) is not None}
        _replace(numbers)
        if listening:
            # Looked for, not registered: the system accepts a connection while no Python code
            # runs, and a fork may come between that and the first line of code that knows it.
            _close(numbers[0])  # to look takes a number, and all may be in use
            _replace([numbers[0], *_accepted(listening)])
    if errors:
        raise ExceptionGroup("a forked child may keep files of its parent's node", errors)


def _numbers() -> tuple[list[int], list[Exception]]:
    """What is registered, and the errors of the holders that could not say."""
    numbers: set[int] = set()
    errors: list[Exception] = []
    for holder in list(_not_for_children):
        try:
            numbers.update(number for number in holder.descriptors() if number >= 0)
        except Exception as error:  # raised once the files of the others are released
            errors.append(error)
    return sorted(numbers), errors


def _replace(numbers: list[int]) -> None:
    """Put /dev/null in their place: who still refers to a number must not find another file.

    Where that cannot be, for want of /dev or of files in the system, they are only closed.
    """
    _close(numbers[0])  # to open takes a number, and all may be in use
    null = -1
    with contextlib.suppress(OSError):
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for number in numbers:
        if number != null:
            try:
                os.dup2(null, number, inheritable=False)
            except OSError:  # there is none, or the limit is lower than this number by now
                _close(number)
    if null not in numbers:
        _close(null)


def _close(number: int) -> None:
    with contextlib.suppress(OSError):  # it is closed
        os.close(number)


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
    except OSError:
        return None  # it is a socket no more
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
