"""Bugs to be planted into the plugin: each breaks one of its rules for the time of a storm.

    with planted("prepared-times-out"):
        ...                               # the storm must notice

A storm that finds nothing proves nothing until it has found what is known to be wrong. These are
mistakes of the seed's upstream (a prepared branch is aborted behind its coordinator's back, a
partial transaction becomes visible, a message is lost or comes twice after a fail-over, a commit
that is repeated), and those that queues on a log invite: a session that outlives its node, content
that is seen too early or lost while its rows are moved, a time-out that decides.

They replace functions (`raftkv/testing/patching.py`), so a rename is an error and not a bug that is
never planted; the plugin itself has no switch for any of them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from msgspec.structs import replace

from raftkv.errors import NotApplied
from raftkv.testing.patching import around, replaced
from raftkv.testing.planting import Bug, Bugs, Wrap
from raftkv_txqueue import (
    branches,
    closing,
    deciding,
    delivering,
    dtx,
    ending,
    observers,
    proposing,
    queues,
    reading,
    session,
    settling,
    sweeping,
    transactions,
    views,
    voting,
    waiting,
)
from raftkv_txqueue import plugin as plugin_module
from raftkv_txqueue.commands import Commit, DeleteQueue, Purge, Sweep, Vote
from raftkv_txqueue.errors import TransactionAborted

__all__ = ["BUGS", "SEEDS_MAX", "planted"]

# Each must be found within so many seeds.
SEEDS_MAX = 200

BUGS = Bugs(SEEDS_MAX)
planted = BUGS.planted
_wrapping = BUGS.wrapping


def _patching(name: str, what: str, patch: Callable[[], Any]) -> None:
    BUGS[name] = Bug(what, patch, seeds_max=SEEDS_MAX)


def _nothing(*given: Any, **more: Any) -> None:
    return None


def _everywhere(function: str, *modules: Any) -> Callable[[str, str], Callable[[Wrap], Wrap]]:
    """A bug that wraps a function in each module that has taken it by its name."""

    def registering(name: str, what: str) -> Callable[[Wrap], Wrap]:
        def register(wrap: Wrap) -> Wrap:
            @contextlib.contextmanager
            def patch() -> Iterator[None]:
                with contextlib.ExitStack() as stack:
                    for module in modules:
                        stack.enter_context(around(module, function, wrap))
                    yield

            _patching(name, what, patch)
            return wrap

        return register

    return registering


@contextlib.contextmanager
def _applying(command: type, wrap: Wrap) -> Iterator[None]:
    """What the plugin does for a command is wrapped."""
    before = plugin_module._APPLY[command]
    plugin_module._APPLY[command] = wrap(before)
    try:
        yield
    finally:
        plugin_module._APPLY[command] = before


# Atomic -------------------------------------------------------------------------------------------


@_wrapping(
    "half-a-transaction",
    "a commit moves the content of the first queue only",
    deciding,
    "_publish",
)
def _half_a_transaction(publish: Callable[..., Any]) -> Callable[..., Any]:
    seen: dict[int, int] = {}

    def broken(ctx: Any, number: int, name: str, queue: Any, part: Any, *given: Any) -> Any:
        if seen.setdefault(number, part.queue) != part.queue:
            return queue
        return publish(ctx, number, name, queue, part, *given)

    return broken


_wrapping(
    "span-hides-content",
    "nobody looks for messages under the span of a large commit",
    views,
    "span_over",
)(lambda span_over: _nothing)
_patching(
    "accepted-shown-again",
    "what a large commit has accepted is shown until its rows are moved",
    lambda: replaced(views, "TAKEN", ()),
)


@_everywhere("unfold", deciding, sweeping)(
    "span-ends-early", "the span of a large commit is taken away with the first batch of its rows"
)
def _span_ends_early(unfold: Callable[..., Any]) -> Callable[..., Any]:
    def broken(ctx: Any, number: int, rows_max: int) -> Any:
        row = ctx.table("transactions")[number]
        done = unfold(ctx, number, rows_max)
        for part in row.parts:
            span = deciding.span_of(ctx, part.queue, number)
            if span is not None:
                ctx.table("spans").delete((part.queue, span[0]))
        return done

    return broken


@_everywhere("unfold", deciding, sweeping)(
    "span-of-another", "a transaction that is moved takes away the span of one that came later"
)
def _span_of_another(unfold: Callable[..., Any]) -> Callable[..., Any]:
    def broken(ctx: Any, number: int, rows_max: int) -> Any:
        row = ctx.table("transactions")[number]
        rows, done = unfold(ctx, number, rows_max)
        for part in row.parts if done else ():
            keys = [key for key, _ in ctx.table("spans").scan(prefix=(part.queue,))]
            for key in keys[-1:]:
                ctx.table("spans").delete(key)
        return rows, done

    return broken


@_wrapping(
    "commit-backwards",
    "a staged transaction becomes visible newest first",
    deciding,
    "append",
)
def _commit_backwards(append: Callable[..., Any]) -> Callable[..., Any]:
    def broken(ctx: Any, name: str, queue: Any, messages: Any, *given: Any) -> Any:
        return append(ctx, name, queue, tuple(reversed(messages)), *given)

    return broken


@contextlib.contextmanager
def _repeated_commit_executes() -> Iterator[None]:
    def wrap(commit: Callable[..., Any]) -> Callable[..., Any]:
        def broken(command: Any, ctx: Any) -> Any:
            row = ctx.table("sessions").get(command.session)
            if row is not None and not row.ended_ms and command.counter <= row.decided:
                again = replace(row, decided=command.counter - 1)
                ctx.table("sessions").put(command.session, again)
            return commit(command, ctx)

        return broken

    with _applying(Commit, wrap):
        yield


_patching(
    "repeated-commit-executes",
    "a commit that comes again is done again",
    _repeated_commit_executes,
)


@_wrapping(
    "rollback-keeps-content",
    "a rollback leaves what was staged behind",
    deciding,
    "_free",
)
def _rollback_keeps_content(free: Callable[..., Any]) -> Callable[..., Any]:
    def broken(ctx: Any, number: int, name: str, queue: Any, part: Any, holder: int) -> Any:
        return free(ctx, number, name, queue, replace(part, publishes=0), holder)

    return broken


@_wrapping(
    "rollback-accepts",
    "what a transaction has accepted stays accepted when it is rolled back",
    deciding,
    "_free",
)
def _rollback_accepts(free: Callable[..., Any]) -> Callable[..., Any]:
    def broken(ctx: Any, number: int, name: str, queue: Any, part: Any, holder: int) -> Any:
        keys = [key for key, _ in ctx.table("accepts").scan(prefix=(number, queue.id))]
        for key in keys:
            ctx.table("accepts").delete(key)
            ctx.table("messages").delete(key[1:])
        return free(ctx, number, name, queue, part, holder)

    return broken


# Messages -----------------------------------------------------------------------------------------


@_everywhere("give_back", deciding, ending, settling)(
    "returned-to-the-end", "a message that comes back goes to the end of its queue"
)
def _returned_to_the_end(give_back: Callable[..., Any]) -> Callable[..., Any]:
    def broken(ctx: Any, name: str, queue: Any, seq: int, deliveries: int) -> Any:
        stored = delivering.take(ctx, queue.id, seq)
        if stored is None:
            return give_back(ctx, name, queue, seq, deliveries)
        size = delivering.remove(ctx, queue.id, seq)
        queue = replace(queue, depth=queue.depth - 1, bytes=queue.bytes - size)
        return queues.append(ctx, name, queue, (stored.message,), ctx.now)[0]

    return broken


@_everywhere("give_back", deciding, ending, settling)(
    "deliveries-forgotten", "a message that comes back is as if it had never been delivered"
)
def _deliveries_forgotten(give_back: Callable[..., Any]) -> Callable[..., Any]:
    return lambda ctx, name, queue, seq, deliveries: give_back(ctx, name, queue, seq, 0)


@_wrapping(
    "newest-first",
    "fresh messages are acquired before those that came back",
    delivering,
    "_returned",
)
def _newest_first(returned: Callable[..., Any]) -> Callable[..., Any]:
    def broken(ctx: Any, queue: Any, wanted: int) -> Any:
        fresh = queue.next - queue.cursor
        return returned(ctx, queue, max(0, wanted - fresh))

    return broken


@_wrapping(
    "dead-letters-lost",
    "a message that died is dropped, although there is a queue for dead letters",
    delivering,
    "_letter",
)
def _dead_letters_lost(letter: Callable[..., Any]) -> Callable[..., Any]:
    def broken(message: Any, *given: Any) -> Any:
        return replace(letter(message, *given), body=b"lost")

    return broken


@_wrapping(
    "newest-dropped",
    "a queue that is full drops what has just come",
    queues,
    "make_room",
)
def _newest_dropped(make_room: Callable[..., Any]) -> Callable[..., Any]:
    def broken(ctx: Any, name: str, queue: Any, rows: int) -> Any:
        if not queues.must_drop(queue) or queue.next - 1 < queue.cursor:
            return queue, 0, False
        last = (queue.id, queue.next - 1)
        if last not in ctx.table("messages"):
            return queue, 0, False
        size = delivering.remove(ctx, *last)
        less = replace(
            queue,
            next=queue.next - 1,
            ready=queue.ready - 1,
            depth=queue.depth - 1,
            bytes=queue.bytes - size,
            dropped=queue.dropped + 1,
        )
        return less, 1, False

    return broken


_wrapping("no-limit", "a queue takes more than its limits say", queues, "room_for")(
    lambda room_for: _nothing
)
_everywhere("require_room_of", transactions, branches)(
    "no-limit-for-transactions", "a transaction is closed whether there is room or not"
)(lambda require: _nothing)
_wrapping(
    "nothing-reserved",
    "a prepared transaction has no room promised to it",
    closing,
    "reserved_of",
)(lambda reserved_of: lambda part: (0, 0))


@contextlib.contextmanager
def _deleted_in_use() -> Iterator[None]:
    def wrap(delete: Callable[..., Any]) -> Callable[..., Any]:
        def broken(command: Any, ctx: Any) -> Any:
            row = ctx.table("queues").get(command.queue)
            if row is not None and row.uses:
                ctx.table("queues").put(command.queue, replace(row, uses=0))
            return delete(command, ctx)

        return broken

    with _applying(DeleteQueue, wrap):
        yield


_patching(
    "deleted-in-use",
    "a queue is deleted although an undecided transaction has content of it",
    _deleted_in_use,
)


@contextlib.contextmanager
def _purge_takes_one_more() -> Iterator[None]:
    def wrap(purge: Callable[..., Any]) -> Callable[..., Any]:
        return lambda command, ctx: purge(replace(command, upto=command.upto + 1), ctx)

    with _applying(Purge, wrap):
        yield


_patching(
    "purge-takes-one-more",
    "a purge takes one message more than it was asked for",
    _purge_takes_one_more,
)


# Sessions -----------------------------------------------------------------------------------------


_wrapping(
    "session-outlives-its-node",
    "the end of a node's life does not end its sessions",
    ending,
    "life_changed",
)(lambda life_changed: _nothing)


@_wrapping(
    "sweep-ends-the-living",
    "the end of a node's life ends the sessions of its next life, too",
    ending,
    "end_of_life",
)
def _sweep_ends_the_living(end_of_life: Callable[..., Any]) -> Callable[..., Any]:
    def broken(ctx: Any, node: str, incarnation: int, rows_max: int) -> Any:
        member = ctx.members.get(node)
        if member is not None and member.incarnation > incarnation:
            end_of_life(ctx, node, member.incarnation, rows_max)
        return end_of_life(ctx, node, incarnation, rows_max)

    return broken


@_wrapping(
    "dead-keep-their-messages",
    "what a session held when its node died does not come back",
    ending,
    "return_held",
)
def _dead_keep_their_messages(return_held: Callable[..., Any]) -> Callable[..., Any]:
    def broken(ctx: Any, id_: int, rows_max: int) -> Any:
        ctx.table("ended_sessions").delete(id_)
        return 0, True

    return broken


@_wrapping(
    "end-does-not-roll-back",
    "a transaction goes on without its session",
    transactions,
    "session_ended",
)
def _end_does_not_roll_back(session_ended: Callable[..., Any]) -> Callable[..., Any]:
    return lambda ctx, id_, row: replace(row, number=0)


# Votes --------------------------------------------------------------------------------------------


_wrapping(
    "first-yes-decides",
    "one participant's yes is enough",
    transactions,
    "has_all_votes",
)(lambda has_all_votes: lambda row: True)
_everywhere("participants", transactions, branches)(
    "nobody-is-asked", "a transaction is decided without those who take part"
)(lambda participants: lambda ctx: ())


@_wrapping(
    "vote-of-another-life",
    "a vote counts whatever life of the node it comes from, and whoever sends it",
    transactions,
    "voted",
)
def _vote_of_another_life(voted: Callable[..., Any]) -> Callable[..., Any]:
    def broken(row: Any, origin: Any) -> Any:
        yes = [replace(one, voted=True) for one in row.participants]
        return replace(row, participants=tuple(yes))

    return broken


@contextlib.contextmanager
def _no_means_yes() -> Iterator[None]:
    def wrap(vote: Callable[..., Any]) -> Callable[..., Any]:
        return lambda command, ctx: vote(replace(command, yes=True), ctx)

    with _applying(Vote, wrap):
        yield


_patching("no-means-yes", "a participant's no is counted as a yes", _no_means_yes)
_wrapping(
    "participant-may-go",
    "nobody looks whether a participant has left before its vote",
    sweeping,
    "is_gone",
)(lambda is_gone: lambda ctx, row: "")


@_wrapping(
    "failure-approves",
    "an observer that fails to prepare counts as one that could",
    voting.Voting,
    "_ask",
)
def _failure_approves(ask: Callable[..., Awaitable[str]]) -> Callable[..., Awaitable[str]]:
    async def broken(self: Any, *given: Any) -> str:
        await ask(self, *given)
        return ""

    return broken


@_wrapping(
    "observers-are-not-asked",
    "a node votes without asking its observers",
    voting.Voting,
    "_ask",
)
def _observers_are_not_asked(ask: Callable[..., Awaitable[str]]) -> Callable[..., Awaitable[str]]:
    async def broken(self: Any, *given: Any) -> str:
        return ""

    return broken


@_wrapping(
    "observers-miss-the-last",
    "observers are not told the last operations before the close",
    observers.Observation,
    "take",
)
def _observers_miss_the_last(take: Callable[..., None]) -> Callable[..., None]:
    def broken(self: Any, rows: Any, view: Any) -> None:
        take(self, rows[:-1], view)
        self.heard = max([self.heard, *(row[0] + 1 for row in rows)])

    return broken


# Branches -----------------------------------------------------------------------------------------


@contextlib.contextmanager
def _prepared_times_out() -> Iterator[None]:
    def wrap(sweep: Callable[..., Any]) -> Callable[..., Any]:
        def broken(command: Any, ctx: Any) -> Any:
            for number, row in list(ctx.table("transactions").scan()):
                if row.state == "prepared" and row.opened_ms + 500 <= ctx.now:
                    transactions.roll_back(ctx, number, row, "timeout", "it took too long")
            return sweep(command, ctx)

        return broken

    with _applying(Sweep, wrap):
        yield


_patching(
    "prepared-times-out",
    "the time-out of a branch goes on when it is prepared",
    _prepared_times_out,
)


@_wrapping(
    "prepared-dies-with-a-node",
    "the end of a node's life rolls prepared branches back",
    ending,
    "life_changed",
)
def _prepared_dies_with_a_node(life_changed: Callable[..., Any]) -> Callable[..., Any]:
    def broken(change: Any, ctx: Any) -> None:
        life_changed(change, ctx)
        if change.ended is None:
            return
        for number, row in list(ctx.table("transactions").scan()):
            if row.state == "prepared":
                transactions.roll_back(ctx, number, row, "session", "its node is gone")

    return broken


@_wrapping(
    "recover-forgets-the-newest",
    "recover() does not show the branch that was prepared last",
    views,
    "recover",
)
def _recover_forgets_the_newest(recover: Callable[..., Any]) -> Callable[..., Any]:
    return lambda view: tuple(recover(view))[:-1]


@_wrapping(
    "recover-from-a-copy",
    "recover() shows what this node has, however old it is",
    dtx.Dtx,
    "recover",
)
def _recover_from_a_copy(recover: Callable[..., Any]) -> Callable[..., Any]:
    async def broken(self: Any, *, timeout_s: float | None = None) -> Any:
        found = views.recover(self._host.view())
        return tuple(dtx.branch_of(xid, row) for xid, row in found)

    return broken


@_wrapping(
    "heuristic-is-forgotten",
    "what an operator decided is forgotten when the coordinator commits",
    branches,
    "_heuristically",
)
def _heuristic_is_forgotten(heuristically: Callable[..., Any]) -> Callable[..., Any]:
    def broken(row: Any) -> Any:
        return None if heuristically(row) is None else branches._OK

    return broken


@_wrapping(
    "doomed-is-prepared",
    "a branch that can only be rolled back is prepared",
    branches,
    "_known",
)
def _doomed_is_prepared(known: Callable[..., Any]) -> Callable[..., Any]:
    def broken(ctx: Any, xid: Any) -> Any:
        number, row = known(ctx, xid)
        return number, replace(row, rollback_only="")

    return broken


_wrapping(
    "busy-is-prepared",
    "a branch is prepared although a session works in it",
    branches,
    "_require_ended",
)(lambda require_ended: _nothing)


# Nodes --------------------------------------------------------------------------------------------


class _Late(TransactionAborted):
    """What a planted bug raises instead of TransactionUnknown."""

    def __init__(self, txid: str) -> None:
        super().__init__(txid, "late", "its time is over")


_patching(
    "time-out-decides",
    "a caller whose time is over is told that nothing was applied",
    lambda: replaced(session, "TransactionUnknown", _Late),
)


@_wrapping(
    "sent-again",
    "a command without an answer is sent once more, without asking what became of it",
    proposing.Proposer,
    "_settled",
)
def _sent_again(settled: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    async def broken(self: Any, *given: Any) -> Any:
        raise NotApplied("it has no answer")

    return broken


@_wrapping(
    "outcome-from-a-copy",
    "an outcome is what this node has, however old it is",
    reading.Reading,
    "outcome",
)
def _outcome_from_a_copy(outcome: Callable[..., Any]) -> Callable[..., Any]:
    async def broken(self: Any, txid: str, *given: Any, **more: Any) -> Any:
        id_, counter = reading.txid_parts(txid)
        return views.outcome_of(self._host.view(), id_, counter)

    return broken


_wrapping(
    "waiters-forgotten",
    "nobody tells those who wait for votes that there is a decision",
    waiting.Waiting,
    "_look_at_votes",
)(lambda look: _nothing)
