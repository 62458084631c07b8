"""Which error a start ends with: the cause and the remedy follow from the system's error number.

`OSError` of a start comes from the data directory, from the files of a plugin or from a socket.
The class of the error tells what a program can do: `ConfigError` for what the configuration or a
permission must change, `TooManyOpenFiles` for a limit, `DiskFailed` for a full or bad disk.
"""

from __future__ import annotations

import errno
import os
import pwd
import socket
from typing import Final

from .descriptors import lacks_descriptors, too_many
from .errors import AddressInUse, ConfigError, DiskFailed, NodeFault

__all__ = ["error_of_listening", "error_of_start"]

_DENIED: Final = (errno.EACCES, errno.EPERM, errno.EROFS)
_NO_DIRECTORY: Final = (
    errno.ENOENT,  # where no directory can be made, as in /proc
    errno.ENOTDIR,
    errno.EEXIST,
    errno.EISDIR,
    errno.ENAMETOOLONG,
    errno.ELOOP,
)
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)


def error_of_start(error: OSError, directory: str) -> ConfigError | NodeFault:
    """The error of raftkv that an OSError of a start stands for."""
    if lacks_descriptors(error):
        return too_many(error)
    if not _is_of_disk(error, directory):
        return ConfigError(f"the node cannot start: {error}")
    if error.errno in _DENIED:
        remedy = (
            "mount its volume for writing"
            if error.errno == errno.EROFS
            else f"give it to the user that runs the node ({_user()})"
        )
        return ConfigError(
            f"dir = {directory!r} cannot be used: {error}: {remedy}, or name another directory"
        )
    if error.errno in _NO_DIRECTORY:
        return ConfigError(
            f"dir = {directory!r} cannot be used: {error}: name a directory, or a path below one"
        )
    if error.errno in _FULL:
        return DiskFailed(
            f"no space is left for the data directory {directory}: {error}. Free space, then "
            f"start the node again"
        )
    return DiskFailed(
        f"the data directory {directory} cannot be used: {error}. Check the disk and replace it "
        f"if it is bad, then start the node again"
    )


def _is_of_disk(error: OSError, directory: str) -> bool:
    """Whether the error is of the data directory. Errors of a write name no file."""
    if error.filename is None:
        return error.errno in (*_FULL, errno.EIO, errno.EROFS)
    name, root = os.path.abspath(os.fsdecode(error.filename)), os.path.abspath(directory)
    return name == root or name.startswith(root + os.sep) or root.startswith(name + os.sep)


def error_of_listening(error: OSError, label: str, address: str) -> ConfigError | NodeFault:
    """The error of raftkv for an address that a node cannot listen on.

    `label` names the key of the configuration.
    """
    if lacks_descriptors(error):
        return too_many(error)
    text = f"{label} = {address!r}: "
    if isinstance(error, socket.gaierror):
        return ConfigError(
            f"{text}the host name cannot be resolved ({error.strerror}): correct it, or use an IP "
            f"address"
        )
    if error.errno == errno.EADDRINUSE:
        return AddressInUse(
            f"{text}the address is already in use: stop the program that listens there, or choose "
            f"another port"
        )
    if error.errno == errno.EADDRNOTAVAIL:
        other = "listen_address" if label == "peer_address" else "http_listen_address"
        return AddressInUse(
            f"{text}this machine has no such address: correct it, or name with {other} an address "
            f"of this machine to listen on"
        )
    if error.errno in _DENIED:
        return AddressInUse(
            f"{text}the user that runs the node ({_user()}) must not listen there: choose a port "
            f"above 1023, or grant CAP_NET_BIND_SERVICE"
        )
    reason = os.strerror(error.errno) if error.errno else str(error)
    return ConfigError(f"{text}cannot listen there: {reason}")


def _user() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return f"uid {os.geteuid()}"
