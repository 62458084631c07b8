"""A check of the simulated world: a member that is gone holds no format of a plugin up."""

from __future__ import annotations

from raftkv.state.machine import StateMachine

__all__ = ["held_up"]


def held_up(machine: StateMachine) -> list[str]:
    """The plugins whose active format is not the newest, although all nodes here know that one.

    At the newest core format; below it a node that was ever a member may hold a format up.
    """
    if machine.core_format < machine.core_format_max:
        return []
    active = dict(machine.view("core").table("active").scan())
    return [
        name
        for name, routed in machine._all.items()
        if name != "core" and active.get(name, 0) < routed.plugin.version
    ]
