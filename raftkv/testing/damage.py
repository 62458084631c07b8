"""Damage to the state of a running node, as memory that fails or a wrong decision does it.

The rows are changed behind the back of the tables: nothing is captured, undone or saved for a walk
that is under way.
"""

from __future__ import annotations

from typing import Any

from raftkv.state.machine import StateMachine
from raftkv.state.tables import Table

__all__ = ["damage", "lose"]


def _table(machine: StateMachine, plugin: str, table: str) -> Table[Any, Any]:
    return machine._all[plugin].tables[table]


def damage(machine: StateMachine, plugin: str, table: str, key: Any, value: Any) -> None:
    """The row of `key` holds something else, or is there although it should not be."""
    _table(machine, plugin, table)._rows[key] = value


def lose(machine: StateMachine, plugin: str, table: str, key: Any) -> None:
    """The row of `key` is gone."""
    del _table(machine, plugin, table)._rows[key]
