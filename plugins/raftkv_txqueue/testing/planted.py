"""Bugs to be planted into the plugin: each breaks one of its rules for the time of a storm.

    with planted("prepared-times-out"):
        ...                               # the storm must notice

A storm that finds nothing proves nothing until it has found what is known to be wrong. These are
mistakes of the seed's upstream (a prepared branch is aborted behind its coordinator's back, a
partial transaction becomes visible, a message is lost or comes twice after a fail-over, a commit
that is repeated), and those that queues on a log invite: a session that outlives its node, content
that is seen too early or lost while its rows are moved, a time-out that decides.

Here are those of content, messages and sessions; those of votes, branches and answers are in
`planted_deciding.py`, which this module imports: `BUGS` has them all.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from msgspec.structs import replace

from raftkv.testing.patching import replaced
from raftkv_txqueue import (
    branches,
    closing,
    contents,
    deciding,
    delivering,
    ending,
    queues,
    quota,
    settling,
    staging,
    sweeping,
    timers,
    times,
    transactions,
    views,
)
from raftkv_txqueue.commands import Acquire, Commit, DeleteQueue, EndSession, Purge

from .planted_deciding import BUGS
from .planting import SEEDS_MAX, applying, everywhere, nothing, patching, wrapping

__all__ = ["BUGS", "SEEDS_MAX", "planted"]

planted = BUGS.planted


# The quota ----------------------------------------------------------------------------------------


@wrapping(
    "prepare-does-not-reserve",
    "what is staged counts against the quota only once it is committed",
    quota,
    "reserved_bytes",
)
def _prepare_does_not_reserve(_: Callable[..., int]) -> Callable[..., int]:
    def broken(message: Any) -> int:
        return 0

    return broken


# Atomic -------------------------------------------------------------------------------------------


@wrapping(
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


wrapping(
    "span-hides-content",
    "nobody looks for messages under the span of a large commit",
    views,
    "span_over",
)(lambda span_over: nothing)
patching(
    "accepted-shown-again",
    "what a large commit has accepted is shown until its rows are moved",
    lambda: replaced(views, "TAKEN", ()),
)


@everywhere("unfold", deciding, sweeping)(
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


@everywhere("unfold", deciding, sweeping)(
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


@wrapping(
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

    with applying(Commit, wrap):
        yield


patching(
    "repeated-commit-executes",
    "a commit that comes again is done again",
    _repeated_commit_executes,
)


@wrapping(
    "rollback-keeps-content",
    "a rollback leaves what was staged behind",
    deciding,
    "_free",
)
def _rollback_keeps_content(free: Callable[..., Any]) -> Callable[..., Any]:
    def broken(ctx: Any, number: int, name: str, queue: Any, part: Any, holder: int) -> Any:
        return free(ctx, number, name, queue, replace(part, publishes=0), holder)

    return broken


@wrapping(
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


@everywhere("give_back", deciding, ending, settling)(
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


@everywhere("give_back", deciding, ending, settling)(
    "deliveries-forgotten", "a message that comes back is as if it had never been delivered"
)
def _deliveries_forgotten(give_back: Callable[..., Any]) -> Callable[..., Any]:
    return lambda ctx, name, queue, seq, deliveries: give_back(ctx, name, queue, seq, 0)


@wrapping(
    "redeclare-resets",
    "a queue that is declared again gets the limits of a new one",
    queues,
    "_declared",
)
def _redeclare_resets(declare: Callable[..., Any]) -> Callable[..., Any]:
    def broken(command: Any, ctx: Any) -> Any:
        return declare(replace(command, depth_max=0, deliveries_max=0), ctx)

    return broken


@everywhere("put_back", settling)(
    "put-back-counts", "a message that no program has had is counted as delivered"
)
def _put_back_counts(put_back: Callable[..., Any]) -> Callable[..., Any]:
    return lambda ctx, name, queue, seq, deliveries: put_back(ctx, name, queue, seq, deliveries + 1)


@wrapping(
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


@wrapping(
    "dead-letters-lost",
    "a message that died is dropped, although there is a queue for dead letters",
    delivering,
    "_letter",
)
def _dead_letters_lost(letter: Callable[..., Any]) -> Callable[..., Any]:
    def broken(message: Any, *given: Any) -> Any:
        return replace(letter(message, *given), body=b"lost")

    return broken


@wrapping(
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


wrapping("no-limit", "a queue takes more than its limits say", queues, "room_for")(
    lambda room_for: nothing
)
everywhere("require_room_of", transactions, branches)(
    "no-limit-for-transactions", "a transaction is closed whether there is room or not"
)(lambda require: nothing)
wrapping(
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

    with applying(DeleteQueue, wrap):
        yield


patching(
    "deleted-in-use",
    "a queue is deleted although an undecided transaction has content of it",
    _deleted_in_use,
)


wrapping(
    "dead-letter-queue-deleted",
    "a queue is deleted although others send their dead letters to it",
    queues,
    "_require_no_letters",
)(lambda require: nothing)


@contextlib.contextmanager
def _purge_takes_one_more() -> Iterator[None]:
    def wrap(purge: Callable[..., Any]) -> Callable[..., Any]:
        return lambda command, ctx: purge(replace(command, upto=command.upto + 1), ctx)

    with applying(Purge, wrap):
        yield


patching(
    "purge-takes-one-more",
    "a purge takes one message more than it was asked for",
    _purge_takes_one_more,
)


# Times, and the return to the back ----------------------------------------------------------------


@everywhere("begin", deciding, times)(
    "delivered-before-due", "a delayed message is available from its publication on"
)
def _delivered_before_due(begin: Callable[..., Any]) -> Callable[..., Any]:
    def broken(ctx: Any, queue_id: int, seq: int, message: Any, *given: int) -> Any:
        headers = tuple(pair for pair in message.headers if pair[0] != times.DELAY)
        return begin(ctx, queue_id, seq, replace(message, headers=headers), *given)

    return broken


wrapping(
    "delivered-after-expiry",
    "a message whose time to live is over is available like any other",
    timers,
    "_expire",
)(lambda expire: lambda ctx, name, queue, seq, gaps_max: queue)
everywhere("has_expired", delivering, timers)(
    "returns-after-expiry", "a message that comes back after its time to live is available again"
)(lambda has_expired: lambda ctx, queue_id, seq: False)
everywhere("default_ttl", staging, times)(
    "queue-ttl-forgotten", "the time to live of a queue bounds none of its messages"
)(lambda default_ttl: lambda view, queue_id: 0)
wrapping(
    "span-without-timers",
    "the times of messages of a large commit are forgotten",
    deciding,
    "_begin_timers",
)(lambda begin_timers: lambda ctx, number, queue: 0)


@wrapping(
    "expires-without-a-gap",
    "the cursor takes the place of a message that has expired for a message",
    timers,
    "leave_gap",
)
def _expires_without_a_gap(leave_gap: Callable[..., Any]) -> Callable[..., Any]:
    def broken(ctx: Any, queue: Any, seq: int, gaps_max: int) -> Any:
        queue = leave_gap(ctx, queue, seq, gaps_max)
        ctx.table("gaps").delete((queue.id, seq))
        return queue

    return broken


@wrapping(
    "lost-beside-gaps",
    "a message that the cursor passes for the sake of gaps behind it is in no place",
    timers,
    "leave_gap",
)
def _lost_beside_gaps(leave_gap: Callable[..., Any]) -> Callable[..., Any]:
    def broken(ctx: Any, queue: Any, seq: int, gaps_max: int) -> Any:
        returned = ctx.table("returned")
        before = {key for key, _ in returned.scan()}
        queue = leave_gap(ctx, queue, seq, gaps_max)
        for key in [key for key, _ in returned.scan() if key not in before]:
            returned.delete(key)
        return queue

    return broken


@everywhere("to_back", settling)(
    "lost-on-return", "a message that is returned to the back is taken away and not put there"
)
def _lost_on_return(to_back: Callable[..., Any]) -> Callable[..., Any]:
    def broken(ctx: Any, name: str, queue: Any, seq: int, deliveries: int) -> Any:
        size = delivering.remove(ctx, queue.id, seq)
        return replace(queue, depth=queue.depth - 1, bytes=queue.bytes - size)

    return broken


everywhere("to_back", settling)(
    "back-is-front", "a message that is returned to the back keeps its place"
)(lambda to_back: delivering.give_back)


@contextlib.contextmanager
def _cursor_is_not_written() -> Iterator[None]:
    def wrap(apply: Callable[..., Any]) -> Callable[..., Any]:
        def broken(command: Any, ctx: Any) -> Any:
            queues = ctx.table("queues")
            old = queues.get(command.queue)
            done = apply(command, ctx)
            if not (done.messages if isinstance(command, Purge) else done.seqs):
                queues.put(command.queue, replace(queues[command.queue], cursor=old.cursor))
            return done

        return broken

    with applying(Acquire, wrap), applying(Purge, wrap):
        yield


patching(
    "cursor-is-not-written",
    "an entry that only passes over delayed messages makes them available",
    _cursor_is_not_written,
)


# Sessions -----------------------------------------------------------------------------------------


@contextlib.contextmanager
def _operator_ends_another() -> Iterator[None]:
    def wrap(end: Callable[..., Any]) -> Callable[..., Any]:
        def broken(command: Any, ctx: Any) -> Any:
            done = end(command, ctx)
            row = ctx.table("sessions").get(command.session + 1)
            if row is not None and not row.ended_ms:
                ending.end(ctx, command.session + 1, row, 100)
            return done

        return broken

    with applying(EndSession, wrap):
        yield


patching(
    "operator-ends-another",
    "an operator who ends a session ends the next one, too",
    _operator_ends_another,
)


def _steps(step: Callable[..., bool] | None) -> Callable[[], Any]:
    """Sweep with this in place of what ends sessions that hold a message for too long."""

    def patch() -> Any:
        late = sweeping._end_overdue
        others = [(step if each is late else each) for each in sweeping._STEPS]
        return replaced(sweeping, "_STEPS", tuple(each for each in others if each is not None))

    return patch


def _end_too_early(ctx: Any, budget: Any) -> bool:
    for key in [key for key, _ in ctx.table("ack_due").scan(None, (ctx.now + 1_000, 0, 0, 0))]:
        row = ctx.table("sessions")[key[1]]
        if not row.ended_ms:
            ending.end(ctx, key[1], row, 100)
    return False


patching(
    "ack-timeout-too-early",
    "a session is ended before it has held a message for too long",
    _steps(_end_too_early),
)
patching(
    "ack-timeout-forgotten",
    "no session is ended for holding a message for too long",
    _steps(None),
)


@wrapping(
    "overdue-although-settled",
    "the deadline of a message outlives its settlement",
    settling,
    "unlock",
)
def _overdue_although_settled(unlock: Callable[..., int]) -> Callable[..., int]:
    def broken(ctx: Any, key: Any) -> int:
        row = ctx.table("locks").get(key)
        deliveries = unlock(ctx, key)
        if deliveries and getattr(row, "due_ms", 0):
            ctx.table("ack_due").put((row.due_ms, *key), None)
        return deliveries

    return broken


@wrapping(
    "holder-is-the-next",
    "another session is shown to hold a message",
    views,
    "_holder",
)
def _holder_is_the_next(holder: Callable[..., Any]) -> Callable[..., Any]:
    def broken(view: Any, has: Any) -> Any:
        found = holder(view, has)
        return None if found is None else replace(found, session=found.session + 1)

    return broken


@wrapping(
    "content-hides-accepts",
    "what a branch accepts is not shown",
    contents,
    "content_of",
)
def _content_hides_accepts(content_of: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *given: tuple(replace(each, seqs=()) for each in content_of(*given))


wrapping(
    "session-outlives-its-node",
    "the end of a node's life does not end its sessions",
    ending,
    "life_changed",
)(lambda life_changed: nothing)


@wrapping(
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


@wrapping(
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


@wrapping(
    "end-does-not-roll-back",
    "a transaction goes on without its session",
    transactions,
    "session_ended",
)
def _end_does_not_roll_back(session_ended: Callable[..., Any]) -> Callable[..., Any]:
    return lambda ctx, id_, row: replace(row, number=0)
