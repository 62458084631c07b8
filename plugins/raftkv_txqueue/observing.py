"""What happens in transactions, for those who want to know on this node; and taking part in them.

`observers.py` says what an observer hears. This file finds it out: from the rows that each entry
changes (`Host.listen`), which costs something, so only while a factory is registered; and from the
tables, when it begins, and when a snapshot has jumped over entries.

Rules of this file
1. A node that observes takes part: it says so through the log (`Observe`), and from that entry on
   every transaction that is closed has it among its participants and stages its content, however
   small it is. So observers are made from that entry on, for what is undecided then, too; before
   it, content could pass unseen.
2. That it takes part is bound to its life. A new one says it again, and opens observers of what it
   has not seen; those that it had go on.
3. What an entry did to one transaction is told in the order opened, content, closed, decided,
   deleted (`happened.py`), also when several commands of the entry did it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from raftkv.errors import RaftkvError, ReadTimeout, Stopped
from raftkv.plugin import RETRY_FIRST_S, RETRY_MAX_S, Change, Host, View

from .commands import Observe, TransactionRow
from .happened import UNDECIDED, Happened, Verdict
from .metrics import Counters
from .observers import (
    Observation,
    ObserverFactory,
    Opened,
    PrepareFailed,
    StagedRow,
    TransactionObserver,
    opened_of,
    staged_rows,
)
from .options import options_of
from .voting import Voting

__all__ = ["ObserverFactory", "Observing", "Opened", "PrepareFailed", "TransactionObserver"]

# An observer that fails is said again after so long.
SAID_AGAIN_S = 60.0


class _Tracked:
    """A transaction that this node has seen, with its observers by the number of their factory."""

    def __init__(self, row: TransactionRow) -> None:
        self.row = row
        self.observations: dict[int, Observation] = {}
        #: It was seen closed, so that its content is complete when all rows are heard.
        self.closed = False
        self.decided = False

    @property
    def heard(self) -> int:
        """Rows of content that all its observers have heard."""
        return min((one.heard for one in self.observations.values()), default=0)

    def take(self, rows: Sequence[StagedRow], view: View) -> None:
        if rows:
            for observation in tuple(self.observations.values()):
                observation.take(rows, view)


class Observing:
    """Factories, their observers, and this node's part in transactions. One per node."""

    def __init__(self, host: Host, counters: Counters) -> None:
        self._host = host
        self._counters = counters
        self._factories: dict[int, ObserverFactory] = {}
        self._next = 0
        self._tracked: dict[int, _Tracked] = {}
        self._voting = Voting(host, counters, self._failed, options_of(host).prepares_max)
        self._wake = asyncio.Event()
        self._waiters: list[asyncio.Future[None]] = []
        self._started = False
        self._stopped = False
        self._unlisten: Callable[[], None] | None = None
        # The incarnation in which observers are made; 0: not yet.
        self._begun = 0
        self._said: dict[str, float] = {}

    def __len__(self) -> int:
        """Factories."""
        return len(self._factories)

    # --- registering ---

    def observe(self, factory: ObserverFactory) -> Callable[[], None]:
        """See `TxQueueApi.observe`."""
        self._next += 1
        key = self._next
        self._factories[key] = factory
        if self._started:
            self._listen()
            if self._begun and self._begun == self._host.incarnation:
                view = self._host.view()
                for number in list(self._tracked):
                    self._open_for(key, factory, number, view)
        self._wake.set()

        def remove() -> None:
            if self._factories.pop(key, None) is not None:
                for tracked in self._tracked.values():
                    tracked.observations.pop(key, None)
                self._wake.set()

        return remove

    async def taking_part(self, timeout_s: float | None = None) -> None:
        """Return when this node takes part, or no longer does, as its factories want it.

        Raises ReadTimeout: it is not so yet; Stopped.
        """
        if self._stopped:
            raise Stopped("this node stops")
        if self._started and self._is_said(self._host.view()):
            return
        future = self._host.runtime.future()
        self._waiters.append(future)
        try:
            await asyncio.wait((future,), timeout=timeout_s)
            if not future.done():
                raise ReadTimeout("the log has not yet taken note of this node's observers")
            future.result()
        finally:
            self._waiters = [one for one in self._waiters if one is not future]

    # --- the service's calls ---

    def start(self) -> None:
        """The node has recovered."""
        self._started = True
        if self._factories:
            self._listen()
        self._host.spawn(self._run(), "txqueue observe")

    def incarnation(self) -> None:
        """This node has a new life."""
        self._wake.set()

    def stop(self) -> None:
        """The node stops; its observers hear nothing more."""
        self._started = False
        self._stopped = True
        self._voting.stop()
        if self._unlisten is not None:
            self._unlisten()
            self._unlisten = None
        for future in self._waiters:
            if not future.done():
                future.set_exception(Stopped("this node stops"))

    # --- taking part ---

    def _is_said(self, view: View) -> bool:
        """Whether the log knows what this node wants."""
        return self._takes_part(view) == bool(self._factories)

    def _takes_part(self, view: View) -> bool:
        """Whether every close of now has this node among its participants.

        The row goes in the entry that ends the life which it names.
        """
        said = view.table("observers").get(self._host.name)
        return said is not None and said == self._host.incarnation

    async def _run(self) -> None:
        """Say whether this node takes part, whenever the log does not know it."""
        host, delay_s = self._host, RETRY_FIRST_S
        while True:
            self._wake.clear()
            view = host.view()
            if not self._is_said(view) and host.incarnation:
                try:
                    await host.propose(Observe(bool(self._factories)))
                except Stopped:
                    return
                except RaftkvError as error:
                    host.log.debug("txqueue: observing waits: %s", type(error).__name__)
                if not self._is_said(host.view()):
                    await host.runtime.sleep(delay_s)
                    delay_s = min(2 * delay_s, RETRY_MAX_S)
                    continue
            delay_s = RETRY_FIRST_S
            if self._is_said(host.view()):
                for future in self._waiters:
                    if not future.done():
                        future.set_result(None)
                self._rest()
            await self._wake.wait()

    def _listen(self) -> None:
        if self._unlisten is None:
            self._unlisten = self._host.listen(self._applied)

    def _rest(self) -> None:
        """Nobody observes here, and the log knows: hear of nothing, once all votes are given."""
        if self._factories or self._unlisten is None:
            return
        self._begun = 0
        view = self._host.view()
        for number in list(self._tracked):
            if not self._voting.is_asked(view, number):
                del self._tracked[number]
        if not self._tracked:
            self._unlisten()
            self._unlisten = None

    # --- what the log did ---

    def _applied(self, index: int, changes: Sequence[Change]) -> None:
        """The rows that one entry of the log has changed, command by command."""
        view = self._host.view()
        entry = Happened(view, changes)
        opens = self._takes_part(view) and self._begun == self._host.incarnation
        for change in entry.moves:
            number, new = change.key, change.new
            tracked = self._tracked.get(number)
            if isinstance(new, TransactionRow):
                if tracked is None and opens and new.state in UNDECIDED:
                    tracked = self._open(number, new)
                if tracked is not None:
                    if new.state != "active":
                        # Nothing is added to a closed one: all that this entry added came before.
                        tracked.take(entry.content_of(number), view)
                    self._moved(number, tracked, new, entry)
            elif tracked is not None:
                tracked.take(entry.content_of(number), view)
                self._gone(number, tracked, entry)
        for number in entry.numbers:
            tracked = self._tracked.get(number)
            if tracked is not None:
                tracked.take(entry.content_of(number), view)
        self._begin(entry)
        if not self._factories:
            self._wake.set()

    def restored(self) -> None:
        """A snapshot has replaced the state: catch up from the tables."""
        view = self._host.view()
        entry = Happened(view, ())
        for number, tracked in list(self._tracked.items()):
            row = view.table("transactions").get(number)
            if row is None:
                self._gone(number, tracked, entry)
                continue
            if row.state in UNDECIDED and tracked.observations:
                tracked.take(staged_rows(view, number, tracked.heard), view)
            self._moved(number, tracked, row, entry)
        if self._unlisten is not None:
            self._begin(entry)
        self._wake.set()

    def _begin(self, entry: Happened) -> None:
        """Make observers from now on, for all that is undecided first, unless it began already."""
        if not self._takes_part(entry.view):
            self._begun = 0
            return
        missing = self._begun != self._host.incarnation
        self._begun = self._host.incarnation
        if not missing and entry.changes:
            return
        for number, row in entry.view.table("transactions").scan():
            if number not in self._tracked and row.state in UNDECIDED:
                tracked = self._open(number, row)
                if tracked.observations:
                    tracked.take(staged_rows(entry.view, number), entry.view)
                self._moved(number, tracked, row, entry)

    # --- one transaction ---

    def _open(self, number: int, row: TransactionRow) -> _Tracked:
        tracked = self._tracked[number] = _Tracked(row)
        for key, factory in list(self._factories.items()):
            self._ask(key, factory, number, tracked)
        return tracked

    def _open_for(self, key: int, factory: ObserverFactory, number: int, view: View) -> None:
        """A factory that came later: its observer hears what the others have heard."""
        tracked = self._tracked[number]
        if tracked.row.state not in UNDECIDED:
            return
        observation = self._ask(key, factory, number, tracked)
        if observation is not None:
            observation.take(staged_rows(view, number), view)
            if tracked.closed:
                observation.close(tracked.row)

    def _ask(
        self, key: int, factory: ObserverFactory, number: int, tracked: _Tracked
    ) -> Observation | None:
        try:
            observer = factory(opened_of(number, tracked.row))
        except Exception as error:
            self._failed(error)
            # What it was to make sure of nobody does, so this node must not say yes.
            observation = Observation(TransactionObserver(), self._failed)
            observation.broken = "its observer could not be made"
        else:
            if observer is None:
                return None
            observation = Observation(observer, self._failed)
        tracked.observations[key] = observation
        return observation

    def _moved(self, number: int, tracked: _Tracked, row: TransactionRow, entry: Happened) -> None:
        """Its row is there, in whatever state."""
        tracked.row = row
        state = row.state
        if state in ("preparing", "prepared"):
            tracked.closed = True
            for observation in tuple(tracked.observations.values()):
                observation.close(row)
        if self._voting.is_asked_by(row):
            self._voting.begin(number, tuple(tracked.observations.values()))
        elif state != "preparing":
            self._voting.end(number)
        if state in ("committed", "heuristically committed"):
            self._decide(tracked, Verdict(committed=True))
        elif state == "failed":
            self._decide(tracked, Verdict(False, row.cause, row.reason))
        elif state in ("rolled back", "heuristically rolled back") and not tracked.decided:
            verdict = entry.verdict(number, row)
            known = verdict.known and not verdict.committed
            self._decide(tracked, verdict if known else Verdict(False, row.cause, row.reason))

    def _gone(self, number: int, tracked: _Tracked, entry: Happened) -> None:
        """Its row is no longer there."""
        self._voting.end(number)
        if not tracked.decided:
            # Nothing is added to a closed one. To others a snapshot may have hidden something, and
            # a TX gets its last operations in the very entry that commits it without participants.
            whole = tracked.closed or (tracked.row.xid is not None and bool(entry.changes))
            self._decide(tracked, entry.verdict(number, tracked.row), whole=whole)
        for observation in tuple(tracked.observations.values()):
            observation.delete()
        del self._tracked[number]

    def _decide(self, tracked: _Tracked, verdict: Verdict, *, whole: bool = True) -> None:
        """`whole`: the row that is known last tells of all the content."""
        if tracked.decided:
            return
        tracked.decided = True
        row = tracked.row
        for observation in tuple(tracked.observations.values()):
            if not verdict.known:
                observation.miss()
            elif not verdict.committed:
                observation.roll_back(verdict.cause, verdict.reason)
                continue
            elif observation.heard < row.rows or not whole:
                observation.miss()
                observation.commit()
            else:
                observation.commit()
                continue
            self._counters.add("observer_gaps")

    # --- failures ---

    def _failed(self, error: Exception) -> None:
        """An observer raised. Its text is not shown: it may have what users have written."""
        self._counters.add("observer_failures")
        where, now = _place_of(error), self._host.runtime.monotonic()
        if now - self._said.get(where, -SAID_AGAIN_S) >= SAID_AGAIN_S:
            self._said[where] = now
            self._host.log.error("an observer of transactions failed: %s", where)


def _place_of(error: Exception) -> str:
    """The kind of an error and the line that raised it."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return type(error).__name__
    code = trace.tb_frame.f_code
    return f"{type(error).__name__} in {code.co_name}, line {trace.tb_lineno}"
