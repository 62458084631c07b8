"""What must hold in the registry's tables after every entry of the log, as code.

The conformance kit, the simulation and the tests run this on every replica. It walks the whole
table, so it is no work for a production node.
"""

from __future__ import annotations

from raftkv.plugin import TableView, View

from .commands import Channel, Entry, is_newer, same_channel

__all__ = ["violations"]


def violations(view: View) -> list[str]:
    """Every violated invariant, in words; empty when all is well."""
    found: list[str] = []
    clients: TableView[str, Entry] = view.table("clients")
    tickets: dict[int, str] = {}
    for client_id, entry in clients.scan():
        found += _of_entry(client_id, entry)
        for row in _rows(entry):
            if not _is_accounted_for(row, view):
                found.append(
                    f"client {client_id!r}: {row.node} incarnation {row.incarnation} ended, but no "
                    f"cleanup is marked for its row"
                )
            other = tickets.setdefault(row.ticket, client_id)
            if other != client_id:
                found.append(f"clients {other!r} and {client_id!r} share ticket {row.ticket}")
    return found


def _rows(entry: Entry) -> list[Channel]:
    return [entry.owner] if entry.claim is None else [entry.owner, entry.claim.channel]


def _of_entry(client_id: str, entry: Entry) -> list[str]:
    found = []
    if any(row.client_id != client_id for row in _rows(entry)):
        found.append(f"client {client_id!r}: holds a row of another client")
    if entry.claim is not None:
        if same_channel(entry.claim.channel, entry.owner):
            found.append(f"client {client_id!r}: the owner claims from itself")
        if is_newer(entry.owner, entry.claim.channel):
            found.append(f"client {client_id!r}: the claimant is older than the owner")
    return found


def _is_accounted_for(row: Channel, view: View) -> bool:
    """Live, or marked for cleaning: a row of an ended life must never be forgotten."""
    member = view.members.get(row.node)
    if member is not None and member.up and member.incarnation == row.incarnation:
        return True
    return (row.node, row.incarnation) in view.table("ended")
