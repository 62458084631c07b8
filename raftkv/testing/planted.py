"""Bugs to be planted: each breaks one rule of the real code for the time of a test.

    with planted("vote-twice"):
        ...                               # the simulation must notice

A simulation that finds nothing proves nothing until it has found what is known to be wrong. Every
bug here is one that somebody has made, in some implementation or in an early version of this one.
They are made by replacing functions (planting.py): production code has no switch for them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from raftkv.parts import CorePart
from raftkv.raft import campaigning, following, wal, wire
from raftkv.raft.append import Accepted, judge_append
from raftkv.raft.election import Candidacy, Deadline, Stage
from raftkv.raft.engine import Engine
from raftkv.raft.following import Following
from raftkv.raft.identity import DataDirectory
from raftkv.raft.installing import Installing
from raftkv.raft.leading import Leading
from raftkv.raft.membership import Configuration
from raftkv.raft.reads import ReadRounds
from raftkv.raft.snapshot import SnapshotWriter
from raftkv.raft.wal import Wal
from raftkv.state.machine import StateMachine
from raftkv.testing import (
    injected_authority,
    injected_corruption,
    injected_cost,
    injected_deadlines,
    injected_distrust,
    injected_hostile,
    injected_identity,
    injected_inbox,
    injected_limits,
    injected_links,
    injected_outcomes,
    injected_past,
    injected_quota,
    injected_shares,
    injected_space,
    injected_variations,
    injected_verdicts,
    injected_window,
    planted_leases,
    planted_members,
    planted_watch,
)
from raftkv.testing.patching import around, replaced
from raftkv.testing.planting import BUGS, Bug, Wrap, planted, pretending, wrapping

__all__ = ["BUGS", "Bug", "planted"]

# They register themselves.
assert injected_corruption.__name__
assert injected_cost.__name__
assert injected_authority.__name__
assert injected_deadlines.__name__
assert injected_distrust.__name__
assert injected_hostile.__name__
assert injected_identity.__name__
assert injected_inbox.__name__
assert injected_limits.__name__
assert injected_links.__name__
assert injected_outcomes.__name__
assert injected_past.__name__
assert injected_quota.__name__
assert injected_shares.__name__
assert injected_space.__name__
assert injected_variations.__name__
assert injected_verdicts.__name__
assert injected_window.__name__
assert planted_leases.__name__
assert planted_members.__name__
assert planted_watch.__name__

# The disk ----------------------------------------------------------------------------------------


@wrapping("no-fsync", "the log is written and never synced", Wal, "write")
def _no_fsync(write: Callable[..., None]) -> Callable[..., None]:
    def broken(log: Wal, pending: Any) -> None:
        with pretending(log, "_fsync", False):
            write(log, pending)

    return broken


@wrapping(
    "acknowledge-before-sync", "votes and acknowledgements leave at once", Engine, "send_held"
)
def _acknowledge_before_sync(send_held: Callable[..., None]) -> Callable[..., None]:
    def broken(engine: Engine, peer: str, message: wire.Message) -> None:
        link = engine.links.get(peer)
        if link is not None:
            link.send_frame(wire.encode(message))

    return broken


@wrapping("forget-vote", "a restarted node does not know whom it voted for", wal, "recover")
def _forget_vote(recover: Callable[..., Any]) -> Callable[..., Any]:
    def broken(*arguments: Any) -> Any:
        state = recover(*arguments)
        if state is not None:
            state.vote = None
        return state

    return broken


@wrapping("term-in-memory", "term and vote are not written", Wal, "set_hard_state")
def _term_in_memory(set_hard_state: Callable[..., None]) -> Callable[..., None]:
    def broken(log: Wal, term: int, vote: str | None) -> None:
        log._term, log._vote = term, vote

    return broken


@wrapping("lose-tail", "recovery drops the newest batch, though it is whole", wal, "recover")
def _lose_tail(recover: Callable[..., Any]) -> Callable[..., Any]:
    def broken(*arguments: Any) -> Any:
        state = recover(*arguments)
        if state is not None:
            state.entries = [e for e in state.entries if e.index < state.first_copied]
        return state

    return broken


@wrapping(
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
            with pretending(log, "durable_index", log.last_index):
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


class _UnsyncedFiles(_Unsynced):
    """Files of which neither content nor names are synced."""

    def open(self, *arguments: Any) -> Any:
        return _Unsynced(self._file.open(*arguments))

    def sync_dir(self, path: str) -> None:
        """Only says so."""


@wrapping(
    "snapshot-not-synced",
    "a snapshot is renamed before its content is on the disk",
    SnapshotWriter,
    "commit",
    seeds_max=10,
)
def _snapshot_not_synced(commit: Callable[..., Any]) -> Callable[..., Any]:
    def broken(writer: SnapshotWriter) -> Any:
        writer._file = _Unsynced(writer._file)
        return commit(writer)

    return broken


@wrapping(
    "identity-not-synced",
    "a node's identity is not synced before the node speaks",
    DataDirectory,
    "_store",
    seeds_max=200,
)
def _identity_not_synced(store: Callable[..., None]) -> Callable[..., None]:
    def broken(directory: DataDirectory, identity: Any) -> None:
        with pretending(directory, "_files", _UnsyncedFiles(directory._files)):
            store(directory, identity)

    return broken


# Elections ---------------------------------------------------------------------------------------


def _judging(**lies: Any) -> Wrap:
    def wrap(judge_vote: Callable[..., Any]) -> Callable[..., Any]:
        def broken(request: Any, **known: Any) -> Any:
            return judge_vote(request, **{**known, **lies})

        return broken

    return wrap


wrapping(
    "vote-twice", "a vote is given again in one term", campaigning, "judge_vote", seeds_max=100
)(_judging(vote=None))
wrapping(
    "vote-for-shorter-log",
    "a vote is given to the first node that asks",
    campaigning,
    "judge_vote",
    seeds_max=100,
)(_judging(last_index=0, last_term=0))


@wrapping("count-late-votes", "pre-votes and late grants count as votes", Candidacy, "grant")
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


@wrapping(
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


@wrapping(
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


@wrapping(
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


@wrapping(
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


@wrapping(
    "apply-before-commit",
    "entries are applied as soon as they are in the log",
    Engine,
    "_SyncObj__applyLogEntries",
)
def _apply_before_commit(apply_entries: Callable[..., bool]) -> Callable[..., bool]:
    def broken(engine: Engine) -> bool:
        with pretending(engine, "_SyncObj__raftCommitIndex", engine.wal.last_index):
            return apply_entries(engine)

    return broken


@contextlib.contextmanager
def _install_rewinds() -> Iterator[None]:
    def wrap_chunk(on_chunk: Callable[..., None]) -> Callable[..., None]:
        def broken(part: Following, sender: str, message: Any, now: float) -> None:
            with pretending(part._engine, "_SyncObj__raftCommitIndex", 1):
                on_chunk(part, sender, message, now)

        return broken

    def wrap_received(received: Callable[..., None]) -> Callable[..., None]:
        def broken(part: Installing, sender: str, message: Any, snapshot: Any) -> None:
            with pretending(part._engine, "_SyncObj__raftCommitIndex", 1):
                received(part, sender, message, snapshot)

        return broken

    def wrap_wanted(wanted: Callable[..., bool]) -> Callable[..., bool]:
        def broken(part: Installing, snapshot: Any) -> bool:
            return not part._engine.stopped

        return broken

    with (
        around(Following, "on_chunk", wrap_chunk),
        around(Installing, "_received", wrap_received),
        around(Installing, "_is_news", wrap_wanted),
    ):
        yield


BUGS["install-rewinds"] = Bug(
    "a snapshot is installed although it is older than the state",
    _install_rewinds,
    harsh=True,
    # An old snapshot must come whole, and late: one run in seventy has that.
    seeds_max=300,
)


# Reads and answers -------------------------------------------------------------------------------


@wrapping(
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


@wrapping(
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


@wrapping(
    "lease-from-the-answer",
    "a lease counts from when the answer came, not from when its question left",
    Leading,
    "_confirm",
    seeds_max=200,
)
def _lease_from_the_answer(confirm: Callable[..., None]) -> Callable[..., None]:
    def broken(leading: Leading, voter: str, number: int) -> None:
        confirm(leading, voter, number)
        if voter in leading._confirmed:
            leading._confirmed[voter] = leading._engine.runtime.monotonic()

    return broken


@wrapping("read-from-follower", "a core answers reads from its own commit index", CorePart, "ask")
def _read_from_follower(ask: Callable[..., bool]) -> Callable[..., bool]:
    def broken(part: CorePart, number: int) -> bool:
        part._reader.answered(number, part.engine.commit)
        return True

    return broken


@wrapping(
    "lease-judged-late",
    "a lease is judged by the time of the last tick, so that a paused leader still has it",
    Engine,
    "holds_lease",
    seeds_max=100,
)
def _lease_judged_late(_: Any) -> Any:
    def broken(engine: Engine) -> bool:
        leading = engine.leading
        # The last number that was given to messages was given at the last tick.
        return leading is not None and leading.holds_lease(leading._rounds[-1][1])

    return property(broken)


@wrapping(
    "upstream-answers-reads",
    "a core answers its replicants' reads from its own commit index",
    CorePart,
    "_on_read_request",
    seeds_max=100,
)
def _upstream_answers(on_read_request: Callable[..., None]) -> Callable[..., None]:
    def broken(part: CorePart, link: Any, message: wire.ReadRequest) -> None:
        if link.purpose == "follow":
            link.send(wire.ReadReply(message.number, part.engine.commit))
        else:
            on_read_request(part, link, message)

    return broken


@wrapping(
    "read-before-no-op",
    "a new leader answers reads before its term has committed",
    Leading,
    "tick",
    seeds_max=100,
)
def _read_before_no_op(tick: Callable[..., None]) -> Callable[..., None]:
    def broken(leading: Leading, now: float) -> None:
        with pretending(leading, "first_index", 0):
            tick(leading, now)

    return broken


@wrapping("no-exactly-once", "a command that comes again is applied again", StateMachine, "slices")
def _no_exactly_once(slices: Callable[..., Any]) -> Callable[..., Any]:
    def broken(machine: StateMachine, index: int, body: bytes, term: int = 0) -> Any:
        for outcomes in slices(machine, index, body, term):
            for session in machine._sessions.by_id.values():
                session.done.clear()
            yield outcomes

    return broken
