"""What a connection proves about the node at its other end.

A name in a handshake is a claim. What stands behind it is a certificate, or the address that this
node has dialled itself, or nothing. Two decisions depend on it: what the peer may do at all
(raftkv/permissions.py), and whether it can stop this node (raftkv/peering.py).
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

__all__ = ["Kind", "Proof"]


class Kind(Enum):
    """What a peer's certificate makes of it."""

    #: A certificate of this cluster without a role: of a core, or of a replicant that may become
    #: one.
    CORE = "core"
    #: A certificate issued with `--replicant-only`.
    REPLICANT_ONLY = "replicant-only"
    #: No certificates are in use ([tls] is not configured).
    NONE = "none"


class Proof(NamedTuple):
    """`name`: of the certificate, "" without one. `dialled`: the address that this node dialled,
    None if the peer did; `wanted`: the node that was meant there.
    """

    kind: Kind
    name: str = ""
    dialled: str | None = None
    wanted: str = ""
