"""The computed tables as plain rows: what the report is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["CONNECTS", "Figures", "Rows"]

Rows = list[dict[str, Any]]

CONNECTS: dict[str, str] = {"op": "connect", "phase": "load", "role": "all"}
"""The rows that the report compares: connects under load, all callers together."""


@dataclass(frozen=True)
class Figures:
    """What came out: the rows of every table, what went in, and under which conditions."""

    conditions: dict[str, Any]
    input: dict[str, Any]
    tables: dict[str, Rows]

    def rows(self, table: str, **where: object) -> Rows:
        """The rows of a table, in its order, whose columns have the given values."""
        return [
            row
            for row in self.tables[table]
            if all(row[column] == value for column, value in where.items())
        ]

    def values(self, table: str, column: str, **where: object) -> list[Any]:
        """The different values of a column, in the table's order."""
        return list(dict.fromkeys(row[column] for row in self.rows(table, **where)))
