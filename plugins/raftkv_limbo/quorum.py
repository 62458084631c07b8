"""Who counts, how many are needed, and up to which position they are there.

Rules of this file
1. Everything is read from replicated values: members, settings, what nodes have acknowledged. The
   same entry gives the same answer on every node, for those that wait already, too.
2. An acknowledgement counts while its node lives the life in which it gave it. A node that went
   down holds what it held, but nobody knows which disk it comes back with.
3. Over "cores", N are Raft's voters, as the log announces them, up or down: one that is down makes
   a quorum harder, never smaller. Over "members" the replicants that are up count too: they come
   and go, and nobody removes one that has gone for good.

A position has its quorum if *every* requirement has it: q nodes of those that count, n nodes of
each named zone, and n approvals of each named validator. Acknowledgements say "up to", so each
requirement is satisfied up to some position, the k-th largest, and all of them up to the lowest.

*Fast*: with neither zones nor validators, and a quorum not above the majority of the cores, Raft's
commit is the quorum: an entry that is applied is on that many nodes. Then there is nothing to wait
for, nobody acknowledges, and whatever is submitted is confirmed in its own entry. What the log
announces as voters is never more than those that voted on the entry (raftkv/voters.py): while cores
come and go, acknowledgements may be asked for where Raft's commit would have done, never the other
way round. A log that has announced none yet, of an older version, gets N from the members' roles.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from raftkv.plugin import Context, Member, View

from .commands import FRESH, Participant
from .quorum_expression import nodes_needed

__all__ = ["Needs", "State", "counts", "is_fast", "needs", "reached", "size"]

State = View | Context


class Needs(msgspec.Struct, frozen=True):
    """What a sync transaction needs now.

    `n` nodes count, `quorum` of them are needed; `over` "cores" or "members". `zones`,
    `validators`: (name, nodes). `fast`: Raft's commit is enough. `possible`: there are as many
    nodes that count, and that have declared such zones and validators. `text`: the expression.
    """

    n: int
    quorum: int
    over: str
    zones: tuple[tuple[str, int], ...]
    validators: tuple[tuple[str, int], ...]
    fast: bool
    possible: bool
    text: str


def counts(member: Member, view: State) -> bool:
    """Whether a node's acknowledgement counts."""
    voters = view.voters
    if _is_copy(member, voters):
        return member.up and view.settings["quorum_over"] == "members"
    return member.raft_id in voters if voters else True


def _is_copy(member: Member, voters: tuple[str, ...]) -> bool:
    """A replicant. One that is about to become a core votes before its row says so."""
    return member.role == "replicant" and member.raft_id not in voters


def size(view: State) -> int:
    """N: how many nodes count."""
    voters, members = view.voters, view.members.values()
    n = len(voters) or sum(member.role == "core" for member in members)
    if view.settings["quorum_over"] == "members":
        n += sum(member.up and _is_copy(member, voters) for member in members)
    return n


def is_fast(view: State) -> bool:
    """Whether Raft's commit is the quorum. Asked by every `Submit`."""
    settings, voters = view.settings, view.voters
    if not voters or settings["quorum_zones"] or settings["quorum_validators"]:
        return False
    n = len(voters) if settings["quorum_over"] == "cores" else size(view)
    return nodes_needed(settings["quorum"], n) <= len(voters) // 2 + 1


def needs(view: State) -> Needs:
    """What is needed now, for people; the decisions are in `is_fast` and `reached`."""
    settings = view.settings
    over, text = settings["quorum_over"], settings["quorum"]
    n = size(view)
    quorum = nodes_needed(text, n)
    zones = tuple(sorted(settings["quorum_zones"].items()))
    validators = tuple(sorted(settings["quorum_validators"].items()))
    living = _living(view)
    possible = (
        quorum <= n
        and all(sum(node.zone == zone for _, node in living) >= k for zone, k in zones)
        and all(sum(name in node.validators for _, node in living) >= k for name, k in validators)
    )
    return Needs(n, quorum, over, zones, validators, is_fast(view), possible, text)


def reached(view: State) -> int:
    """The highest position that has its quorum; 0: none. All below it have theirs."""
    if is_fast(view):
        last: int = view.table("meta").get("state", FRESH).last
        return last
    settings = view.settings
    members = view.members
    living = _living(view)
    counting = [node.acked for name, node in living if counts(members[name], view)]
    lowest = _largest(counting, nodes_needed(settings["quorum"], size(view)))
    for zone, k in settings["quorum_zones"].items():
        lowest = min(lowest, _largest((p.acked for _, p in living if p.zone == zone), k))
    if settings["quorum_validators"]:
        approvals = view.table("approvals")
        for validator, k in settings["quorum_validators"].items():
            approved = (approvals.get((validator, name), 0) for name, _ in living)
            lowest = min(lowest, _largest(approved, k))
    return lowest


def _living(view: State) -> list[tuple[str, Participant]]:
    """The rows of nodes that are members in the life that wrote them, by name."""
    members = view.members
    found = []
    for name, node in view.table("nodes").scan():
        member = members.get(name)
        if member is not None and member.incarnation == node.incarnation:
            found.append((name, node))
    return found


def _largest(positions: Iterable[int], k: int) -> int:
    """The k-th largest; 0 if there are fewer."""
    ordered = sorted(positions, reverse=True)
    return ordered[k - 1] if k <= len(ordered) else 0
