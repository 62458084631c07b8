"""That the state keeps nothing of the cores that were removed, once the cluster has healed."""

from __future__ import annotations

from raftkv.raft.membership import Configuration
from raftkv.state import StateMachine

__all__ = ["kept_though_removed"]


def kept_though_removed(machine: StateMachine, configuration: Configuration) -> list[str]:
    """The cores that the configuration names as removed, and the state has as members.

    Before core format 2 the state is not notified of removals.
    """
    if machine.core_format < 2:
        return []
    known = machine.removed_members
    return [
        member.name
        for member in machine.members.values()
        if member.role == "core"
        and member.raft_id in configuration.removed
        and not configuration.is_member(member.raft_id)
        and (member.up or known.get(member.name) != member.raft_id)
    ]
