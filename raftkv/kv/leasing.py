"""Leases in the replicated state: rows, attached keys, when one is due, who may expire it.

Who does what. The *state* knows of each lease its time to live and a due time, before which it
never expires, whatever anybody says. The *lessor*, a part of the leader's service half (lessor.py),
counts keep-alives in its memory, so that they do not flood the log, and proposes `Expire` for those
that nobody has kept alive. A new lessor knows nothing of the keep-alives before it, so its
`ClaimLessor` gives every lease its whole time again, and brings a new epoch, under which the former
lessor's `Expire` is refused.

Rules of this file
1. A claim does not touch the leases: it writes its time once, and `due_ms` is the later one of the
   row's own due time and claim + time to live. There may be very many leases.
2. `attached` and `LeaseRow.keys` change in the same command as `KeyValue.lease`, always.
3. The table `due` orders the leases by the due time they were granted with. It never changes
   afterwards, so a lessor walks it once, from front to back, remembering how far it is (see
   `due_rows`); what it finds there too early, because of a claim or a keep-alive, it remembers by
   itself. New leases always stand ahead of it: none is shorter than `lease_ttl_min_s`.
4. Ending a lease deletes its keys, in key order, in one revision of their own; `lease_keys_max`
   bounds that work when keys are attached, for the end must not be refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from raftkv.plugin import Context, Table

from .commands import (
    Attached,
    ClaimLessorResult,
    Grant,
    GrantResult,
    LeaseExists,
    LeaseNotFound,
    LeaseRow,
    LeaseTtlTooLarge,
    LimitExceeded,
)
from .history import Tables, revision_of

__all__ = [
    "attach",
    "claim",
    "claimed_ms",
    "detach",
    "due_ms",
    "due_rows",
    "forget",
    "grant",
    "keys_of",
    "lessor_epoch",
    "require_lease",
]

_ATTACHED: Final = Attached()
_INT63: Final = (1 << 63) - 1
_INT64: Final = (1 << 64) - 1


def lessor_epoch(tables: Tables) -> int:
    """The epoch of the newest lessor; 0 before the first."""
    epoch: int = tables.table("meta").get("lessor", 0)
    return epoch


def claimed_ms(tables: Tables) -> int:
    """When, on the log's clock, the newest lessor claimed the leases; 0 before the first."""
    claimed: int = tables.table("meta").get("claimed_ms", 0)
    return claimed


def due_ms(tables: Tables, id: int) -> int | None:
    """The time of the log's clock before which a lease cannot expire; None if there is none."""
    row: LeaseRow | None = tables.table("leases").get(id)
    return None if row is None else _due_of(row, claimed_ms(tables))


def due_rows(
    tables: Tables, after: tuple[int, int] = (0, 0), limit: int = 0
) -> Iterator[tuple[int, int]]:
    """(due_ms as granted, lease) behind `after`, in that order: what a lessor walks along."""
    first = (after[0], after[1] + 1)
    return (key for key, _ in tables.table("due").scan(first, limit=limit))


def keys_of(tables: Tables, id: int) -> tuple[bytes, ...]:
    """The keys that are attached to a lease, in order."""
    return tuple(key for (_, key), _ in tables.table("attached").scan(prefix=(id,)))


def _due_of(row: LeaseRow, claimed: int) -> int:
    return max(row.due_ms, claimed + 1000 * row.ttl_s)


def require_lease(tables: Tables, id: int) -> LeaseRow:
    """The row of a lease, or LeaseNotFound."""
    row: LeaseRow | None = tables.table("leases").get(id)
    if row is None:
        raise LeaseNotFound(f"there is no lease {id}: grant one")
    return row


def attach(ctx: Context, id: int, key: bytes) -> None:
    """Attach a key that is attached to none."""
    row = require_lease(ctx, id)
    limit = ctx.settings["lease_keys_max"]
    if row.keys >= limit:
        raise LimitExceeded.of("lease_keys_max", id, limit)
    ctx.table("leases").put(id, LeaseRow(row.ttl_s, row.due_ms, row.keys + 1))
    ctx.table("attached").put((id, key), _ATTACHED)


def detach(ctx: Context, id: int, key: bytes) -> None:
    """Detach a key from the lease it is attached to."""
    leases: Table[int, LeaseRow] = ctx.table("leases")
    row = leases[id]
    leases.put(id, LeaseRow(row.ttl_s, row.due_ms, row.keys - 1))
    ctx.table("attached").delete((id, key))


def forget(ctx: Context, id: int, keys: Iterable[bytes]) -> None:
    """Remove a lease, of which these are the keys."""
    attached: Table[tuple[int, bytes], Attached] = ctx.table("attached")
    for key in keys:
        attached.delete((id, key))
    row = ctx.table("leases")[id]
    ctx.table("leases").delete(id)
    ctx.table("due").delete((row.due_ms, id))


def grant(command: Grant, ctx: Context) -> GrantResult:
    """See `Grant`. The order of the refusals is etcd's."""
    settings = ctx.settings
    leases: Table[int, LeaseRow] = ctx.table("leases")
    if command.ttl_s > settings["lease_ttl_max_s"]:
        raise LeaseTtlTooLarge(
            f"a lease of {command.ttl_s} s exceeds lease_ttl_max_s = {settings['lease_ttl_max_s']}"
        )
    if command.id in leases:
        raise LeaseExists(f"there is a lease {command.id} already")
    if len(leases) >= settings["leases_max"]:
        raise LimitExceeded.of("leases_max", settings["leases_max"])
    id = command.id or _new_id(leases, ctx.serial)
    ttl_s = max(command.ttl_s, settings["lease_ttl_min_s"])
    due = ctx.now + 1000 * ttl_s
    leases.put(id, LeaseRow(ttl_s, due))
    ctx.table("due").put((due, id), None)
    return GrantResult(id, ttl_s, revision_of(ctx))


def _new_id(leases: Table[int, LeaseRow], serial: int) -> int:
    """A free id, made of the command's number by splitmix64: spread out, the same on every node."""
    mixed = serial
    while True:
        mixed = (mixed + 0x9E3779B97F4A7C15) & _INT64
        word = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _INT64
        word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _INT64
        id = (word ^ (word >> 31)) & _INT63
        if id != 0 and id not in leases:
            return id


def claim(ctx: Context) -> ClaimLessorResult:
    """See `ClaimLessor`."""
    meta: Table[str, int] = ctx.table("meta")
    epoch = lessor_epoch(ctx) + 1
    meta.put("lessor", epoch)
    meta.put("claimed_ms", ctx.now)
    return ClaimLessorResult(epoch, ctx.now)
