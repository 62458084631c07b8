"""What the door answers with, made of what the plugin gives: plain JSON, bytes in base64.

Only `browsed_report` and `deliveries_report` show messages, to whoever asked for them; everything
else tells names of queues, numbers and states.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from raftkv.plugin import View

from .commands import Message, SessionRow
from .contents import BranchContent
from .dtx import Branch, BranchOutcome
from .locks import deliveries_of, since_of
from .views import Browsed, Fate

if TYPE_CHECKING:
    from .consuming import Delivery
    from .transaction import Committed

__all__ = [
    "ANSWER_BYTES_MAX",
    "LISTED_PARTS_MAX",
    "branch_outcome_report",
    "branches_report",
    "browsed_report",
    "committed_report",
    "deliveries_report",
    "fate_report",
    "held_report",
]

#: Bytes of the messages of one answer to a look; one message is always there.
ANSWER_BYTES_MAX: Final = 4 * 1024 * 1024
#: Queues of all branches together of which a list of branches shows the content.
LISTED_PARTS_MAX: Final = 1_000


def browsed_report(found: Sequence[Browsed], limit: int) -> dict[str, Any]:
    """`limit` messages that fit; `next`: the seq to go on from, 0: that is all."""
    count, size = 0, 0
    for each in found[:limit]:
        size += len(each.message.body)
        if size > ANSWER_BYTES_MAX and count:
            break
        count += 1
    return {
        "messages": [
            {
                "seq": each.seq,
                **_message(each.message),
                "at_ms": each.at_ms,
                "deliveries": each.deliveries,
                "state": each.state,
                "holder": each.holder,
            }
            for each in found[:count]
        ],
        "next": found[count].seq if len(found) > count else 0,
    }


def deliveries_report(found: Sequence[Delivery]) -> list[dict[str, Any]]:
    """Messages that the session holds now."""
    return [
        {
            "seq": each.seq,
            "body": each.body,
            "headers": each.headers,
            "deliveries": each.deliveries,
            "redelivered": each.redelivered,
        }
        for each in found
    ]


def held_report(view: View, number: int, limit: int) -> dict[str, Any]:
    """A session with what it holds: for a client that lost the answer to a get."""
    row: SessionRow = view.table("sessions")[number]
    names = view.table("names")
    held = view.table("locks").scan(prefix=(number,), limit=limit)
    return {
        "session": number,
        "kind": row.kind,
        "node": row.node,
        "held": [
            {
                "queue": names.get(queue, ""),
                "seq": seq,
                "deliveries": deliveries_of(lock),
                "since_ms": since_of(lock),
            }
            for (_, queue, seq), lock in held
        ],
        "held_count": row.held,
        "decided": row.decided,
        "transaction": row.number != 0,
    }


def committed_report(done: Committed) -> dict[str, Any]:
    """A transaction that is committed; `spans`: (queue, first seq, last seq) that it published."""
    return {"txid": done.txid, "state": "committed", "index": done.index, "spans": done.spans}


def fate_report(txid: str, fate: Fate) -> dict[str, Any]:
    """What became of a transaction."""
    return {"txid": txid, **msgspec.structs.asdict(fate)}


def branches_report(branches: Sequence[Branch]) -> list[dict[str, Any]]:
    """All of them. The content of those for which `LISTED_PARTS_MAX` leaves no room is null."""
    found, left = [], LISTED_PARTS_MAX
    for branch in branches:
        report = _branch(branch)
        left -= len(branch.content)
        if left < 0:
            report["content"] = None
        found.append(report)
    return found


def branch_outcome_report(
    outcome: BranchOutcome, known: Branch | None = None, content: Sequence[BranchContent] = ()
) -> dict[str, Any]:
    """What became of a branch, and, in `branch`, what it is if it is still known; its content."""
    found = {**msgspec.structs.asdict(outcome), "xid": str(outcome.xid)}
    return {**found, "branch": None if known is None else _branch(known), "content": content}


def _branch(branch: Branch) -> dict[str, Any]:
    return {**msgspec.structs.asdict(branch), "xid": str(branch.xid)}


def _message(message: Message) -> dict[str, Any]:
    return {"body": message.body, "headers": message.headers}
