"""Who owns the queue: promote and demote, and rolling back on request.

Rules of this file
1. The owner changes by a command alone. Neither its death nor its removal, nor an empty queue,
   moves the ownership; a restarted owner has to be promoted anew, for its life is another one.
2. A change names the term that it ends. Of two at once the first one wins, the other is refused by
   name. Every change raises the term, so what was written under an earlier one is refused as well.
3. A change settles the queue in the same entry: whoever proposes it has waited until all that it
   knows of (`upto`) has its verdict; what came later is rolled back. What was confirmed stays.
4. A request to roll back is one command among others in the log. It loses against a CONFIRM that
   was applied before, and there is nothing in between.
"""

from __future__ import annotations

from raftkv.plugin import Context

from .commands import Demote, Demoted, Promote, Promoted, RollBack, RolledBackTo
from .entering import member_of
from .queue import Draft, roll_back_from
from .refusals import (
    AlreadyConfirmed,
    AlreadyRolledBack,
    InterferingPromote,
    NotOwner,
    NotSettled,
    StaleTerm,
    UnknownPosition,
)
from .views import fate, state_of

__all__ = ["demote", "promote", "roll_back"]


def promote(command: Promote, ctx: Context) -> Promoted:
    """Make the sender the owner. The present owner, in the same life, keeps its term."""
    origin = member_of(ctx)
    draft = Draft(ctx)
    _require_term(draft, command.expected_term)
    if (draft.owner, draft.incarnation) == (origin.name, origin.incarnation):
        return Promoted(draft.term, draft.confirmed, 0)
    _require_settled(draft, command.upto)
    gone = _roll_back_rest(draft, f"promotion of {origin.name} in term", origin.name)
    draft.owner, draft.incarnation = origin.name, origin.incarnation
    draft.term += 1
    draft.save()
    return Promoted(draft.term, draft.confirmed, gone)


def demote(command: Demote, ctx: Context) -> Demoted:
    """Leave the queue without an owner. Any life of the owner may do that."""
    origin = member_of(ctx)
    draft = Draft(ctx)
    _require_term(draft, command.expected_term)
    if draft.owner != origin.name:
        raise NotOwner(draft.owner, draft.term)
    _require_settled(draft, command.upto)
    gone = _roll_back_rest(draft, f"demotion of {origin.name} in term", origin.name)
    draft.owner, draft.incarnation = "", 0
    draft.term += 1
    draft.save()
    return Demoted(draft.term, draft.confirmed, gone)


def roll_back(command: RollBack, ctx: Context) -> RolledBackTo:
    """Roll back everything that is pending from a position on."""
    position = command.position
    state = state_of(ctx)
    if command.term != state.term:
        raise StaleTerm(state.term)
    match fate(ctx, position):
        case "confirmed":
            raise AlreadyConfirmed(position)
        case "rolled back":
            raise AlreadyRolledBack(position)
        case "forgotten" | "unknown":
            raise UnknownPosition(position)
        case "pending":
            pass
    origin = ctx.origin
    positions = roll_back_from(ctx, position, command.reason, "" if origin is None else origin.name)
    return RolledBackTo(positions[0], positions[-1], len(positions))


def _require_term(draft: Draft, expected: int) -> None:
    if draft.term != expected:
        raise InterferingPromote(draft.owner, draft.term)


def _require_settled(draft: Draft, upto: int) -> None:
    if draft.head and draft.head <= upto:
        raise NotSettled(draft.head, upto)


def _roll_back_rest(draft: Draft, why: str, node: str) -> int:
    """Roll back all that is pending; how many entries."""
    if not draft.head:
        return 0
    return len(draft.roll_back(draft.head, f"{why} {draft.term + 1}", node))
