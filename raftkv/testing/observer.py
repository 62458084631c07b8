"""The five Raft properties, checked from outside while whole nodes run in the simulated world.

Rules of this file: it only looks. It listens by wrapping methods of the real classes (patching.py)
while it is installed, knows the running host from the context, draws no random number and schedules
nothing; so a run with it and one without it take the same steps.

What is checked, and when (Raft paper, figure 3):
- *Election safety*: at every election, no other node, and no other life of this one, has led the
  term; the leader is a voter, and a majority of the voters has sent it its vote (promises.py keeps
  them).
- *Leader append-only*: whenever a log is cut, its owner does not lead.
- *Log matching*: at every append, anywhere. Every entry (index, term) has one payload and one
  predecessor's term in the whole cluster; by induction, so have all before it.
- *Leader completeness*: at every election, the log holds what was committed in earlier terms.
- *State-machine safety*: at every tick that moves a commit index, one term per committed index in
  the whole cluster; at every apply, one payload per index (simulated.py), never above the commit
  index. A committed entry is never cut off.

And beside them: a leader commits by counting only entries of its own term; what it commits is on
the platters of a majority (promises.py); whom the state takes for voters, at an entry, are among
those by whom it was committed (raftkv/voters.py), until somebody forces a removal that the state
does not know of yet; term, commit and applied index of a running node never go back; nobody is
elected while another node holds a lease by its own clock.

Who votes is asked of the log, not of its owner: of everything that was ever appended, the last
configuration that stands in this log. At elections and commits the engine must count by the same
one. A leader appends a new one only when the one before is committed and an entry of its own term
is, with one voter more or less, and one more only if that copy has caught up; and, unless it is
forced, only if a majority of the voters after it holds the log. Where a log begins,
after a start, a snapshot or a promotion, stands the configuration that was committed there.
"""

from __future__ import annotations

import bisect
import contextlib
import zlib
from collections.abc import Callable
from types import TracebackType
from typing import Any, NoReturn, Self

from raftkv.raft.engine import CONFIGURATION, Engine
from raftkv.raft.leading import Leading
from raftkv.raft.membership import EMPTY, Configuration, decode
from raftkv.raft.wal import Wal
from raftkv.testing.current import running_host
from raftkv.testing.inbox_check import checked_inbox
from raftkv.testing.marks import Marks
from raftkv.testing.patching import around
from raftkv.testing.promises import Promises
from raftkv.testing.world import World

__all__ = ["Observer", "Violated"]

Violated = Callable[[str, str], NoReturn]
"""(name of the check, what was seen)"""

# A copy that lacks more entries than this when it becomes a voter had not caught up: what the
# leader asks for (membership.CAUGHT_UP_ENTRIES), and what it may append meanwhile.
CAUGHT_UP_ENTRIES = 512


class _Seen:
    """What the last look at one life of a core showed."""

    __slots__ = ("applied", "commit", "engine", "leading", "term")

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.term = engine.term
        self.commit = engine.commit
        self.applied = engine.applied
        self.leading: Leading | None = None


class Observer:
    """Watches all cores of one world. A context manager: installed while entered."""

    def __init__(self, world: World, violated: Violated, marks: Marks, *, synced: bool) -> None:
        self._world = world
        self._violated = violated
        self._marks = marks
        self.promises = Promises(
            world,
            violated,
            marks,
            leader_of=self._leader_of,
            base_of=self._base_of,
            synced=synced,
        )
        self._seen: dict[str, _Seen] = {}
        self._leaders: dict[int, tuple[str, int]] = {}
        self._newest_term = 0
        # (index, term) -> (term before it, checksum of the payload), of every entry ever appended.
        self._entries: dict[tuple[int, int], tuple[int, int]] = {}
        # index -> term of every committed entry; term of the leader -> highest index it committed.
        self.committed: dict[int, int] = {}
        self._committed_in: dict[int, int] = {}
        # index -> voters of the configuration by which a leader committed it; None: not followed.
        self._committed_by: dict[int, frozenset[str]] | None = {}
        # Host -> whom its state takes for voters.
        self._announced: dict[str, tuple[str, ...]] = {}
        # Whether a change of the members that is being appended is forced.
        self._forced = False
        # Hosts whose data belong to a history that was given up (disaster.py).
        self.outdated: set[str] = set()
        # (index, term, configuration) of every configuration ever appended, in this order.
        self.configurations: list[tuple[int, int, Configuration]] = []
        self._patches = contextlib.ExitStack()

    def __enter__(self) -> Self:
        enter = self._patches.enter_context
        enter(around(Engine, "__init__", self._wrap_init))
        enter(around(Engine, "become_leader", self._wrap_become_leader))
        enter(around(Engine, "change_configuration", self._wrap_change))
        enter(around(Engine, "become_follower", self._wrap_become_follower))
        enter(around(Engine, "_onTick", self._wrap_tick))
        enter(around(Leading, "check_quorum", self._wrap_check_quorum))
        enter(around(Wal, "append", self._wrap_append))
        enter(around(Wal, "truncate_from", self._wrap_truncate))
        enter(around(Wal, "rebase", self._wrap_rebase))
        enter(self.promises.installed())
        enter(checked_inbox(self._violated))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._patches.close()

    # -- a life begins

    def _wrap_init(self, original: Callable[..., None]) -> Callable[..., None]:
        def init(engine: Engine, *arguments: Any, **named: Any) -> None:
            original(engine, *arguments, **named)
            name = running_host()
            self._seen[name] = _Seen(engine)
            self.promises.recovered(name, engine)
            self._check_committed(name, engine, engine.applied)
            self._check_base(name, engine)

        return init

    # -- configurations

    def _check_base(self, name: str, engine: Engine) -> None:
        """A log begins with what was committed there, whichever node wrote its snapshot."""
        base = engine.configurations.base_index
        if name in self.outdated or self.committed.get(base, 0) != engine.wal.term_at(base):
            return
        known = EMPTY
        for index, term, configuration in reversed(self.configurations):
            if index <= base and self.committed.get(index) == term:
                known = configuration
                break
        found = engine.configurations.at(base)
        if found != known:
            self._violated(
                "a log begins with the members of its base",
                f"the log of {name} begins at {base} with {found}, not with {known}",
            )

    def running(self, name: str) -> Engine | None:
        """The engine of the newest life of a core; it may be over."""
        seen = self._seen.get(name)
        return None if seen is None else seen.engine

    def _base_of(self, name: str) -> int:
        """What the newest log on a host begins behind; 0 if there is none."""
        engine = self.running(name)
        return 0 if engine is None else engine.wal.base_index

    def configuration_in(self, wal: Wal) -> Configuration:
        """The one in force in this log: the last of those that stand in it or under its base."""
        base = wal.base_index
        for index, term, configuration in reversed(self.configurations):
            if index > base:
                if wal.term_at(index) == term:
                    return configuration
            elif self.committed.get(index) == term:
                return configuration
        return EMPTY

    def possible_configurations(self) -> list[Configuration]:
        """The last that is committed, and all behind it, which some log may hold; newest first."""
        found = []
        for index, term, configuration in reversed(self.configurations):
            found.append(configuration)
            if self.committed.get(index) == term:
                break
        return found

    @property
    def voters_known(self) -> bool:
        """Whether whom the state takes for voters are, at every entry, among those that voted."""
        return self._committed_by is not None

    def begin_anew(self, wal: Wal) -> int:
        """The cluster goes on from this log alone (disaster.py): forget what it does not hold.

        Returns the index up to which it holds what was committed.
        """
        base, term = wal.base_index, max(wal.term, wal.last_term)
        held = {i: t for i, t in self.committed.items() if i <= base or wal.term_at(i) == t}
        agreed = max(held, default=base)
        self.committed.clear()
        self.committed.update(held)
        self._committed_in.clear()
        # The state believes in its old voters until it is told otherwise.
        self._committed_by = None
        self.configurations = [
            (i, t, c) for i, t, c in self.configurations if held.get(i) == t or wal.term_at(i) == t
        ]
        # Terms that the survivor has not seen will be used once more.
        self._newest_term = min(self._newest_term, term)
        for later in [each for each in self._leaders if each > term]:
            del self._leaders[later]
        for fact in [each for each in self._entries if each[1] > term]:
            del self._entries[fact]
        return agreed

    def _changes(self, name: str, engine: Engine, old: Configuration, new: Configuration) -> None:
        """A leader has just put `new` in force (rule 3)."""
        # What this very tick has committed is checked when it is over.
        if engine.wal.term_at(engine.commit) != engine.term:
            self._violated(
                "one change in flight",
                f"{name} changes the members, but no entry of its term {engine.term} is committed",
            )
        index = next(i for i, t, c in reversed(self.configurations) if c is old)
        if index > engine.commit:
            self._violated(
                "one change in flight",
                f"{name} changes the members; the change at {index} is not committed",
            )
        if len(frozenset(old.voters) ^ frozenset(new.voters)) > 1:
            self._violated(
                "one change in flight", f"{name} changes {old.voters} to {new.voters} at once"
            )
        for added in frozenset(new.voters) - frozenset(old.voters):
            lack = engine.commit - self.promises.acknowledged(added)
            if added not in old.learners or lack > CAUGHT_UP_ENTRIES:
                self._violated(
                    "caught up before it votes",
                    f"{name} lets {added} vote: it lacks {lack} entries",
                )
        if new.voters != old.voters and not self._forced:
            self._check_holders(name, engine, new)
        removed = frozenset(old.voters) - frozenset(new.voters)
        if self._forced and not removed.isdisjoint(self._announced.get(name, old.voters)):
            # It could not wait for the state.
            self._committed_by = None
        self._marks.hit("members changed")
        if frozenset(new.distrusted) - frozenset(old.distrusted):
            self._marks.hit("voter distrusted")

    def _check_holders(self, name: str, engine: Engine, new: Configuration) -> None:
        """After a change that is not forced, a majority can commit at once."""
        least = engine.commit - CAUGHT_UP_ENTRIES
        holders = [
            voter
            for voter in new.voters
            if new.trusts(voter)
            and (voter == engine.me or self.promises.acknowledged(voter) >= least)
        ]
        if 2 * len(holders) <= len(new.voters):
            self._violated(
                "a majority holds the log after a change",
                f"{name} changes the voters to {new.voters}; of these only {holders} hold what is "
                f"committed up to {engine.commit}, but for {CAUGHT_UP_ENTRIES} entries",
            )

    def _wrap_change(self, original: Callable[..., int]) -> Callable[..., int]:
        def change_configuration(engine: Engine, proposed: Configuration, *, force: bool) -> int:
            self._forced = force
            try:
                return original(engine, proposed, force=force)
            finally:
                self._forced = False

        return change_configuration

    # -- elections

    def _leader_of(self, term: int) -> Engine | None:
        """The engine that leads this term now."""
        life = self._leaders.get(term)
        engine = None if life is None else self._seen[life[0]].engine
        if engine is None or engine.leading is None or engine.term != term:
            return None
        return engine

    def _wrap_become_leader(self, original: Callable[..., None]) -> Callable[..., None]:
        def become_leader(engine: Engine) -> None:
            name = running_host()
            self._elected(name, engine)
            original(engine)

        return become_leader

    def _elected(self, name: str, engine: Engine) -> None:
        term, wal = engine.term, engine.wal
        configuration = self._configuration(name, engine)
        voters = configuration.voters
        life = (name, self._world.host(name).boots)
        # A lone voter may lead a term again if it crashed before that term was on its disk.
        if len(voters) > 1 or self._leaders.get(term, life)[0] != name:
            first = self._leaders.setdefault(term, life)
            if first != life:
                self._violated(
                    "election safety", f"{_life(first)} and {_life(life)} both lead term {term}"
                )
        if engine.me not in voters:
            self._violated("election by a majority", f"{name} leads and votes not: {voters}")
        if len(voters) > 1:
            granted = [
                voter
                for voter in voters
                if voter not in configuration.distrusted
                and self.promises.voted(voter, term) == engine.me
            ]
            if 2 * len(granted) <= len(voters):
                self._violated(
                    "election by a majority",
                    f"{name} leads term {term} with the votes of {granted} among {voters}",
                )
        self._check_leases(name, term)
        self._newest_term = max(self._newest_term, term)
        needed = [index for earlier, index in self._committed_in.items() if earlier < term]
        index = max(needed, default=0)
        if index > wal.base_index and wal.term_at(index) != self.committed[index]:
            self._violated(
                "leader completeness",
                f"{name} leads term {term} without entry {index} of term "
                f"{self.committed[index]}, which was committed; its log ends at {wal.last_index}",
            )
        self._marks.hit("leader elected" if len(self._leaders) == 1 else "leader re-elected")
        if wal.last_index > engine.commit:
            self._marks.hit("uncommitted entry survived an election")

    def _configuration(self, name: str, engine: Engine) -> Configuration:
        """By whom the engine counts, which must be what its log says."""
        known = self.configuration_in(engine.wal)
        if known != engine.configuration:
            self._violated(
                "configuration from the log",
                f"{name} counts by {engine.configuration}, its log says {known}",
            )
        return known

    def _check_leases(self, name: str, term: int) -> None:
        """By its own clock, no former leader may still answer reads from its memory.

        A leader of a later term is no former one: the votes of this election came late, and whoever
        they elect can commit nothing any more.
        """
        for other, seen in self._seen.items():
            is_up = self._world.host(other).runtime is seen.engine.runtime
            former = other != name and seen.engine.term < term
            if former and is_up and seen.engine.holds_lease:
                self._violated(
                    "leases never overlap",
                    f"{name} is elected in term {term} while {other} holds a lease of term "
                    f"{seen.engine.term}",
                )

    def _wrap_become_follower(self, original: Callable[..., None]) -> Callable[..., None]:
        def become_follower(engine: Engine, term: int, *rest: Any, **named: Any) -> None:
            if engine.leading is not None and term > engine.term:
                self._marks.hit("leader deposed by a higher term")
            original(engine, term, *rest, **named)

        return become_follower

    def _wrap_check_quorum(self, original: Callable[..., None]) -> Callable[..., None]:
        def check_quorum(leading: Leading, now: float) -> None:
            engine = leading._engine
            original(leading, now)
            if engine.leading is not leading:
                self._marks.hit("leader stepped down for quorum")

        return check_quorum

    # -- ticks

    def _wrap_tick(self, original: Callable[..., None]) -> Callable[..., None]:
        def tick(engine: Engine, *arguments: Any) -> None:
            original(engine, *arguments)
            self._ticked(engine)

        return tick

    def _ticked(self, engine: Engine) -> None:
        name = running_host()
        seen = self._seen[name]
        term, commit, applied = engine.term, engine.commit, engine.applied
        if (term, commit, applied) != (seen.term, seen.commit, seen.applied):
            if term < seen.term or commit < seen.commit or applied < seen.applied:
                self._violated(
                    "nothing goes back",
                    f"{name} went back from {(seen.term, seen.commit, seen.applied)} to "
                    f"{(term, commit, applied)} (term, commit, applied)",
                )
            if applied > commit:
                self._violated(
                    "state-machine safety", f"{name} applied {applied}, committed only {commit}"
                )
            if commit != seen.commit:
                self._check_commit(name, engine, seen)
            seen.term, seen.commit, seen.applied = term, commit, applied
        seen.leading = engine.leading
        if engine.leading is not None and term < self._newest_term and engine.holds_lease:
            self._violated(
                "leases never overlap",
                f"{name} holds a lease of term {term} after the election of term "
                f"{self._newest_term}",
            )

    def _check_commit(self, name: str, engine: Engine, seen: _Seen) -> None:
        commit, wal = engine.commit, engine.wal
        for index in range(max(seen.commit + 1, wal.base_index), commit + 1):
            self._check_committed(name, engine, index)
        term = engine.term
        self._committed_in[term] = max(commit, self._committed_in.get(term, 0))
        if engine.leading is not None and engine.leading is seen.leading:
            if wal.term_at(commit) != term:
                self._violated(
                    "leader commits its own term",
                    f"{name} leads term {term} and commits entry {commit} of term "
                    f"{wal.term_at(commit)} by counting",
                )
            configuration = self._configuration(name, engine)
            self.promises.committed(name, engine, commit, configuration)
            if self._committed_by is not None:
                for index in range(seen.commit + 1, commit + 1):
                    self._committed_by.setdefault(index, frozenset(configuration.voters))

    def applying(self, name: str, index: int, announced: tuple[str, ...]) -> None:
        """What the state takes for voters, at an entry that a leader has committed by counting."""
        voted = None if self._committed_by is None else self._committed_by.get(index)
        if voted is not None and not voted.issuperset(announced):
            self._violated(
                "announced voters do vote",
                f"{name} applies entry {index}, which {sorted(voted)} voted on, and takes "
                f"{sorted(announced)} for its voters",
            )

    def applied(self, name: str, announced: tuple[str, ...]) -> None:
        """Whom the state takes for voters after an entry."""
        self._announced[name] = announced

    def _check_committed(self, name: str, engine: Engine, index: int) -> None:
        term = engine.wal.term_at(index)
        if term is None or index <= 1 or name in self.outdated:
            return
        known = self.committed.setdefault(index, term)
        if known != term:
            self._violated(
                "state-machine safety",
                f"{name} has committed entry {index} of term {term}; elsewhere it is of term "
                f"{known}",
            )

    # -- the log

    def _wrap_append(self, original: Callable[..., None]) -> Callable[..., None]:
        entries = self._entries

        def append(wal: Wal, payload: bytes, index: int, term: int) -> None:
            before = wal.last_term
            original(wal, payload, index, term)
            fact = (before, zlib.crc32(payload))
            if payload[0] == CONFIGURATION and (index, term) not in entries:
                self._new_configuration(wal, index, term, decode(payload[1:]))
            if entries.setdefault((index, term), fact) != fact:
                self._violated(
                    "log matching",
                    f"{running_host()} appends another entry {index} of term {term} than "
                    f"somebody before, or behind another term",
                )

        return append

    def _new_configuration(self, wal: Wal, index: int, term: int, new: Configuration) -> None:
        old = self.configuration_in(wal)
        bisect.insort(self.configurations, (index, term, new), key=lambda item: item[:2])
        seen = self._seen.get(running_host())
        if seen is not None and seen.engine.wal is wal and seen.engine.leading is not None:
            self._changes(running_host(), seen.engine, old, new)

    def _wrap_truncate(self, original: Callable[..., None]) -> Callable[..., None]:
        def truncate_from(wal: Wal, index: int) -> None:
            if index <= wal.last_index:
                name = running_host()
                self._check_not_leading(name, wal, f"from {index}")
                if self.committed.get(index, 0) == wal.term_at(index):
                    self._violated(
                        "state-machine safety",
                        f"{name} cuts off entry {index} of term {wal.term_at(index)}, which is "
                        f"committed",
                    )
                seen = self._seen.get(name)
                if seen is not None and seen.engine.wal is wal:
                    self.promises.truncated(seen.engine.me, index)
                self._marks.hit("log truncated")
            original(wal, index)

        return truncate_from

    def _wrap_rebase(self, original: Callable[..., None]) -> Callable[..., None]:
        def rebase(wal: Wal, index: int, term: int) -> None:
            self._check_not_leading(running_host(), wal, f"up to a snapshot at {index}")
            original(wal, index, term)

        return rebase

    def _check_not_leading(self, name: str, wal: Wal, where: str) -> None:
        seen = self._seen.get(name)
        if seen is not None and seen.engine.wal is wal and seen.engine.leading is not None:
            self._violated(
                "leader append-only", f"{name} leads term {seen.engine.term} and cuts {where}"
            )


def _life(life: tuple[str, int]) -> str:
    return f"{life[0]} (start {life[1]})"
