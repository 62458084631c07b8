"""Which registries a cluster works with, and how it moves from one mode to another.

              reads                         writes                  lock
    disabled  the old registry              the old registry        yes
    migration the newest of both            both                    no
    dual      the linear registry           both                    no
    enabled   the linear registry           the linear registry     no

Rules of this file: pure. What it reads is replicated, so all nodes switch at one index of the log.

**Epochs.** Each switch begins an epoch, named by the index of its entry. A connection that opens
carries the epoch under whose mode it began, and the registration of another epoch is not written.
So no opening writes to the registries of one mode what was decided by those of another.

**Adoption.** What opened before the switch stands where the former mode wrote it. Each node then
enters its own living channels where the present mode wants them, and announces the epoch. Until
all have, a step is allowed only if it can do without: out of `enabled`, where the linear registry
has everything and nothing is taken out of it. A node that does not announce because it is gone will
be declared dead, and then no longer counts.

**Old nodes** know the old registry only, take its lock, and announce nothing. While one is a member
that is up, the cluster cannot be switched to `enabled`; if one comes when it already is, everybody
acts as in `migration` at once, because members are replicated like the mode. A node that has just
started is old until it announces. This goes back and forth without a step, since `migration` reads
and writes all that `enabled` does.

**Steps** go by `migration`, in both directions: the old registry is filled before anybody looks
into it alone, and the linear one before anybody looks into that alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol

from raftkv.plugin import Context, Member, TableView, View

from .commands import (
    PROTOCOL,
    Announce,
    Announced,
    BadEpoch,
    Mode,
    ModeMoved,
    ModeRow,
    ModeSwitched,
    NodeRow,
    NoOrigin,
    NotAdopted,
    NotAMember,
    OldNodes,
    SwitchMode,
    WrongStep,
)

__all__ = [
    "MODE_KEY",
    "Mode",
    "ModeRow",
    "announce",
    "effective_mode",
    "mode_of",
    "not_adopted",
    "note",
    "old_nodes",
    "switch",
]

MODE_KEY: Final = "mode"
_NEVER_SWITCHED: Final = ModeRow("disabled", 0)

# From mode to mode. True: everything must have been adopted. Missing: there is no such step.
_STEPS: Final[Mapping[tuple[Mode, Mode], bool]] = {
    ("disabled", "migration"): True,
    ("migration", "disabled"): True,
    ("migration", "dual"): True,
    ("migration", "enabled"): True,
    ("dual", "disabled"): True,
    ("dual", "migration"): True,
    ("dual", "enabled"): True,
    ("enabled", "migration"): False,
    ("enabled", "dual"): False,
}


class Tables(Protocol):
    """A `View` or a `Context`."""

    def table(self, name: str) -> TableView[Any, Any]: ...


def mode_of(tables: Tables) -> ModeRow:
    """The mode as it was switched last."""
    row: ModeRow | None = tables.table("mode").get(MODE_KEY)
    return _NEVER_SWITCHED if row is None else row


def old_nodes(tables: Tables, members: Mapping[str, Member]) -> list[str]:
    """The members that are up and have not announced themselves in this life, by name."""
    nodes: TableView[str, NodeRow] = tables.table("nodes")
    return [name for name, member in members.items() if member.up and _row(nodes, member) is None]


def not_adopted(tables: Tables, members: Mapping[str, Member]) -> list[str]:
    """The members that are up, no old nodes, and have not adopted for the present epoch yet."""
    nodes: TableView[str, NodeRow] = tables.table("nodes")
    epoch = mode_of(tables).epoch
    late = []
    for name, member in members.items():
        row = _row(nodes, member) if member.up else None
        if row is not None and row.epoch < epoch:
            late.append(name)
    return late


def effective_mode(view: View) -> ModeRow:
    """The mode to act by: "enabled" is "migration" while there are old nodes."""
    row = mode_of(view)
    if row.mode == "enabled" and old_nodes(view, view.members):
        return ModeRow("migration", row.epoch, row.serial)
    return row


def switch(command: SwitchMode, ctx: Context) -> ModeSwitched:
    """Take one step. To switch to the present mode changes nothing."""
    row = mode_of(ctx)
    if command.mode == row.mode:
        return ModeSwitched(row.mode, row.epoch, ctx.index)
    if command.epoch not in (None, row.epoch):
        raise ModeMoved(
            f"the mode was to be switched from that of epoch {command.epoch}; it is {row.mode} "
            f"since epoch {row.epoch}: ask again if it is still to be {command.mode}"
        )
    adopted = _STEPS.get((row.mode, command.mode))
    if adopted is None:
        raise WrongStep(
            f"no step leads from {row.mode} to {command.mode}: switch to migration first, and wait "
            f"until all nodes have adopted their channels"
        )
    old = old_nodes(ctx, ctx.members)
    if command.mode == "enabled" and old:
        raise OldNodes(
            f"the old registry cannot be switched off while there are nodes that know no other: "
            f"upgrade {', '.join(old)} first"
        )
    late = not_adopted(ctx, ctx.members)
    if adopted and late:
        raise NotAdopted(
            f"channels have not been adopted for {row.mode} yet on {', '.join(late)}: try again"
        )
    ctx.table("mode").put(MODE_KEY, ModeRow(command.mode, ctx.index, ctx.serial))
    return ModeSwitched(command.mode, ctx.index, ctx.index)


def announce(command: Announce, ctx: Context) -> Announced:
    """Know the sending node. One that announces a former epoch is known all the same."""
    origin = ctx.origin
    if origin is None:
        raise NoOrigin("only a node can announce itself")
    if command.incarnation not in (0, origin.incarnation):
        raise NotAMember(
            f"incarnation {command.incarnation} of {origin.name} has ended, and what it adopted "
            f"with it: the present one has to announce itself"
        )
    mode = mode_of(ctx)
    if command.epoch > mode.epoch:
        raise BadEpoch(f"epoch {command.epoch} was announced; the present one is {mode.epoch}")
    if command.protocol >= PROTOCOL:
        nodes = ctx.table("nodes")
        before = _row(nodes, origin)
        epoch = command.epoch if before is None else max(before.epoch, command.epoch)
        nodes.put(origin.name, NodeRow(origin.incarnation, command.protocol, epoch))
    return Announced(mode.mode, mode.epoch, ctx.index)


def note(ctx: Context) -> None:
    """The sending node is no old one, whether it has announced itself yet or not.

    So nobody looks for the channels that it registers in the old registry first.
    """
    nodes, origin = ctx.table("nodes"), ctx.origin
    if origin is not None and _row(nodes, origin) is None:
        nodes.put(origin.name, NodeRow(origin.incarnation, PROTOCOL, 0))


def _row(nodes: TableView[str, NodeRow], member: Member) -> NodeRow | None:
    row = nodes.get(member.name)
    return row if row is not None and row.incarnation == member.incarnation else None
