"""The limbo at one look, as one node's copy has it."""

from __future__ import annotations

import msgspec

from raftkv.plugin import Host

from .commands import State
from .views import Needs, NodeRow, SpaceRow, entry_of, needs, space_rows, state_of, status_rows

__all__ = ["LimboStatus", "QueueStatus", "age_ms", "owns", "status_of"]


class QueueStatus(msgspec.Struct, frozen=True):
    """What is pending.

    `len`: entries. `bytes`: of keys and values, all from the oldest pending to the last entry.
    `writes`: of pending ones. `busy`: this node promotes, demotes or rolls back. `age_ms`: of the
    oldest pending one; 0 if there is none. `confirm_lag_ms`: how long the last confirmed sync one
    had been pending; 0 while nothing is. `waiting_for_room`, `submitting`: transactions of this
    node that find no room yet, and all that are not in the queue.
    """

    len: int
    bytes: int
    writes: int
    busy: bool
    age_ms: int
    confirm_lag_ms: int
    waiting_for_room: int
    submitting: int


class LimboStatus(msgspec.Struct, frozen=True):
    """`mine`: this node owns the queue. `live`: the owner's life goes on; if not, promote anew.

    `confirms` and `rollbacks` count entries, ever. `is_in_rollback`: callbacks on a rollback run.
    """

    node: str
    owner: str
    incarnation: int
    term: int
    mine: bool
    live: bool
    quorum: Needs
    queue: QueueStatus
    head: int
    last: int
    confirmed: int
    confirmed_index: int
    confirms: int
    rollbacks: int
    is_in_rollback: bool
    nodes: tuple[NodeRow, ...]
    spaces: tuple[SpaceRow, ...]


def owns(host: Host, state: State) -> bool:
    """Whether this node, in its present life, owns the queue."""
    return state.owner == host.name and state.incarnation == host.incarnation


def age_ms(host: Host) -> int:
    """How long the oldest pending entry has waited, by the log's clock; 0: nothing waits."""
    view = host.view()
    entry = entry_of(view, state_of(view).head)
    return 0 if entry is None else max(0, host.now_ms() - entry.submitted_ms)


def status_of(
    host: Host, *, busy: bool, is_in_rollback: bool, waiting_for_room: int, submitting: int
) -> LimboStatus:
    """Read from this node's tables; what a node cannot see (its own waiters) is handed in."""
    view = host.view()
    state = state_of(view)
    owner = view.members.get(state.owner)
    pending = state.head > 0
    queue = QueueStatus(
        state.pending,
        state.held_bytes if pending else 0,
        state.pending_writes,
        busy,
        age_ms(host),
        state.confirm_lag_ms if pending else 0,
        waiting_for_room,
        submitting,
    )
    return LimboStatus(
        host.name,
        state.owner,
        state.incarnation,
        state.term,
        owns(host, state),
        owner is not None and owner.up and owner.incarnation == state.incarnation,
        needs(view),
        queue,
        state.head,
        state.last,
        state.confirmed,
        state.confirmed_index,
        state.confirms,
        state.rollbacks,
        is_in_rollback,
        status_rows(view),
        space_rows(view),
    )
