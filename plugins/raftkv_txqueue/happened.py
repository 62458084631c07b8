"""What one entry of the log did to transactions, in the order in which it can be told.

The rows that an entry changed come command by command, each row with its first and its last value
in that command. Nothing says in which order one command wrote them. So content and state are
gathered apart: a transaction gets content only while it is active, hence whatever the entry added
to it came before whatever the entry did to it otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from raftkv.plugin import ABSENT, Change, View

from . import views
from .commands import DecisionRow, RollbackRow, TransactionRow
from .observers import StagedRow

__all__ = ["UNDECIDED", "Happened", "Verdict"]

#: States in which the whole content is in the tables.
UNDECIDED: Final = ("active", "preparing", "prepared")


class Verdict(msgspec.Struct, frozen=True):
    """How a transaction was decided. `known` False: nobody remembers."""

    committed: bool
    cause: str = ""
    reason: str = ""
    known: bool = True


class Happened:
    """One entry, with the tables as it left them. Without changes: a snapshot."""

    def __init__(self, view: View, changes: Sequence[Change]) -> None:
        self.view = view
        self.changes = changes
        #: Changes of rows of transactions, in order.
        self.moves: list[Change] = []
        self._content: dict[int, list[StagedRow]] = {}
        self._rollbacks: dict[tuple[int, int], RollbackRow] = {}
        self._decisions: dict[int, DecisionRow] = {}
        for change in changes:
            self._gather(change)

    def _gather(self, change: Change) -> None:
        table, key, new = change.table, change.key, change.new
        if table == "transactions":
            self.moves.append(change)
        elif new is ABSENT:
            return
        elif table == "staged":
            if change.old is ABSENT:
                self._content.setdefault(key[0], []).append((new.order, key[1], new.message))
        elif table == "accepts":
            if change.old is ABSENT:
                self._content.setdefault(key[0], []).append((new.order, key[1], key[2]))
        elif table == "rollbacks":
            self._rollbacks[key] = new
        elif table == "decisions":
            self._decisions[new.transaction] = new

    @property
    def numbers(self) -> tuple[int, ...]:
        """Transactions to which it has added something that was not asked for yet."""
        return tuple(self._content)

    def content_of(self, number: int) -> list[StagedRow]:
        """What the entry has added to a transaction, in order. Given once."""
        rows = self._content.pop(number, [])
        rows.sort(key=_order)
        return rows

    def verdict(self, number: int, row: TransactionRow) -> Verdict:
        """How the transaction, which is decided, was decided.

        What the entry itself has written comes first, for it may be trimmed in the same one.
        """
        if row.xid is None:
            written = self._rollbacks.get((row.session, row.counter))
            if written is not None:
                return Verdict(False, written.cause, written.reason)
            fate = views.outcome_of(self.view, row.session, row.counter)
            known = fate.state in ("committed", "rolled back")
            return Verdict(fate.state == "committed", fate.cause, fate.reason, known)
        # A xid may be used again, within an entry or behind a snapshot.
        decision = self._decisions.get(number) or views.decision_of(self.view, row.xid, number)
        if decision is None:
            return Verdict(False, known=False)
        return Verdict(decision.verdict == "committed", decision.by, decision.reason)


def _order(row: StagedRow) -> int:
    return row[0]
