"""Bugs to be planted: each breaks one rule of the real code for the time of a test.

    with planted("vote-twice"):
        ...                               # the simulation must notice

A simulation that finds nothing proves nothing until it has found what is known to be wrong. Every
bug here is one that somebody has made, in some implementation or in an early version of this one.
They are made by replacing functions (patching.py): production code has no switch for them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec

from raftkv.parts import CorePart
from raftkv.raft import campaigning, following, wal, wire
from raftkv.raft.append import Accepted, judge_append
from raftkv.raft.election import Candidacy, Deadline, Stage
from raftkv.raft.engine import Engine
from raftkv.raft.following import Following
from raftkv.raft.leading import Leading
from raftkv.raft.membership import Configuration
from raftkv.raft.reads import ReadRounds
from raftkv.raft.snapshot import SnapshotWriter
from raftkv.raft.wal import Wal
from raftkv.state.machine import StateMachine
from raftkv.testing.patching import around, replaced

__all__ = ["BUGS", "Bug", "planted"]

Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]
Patch = Callable[[], contextlib.AbstractContextManager[None]]


class Bug(NamedTuple):
    """`harsh`: it needs messages to be lost or doubled. It is found within `seeds_max` seeds."""

    what: str
    patch: Patch
    harsh: bool = False
    seeds_max: int = 10


BUGS: dict[str, Bug] = {}


@contextlib.contextmanager
def planted(name: str) -> Iterator[None]:
    """The bug `name` (a key of BUGS) is in the code while this is entered."""
    with BUGS[name].patch():
        yield


def _wrapping(
    name: str, what: str, owner: Any, function: str, *, harsh: bool = False, seeds_max: int = 10
) -> Callable[[Wrap], Wrap]:
    """Register a bug that wraps `owner.function`."""

    def register(wrap: Wrap) -> Wrap:
        BUGS[name] = Bug(what, lambda: around(owner, function, wrap), harsh, seeds_max)
        return wrap

    return register


@contextlib.contextmanager
def _pretending(thing: Any, field: str, value: Any) -> Iterator[None]:
    """An attribute of one object has another value for a moment."""
    before = getattr(thing, field)
    setattr(thing, field, value)
    try:
        yield
    finally:
        setattr(thing, field, before)


# The disk ----------------------------------------------------------------------------------------


@_wrapping("no-fsync", "the log is written and never synced", Wal, "write")
def _no_fsync(write: Callable[..., None]) -> Callable[..., None]:
    def broken(log: Wal, pending: Any) -> None:
        with _pretending(log, "_fsync", False):
            write(log, pending)

    return broken


@_wrapping(
    "acknowledge-before-sync", "votes and acknowledgements leave at once", Engine, "send_held"
)
def _acknowledge_before_sync(send_held: Callable[..., None]) -> Callable[..., None]:
    def broken(engine: Engine, peer: str, message: wire.Message) -> None:
        link = engine.links.get(peer)
        if link is not None:
            link.send_frame(wire.encode(message))

    return broken


@_wrapping("forget-vote", "a restarted node does not know whom it voted for", wal, "recover")
def _forget_vote(recover: Callable[..., Any]) -> Callable[..., Any]:
    def broken(*arguments: Any) -> Any:
        state = recover(*arguments)
        if state is not None:
            state.vote = None
        return state

    return broken


@_wrapping("term-in-memory", "term and vote are not written", Wal, "set_hard_state")
def _term_in_memory(set_hard_state: Callable[..., None]) -> Callable[..., None]:
    def broken(log: Wal, term: int, vote: str | None) -> None:
        log._term, log._vote = term, vote

    return broken


@_wrapping("lose-tail", "recovery drops the newest batch, though it is whole", wal, "recover")
def _lose_tail(recover: Callable[..., Any]) -> Callable[..., Any]:
    def broken(*arguments: Any) -> Any:
        state = recover(*arguments)
        if state is not None:
            state.entries = [e for e in state.entries if e.index < state.first_copied]
        return state

    return broken


@_wrapping(
    "leader-counts-early",
    "a leader counts its own entries before they are on its disk",
    Leading,
    "tick",
    seeds_max=100,
)
def _leader_counts_early(tick: Callable[..., None]) -> Callable[..., None]:
    def broken(leading: Leading, now: float) -> None:
        tick(leading, now)
        log = leading._engine.wal
        if leading._engine.leading is leading:
            with _pretending(log, "durable_index", log.last_index):
                leading._advance_commit()

    return broken


class _Unsynced:
    """A file whose syncs do nothing."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def datasync(self) -> None:
        """Only says so."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


@_wrapping(
    "snapshot-not-synced",
    "a snapshot is renamed before its content is on the disk",
    SnapshotWriter,
    "commit",
    seeds_max=10,
)
def _snapshot_not_synced(commit: Callable[..., Any]) -> Callable[..., Any]:
    def broken(writer: Any) -> Any:
        writer._file = _Unsynced(writer._file)
        return commit(writer)

    return broken


# Elections ---------------------------------------------------------------------------------------


def _judging(**lies: Any) -> Wrap:
    def wrap(judge_vote: Callable[..., Any]) -> Callable[..., Any]:
        def broken(request: Any, **known: Any) -> Any:
            return judge_vote(request, **{**known, **lies})

        return broken

    return wrap


_wrapping(
    "vote-twice", "a vote is given again in one term", campaigning, "judge_vote", seeds_max=100
)(_judging(vote=None))
_wrapping(
    "vote-for-shorter-log",
    "a vote is given to whoever asks first",
    campaigning,
    "judge_vote",
    seeds_max=100,
)(_judging(last_index=0, last_term=0))


@_wrapping("count-late-votes", "pre-votes and late grants count as votes", Candidacy, "grant")
def _count_late_votes(grant: Callable[..., None]) -> Callable[..., None]:
    def broken(candidacy: Candidacy, voter: str, **_: Any) -> None:
        pre_vote = candidacy.stage is Stage.PRE_VOTE
        term, attempt = candidacy.term, candidacy.attempt
        grant(candidacy, voter, term=term, attempt=attempt, pre_vote=pre_vote)

    return broken


@contextlib.contextmanager
def _count_votes_twice() -> Iterator[None]:
    """Grants are a number, not a set."""

    def wrap_grant(grant: Callable[..., None]) -> Callable[..., None]:
        def broken(candidacy: Any, voter: str, **tags: Any) -> None:
            before = len(candidacy._granted)
            fits = (tags["term"], tags["attempt"]) == (candidacy.term, candidacy.attempt)
            fits = fits and tags["pre_vote"] is (candidacy.stage is Stage.PRE_VOTE)
            grant(candidacy, voter, **tags)
            if fits and len(candidacy._granted) == before:
                candidacy.repeated = getattr(candidacy, "repeated", 0) + 1

        return broken

    def wrap_won(won: Callable[..., bool]) -> Callable[..., bool]:
        def broken(candidacy: Any, configuration: Configuration) -> bool:
            count = len(candidacy._granted) + getattr(candidacy, "repeated", 0)
            return 2 * count > len(configuration.voters)

        return broken

    with around(Candidacy, "grant", wrap_grant), around(Candidacy, "won", wrap_won):
        yield


BUGS["count-votes-twice"] = Bug(
    "a grant that arrives twice counts twice", _count_votes_twice, harsh=True, seeds_max=100
)


# The log -----------------------------------------------------------------------------------------


def _appending(change: Callable[..., Any]) -> Wrap:
    """Change the verdict on an append message: `change(verdict, log, commit, prev, leader's)`."""

    def wrap(judge: Callable[..., Any]) -> Callable[..., Any]:
        def broken(
            log: Any, commit: int, prev: int, prev_term: int, entries: Any, leader_commit: int
        ) -> Any:
            verdict = judge(log, commit, prev, prev_term, entries, leader_commit)
            if not isinstance(verdict, Accepted):
                return verdict
            return change(verdict, log, commit, prev, leader_commit)

        return broken

    return wrap


@_wrapping(
    "commit-old-term",
    "a leader commits entries of old terms by counting",
    Leading,
    "_advance_commit",
    seeds_max=100,
)
def _commit_old_term(advance: Callable[..., None]) -> Callable[..., None]:
    def broken(leading: Leading) -> None:
        log: Any = leading._engine.wal
        log.term_at = lambda index: leading._engine.term
        try:
            advance(leading)
        finally:
            del log.term_at

    return broken


@_wrapping(
    "commit-unverified-tail",
    "a follower commits up to its log's end",
    following,
    "judge_append",
    harsh=True,
    seeds_max=200,
)
@_appending
def _commit_unverified(
    verdict: Accepted, log: Any, commit: int, prev: int, leader_commit: int
) -> Accepted:
    if verdict.truncate_from is not None:
        return verdict
    end = max(verdict.match, log.last_index)
    return msgspec.structs.replace(verdict, commit=max(commit, min(leader_commit, end)))


@_wrapping(
    "acknowledge-log-end",
    "a follower acknowledges its log's end",
    following,
    "judge_append",
    harsh=True,
    seeds_max=200,
)
@_appending
def _acknowledge_log_end(
    verdict: Accepted, log: Any, commit: int, prev: int, leader_commit: int
) -> Accepted:
    if verdict.truncate_from is not None:
        return verdict
    return msgspec.structs.replace(verdict, match=max(verdict.match, log.last_index))


@_wrapping(
    "truncate-matching",
    "an append cuts off everything behind its previous entry",
    following,
    "judge_append",
)
@_appending
def _truncate_matching(
    verdict: Accepted, log: Any, commit: int, prev: int, leader_commit: int
) -> Accepted:
    if not log.base_index <= prev < log.last_index:
        return verdict
    return msgspec.structs.replace(verdict, truncate_from=prev + 1, skip=0)


def _trusting(
    log: Any, commit: int, prev: int, prev_term: int, entries: Any, leader_commit: int
) -> Any:
    known = log.term_at(prev)
    believed = prev_term if known is None else known
    return judge_append(log, commit, prev, believed, entries, leader_commit)


BUGS["no-previous-check"] = Bug(
    "an append is accepted whatever term its previous entry has",
    lambda: replaced(following, "judge_append", _trusting),
    harsh=True,
    seeds_max=100,
)


@_wrapping(
    "apply-before-commit",
    "entries are applied as soon as they are in the log",
    Engine,
    "_SyncObj__applyLogEntries",
)
def _apply_before_commit(apply_entries: Callable[..., bool]) -> Callable[..., bool]:
    def broken(engine: Engine) -> bool:
        with _pretending(engine, "_SyncObj__raftCommitIndex", engine.wal.last_index):
            return apply_entries(engine)

    return broken


@contextlib.contextmanager
def _install_rewinds() -> Iterator[None]:
    def wrap_chunk(on_chunk: Callable[..., None]) -> Callable[..., None]:
        def broken(part: Following, sender: str, message: Any, now: float) -> None:
            with _pretending(part._engine, "_SyncObj__raftCommitIndex", 1):
                on_chunk(part, sender, message, now)

        return broken

    def wrap_received(received: Callable[..., None]) -> Callable[..., None]:
        def broken(part: Following, sender: str, message: Any, snapshot: Any) -> None:
            if snapshot is not None:
                part._install(snapshot)
            part._answer(sender, message, message.size_bytes, done=True)

        return broken

    with (
        around(Following, "on_chunk", wrap_chunk),
        around(Following, "_received", wrap_received),
    ):
        yield


BUGS["install-rewinds"] = Bug(
    "a snapshot is installed although it is older than the state",
    _install_rewinds,
    harsh=True,
    seeds_max=100,
)


# Reads and answers -------------------------------------------------------------------------------


@_wrapping(
    "read-without-round",
    "a leader answers reads from its own belief",
    ReadRounds,
    "finish",
    seeds_max=100,
)
def _read_without_round(finish: Callable[..., Any]) -> Callable[..., Any]:
    def broken(rounds: ReadRounds, configuration: Configuration, me: str) -> Any:
        return finish(rounds, Configuration(voters=(me,)), me)

    return broken


@_wrapping(
    "break-lease-promise",
    "a follower votes although it has promised its leader a lease",
    Deadline,
    "heard_leader",
    seeds_max=100,
)
def _break_lease_promise(heard_leader: Callable[..., None]) -> Callable[..., None]:
    def broken(deadline: Deadline, now: float, *_: Any) -> None:
        heard_leader(deadline, now)

    return broken


@_wrapping(
    "lease-from-the-answer",
    "a lease counts from when the answer came, not from when its question left",
    Leading,
    "_confirm",
    seeds_max=100,
)
def _lease_from_the_answer(confirm: Callable[..., None]) -> Callable[..., None]:
    def broken(leading: Leading, voter: str, number: int) -> None:
        confirm(leading, voter, number)
        if voter in leading._confirmed:
            leading._confirmed[voter] = leading._engine.runtime.monotonic()

    return broken


@_wrapping("read-from-follower", "a core answers reads from its own commit index", CorePart, "ask")
def _read_from_follower(ask: Callable[..., bool]) -> Callable[..., bool]:
    def broken(part: CorePart, number: int) -> bool:
        part._reader.answered(number, part.engine.commit)
        return True

    return broken


@_wrapping(
    "read-before-no-op",
    "a new leader answers reads before its term has committed",
    Leading,
    "tick",
    seeds_max=100,
)
def _read_before_no_op(tick: Callable[..., None]) -> Callable[..., None]:
    def broken(leading: Leading, now: float) -> None:
        with _pretending(leading, "first_index", 0):
            tick(leading, now)

    return broken


@_wrapping("no-exactly-once", "a command that comes again is applied again", StateMachine, "apply")
def _no_exactly_once(apply: Callable[..., Any]) -> Callable[..., Any]:
    def broken(machine: StateMachine, index: int, body: bytes) -> Any:
        outcomes = apply(machine, index, body)
        for session in machine._sessions.by_id.values():
            session.done.clear()
        return outcomes

    return broken
