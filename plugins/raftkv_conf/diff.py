"""Where the nodes' configurations differ: every node tells what is in effect, and what was set.

Rules of this file
1. The digests are made with a salt that is drawn for each comparison and never shown. So they tell
   whether two nodes agree, and cannot be tried out against a list of likely secrets.
2. A path is secret in the report if one node says so: another may not know its handler. The value
   of a secret does not leave its node.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from .effects import Source
from .handlers import HIDDEN

__all__ = ["HIDDEN", "DiffReport", "DiffRow", "Listing", "NodeValue", "Told", "compare", "digest"]

# Letters of a digest that a report shows: enough to tell some hundred nodes' values apart.
DIGEST_CHARS = 12


class NodeValue(msgspec.Struct, frozen=True):
    """One path on one node. `value` is the effective one, `digest` tells it from others.

    `source`: "local", "set" or "default". Equal digests in one report mean equal values; in another
    report the same value has another digest.
    """

    node: str
    value: Any
    digest: str
    source: Source


class DiffRow(msgspec.Struct, frozen=True):
    """A path that the nodes do not agree on.

    `cause`: "local" if options of a node explain it; "stored" if the cluster's value itself is not
    the same on all nodes: then some have not executed all calls yet, or `sync` is needed.
    """

    path: str
    cause: str
    secret: bool
    values: tuple[NodeValue, ...]


class DiffReport(msgspec.Struct, frozen=True):
    """`nodes`: node -> the call that its values are as of. `unreachable`: node -> why."""

    nodes: dict[str, int]
    rows: tuple[DiffRow, ...]
    unreachable: dict[str, str] = {}

    @property
    def consistent(self) -> bool:
        """All nodes answered, and agree in what is in effect and in what was set."""
        return not self.rows and not self.unreachable


class Told(msgspec.Struct, frozen=True, array_like=True):
    """What a node tells of a path. `value` is empty for a secret."""

    path: str
    value: bytes
    digest: bytes
    stored: bytes
    source: Source
    secret: bool


class Listing(msgspec.Struct, frozen=True, array_like=True):
    """What a node tells of all its paths that are set or have a local value."""

    as_of: int
    told: tuple[Told, ...]


def digest(value: bytes | None, salt: bytes) -> bytes:
    """Of a value in JSON; empty for none."""
    if value is None:
        return b""
    return hashlib.blake2b(value, key=salt, digest_size=16).digest()


def compare(listings: Mapping[str, Listing], unreachable: Mapping[str, str]) -> DiffReport:
    """The report of what these nodes told."""
    by_node = {
        node: {told.path: told for told in listing.told} for node, listing in listings.items()
    }
    paths = sorted({path for told in by_node.values() for path in told})
    rows = []
    for path in paths:
        row = _row(path, {node: told.get(path) for node, told in by_node.items()})
        if row is not None:
            rows.append(row)
    nodes = {node: listing.as_of for node, listing in sorted(listings.items())}
    return DiffReport(nodes, tuple(rows), dict(sorted(unreachable.items())))


def _row(path: str, told: Mapping[str, Told | None]) -> DiffRow | None:
    present = [each for each in told.values() if each is not None]
    stored_agree = _agree(b"" if each is None else each.stored for each in told.values())
    effective_agree = _agree(b"" if each is None else each.digest for each in told.values())
    local = any(each.source == "local" for each in present)
    # A local value is shown even where it happens to be the cluster's: it will not follow it.
    if stored_agree and effective_agree and not local:
        return None
    secret = any(each.secret for each in present)
    values = tuple(_node_value(node, each, secret) for node, each in sorted(told.items()))
    return DiffRow(path, "local" if stored_agree else "stored", secret, values)


def _node_value(node: str, told: Told | None, secret: bool) -> NodeValue:
    if told is None:
        return NodeValue(node, None, "", "default")
    value = HIDDEN if secret else msgspec.json.decode(told.value) if told.value else None
    return NodeValue(node, value, told.digest.hex()[:DIGEST_CHARS], told.source)


def _agree(digests: Iterable[bytes]) -> bool:
    found: Sequence[bytes] = list(digests)
    return all(each == found[0] for each in found)
