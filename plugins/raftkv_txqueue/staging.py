"""What is done under a transaction before it is decided: planned first, then staged in order.

Rules of this file
1. A command's operations are *planned* before anything is written: every queue is known, every
   message is sound, every accepted one is held. So a command that fails has changed nothing, and a
   `Commit` that fails can still be written down as rolled back.
2. Staged messages have no seq. They stand in the order in which they came, per queue; `order`
   tells observers the order over all queues, one number for each message and each accepted one.
3. An accepted message leaves its session's `locks` for `accepts`. So it is accepted in one
   transaction at most, and what ends a session passes it by.
4. Limits count rows and published bytes: of one command, of a transaction, of all that are
   undecided. The bodies of accepted messages are in their queues anyway, so they count nothing.

A small transaction never comes through `stage`: its one `Commit` is planned here and written
straight into the queues (`transactions.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from raftkv.plugin import Context

from .commands import (
    COMMAND_BYTES,
    ROWS_MAX,
    TIMED_MAX,
    TRANSACTION_QUEUES_MAX,
    Message,
    Operation,
    Part,
    PublishTo,
    Queue,
    SessionRow,
    Stage,
    Staged,
    StagedAccept,
    StagedMessage,
    TransactionRow,
    size_of,
)
from .deciding import put_meta, reclaim, returning
from .locks import deliveries_of, unlock
from .queues import check_messages, named
from .refusals import (
    BatchTooLarge,
    EmptyBatch,
    NotHeld,
    NotInBranch,
    RollbackOnly,
    StagedFull,
    TooManyTransactions,
    TransactionClosed,
    TransactionOver,
    TransactionTooLarge,
    UnknownTransaction,
    WrongKind,
)
from .sessions import owned
from .times import default_ttl, is_timed, require_timers
from .views import meta_of, txid_of

__all__ = [
    "Content",
    "Plan",
    "merged",
    "opened",
    "planned",
    "require_size",
    "require_staging",
    "stage",
    "write_plan",
]


class Content:
    """What a command does to one queue. `orders` count from the command's first operation."""

    __slots__ = ("accepts", "bytes", "bytes_accepted", "messages", "name", "orders", "queue")

    def __init__(self, name: str, queue: Queue) -> None:
        self.name = name
        self.queue = queue
        self.messages: list[Message] = []
        self.orders: list[int] = []
        self.bytes = 0
        #: seq -> (order, deliveries, bytes)
        self.accepts: dict[int, tuple[int, int, int]] = {}
        self.bytes_accepted = 0


class Plan:
    """The operations of one command, checked. `contents`: per queue, in order of first use."""

    __slots__ = ("accepts", "bytes", "contents", "rows", "timed")

    def __init__(self) -> None:
        self.contents: list[Content] = []
        self.rows = 0
        self.bytes = 0
        self.accepts = 0
        #: Messages with a time to live or a delay.
        self.timed = 0


# --- planning: nothing is written -----------------------------------------------------------------


def planned(ctx: Context, session: int, operations: Sequence[Operation]) -> Plan:
    """Check operations of a session. Raises what is wrong with them.

    What the session still holds by right, because rows of its last transaction have not been moved
    back yet, is moved now: the session's row may be another one afterwards.
    """
    plan = Plan()
    by_name: dict[str, Content] = {}
    for operation in operations:
        content = by_name.get(operation.queue)
        if content is None:
            content = Content(operation.queue, named(ctx, operation.queue))
            by_name[operation.queue] = content
            plan.contents.append(content)
        if isinstance(operation, PublishTo):
            _plan_publish(ctx, plan, content, operation.messages)
        else:
            _plan_accept(ctx, plan, content, session, operation.seqs)
    if plan.rows > ROWS_MAX:
        raise BatchTooLarge("rows", ROWS_MAX)
    if plan.bytes > COMMAND_BYTES and plan.rows - plan.accepts > 1:
        raise BatchTooLarge("bytes", COMMAND_BYTES)
    return plan


def _plan_publish(
    ctx: Context, plan: Plan, content: Content, messages: tuple[Message, ...]
) -> None:
    size = check_messages(ctx, messages)
    content.orders.extend(range(plan.rows, plan.rows + len(messages)))
    content.messages.extend(messages)
    content.bytes += size
    plan.rows += len(messages)
    plan.bytes += size
    plan.timed += require_timers(ctx, content.queue.id, messages, plan.timed)


def _plan_accept(
    ctx: Context, plan: Plan, content: Content, session: int, seqs: tuple[int, ...]
) -> None:
    if not seqs:
        raise EmptyBatch
    if len(seqs) > ROWS_MAX:
        raise BatchTooLarge("rows", ROWS_MAX)
    locks, messages = ctx.table("locks"), ctx.table("messages")
    queue_id = content.queue.id
    back: list[int] | None = None
    for seq in seqs:
        row = locks.get((session, queue_id, seq))
        if row is not None:
            deliveries = deliveries_of(row)
        else:
            back = returning(ctx, session) if back is None else back
            deliveries = reclaim(ctx, back, session, queue_id, seq)
        if not deliveries or seq in content.accepts:
            raise NotHeld(content.name, seq)
        size = size_of(messages[queue_id, seq].message)
        content.accepts[seq] = (plan.rows, deliveries, size)
        content.bytes_accepted += size
        plan.rows += 1
        plan.accepts += 1


def merged(row: TransactionRow, plan: Plan) -> TransactionRow:
    """The transaction's row with a plan added to it; nothing is written."""
    parts = {part.queue: part for part in row.parts}
    for content in plan.contents:
        old = parts.get(content.queue.id) or Part(content.queue.id)
        parts[content.queue.id] = Part(
            old.queue,
            old.publishes + len(content.messages),
            old.publish_bytes + content.bytes,
            old.accepts + len(content.accepts),
            old.accept_bytes + content.bytes_accepted,
        )
    return replace(
        row, parts=tuple(parts.values()), rows=row.rows + plan.rows, bytes=row.bytes + plan.bytes
    )


def require_size(ctx: Context, rows: int, size: int, queues: int) -> None:
    """Refuse what is larger than one transaction may be. Raises TransactionTooLarge."""
    settings = ctx.settings
    if rows > settings["transaction_rows_max"]:
        raise TransactionTooLarge("rows", settings["transaction_rows_max"])
    if size > settings["transaction_bytes_max"]:
        raise TransactionTooLarge("bytes", settings["transaction_bytes_max"])
    if queues > TRANSACTION_QUEUES_MAX:
        raise TransactionTooLarge("queues", TRANSACTION_QUEUES_MAX)


def require_staging(ctx: Context, row: TransactionRow, plan: Plan, number: int = 0) -> None:
    """Refuse a plan that cannot be staged in the transaction `row` for its size. `number`: its own,
    0: it has none yet.

    One that adds nothing to what a limit counts is not judged by it: so what was staged before a
    limit was lowered can be committed. Raises TransactionTooLarge or StagedFull.
    """
    if not plan.rows:
        return
    whole = merged(row, plan)
    require_size(ctx, whole.rows, whole.bytes if plan.bytes else 0, len(whole.parts))
    limit = ctx.settings["staged_bytes_max"]
    if plan.bytes and meta_of(ctx).staged_bytes + plan.bytes > limit:
        raise StagedFull(limit)
    if plan.timed and number:
        timed = ctx.table("staged_times").count(prefix=(number,)) + plan.timed
        if timed > TIMED_MAX:
            raise TransactionTooLarge("messages with a time to live or a delay", TIMED_MAX)


# --- writing --------------------------------------------------------------------------------------


def opened(ctx: Context, deadline_ms: int, **more: Any) -> tuple[int, TransactionRow]:
    """A new undecided transaction, with its deadline in `due`; its row is not written yet.

    Raises TooManyTransactions.
    """
    meta = meta_of(ctx)
    limit = ctx.settings["transactions_max"]
    if meta.transactions >= limit:
        raise TooManyTransactions(limit)
    number = meta.next_number
    put_meta(ctx, replace(meta, next_number=number + 1, transactions=meta.transactions + 1))
    if deadline_ms:
        ctx.table("due").put((deadline_ms, number), None)
    row = TransactionRow(state="active", opened_ms=ctx.now, deadline_ms=deadline_ms, **more)
    return number, row


def write_plan(
    ctx: Context, number: int, row: TransactionRow, plan: Plan, session: int
) -> TransactionRow:
    """Stage a plan that was checked by `require_staging`; the transaction's new row, written.

    The caller writes the session's row: it holds `plan.accepts` messages less.
    """
    known = {part.queue: part for part in row.parts}
    staged, accepts = ctx.table("staged"), ctx.table("accepts")
    queues = ctx.table("queues")
    for content in plan.contents:
        queue_id = content.queue.id
        part = known.get(queue_id)
        if part is None:
            queues.put(content.name, replace(content.queue, uses=content.queue.uses + 1))
        place = part.publishes if part is not None else 0
        ttl_ms = default_ttl(ctx, queue_id) if plan.timed else 0
        for order, message in zip(content.orders, content.messages, strict=True):
            staged.put((number, queue_id, place), StagedMessage(row.rows + order, message))
            if plan.timed and (ttl_ms or is_timed(message)):
                ctx.table("staged_times").put((number, queue_id, place), ttl_ms)
            place += 1
        for seq, (order, deliveries, size) in content.accepts.items():
            unlock(ctx, (session, queue_id, seq))
            accept = StagedAccept(row.rows + order, session, deliveries, size)
            accepts.put((number, queue_id, seq), accept)
    row = merged(row, plan)
    ctx.table("transactions").put(number, row)
    if plan.bytes:
        meta = meta_of(ctx)
        put_meta(ctx, replace(meta, staged_bytes=meta.staged_bytes + plan.bytes))
    return row


def stage(command: Stage, ctx: Context) -> Staged:
    """Operations of a TX or a branch, when they are too many for its last command."""
    session = owned(ctx, command.session)
    if not command.operations:
        raise EmptyBatch
    if command.counter:
        number, row = _running(ctx, command, session)
    else:
        number, row = _attached(ctx, command, session)
    plan = planned(ctx, command.session, command.operations)
    require_staging(ctx, row, plan, number)
    if not number:
        timeout_ms = ctx.settings["transaction_timeout_ms"]
        number, row = opened(
            ctx,
            ctx.now + timeout_ms if timeout_ms else 0,
            session=command.session,
            counter=command.counter,
            xid=None,
            timeout_ms=timeout_ms,
        )
    row = write_plan(ctx, number, row, plan, command.session)
    sessions = ctx.table("sessions")
    now = sessions[command.session]
    if now.number != number or plan.accepts:
        sessions.put(command.session, replace(now, number=number, held=now.held - plan.accepts))
    return Staged(number, row.rows)


def _running(ctx: Context, command: Stage, session: SessionRow) -> tuple[int, TransactionRow]:
    """The session's TX; number 0 and an empty row if this is its first operation."""
    txid = txid_of(command.session, command.counter)
    if command.counter <= session.decided:
        raise TransactionOver(txid)
    if session.kind != "tx":
        raise WrongKind(command.session, "tx")
    if command.counter > session.decided + 1:
        raise UnknownTransaction(txid)
    if not session.number:
        return 0, TransactionRow(command.session, command.counter, None, "active", ctx.now)
    row: TransactionRow = ctx.table("transactions")[session.number]
    if row.state != "active":
        raise TransactionClosed(txid)
    if row.deadline_ms and row.deadline_ms <= ctx.now:
        raise RollbackOnly(f"it is older than its {row.timeout_ms} ms")
    return session.number, row


def _attached(ctx: Context, command: Stage, session: SessionRow) -> tuple[int, TransactionRow]:
    """The branch that the session is attached to."""
    if session.kind != "dtx":
        raise WrongKind(command.session, "dtx")
    if not session.number:
        raise NotInBranch(command.session)
    row: TransactionRow = ctx.table("transactions")[session.number]
    if row.state == "failed":
        raise RollbackOnly(row.reason)
    if row.rollback_only:
        raise RollbackOnly(row.rollback_only)
    if row.deadline_ms and row.deadline_ms <= ctx.now:
        raise RollbackOnly(f"its time-out of {row.timeout_ms} ms is over")
    return session.number, row
