"""A check of the simulated world: a state that was frozen is let go.

A frozen view makes every later write keep what it overwrites, for as long as the view is open. One
that is forgotten costs nothing but memory, so no other check would see it.
"""

from __future__ import annotations

from raftkv.state.machine import StateMachine

__all__ = ["frozen_views"]


def frozen_views(machine: StateMachine) -> int:
    """How many views of its tables and sessions are open."""
    tables = sum(len(table._frozen) for table in machine._tables)
    return tables + len(machine._sessions.walks)
