"""What an observer of transactions hears: the interface for users, and its order.

    class Mirror(TransactionObserver):
        def __init__(self, opened: Opened) -> None: ...
        def publish(self, queue, messages): ...
        def accept(self, queue, seqs): ...
        async def prepare(self): await self.store.prepare(...)      # or raise PrepareFailed("why")
        def commit(self): ...
        def rollback(self, cause, reason): ...

    remove = txq.observe(Mirror)

One observer is made for each transaction. It hears what is staged (the seed's tx-queue) in order:
publish and accept, any number of times; `closed` with the participants; `prepare`, if this node is
one of them; then exactly one of commit and rollback; and `deleted` when the last row of it is gone.
A transaction that is never closed has no `closed` and no `prepare`.

Rules of this file
1. Every node that takes part hears the same, in the same order, when it applies the entry; what
   others do in between is not part of it.
2. Nothing is told while `prepare` runs, however the transaction ends meanwhile: it is cancelled
   first. So a rollback never overtakes the work that it has to undo.
3. An observer that failed to take some content cannot prepare: it would promise what it does not
   have. Its node votes no, as it does when its factory raised instead of making one.
4. Where something was not heard (a snapshot has jumped over it, or the node was declared dead for a
   while) and the transaction was committed, `missed` comes before `commit`. A participant that has
   voted yes has heard everything.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal

import msgspec

from raftkv.plugin import View

from .commands import AcceptOf, Message, Operation, PublishTo, TransactionRow
from .xa import Xid

__all__ = [
    "Observation",
    "ObserverFactory",
    "Opened",
    "PrepareFailed",
    "StagedRow",
    "TransactionObserver",
    "opened_of",
    "operations",
    "staged_rows",
]

#: (its place in the transaction, queue id, what was published, or the seq of what was accepted)
StagedRow = tuple[int, int, Message | int]


class Opened(msgspec.Struct, frozen=True):
    """A transaction that an observer is asked for.

    `txid`: of a TX "12.7", of a DTX the xid as text. `state`: what it was when it came to this
    node's notice: usually "active"; it hears the content in any case. A prepared one was prepared
    without this observer.
    """

    number: int
    txid: str
    xid: Xid | None
    kind: Literal["tx", "dtx"]
    state: Literal["active", "preparing", "prepared"]


class PrepareFailed(Exception):
    """Raised by `prepare`: this node cannot. The reason is shown to the one who commits."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class TransactionObserver:
    """Hears of one transaction. Everything is optional.

    All but `prepare` are plain and quick: they run on the node's loop while the entry is applied.
    What they raise is counted and logged.
    """

    def publish(self, queue: str, messages: tuple[Message, ...]) -> None:
        """These are staged for the queue, in this order."""

    def accept(self, queue: str, seqs: tuple[int, ...]) -> None:
        """These messages of the queue are accepted under it."""

    def closed(self, participants: tuple[str, ...]) -> None:
        """Nothing is added any more. Those nodes were in before the close, and have to prepare."""

    async def prepare(self) -> None:
        """Make sure that this node can commit, such as by writing to its store. Take your time, up
        to the setting prepare_timeout_ms: other transactions do not wait.

        Returning says yes. Raise `PrepareFailed` to say no; anything else says no, too. Cancelled
        when the transaction is decided before.
        """

    def missed(self) -> None:
        """What this observer has heard is not the whole content. Without a `commit` or `rollback`
        after it, nobody remembers how the transaction was decided."""

    def commit(self) -> None:
        """It is committed: visible on this node from this very entry on."""

    def rollback(self, cause: str, reason: str) -> None:
        """It is rolled back. `cause`: a word as in `Fate`; `reason`: for people."""

    def deleted(self) -> None:
        """Its last row is gone; the last call."""


ObserverFactory = Callable[[Opened], TransactionObserver | None]


class Observation:
    """One observer of one transaction: what it has heard, and that it hears it in order."""

    def __init__(self, observer: TransactionObserver, failed: Callable[[Exception], None]) -> None:
        self.observer = observer
        #: Rows of content that it has heard.
        self.heard = 0
        self.closed = False
        #: Why it cannot prepare, "": it can.
        self.broken = ""
        self._failed = failed
        # What is to be told when `prepare` is over; None: it does not run.
        self._held: deque[tuple[str, tuple[Any, ...]]] | None = None

    def take(self, content: Iterable[StagedRow], view: View) -> None:
        """Content in order; what it has heard before is left out."""
        fresh = [row for row in content if row[0] >= self.heard]
        if not fresh:
            return
        for operation in operations(fresh, view):
            if isinstance(operation, PublishTo):
                self._tell("publish", operation.queue, operation.messages)
            else:
                self._tell("accept", operation.queue, operation.seqs)
        self.heard = fresh[-1][0] + 1

    def close(self, row: TransactionRow) -> None:
        if not self.closed:
            self.closed = True
            self._tell("closed", tuple(one.node for one in row.participants))

    def miss(self) -> None:
        """Not everything was heard, or nobody remembers how it was decided."""
        self._tell("missed")

    def commit(self) -> None:
        self._tell("commit")

    def roll_back(self, cause: str, reason: str) -> None:
        self._tell("rollback", cause, reason)

    def delete(self) -> None:
        self._tell("deleted")

    def hold(self) -> None:
        """`prepare` runs from now on."""
        if self._held is None:
            self._held = deque()

    def release(self) -> None:
        """It does no longer."""
        held, self._held = self._held, None
        for name, args in held or ():
            self._call(name, args)

    def _tell(self, name: str, *args: Any) -> None:
        if self._held is None:
            self._call(name, args)
        else:
            self._held.append((name, args))

    def _call(self, name: str, args: tuple[Any, ...]) -> None:
        try:
            getattr(self.observer, name)(*args)
        except Exception as error:
            self.broken = self.broken or f"its observer failed to take {name}"
            self._failed(error)


def opened_of(number: int, row: TransactionRow) -> Opened:
    """What a factory is told. The transaction must be undecided."""
    assert row.state in ("active", "preparing", "prepared")
    if row.xid is not None:
        return Opened(number, str(row.xid), row.xid, "dtx", row.state)
    return Opened(number, f"{row.session}.{row.counter}", None, "tx", row.state)


def staged_rows(view: View, number: int, first: int = 0) -> list[StagedRow]:
    """The content of an undecided transaction from its row `first` on, in order."""
    found: list[StagedRow] = [
        (row.order, key[1], row.message)
        for key, row in view.table("staged").scan(prefix=(number,))
        if row.order >= first
    ]
    found += (
        (row.order, key[1], key[2])
        for key, row in view.table("accepts").scan(prefix=(number,))
        if row.order >= first
    )
    found.sort(key=_order)
    return found


def operations(rows: Sequence[StagedRow], view: View) -> Iterator[Operation]:
    """Ordered rows as operations: what follows each other and is of one queue goes together."""
    names = view.table("names")
    start = 0
    for end in range(1, len(rows) + 1):
        if end < len(rows) and _alike(rows[start], rows[end]):
            continue
        queue = names.get(rows[start][1], "")
        if isinstance(rows[start][2], Message):
            yield PublishTo(queue, tuple(row[2] for row in rows[start:end]))  # type: ignore[misc]
        else:
            yield AcceptOf(queue, tuple(row[2] for row in rows[start:end]))  # type: ignore[misc]
        start = end


def _order(row: StagedRow) -> int:
    return row[0]


def _alike(one: StagedRow, other: StagedRow) -> bool:
    return one[1] == other[1] and isinstance(one[2], Message) == isinstance(other[2], Message)
