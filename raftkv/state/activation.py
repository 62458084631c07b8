"""Which plugin formats are active: the lowest that the members of the cluster know.

Pure, a part of the built-in plugin "core". From core format 2 on, the members that count are

- the voters, as the state knows them (voters.py): `SetVoters` of a removal ends what it held up;
- every other node that is up, learners and replicants;
- a replicant that has been down for less than VANISHED_MS on the log's clock: it usually returns.

A member that does not count holds nothing up. It cannot apply what a newer format decides, so it is
refused at the handshake until it knows the active formats, and the leader ends what it announced
by `ForgetMember`. At core format 1 every node that was ever a member counts, as in raftkv 0.1.0.
"""

from __future__ import annotations

from typing import Final

from .contract import Context, Member
from .tables import Table

__all__ = ["CORE", "VANISHED_MS", "announce", "counts", "forget", "refresh"]

CORE: Final = "core"
# A replicant that is down for longer holds no format up any more. Longer than an upgrade of its
# machine takes, short enough that a fleet of short-lived replicants does not stop an upgrade.
VANISHED_MS: Final = 3_600_000

Formats = Table[tuple[str, str], int]


def counts(member: Member, voters: tuple[str, ...], now: int) -> bool:
    """Whether the formats of a member hold up activation. `now` is the log's clock in ms.

    Before the first leader has announced the voters, every core counts as one.
    """
    if member.raft_id in voters or member.up:
        return True
    if member.role == "core":
        return not voters
    return now - member.started_ms < VANISHED_MS


def announce(name: str, plugins: tuple[tuple[str, int], ...], ctx: Context) -> bool:
    """A member has these formats now. True if that changed what is active."""
    formats: Formats = ctx.table("formats")
    forget(name, ctx)
    for plugin, version in plugins:
        formats.put((name, plugin), version)
    return _raise(sorted({plugin for plugin, _ in plugins}), ctx)


def forget(name: str, ctx: Context) -> bool:
    """End what a member has announced. True if it had announced anything."""
    formats: Formats = ctx.table("formats")
    keys = [key for key, _ in formats.scan(prefix=(name,))]
    for key in keys:
        formats.delete(key)
    return bool(keys)


def refresh(ctx: Context) -> bool:
    """The members that count have changed. True if that changed what is active."""
    if ctx.version < 2:
        return False
    formats: Formats = ctx.table("formats")
    return _raise(sorted({plugin for (_, plugin), _ in formats.scan()}), ctx)


def _raise(plugins: list[str], ctx: Context) -> bool:
    active: Table[str, int] = ctx.table("active")
    if ctx.version >= 2:
        # An entry of the log raises the core format, no announcement.
        plugins = [plugin for plugin in plugins if plugin != CORE]
    changed = False
    for plugin, lowest in _lowest(plugins, ctx).items():
        if lowest > active.get(plugin, 0):
            active.put(plugin, lowest)
            changed = True
    return changed


def _lowest(plugins: list[str], ctx: Context) -> dict[str, int]:
    """The lowest versions among the members that count; 0 as long as a core lacks the plugin.

    In one pass over the members: their rows stay for ever, so there may be very many.
    """
    formats: Formats = ctx.table("formats")
    version, voters, now = ctx.version, ctx.voters, ctx.now
    lowest = dict.fromkeys(plugins, 0)
    lacking: dict[str, None] = {}
    for name, member in ctx.members.items():
        if version >= 2 and not counts(member, voters, now):
            continue
        for plugin in plugins:
            known = formats.get((name, plugin), 0)
            if known == 0 and member.role == "core":
                lacking[plugin] = None
            elif known and (lowest[plugin] == 0 or known < lowest[plugin]):
                lowest[plugin] = known
    return lowest | dict.fromkeys(lacking, 0)
