"""What an operator is told of the queue and its quorum: who has what, and what is lacking.

Pure functions on a View, made of the questions in `views.py`. They tell positions, spaces and
counts, never keys or values.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from raftkv.plugin import View

from .commands import Entry
from .quorum_expression import nodes_needed
from .views import (
    Needs,
    NodeRow,
    holders,
    needs,
    participant_of,
    reached,
    state_of,
    status_rows,
    waiting_entries,
)

__all__ = ["Lack", "QueueReport", "QuorumReport", "Waiting", "advice", "lacks", "queue_report",
           "quorum_report", "warnings"]  # fmt: skip

# For how many nodes a quorum is worked out, beside the present number: those people have.
SHOWN_N = (1, 2, 3, 4, 5, 6, 7)


class Lack(msgspec.Struct, frozen=True):
    """A requirement that a position does not meet yet. `missing`: nodes that could help."""

    what: Literal["quorum", "zone", "validator"]
    name: str
    needed: int
    have: int
    missing: tuple[str, ...]


class Waiting(msgspec.Struct, frozen=True):
    """A pending transaction. `index`, `term`, `age_ms`: of its submission.

    One without writes is the drop of the space.
    """

    position: int
    sync: bool
    spaces: tuple[str, ...]
    writes: int
    bytes: int
    term: int
    index: int
    age_ms: int
    holders: tuple[str, ...]


class QueueReport(msgspec.Struct, frozen=True):
    """Pending transactions in order. `next`: the position to go on from, 0: that is all.

    `lacks`: what the oldest one waits for; nothing while it only waits for order.
    """

    owner: str
    term: int
    head: int
    last: int
    pending: int
    entries: tuple[Waiting, ...]
    next: int
    lacks: tuple[Lack, ...]


class QuorumReport(msgspec.Struct, frozen=True):
    """The quorum, what it comes to for (N, nodes), and what speaks against it now."""

    quorum: Needs
    reached: int
    results: tuple[tuple[int, int], ...]
    warnings: tuple[str, ...]


def queue_report(view: View, first: int, limit: int, now_ms: int) -> QueueReport:
    """`limit` pending transactions from position `first` on."""
    state = state_of(view)
    found = waiting_entries(view, first, limit + 1)
    shown = tuple(_waiting(view, position, entry, now_ms) for position, entry in found[:limit])
    return QueueReport(
        owner=state.owner,
        term=state.term,
        head=state.head,
        last=state.last,
        pending=state.pending,
        entries=shown,
        next=found[limit][0] if len(found) > limit else 0,
        lacks=lacks(view, state.head) if state.head else (),
    )


def _waiting(view: View, position: int, entry: Entry, now_ms: int) -> Waiting:
    return Waiting(
        position=position,
        sync=entry.sync,
        spaces=_spaces(view, position, entry),
        writes=len(entry.writes),
        bytes=entry.bytes,
        term=entry.term,
        index=entry.index,
        age_ms=max(0, now_ms - entry.submitted_ms),
        holders=holders(view, position),
    )


def _spaces(view: View, position: int, entry: Entry) -> tuple[str, ...]:
    if not entry.writes:
        return (view.table("drops")[position],)
    return tuple(sorted({write.space for write in entry.writes}))


def lacks(view: View, position: int) -> tuple[Lack, ...]:
    """Which requirements the position does not meet, as this node sees it."""
    need = needs(view)
    if need.fast:
        return ()
    nodes = status_rows(view)
    found = [_lack("quorum", "", need.quorum, [node for node in nodes if node.counts], position)]
    found += [
        _lack("zone", zone, count, [node for node in nodes if node.zone == zone], position)
        for zone, count in need.zones
    ]
    found += [
        _validator_lack(view, name, count, nodes, position) for name, count in need.validators
    ]
    return tuple(each for each in found if each.have < each.needed)


def _lack(
    what: Literal["quorum", "zone"],
    name: str,
    needed: int,
    nodes: list[NodeRow],
    position: int,
) -> Lack:
    missing = tuple(node.name for node in nodes if node.acked < position)
    return Lack(what, name, needed, len(nodes) - len(missing), missing)


def _validator_lack(
    view: View, name: str, needed: int, nodes: tuple[NodeRow, ...], position: int
) -> Lack:
    approvals = view.table("approvals")
    declared = [node.name for node in nodes if name in node.validators]
    have = sum(
        1
        for node in view.members
        if participant_of(view, node) is not None and approvals.get((name, node), 0) >= position
    )
    missing = tuple(node for node in declared if approvals.get((name, node), 0) < position)
    return Lack("validator", name, needed, have, missing)


def quorum_report(view: View) -> QuorumReport:
    need = needs(view)
    shown = sorted({*SHOWN_N, need.n})
    results = tuple((n, nodes_needed(need.text, n)) for n in shown)
    return QuorumReport(need, reached(view), results, warnings(view))


def warnings(view: View) -> tuple[str, ...]:
    """Why nothing synchronous could be confirmed with the nodes that there are, or that are up."""
    need, nodes = needs(view), status_rows(view)
    if need.fast:
        return ()
    wanted = [(f"{need.quorum} {need.over}", need.quorum, [n for n in nodes if n.counts])]
    wanted += [
        (f"{count} nodes of zone {zone}", count, [n for n in nodes if n.zone == zone])
        for zone, count in need.zones
    ]
    wanted += [
        (f"{count} nodes with validator {name}", count, [n for n in nodes if name in n.validators])
        for name, count in need.validators
    ]
    told = []
    for what, count, having in wanted:
        up = sum(node.up for node in having)
        if len(having) < count:
            told.append(f"{what} are needed, and there are {len(having)}: nothing gets its quorum")
        elif up < count:
            told.append(f"{what} are needed, and {up} are up: the others are waited for")
    return tuple(told)


def advice(view: View, *, owner_lives: bool) -> tuple[str, ...]:
    """What somebody who looks at the status should do, or know. `owner_lives`: that claim holds."""
    state = state_of(view)
    told = list(warnings(view))
    if not state.owner:
        told.append(
            "nobody owns the queue, so synchronous writes are refused: `raftkv limbo promote NODE`"
        )
    elif not owner_lives:
        told.append(
            f"the owner {state.owner} has ended the life in which it was promoted: "
            f"`raftkv limbo promote NODE`"
        )
    if state.head:
        for lack in lacks(view, state.head):
            told.append(f"position {state.head} has {lack.have} of {lack.needed} {_of(lack)}")
    return tuple(told)


def _of(lack: Lack) -> str:
    what = {
        "quorum": "acknowledgements",
        "zone": f"acknowledgements from zone {lack.name}",
        "validator": f"approvals of {lack.name}",
    }[lack.what]
    missing = f"; missing: {', '.join(lack.missing)}" if lack.missing else ""
    return what + missing
