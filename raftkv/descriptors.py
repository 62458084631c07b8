"""File descriptors: the limit of the process, and what a node does when none is left.

`raftkv serve` raises the soft limit at its start, because the common one (1,024) is below the
connections that its HTTP API accepts. A library does not change the limits of the process that it
runs in: an embedded node accepts as many connections as the limit has room for, and warns.

A lack of descriptors (EMFILE of the process, ENFILE of the system) does not concern the disk and
passes when others close theirs. A running node repeats what it could not open (raft/engine.py,
raft/snapshotting.py); a start ends with `TooManyOpenFiles`.
"""

from __future__ import annotations

import errno
import logging
import resource
from typing import Final

import msgspec

from .config import HttpLimits
from .errors import TooManyOpenFiles

__all__ = [
    "RESERVE",
    "RETRY_S",
    "WANTED",
    "lacks_descriptors",
    "limit",
    "raise_limit",
    "too_many",
    "within_limit",
]

log = logging.getLogger("raftkv.descriptors")

#: What `raftkv serve` raises the limit to: sixteen times the connections of the default settings.
WANTED: Final = 65_536
#: Not for connections of clients: 128 peers that have not sent a handshake (raft/transport.py), the
#: links of a cluster, and the files of log, snapshots and plugins.
RESERVE: Final = 256
#: Seconds until a running node tries again to open what it could not.
RETRY_S: Final = 0.2


def lacks_descriptors(error: object) -> bool:
    """Whether an exception is an OSError for want of file descriptors."""
    return isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE)


def limit() -> int | None:
    """How many descriptors the process may have open; None if there is no limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


def raise_limit() -> None:
    """Raise the soft limit of the process to WANTED, or to the hard limit if that is lower."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED if hard == resource.RLIM_INFINITY else min(hard, WANTED)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError) as error:
        log.warning("the limit of open files stays at %d: %s", soft, error)
        return
    log.info("raised the limit of open files from %d to %d", soft, wanted)


def within_limit(asked: HttpLimits) -> HttpLimits:
    """The limits of the HTTP API that the process has descriptors for; a warning if fewer.

    Half of the connections at most are streams then, as in the default settings.
    """
    files_max = limit()
    if files_max is None:
        return asked
    room = files_max - min(RESERVE, files_max // 2)
    if asked.connections_max <= room:
        return asked
    log.warning(
        "http.connections_max = %d needs more open files than the %d of this process: %d "
        "connections are accepted. Raise the limit (ulimit -n, or LimitNOFILE= in a unit of "
        "systemd)",
        asked.connections_max,
        files_max,
        room,
    )
    streams_max = min(asked.streams_max, max(1, room // 2))
    return msgspec.structs.replace(asked, connections_max=room, streams_max=streams_max)


def too_many(error: OSError) -> TooManyOpenFiles:
    """The error of a start for want of descriptors."""
    of_system = error.errno == errno.ENFILE
    whose = "the system has" if of_system else f"this process has its {limit()}"
    remedy = (
        "Raise fs.file-max, or end programs that hold many"
        if of_system
        else "Raise the limit (ulimit -n, or LimitNOFILE= in a unit of systemd)"
    )
    return TooManyOpenFiles(
        f"no file descriptor is left: {whose} open files in use ({error}). {remedy}, then start "
        f"the node again"
    )
