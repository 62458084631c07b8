"""The versions of what nodes decide and send: the core format and the formats of the plugins.

A cluster may hold nodes of two releases while it is upgraded. Whatever changes a decision of
`apply`, the content of a table, a message, the payload of a call between nodes or a file takes
effect only at the *core format* that introduced it. The core format of a cluster is part of the
replicated state: it is 1 in clusters that raftkv 0.1.0 made, and an entry of the log raises it
(`core_format.py` decides when). At core format 1 every byte is the one that 0.1.0 writes.

Plugins have formats of their own, which are activated by the last member that has announced them.
A release that changes a plugin must not do so behind the operator's back: at core format 1 a node
announces the plugin formats of 0.1.0 (`RELEASE_1`), and its own ones once the format is raised.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Final

from .raft import wire

__all__ = ["CORE", "RELEASE_1", "SOFTWARE", "about_node", "announced", "bootstrap_digest"]

#: The version of this software; a test compares it with the metadata of the package.
SOFTWARE: Final = "0.2.0.dev0"

CORE: Final = "core"

#: The formats that raftkv 0.1.0 knows of the plugins of this package.
RELEASE_1: Final[Mapping[str, int]] = {
    "calls": 1,
    "conf": 1,
    "kv": 3,
    "lcr": 2,
    "limbo": 1,
    "subscriptions": 1,
    "txqueue": 1,
}

# Formats in one handshake, which has 4,096 bytes at most (wire.HELLO_BYTES_MAX): 40 names of
# NAME_BYTES_MAX leave room for the addresses. A node with more plugins leaves the last ones out,
# and the others count as unknown.
FORMATS_MAX: Final = 40
NAME_BYTES_MAX: Final = 48
# Of the digest of the core names: two lists of names do not have the same one by accident.
_DIGEST_BYTES: Final = 16


def announced(versions: Mapping[str, int], core_format: int) -> tuple[tuple[str, int], ...]:
    """The plugin formats that a node announces through the log, as sorted (plugin, format) pairs.

    `versions` are those that the node could run.
    """
    if core_format >= 2:
        return tuple(sorted(versions.items()))
    return tuple(sorted((name, min(n, RELEASE_1.get(name, n))) for name, n in versions.items()))


def about_node(
    core_format: int, versions: Mapping[str, int], process: str, cores: Iterable[str]
) -> wire.About:
    """What a node tells of itself in its handshakes. `core_format` is the newest it knows."""
    known = [name for name in sorted(versions) if len(name.encode()) <= NAME_BYTES_MAX]
    formats = [(CORE, core_format), *((name, versions[name]) for name in known)]
    return wire.About(SOFTWARE, formats[:FORMATS_MAX], process, bootstrap_digest(cores))


def bootstrap_digest(cores: Iterable[str]) -> str:
    """A fingerprint of the core names in a configuration file, in hexadecimal digits.

    Nodes whose files name other cores must not bootstrap one cluster. Addresses are left out: a
    node may be reached at different ones.
    """
    listed = "\n".join(sorted(cores)).encode()
    return hashlib.sha256(listed).hexdigest()[: 2 * _DIGEST_BYTES]
