"""The sweep: from time to time each node looks for rows behind which no channel stands.

There should be none. A channel that ends is unregistered by its node, and what a dead node held is
cleaned by the leader. What is left to chance is a broker that forgot a channel, and old nodes, that
know nothing of the rows others entered for them. So this runs rarely (`sweep_interval_s`), slowly
(`sweep_rows_per_s`), and deletes only what is proven:

- *Own rows*: each node looks at the rows of its own present life. One is deleted if the broker says
  that there is no such channel, twice, GRACE_S apart: an opening whose registration is just coming
  out of the log looks like a dead channel for a moment. A session that the broker did not close is
  closed then. What was registered past the session manager is left to who registered it. A claim is
  looked at once it has expired.
- *Rows of old nodes*: the leader asks each old node once per sweep, in one call, which of its
  channels live. Only a clear "no" of a node that is a member in that very life deletes a row. No
  answer, a wrong one, a new life: kept.
- *History*: the leader has the rows deleted that are due (`past.py`).

Rows of other nodes that are no old ones are not looked at: they sweep for themselves, and if they
are gone, the cleaner comes. All deletions name the exact row, so nothing that was written after the
look can be hit, and a sweep that is interrupted has done no harm.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from raftkv.errors import NotApplied, OutcomeUnknown, RaftkvError, SessionExpired
from raftkv.plugin import Host, TableView, View

from . import past
from .alarms import LongRuns
from .commands import Channel, Entry, Trimmed, TrimPast, Unregister, Unregistered
from .metrics import Counters
from .modes import old_nodes
from .options import options_of
from .registry import is_live

__all__ = ["Liveness", "Sessions", "Sweep"]

# Which of the channels of a node live; None: it gave no clear answer, so keep them all.
Liveness = Callable[[str, Sequence[Channel]], Awaitable[Sequence[bool] | None]]

# How often the settings are looked at.
LOOK_S = 10.0
# Longer than an opening may take, see `open_timeout_s`.
GRACE_S = 30.0
# A sweep's second look is at no more own rows than this; further ones are found by the next.
SUSPECTS_MAX = 10_000
# One question to an old node, in bytes: far below a frame. What does not fit is asked by the next
# sweep, which goes on behind it.
ASK_BYTES_MAX = 256 * 1024
# Slices a second: how evenly `sweep_rows_per_s` is spread.
SLICES_PER_S = 10


class Broker(Protocol):
    """What the sweep asks the embedding broker."""

    def is_alive(self, channel: Channel) -> bool:
        """Whether the channel lives on this node, frozen or not."""


class Sessions(Protocol):
    """What the sweep asks the session manager of its node. Both maps are by (client, channel)."""

    @property
    def owner(self) -> Broker: ...

    @property
    def held(self) -> Mapping[tuple[str, str], Channel]:
        """The channels of this node whose sessions are open."""

    @property
    def opening(self) -> Mapping[tuple[str, str], object]:
        """The channels of this node that are just being opened."""

    async def close(self, row: Channel) -> None:
        """The session is over: delete its rows in both registries."""


class Question(msgspec.Struct):
    """What one old node is asked in a sweep."""

    channels: list[Channel] = []
    size: int = 0
    # The client id at which there was no room for more.
    full_at: str | None = None


class Found(msgspec.Struct):
    """What one walk found."""

    suspects: list[Channel] = []
    questions: dict[str, Question] = {}


class Sweep:
    """The sweeps of one node."""

    def __init__(
        self,
        host: Host,
        counters: Counters,
        held: Mapping[tuple[str, str], Channel],
        sessions: Callable[[], Sessions | None],
        liveness: Liveness,
        long_runs: LongRuns,
    ) -> None:
        """`held`: registered without the session manager, so nobody but its holder can judge."""
        self._host = host
        self._counters = counters
        self._held = held
        self._sessions = sessions
        self._liveness = liveness
        self._long_runs = long_runs
        # Where to go on asking an old node that has more channels than one question holds.
        self._ask_from: dict[str, str] = {}

    async def run(self) -> None:
        """Sweep again and again, until cancelled."""
        runtime = self._host.runtime
        last = runtime.monotonic()
        while True:
            interval_s: int = self._host.settings["sweep_interval_s"]
            await runtime.sleep(min(interval_s, LOOK_S) if interval_s else LOOK_S)
            interval_s = self._host.settings["sweep_interval_s"]
            if interval_s and runtime.monotonic() - last >= interval_s:
                last = runtime.monotonic()
                try:
                    await self.once()
                except Exception:
                    # A broker's mistake must not be the end of all sweeps.
                    self._host.log.exception("lcr: the sweep failed")

    async def once(self) -> None:
        """One sweep. What the cluster does not answer now is left for the next one."""
        started = self._host.runtime.monotonic()
        slow_s = options_of(self._host).slow_after_s
        limit_s = max(slow_s, float(self._host.settings["sweep_interval_s"]))
        with self._long_runs.watched("sweep_slow", limit_s):
            await self._once()
        took_s = self._host.runtime.monotonic() - started
        self._counters.add("sweep_ms", int(took_s * 1000))

    async def _once(self) -> None:
        try:
            found = await self._walk()
            for node, question in found.questions.items():
                await self._ask(node, question)
            if found.suspects:
                await self._host.runtime.sleep(GRACE_S)
                await self._bury(found.suspects)
            await self._trim_history()
        except (NotApplied, OutcomeUnknown, SessionExpired) as error:
            self._host.log.debug("lcr: the sweep stops until the next one: %s", error)
        else:
            self._counters.add("sweep_runs")

    # --- looking ---

    async def _walk(self) -> Found:
        found = Found()
        first: str | None = ""
        while first is not None:
            view = self._host.view()
            size = max(1, view.settings["sweep_rows_per_s"] // SLICES_PER_S)
            asked = frozenset(old_nodes(view, view.members) if self._host.is_leader else ())
            clients: TableView[str, Entry] = view.table("clients")
            seen, last = 0, ""
            for client_id, entry in clients.scan(first=first, limit=size):
                self._look(entry, asked, view, found)
                seen, last = seen + 1, client_id
            self._counters.add("sweep_scanned", seen)
            # The smallest string behind this one.
            first = last + "\0" if seen == size else None
            await self._pace(seen)
        self._ask_from = {
            node: question.full_at
            for node, question in found.questions.items()
            if question.full_at is not None
        }
        await self._look_at_held(found)
        return found

    async def _look_at_held(self, found: Found) -> None:
        """Sessions of this node that only the old registry knows: no row of the log shows them."""
        sessions = self._sessions()
        held = [] if sessions is None else list(sessions.held.values())
        known = set(found.suspects)
        size = max(1, self._host.settings["sweep_rows_per_s"] // SLICES_PER_S)
        for first in range(0, len(held), size):
            part = held[first : first + size]
            dead = [row for row in part if row not in known and self._is_dead(row)]
            found.suspects += dead[: max(0, SUSPECTS_MAX - len(found.suspects))]
            self._counters.add("sweep_scanned", len(part))
            await self._pace(len(part))

    def _look(self, entry: Entry, asked: frozenset[str], view: View, found: Found) -> None:
        for row in self._own_rows(entry, view):
            if len(found.suspects) < SUSPECTS_MAX and self._is_dead(row):
                found.suspects.append(row)
        owner = entry.owner
        if owner.node in asked and owner.node != self._host.name and is_live(owner, view.members):
            self._note(owner, found.questions.setdefault(owner.node, Question()))

    def _own_rows(self, entry: Entry, view: View) -> list[Channel]:
        rows = [entry.owner]
        claim = entry.claim
        if claim is not None and self._host.now_ms() - claim.since_ms >= view.settings["claim_ms"]:
            rows.append(claim.channel)
        return [
            row
            for row in rows
            if row.node == self._host.name and row.incarnation == self._host.incarnation
        ]

    def _is_dead(self, row: Channel) -> bool:
        sessions = self._sessions()
        key = (row.client_id, row.channel)
        # Without a session manager nobody on this node can tell a dead channel from a living one.
        if sessions is None or key in sessions.opening or sessions.owner.is_alive(row):
            return False
        return key not in self._held or key in sessions.held

    async def _bury(self, suspects: Sequence[Channel]) -> None:
        """The second look at own rows, and their deletion."""
        for row in suspects:
            sessions = self._sessions()
            if sessions is None:
                return
            if not self._is_dead(row):
                continue
            if sessions.held.get((row.client_id, row.channel)) == row:
                self._log_orphan(row)
                await sessions.close(row)
                self._counters.add("sweep_deleted_local_dead")
                await self._pace(1)
            elif row.incarnation == self._host.incarnation:  # else it is the cleaner's
                await self._delete((row,), "sweep_deleted_local_dead")

    # --- old nodes ---

    def _note(self, row: Channel, question: Question) -> None:
        if question.full_at is not None or row.client_id < self._ask_from.get(row.node, ""):
            return
        # A letter takes up to four bytes, the numbers and the frame of a row some dozens.
        size = 64 + 4 * (len(row.client_id) + len(row.channel) + len(row.node))
        if question.channels and question.size + size > ASK_BYTES_MAX:
            question.full_at = row.client_id
            return
        question.channels.append(row)
        question.size += size

    async def _ask(self, node: str, question: Question) -> None:
        channels = question.channels
        if not channels:
            return
        try:
            living = await self._liveness(node, channels)
        except (RaftkvError, msgspec.MsgspecError) as error:
            self._host.log.debug("lcr: %s did not say which channels live: %s", node, error)
            living = None
        if living is None or len(living) != len(channels):
            self._counters.add("sweep_kept_in_doubt", len(channels))
            return
        orphans = [row for row, lives in zip(channels, living, strict=True) if not lives]
        await self._delete(orphans, "sweep_deleted_remote_orphan")

    # --- deleting ---

    async def _delete(self, rows: Sequence[Channel], counter: str) -> None:
        for row in rows:
            result: Unregistered = await self._host.propose(Unregister(row))
            if result.removed:
                self._counters.add(counter)
                self._log_orphan(row)
            await self._pace(1)

    def _log_orphan(self, row: Channel) -> None:
        self._host.log.info(
            "lcr: the row of %s on %s is deleted: no channel stands behind it",
            row.channel,
            row.node,
        )

    async def _trim_history(self) -> None:
        while self._host.is_leader and past.is_due(self._host.view(), self._host.now_ms()):
            rows_max: int = self._host.settings["cleanup_rows_max"]
            trimmed: Trimmed = await self._host.propose(TrimPast(rows_max))
            self._counters.add("sweep_deleted_history", trimmed.rows)
            if not trimmed.more:
                return
            await self._pace(trimmed.rows)

    async def _pace(self, rows: int) -> None:
        rate: int = self._host.settings["sweep_rows_per_s"]
        await self._host.runtime.sleep(rows / rate)
