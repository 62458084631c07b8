"""What must be true of the keyspace's tables at any time, for tests and for `invariants`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from raftkv.plugin import View

from .commands import KeyValue, events_of
from .history import FIRST_REVISION, lowest_revision, revision_of, row_bytes

__all__ = ["violations"]

# Rows of the history that are looked at, the newest ones: all of it may be very long.
_HISTORY_ROWS: Final = 1000


def violations(view: View) -> list[str]:
    """What is wrong, in words; empty if all is well."""
    return [*_keys(view), *_history(view), *_leases(view)]


def _keys(view: View) -> Iterator[str]:
    revision, history = revision_of(view), view.table("history")
    lowest = max(lowest_revision(view), FIRST_REVISION + 1)
    attached = view.table("attached")
    for key, kv in view.table("keys").scan():
        if kv.key != key:
            yield f"the row of {key!r} holds the key {kv.key!r}"
        if not FIRST_REVISION < kv.create_revision <= kv.mod_revision <= revision:
            yield (
                f"{key!r}: create {kv.create_revision}, mod {kv.mod_revision}, "
                f"revision of the keyspace {revision}"
            )
        if not 1 <= kv.version <= kv.mod_revision - kv.create_revision + 1:
            yield f"{key!r}: version {kv.version} does not fit its revisions"
        if kv.lease and (kv.lease, key) not in attached:
            yield f"{key!r} has the lease {kv.lease} but is not attached to it"
        if len(history) > 0 and lowest <= kv.mod_revision:
            row = history.get(kv.mod_revision)
            if row is None or all(event.kv != kv for event in events_of(row)):
                yield f"{key!r}: the history does not have its revision {kv.mod_revision}"


def _history(view: View) -> Iterator[str]:
    history, revision = view.table("history"), revision_of(view)
    if len(history) == 0:
        return
    first = next(history.scan(limit=1))[0]
    last = next(history.scan(reverse=True, limit=1))[0]
    if last != revision or last - first + 1 != len(history):
        yield f"history of {first} to {last} with {len(history)} rows, at revision {revision}"
    lowest = max(lowest_revision(view), FIRST_REVISION + 1)
    if not first <= lowest <= last:
        yield f"the history begins at {first}, the lowest revision is {lowest}"
    newer, keys = None, view.table("keys")
    seen: set[bytes] = set()
    for number, row in history.scan(reverse=True, limit=_HISTORY_ROWS):
        if newer is not None and newer.bytes_before != row.bytes_before + row_bytes(row):
            yield f"history: the bytes before {number + 1} do not fit"
        newer = row
        for event in reversed(events_of(row)):
            kv, prev = event.kv, event.prev
            if kv.mod_revision != number or (prev is None and kv.version != 1):
                yield f"history: an event of {number} has {kv.mod_revision}, version {kv.version}"
            if prev is not None and (prev.key != kv.key or prev.mod_revision > number):
                yield f"history: an event of {number} follows on none of its key"
            if kv.key not in seen:
                seen.add(kv.key)
                now: KeyValue | None = keys.get(kv.key)
                if (kv if kv.version else None) != now:
                    yield f"{kv.key!r} is not what revision {number} made of it"


def _leases(view: View) -> Iterator[str]:
    leases, attached, due = view.table("leases"), view.table("attached"), view.table("due")
    keys = view.table("keys")
    for id, row in leases.scan():
        if row.keys != attached.count(prefix=(id,)):
            yield f"lease {id} counts {row.keys} keys"
        if (row.due_ms, id) not in due:
            yield f"lease {id} is not among those due"
    if len(due) != len(leases):
        yield f"{len(due)} leases are due, there are {len(leases)}"
    for (id, key), _ in attached.scan():
        kv = keys.get(key)
        if id not in leases or kv is None or kv.lease != id:
            yield f"{key!r} is attached to lease {id}, but does not have it"
