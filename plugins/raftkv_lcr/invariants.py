"""What must hold in the registry's tables after every entry of the log, as code.

The conformance kit, the simulation and the tests run this on every replica. It walks the whole
table, so it is no work for a production node.
"""

from __future__ import annotations

from raftkv.plugin import TableView, View

from .commands import PROTOCOL, Channel, Entry, Gone, NodeRow, same_channel
from .modes import MODE_KEY, mode_of
from .order import first_ticket, is_newer

__all__ = ["violations"]


def violations(view: View) -> list[str]:
    """Every violated invariant, in words; empty when all is well."""
    found: list[str] = []
    clients: TableView[str, Entry] = view.table("clients")
    first = first_ticket(view)
    for client_id, entry in clients.scan():
        found += _of_entry(client_id, entry, first)
        for row in _rows(entry):
            if not _is_accounted_for(row, view):
                found.append(
                    f"client {client_id!r}: {row.node} incarnation {row.incarnation} ended, but no "
                    f"cleanup is marked for its row"
                )
    return found + _of_history(view) + _of_modes(view)


def _rows(entry: Entry) -> list[Channel]:
    return [entry.owner] if entry.claim is None else [entry.owner, entry.claim.channel]


def _of_entry(client_id: str, entry: Entry, first: int | None) -> list[str]:
    found = []
    if any(row.client_id != client_id for row in _rows(entry)):
        found.append(f"client {client_id!r}: holds a row of another client")
    if entry.claim is not None:
        if entry.claim.channel.ticket == entry.owner.ticket:
            found.append(f"client {client_id!r}: owner and claimant share a ticket")
        if same_channel(entry.claim.channel, entry.owner):
            found.append(f"client {client_id!r}: the owner claims from itself")
        if first is not None and entry.claim.channel.ticket < first:
            first = None  # as it was when the claim was written
        if is_newer(entry.owner, entry.claim.channel, first):
            found.append(f"client {client_id!r}: the claimant is older than the owner")
    return found


def _is_accounted_for(row: Channel, view: View) -> bool:
    """Live, or marked for cleaning: a row of an ended life must never be forgotten."""
    member = view.members.get(row.node)
    if member is not None and member.up and member.incarnation == row.incarnation:
        return True
    return (row.node, row.incarnation) in view.table("ended")


def _of_history(view: View) -> list[str]:
    """`past` and `past_due` say the same, and only of clients that have no channel."""
    found = []
    past: TableView[str, Gone] = view.table("past")
    due = view.table("past_due")
    for client_id, row in past.scan():
        if row.channel.client_id != client_id:
            found.append(f"client {client_id!r}: its history is that of another client")
        if (row.at_ms, client_id) not in due:
            found.append(f"client {client_id!r}: its history is never due")
        if client_id in view.table("clients"):
            found.append(f"client {client_id!r}: stands in the history and has a channel")
    if len(due) != len(past):
        found.append(f"{len(past)} rows of history, but {len(due)} are due at some time")
    return found


def _of_modes(view: View) -> list[str]:
    """The mode was switched by some entry, and only lives that go on have announced it."""
    found = []
    for key, mode in view.table("mode").scan():
        if key != MODE_KEY or not 0 < mode.epoch <= view.index:
            found.append(f"mode row {key!r} has epoch {mode.epoch} at index {view.index}")
    nodes: TableView[str, NodeRow] = view.table("nodes")
    for name, row in nodes.scan():
        member = view.members.get(name)
        if member is None or not member.up or member.incarnation != row.incarnation:
            found.append(f"{name} incarnation {row.incarnation} ended, but stands announced")
        if row.epoch > mode_of(view).epoch or row.protocol < PROTOCOL:
            found.append(f"{name} announced epoch {row.epoch} of protocol {row.protocol}")
    return found
