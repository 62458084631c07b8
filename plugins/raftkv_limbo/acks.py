"""What nodes say of what they hold: acknowledgements, vetoes, declarations, and their end.

Rules of this file
1. "Up to" is all that is said. A repeated, late or lower acknowledgement changes nothing, and one
   beyond the last position counts up to the last: nothing is acknowledged before it exists.
2. Whatever a node said is bound to its life. When that ends, all of it goes, in the entry that ends
   it; the next life says it anew.
3. A validator is heard if the cluster's setting names it *and* its node has declared it. It vetoes
   sync transactions only: the others were never asked about.
"""

from __future__ import annotations

from raftkv.plugin import Context, Member, MemberChange, SettingChange

from .commands import (
    NAME_CHARS_MAX,
    VALIDATORS_MAX,
    Ack,
    Acked,
    Declare,
    Participant,
    Veto,
    Vetoed,
)
from .entering import member_of
from .queue import confirm_reached, roll_back_from
from .refusals import BadDeclaration, NotAValidator
from .settings import QUORUM_SETTINGS
from .views import entry_of, fate, participant_of, state_of

__all__ = ["ack", "declare", "members_changed", "setting_changed", "veto", "voters_changed"]


def ack(command: Ack, ctx: Context) -> Acked:
    """Note what the node holds, and CONFIRM what has its quorum thereby."""
    origin = member_of(ctx)
    upto = min(command.upto, state_of(ctx).last)
    node = _participant(ctx, origin)
    changed = False
    if upto > node.acked:
        _put(ctx, origin, node, acked=upto)
        changed = True
    if command.validators:
        approvals = ctx.table("approvals")
        for validator in node.validators:
            key = validator, origin.name
            if validator in command.validators and upto > approvals.get(key, 0):
                approvals.put(key, upto)
                changed = True
    if changed:
        confirm_reached(ctx, "ack", origin.name, upto)
    return Acked(state_of(ctx).confirmed)


def declare(command: Declare, ctx: Context) -> None:
    """The node's zone and validators, in place of what it declared before."""
    origin = member_of(ctx)
    validators = tuple(sorted(dict.fromkeys(command.validators)))
    if len(validators) > VALIDATORS_MAX:
        raise BadDeclaration("validators of one node", VALIDATORS_MAX)
    if any(not 1 <= len(name) <= NAME_CHARS_MAX for name in validators):
        raise BadDeclaration("letters of the name of a validator (and not none)", NAME_CHARS_MAX)
    if len(command.zone) > NAME_CHARS_MAX:
        raise BadDeclaration("letters of the name of a zone", NAME_CHARS_MAX)
    node = _participant(ctx, origin)
    for gone in node.validators:
        if gone not in validators:
            ctx.table("approvals").delete((gone, origin.name))
    if (command.zone, validators) != (node.zone, node.validators):
        _put(ctx, origin, node, zone=command.zone, validators=validators)
        confirm_reached(ctx, "declare", origin.name)


def veto(command: Veto, ctx: Context) -> Vetoed:
    """ROLLBACK from the position on, if it still is to be decided."""
    origin = member_of(ctx)
    validator = command.validator
    named = validator in ctx.settings["quorum_validators"]
    if not named or validator not in _participant(ctx, origin).validators:
        raise NotAValidator(validator[:NAME_CHARS_MAX])
    verdict = fate(ctx, command.position)
    if verdict == "confirmed":
        return Vetoed("confirmed")
    if verdict == "rolled back":
        return Vetoed("rolled back")
    entry = entry_of(ctx, command.position)
    if verdict != "pending" or entry is None or not entry.sync:
        return Vetoed("unknown")
    reason = f"vetoed by {validator} on {origin.name}: {command.reason}"
    roll_back_from(ctx, command.position, reason, origin.name)
    return Vetoed("rolled back")


def members_changed(change: MemberChange, ctx: Context) -> None:
    """Drop what an ended life has said; another N, or another role, may complete a quorum."""
    member = change.new or change.old
    assert member is not None
    node: Participant | None = ctx.table("nodes").get(member.name)
    if node is not None and (change.new is None or node.incarnation != change.new.incarnation):
        for validator in node.validators:
            ctx.table("approvals").delete((validator, member.name))
        ctx.table("nodes").delete(member.name)
    confirm_reached(ctx, "member", member.name)


def voters_changed(ctx: Context) -> None:
    """Another N, others who count."""
    confirm_reached(ctx, "voters", "")


def setting_changed(change: SettingChange, ctx: Context) -> None:
    """Another quorum counts for those that wait, too."""
    if change.key in QUORUM_SETTINGS:
        confirm_reached(ctx, "setting", change.key)


def _participant(ctx: Context, origin: Member) -> Participant:
    return participant_of(ctx, origin.name) or Participant(origin.incarnation)


def _put(
    ctx: Context,
    origin: Member,
    old: Participant,
    *,
    acked: int | None = None,
    zone: str | None = None,
    validators: tuple[str, ...] | None = None,
) -> None:
    new = Participant(
        origin.incarnation,
        old.acked if acked is None else acked,
        old.zone if zone is None else zone,
        old.validators if validators is None else validators,
    )
    ctx.table("nodes").put(origin.name, new)
