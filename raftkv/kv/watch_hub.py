"""All watches of one node: who gets which revision, and when.

The history is a table of the keyspace, one row per revision (commands.py: `Revision`), so a watch
needs nothing that the node does not have anyway. The hub reads the rows that were added, finds the
watches that they concern (watch_index.py), and puts each revision whole into their buffers. It
works after the entries were applied (`on_progress`), so a watch shows only what this node has
applied and the cluster has committed, and a write costs nothing more because somebody watches.

Rules of this file
1. A watch gets the revisions that concern it in order, each once, each whole: `Watch._next` is the
   first that may still be put in, and whoever puts one in moves it on.
2. Nothing waits for a user. A live watch whose buffer is full is cancelled ("slow"); what is left
   in the buffer is dropped, and the user resumes from the history.
3. No turn of the loop does more than `UNITS_PER_TURN`, counted, not timed: so the simulation goes
   through the same steps as a node. What is left is done in further turns.
4. A hole in the history (compacted, or never written) ends the watches that needed it, aloud.

The states of a watch
    UNBORN   `start_revision` 0 on a node that is only starting: it begins with the node's session.
    BEHIND   it needs revisions that the hub has passed. Such watches are caught up together: a
             cohort with an index of its own walks the history once, from the first revision that
             any of them needs. Who comes too late for this walk takes the next.
    STALLED  it was behind, and its user does not take what it was given. It waits for the user: the
             history is its buffer, until the history is compacted.
    LIVE     the hub puts in what comes. Watches from a future revision are live as well.
    ENDED    let go.

Live watches and the cohort are served alike, by a walk of their own (watch_walk.py).
"""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import Any, Final

from raftkv.plugin import Host, Metric, TableView

from .commands import Revision
from .history import FIRST_REVISION, lowest_revision, revision_of
from .watch import (
    BEHIND,
    ENDED,
    LIVE,
    NO_DELETE,
    NO_PUT,
    PREV,
    STALLED,
    UNBORN,
    EndReason,
    Progress,
    Watch,
)
from .watch_walk import UNITS_PER_TURN, Walk

__all__ = ["BUFFER_BYTES_MAX", "BUFFER_EVENTS_MAX", "WatchHub"]

#: What waits in one watch, in events and in bytes of keys and values: a user who is a second or two
#: late at 10,000 writes a second is not cancelled yet. The rows are shared with the history and the
#: other watches, so an event in a buffer costs some ten bytes while the history holds it.
BUFFER_EVENTS_MAX: Final = 16_384
BUFFER_BYTES_MAX: Final = 16 << 20
# Watches put into or taken over from a cohort's index in one turn: up to 20 us each.
MOVES_PER_TURN: Final = 100


class WatchHub:
    """See the module's text. All methods run on the node's event loop."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._running = False
        self._ready = False
        self._scheduled = False
        # The highest revision that anybody was told here.
        self._told = 0
        self._live = Walk(0, self._overrun, (BUFFER_EVENTS_MAX, BUFFER_BYTES_MAX))
        self._cohort_limits = (BUFFER_EVENTS_MAX // 2, BUFFER_BYTES_MAX // 2)
        self._cohort: Walk | None = None
        # Those who are to be in the cohort's index before it goes on.
        self._boarding: list[Watch] = []
        # Its watches; those that wait for the next walk; those whose users do not take.
        self._members: dict[Watch, None] = {}
        self._pending: dict[Watch, None] = {}
        self._stalled: dict[Watch, None] = {}
        self._unborn: dict[Watch, None] = {}
        self._marks: dict[Watch, None] = {}
        self._live_watches: dict[Watch, None] = {}
        # For metrics: revisions given by the cohorts of the past, and why watches have ended.
        self._caught_up = 0
        self.ended: dict[str, int] = {"slow": 0, "compacted": 0, "given_up": 0, "stopped": 0}

    # Told by the service

    def start(self) -> None:
        """The tables are readable; watches may come."""
        self._running = True
        self._ready = self._host.incarnation > 0
        self._live.position = self._told = self._applied()

    def stop(self) -> None:
        """End all watches."""
        self._running = False
        self._end_all("stopped")

    def node_ready(self) -> None:
        """The node has a session: what it has applied is no longer of its past."""
        if self._ready or not self._running:
            return
        self._ready = True
        unborn, self._unborn = self._unborn, {}
        for watch in unborn:
            self._begin(watch, 0)

    def progressed(self) -> None:
        """Entries were applied."""
        if self._running and not self._scheduled:
            self._turn()

    def restored(self) -> None:
        """The state was replaced: by a later one, or because its history was given up."""
        if self._running and self._applied() < self._told:
            self._end_all("given_up")
            # What is applied now is of the past again, until the node has its next session.
            self._ready = False
            self._live.jump(self._applied())
            self._told = self._live.position
        self.progressed()

    # Told by users

    def open(
        self,
        key: bytes,
        range_end: bytes = b"",
        *,
        start_revision: int = 0,
        prev_kv: bool = False,
        put: bool = True,
        delete: bool = True,
        progress_s: float = 0.0,
    ) -> Watch:
        """Watch a key or a range, in etcd's notation; `KVApi.watch` explains the rest.

        The range is not empty. On a node that does not run the watch has ended as "stopped".
        """
        wants = PREV * prev_kv | NO_PUT * (not put) | NO_DELETE * (not delete)
        watch = Watch(self, key, range_end, wants)
        if not self._running:
            # Whoever named a start is told to name it again: 0 would be "from now", a gap.
            watch._given = max(start_revision, FIRST_REVISION + 1) - 1 if start_revision else 0
            self._end(watch, "stopped")
            return watch
        if progress_s > 0:
            watch._progress = Progress(progress_s)
            self._arm(watch, watch._progress)
        if start_revision == 0 and not self._ready:
            self._unborn[watch] = None
        else:
            self._begin(watch, start_revision)
        return watch

    def close(self, watch: Watch) -> None:
        """The user has had enough."""
        if watch._state != ENDED:
            self._let_go(watch)
            watch._finish(None)

    def drained(self, watch: Watch) -> None:
        """The user of a stalled watch has taken something."""
        if watch._queue is None:
            del self._stalled[watch]
            self._fall_behind(watch)

    def request_mark(self, watch: Watch) -> None:
        """Everything that is applied now is to be given, and then a mark."""
        if watch._state != ENDED:
            watch._mark_at = max(watch._mark_at, self._applied())
            if watch._state == LIVE:
                self._marks[watch] = None
                self._schedule()

    def future(self) -> asyncio.Future[Any]:
        """Of the node's own loop."""
        return self._host.runtime.future()

    def bound_buffers(self, events_max: int, bytes_max: int) -> None:
        """Other bounds than BUFFER_EVENTS_MAX and BUFFER_BYTES_MAX from now on.

        A watch that is caught up is filled by half: then there is room for what comes meanwhile.
        """
        self._live.limits = (events_max, bytes_max)
        self._cohort_limits = (events_max // 2, bytes_max // 2)

    # For users and metrics

    @property
    def revision(self) -> int:
        """Live watches were given everything up to here."""
        return self._live.revision

    @property
    def count(self) -> int:
        """Watches that have not ended."""
        return len(self._live_watches) + self.behind_count + len(self._unborn)

    @property
    def behind_count(self) -> int:
        """Watches that are being caught up, or wait for their users."""
        return len(self._members) + len(self._pending) + len(self._stalled)

    def metrics(self) -> tuple[Metric, ...]:
        ends = (
            Metric("watches_ended", "counter", count, "Watches that the node ended.", {"why": why})
            for why, count in self.ended.items()
        )
        entries = self._live.entries + self._caught_up
        return (
            Metric("watches", "gauge", self.count, "Watches on this node."),
            Metric("watches_behind", "gauge", self.behind_count, "Watches being caught up."),
            Metric("watch_revisions", "counter", entries, "Revisions given, summed over watches."),
            *ends,
        )

    # The life of a watch

    def _begin(self, watch: Watch, start_revision: int) -> None:
        applied = self._applied()
        self._told = max(self._told, applied)
        # The first revision of a keyspace holds nothing.
        start = max(start_revision, FIRST_REVISION + 1) if start_revision else applied + 1
        watch._begin(applied, start)
        lowest = self._lowest(start) if start <= applied else start
        if start < lowest:
            self._end(watch, "compacted", lowest)
        elif start > self._live.position:
            self._join(watch)
        else:
            self._fall_behind(watch)

    def _join(self, watch: Watch) -> None:
        watch._state = LIVE
        self._live_watches[watch] = None
        self._live.index.add(watch)
        if watch._mark_at >= 0:
            self._marks[watch] = None
            self._schedule()

    def _fall_behind(self, watch: Watch) -> None:
        watch._state = BEHIND
        cohort = self._cohort
        if cohort is not None and watch._next > cohort.position:
            self._board(cohort, watch)
        else:
            self._pending[watch] = None
        self._schedule()

    def _stall(self, watch: Watch) -> None:
        """A watch of the cohort has enough for the time being."""
        self._let_go(watch)
        watch._state = STALLED
        self._stalled[watch] = None

    def _overrun(self, watch: Watch) -> None:
        self._end(watch, "slow")

    def _end(self, watch: Watch, reason: EndReason, compact_revision: int = 0) -> None:
        if watch._state != ENDED:
            self.ended[reason] += 1
            self._let_go(watch)
            watch._finish(reason, compact_revision)

    def _end_all(self, reason: EndReason) -> None:
        groups = (self._live_watches, self._members, self._pending, self._stalled, self._unborn)
        for watch in [watch for group in groups for watch in group]:
            self._end(watch, reason)

    def _let_go(self, watch: Watch) -> None:
        """Take it out of whatever holds it."""
        state = watch._state
        if state == LIVE:
            del self._live_watches[watch]
            self._live.index.remove(watch)
        elif state == BEHIND and watch in self._members:
            assert self._cohort is not None
            del self._members[watch]
            self._cohort.index.remove(watch)
        elif state == BEHIND:
            del self._pending[watch]
        elif state == STALLED:
            del self._stalled[watch]
        elif state == UNBORN:
            self._unborn.pop(watch, None)
        self._marks.pop(watch, None)

    # Turns

    def _schedule(self) -> None:
        if not self._scheduled and self._running:
            self._scheduled = True
            self._host.runtime.call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._scheduled = False
        if self._running:
            self._turn()

    def _turn(self) -> None:
        """A bounded piece of work; another turn is ordered if there is more."""
        applied = self._applied()
        self._told = max(self._told, applied)
        live = self._live
        if not self._live_watches and live.revision == live.position:
            live.position = applied  # nobody looks
        else:
            self._go(live, self._live_watches, applied)
        if self._marks:
            self._tell_marks()
        if self._cohort is not None or self._pending:
            self._catch_up()
        if live.revision < applied or self._cohort is not None or self._pending:
            self._schedule()

    def _catch_up(self) -> None:
        """Some steps of the walk of those who are behind; at its end they become live."""
        cohort = self._cohort
        if cohort is None:
            first = min(watch._next for watch in self._pending)
            cohort = self._cohort = Walk(first - 1, self._stall, self._cohort_limits)
            self._boarding = list(self._pending)
        if self._boarding:
            # The walk waits for all who were there when it was ordered: they share it.
            boarding = self._boarding[-MOVES_PER_TURN:]
            del self._boarding[-MOVES_PER_TURN:]
            for watch in boarding:
                if watch in self._pending:  # else it has ended meanwhile
                    del self._pending[watch]
                    self._board(cohort, watch)
            return
        if self._go(cohort, self._members, self._live.position) > 0:
            # It stands where the live walk stands, and has handed out that revision whole.
            for watch in list(islice(self._members, MOVES_PER_TURN)):
                self._let_go(watch)
                self._join(watch)
        if not self._members:
            self._retire()

    def _board(self, cohort: Walk, watch: Watch) -> None:
        self._members[watch] = None
        cohort.index.add(watch)

    def _retire(self) -> None:
        """Nobody is left in the cohort."""
        if self._cohort is not None:
            self._caught_up += self._cohort.entries
            self._cohort = None

    def _go(self, walk: Walk, watches: dict[Watch, None], target: int) -> int:
        """One turn's steps of a walk; the units that are left once it has reached the target."""
        view = self._host.view()
        # Not the live walk, as long as its rows are there: it is on its way already, and a
        # compaction that was applied in the same turn is no reason to end every watch.
        if walk is not self._live and walk.position + 1 < lowest_revision(view):
            self._lose(walk, watches)
        # Asked for anew each turn: tables may be exchanged.
        units = walk.go(view.table("history").get, target, UNITS_PER_TURN)
        if units > 0 and walk.position < target:
            self._lose(walk, watches)
            return 0
        return units

    def _lose(self, walk: Walk, watches: dict[Watch, None]) -> None:
        """The row that the walk needs is gone: go on behind the hole."""
        lowest = self._lowest(walk.position + 1)
        for watch in [watch for watch in watches if watch._next < lowest]:
            self._end(watch, "compacted", lowest)
        walk.jump(lowest - 1)

    def _tell_marks(self) -> None:
        """Whose mark has fallen due may take it now."""
        revision = self._live.revision
        for watch in list(self._marks):
            if revision >= max(watch._mark_at, watch._given):
                del self._marks[watch]
                watch._wake()

    def _arm(self, watch: Watch, progress: Progress) -> None:
        progress.timer = self._host.runtime.call_later(progress.period_s, self._tick, watch)

    def _tick(self, watch: Watch) -> None:
        """A watch that was idle for its whole period gets a mark."""
        progress = watch._progress
        if progress is None:
            return
        if not progress.busy and watch._queue is None:
            self.request_mark(watch)
        progress.busy = False
        self._arm(watch, progress)

    # The state

    def _applied(self) -> int:
        return revision_of(self._host.view())

    def _lowest(self, revision: int) -> int:
        """The lowest revision, not below this one, from which on the history has every row."""
        view = self._host.view()
        # Before the cluster kept a history, changes left no rows.
        from_here = max(revision, lowest_revision(view))
        history: TableView[int, Revision] = view.table("history")
        return next((found for found, _ in history.scan(from_here, limit=1)), self._applied() + 1)
