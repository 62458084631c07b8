"""Figures of the keyspace that its tables tell; watches and leases tell their own (kv/service.py).

Equal on all nodes that have applied the same entries.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from raftkv.kv.history import Tables, lowest_revision, revision_of, row_bytes
from raftkv.state import TableView

from .family import Family, gauge

__all__ = ["keyspace"]


def keyspace(tables: Tables) -> Iterator[Family]:
    """Keys, revisions and history."""
    history = tables.table("history")
    yield gauge("kv_keys", len(tables.table("keys")), "Keys that exist.")
    yield gauge("kv_revision", revision_of(tables), "Revision of the keyspace.")
    yield gauge(
        "kv_lowest_revision",
        lowest_revision(tables),
        "Lowest revision that can be read or watched from; -1 before anything was compacted.",
    )
    yield gauge("kv_history_revisions", len(history), "Revisions kept (setting history_revisions).")
    yield gauge(
        "kv_history_bytes", _history_bytes(history), "What they count (setting history_bytes_max)."
    )


def _history_bytes(history: TableView[int, Any]) -> int:
    first = next(iter(history.scan(limit=1)), None)
    last = next(iter(history.scan(reverse=True, limit=1)), None)
    if first is None or last is None:
        return 0
    size: int = last[1].bytes_before + row_bytes(last[1]) - first[1].bytes_before
    return size
