"""Ports for the nodes of development clusters, which no two of them are given.

A port is free between the time at which it is chosen and the time at which its node binds it, and
while that node is down: another cluster that is laid out meanwhile could take it. So the ports that
were given last stand in a file of the user, and are not given again before `REMEMBERED` others
were.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import socket
import tempfile
from collections.abc import Iterator
from typing import Final

from raftkv.errors import ConfigError
from raftkv.security.ownership import open_own

__all__ = ["free_ports"]

# Outgoing connections get their ports from the ephemeral range; a listening port chosen below it
# is not taken away by one of them while the node is down.
_PORT_MIN: Final = 15_000
_TRIES: Final = 4_000
# Ports: some hundred clusters, and less than a fourth of what lies below the ephemeral range.
REMEMBERED: Final = 4_096


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Free ports that were not given lately, below the ephemeral range.

    If too few are free there, those of the ephemeral range. Raises ConfigError without either.
    """
    with _given_lately() as given, contextlib.ExitStack() as held:
        top = _ephemeral_min()
        rng = random.Random()
        taken = set(given)
        ports: list[int] = []
        for attempt in range(_TRIES):
            if len(ports) == count:
                given.extend(ports)
                return ports
            below = top > _PORT_MIN and attempt < _TRIES // 2
            wanted = rng.randrange(_PORT_MIN, top) if below else 0
            if wanted in taken:
                continue
            probe = held.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                probe.bind((host, wanted))
                found = probe.getsockname()[1]
                if found not in taken:  # held all the same, so that it does not come again
                    ports.append(found)
    raise ConfigError(f"cannot find {count} free ports on {host}")


@contextlib.contextmanager
def _given_lately() -> Iterator[list[int]]:
    """The ports of the user's file, under its lock; the last of what the caller leaves is kept.

    A file that this user cannot use, or that is none, is as an empty one: a port that is taken
    shows itself at the start of its node.
    """
    with contextlib.ExitStack() as stack:
        try:
            path = os.path.join(tempfile.gettempdir(), f"raftkv-ports-{os.geteuid()}")
            file = stack.enter_context(open(open_own(path, os.O_RDWR | os.O_CREAT), "r+b"))
            if os.fstat(file.fileno()).st_uid != os.geteuid():
                raise PermissionError(path)
            fcntl.flock(file, fcntl.LOCK_EX)
        except (OSError, ConfigError):
            yield []
            return
        words = file.read(REMEMBERED * len("65535 ")).split()
        given = [int(word) for word in words if word.isdigit() and len(word) <= len("65535")]
        yield given
        with contextlib.suppress(OSError):  # no space left, say
            text = b"".join(b"%d " % port for port in given[-REMEMBERED:])
            os.ftruncate(file.fileno(), os.pwrite(file.fileno(), text, 0))


def _ephemeral_min() -> int:
    try:
        with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="ascii") as file:
            return int(file.read().split()[0])
    except (OSError, ValueError, IndexError):
        return 32_768
