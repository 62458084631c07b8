"""How a `Submit` is applied: who may, what may, where it goes.

Rules of this file
1. Each transaction stands alone. It is checked completely before the first of its rows is written,
   so a refused one leaves no trace, without any undo, and the others of the batch go on.
2. Those of one batch come one after the other: each sees what those before it have done.
3. What must wait enters the queue; what need not is written to `rows` at once. It must wait if it
   is sync and Raft's commit is not its quorum, or if it is ordered and something waits already.
4. Only what would wait is measured against the limits of the queue. Into an empty queue everything
   enters, or a limit below the size of one transaction would stop all for ever. If one of a batch
   finds no room, those behind it that would wait find none either: a smaller one must not overtake.

Every transaction of a cluster passes through here, so what can be done once per command is: the
state is read and written once, the settings are read once.
"""

from __future__ import annotations

from raftkv.errors import Refused
from raftkv.plugin import Context, Member

from .commands import (
    BATCH_PARTS_MAX,
    BATCH_TRANSACTIONS_MAX,
    KEY_BYTES_MAX,
    SPAN_FACTOR,
    AlterFenced,
    Condition,
    DropEntered,
    DropFenced,
    Entry,
    Rejected,
    Row,
    SpaceAltered,
    Submit,
    Submitted,
    Transaction,
)
from .queue import Draft, require_kept
from .quorum import is_fast
from .refusals import (
    BatchTooLarge,
    ConditionFailed,
    DuplicateWrite,
    EmptyTransaction,
    ForeignOwner,
    IndependentSync,
    KeyPending,
    KeyTooLarge,
    NotAMember,
    QueueFull,
    StaleOwner,
    TransactionTooLarge,
    Unclaimed,
)
from .spaces import alter_now, drop_now, require_idle
from .views import space_of

__all__ = ["alter_fenced", "drop_fenced", "member_of", "submit"]


def member_of(ctx: Context) -> Member:
    """The node that sent the command. Raises NotAMember."""
    origin = ctx.origin
    if origin is None:
        raise NotAMember
    return origin


def submit(command: Submit, ctx: Context) -> Submitted:
    """Apply the transactions one after the other."""
    origin = member_of(ctx)
    transactions = command.transactions
    if len(transactions) > BATCH_TRANSACTIONS_MAX:
        raise BatchTooLarge("transactions", BATCH_TRANSACTIONS_MAX)
    if sum(len(one.writes) + len(one.conditions) for one in transactions) > BATCH_PARTS_MAX:
        raise BatchTooLarge("writes and conditions", BATCH_PARTS_MAX)
    draft = Draft(ctx)
    draft.trim(ctx.settings["entries_kept"])
    first = draft.last + 1
    enter = _Entrance(ctx, draft, _denial(draft, origin, command.term)).enter
    rejected = []
    for at, transaction in enumerate(transactions):
        try:
            enter(transaction)
        except Refused as refusal:
            rejected.append(Rejected.of(at, refusal))
    draft.save("submit", origin.name)
    return Submitted(first, ctx.index, draft.confirmed, draft.term, tuple(rejected))


def drop_fenced(command: DropFenced, ctx: Context) -> DropEntered:
    """Drop a space. A synchronous one is dropped in the order of the queue, with its quorum."""
    origin = member_of(ctx)
    space = space_of(ctx, command.name)
    require_kept(ctx, command.name)
    if not space.sync:
        rows = drop_now(command.name, space, ctx)
        return DropEntered(0, True, rows, ctx.index)
    require_idle(command.name, space, ctx)
    draft = Draft(ctx)
    entrance = _Entrance(ctx, draft, _denial(draft, origin, command.term))
    confirmed = entrance.enter_drop(command.name)
    draft.save("submit", origin.name)
    return DropEntered(draft.last, confirmed, space.keys, ctx.index)


def alter_fenced(command: AlterFenced, ctx: Context) -> SpaceAltered:
    """Make a space sync or async, for transactions that come from now on."""
    origin = member_of(ctx)
    space = space_of(ctx, command.name)
    require_kept(ctx, command.name)
    if space.sync and not command.sync:
        draft = Draft(ctx)
        denial = _denial(draft, origin, command.term)
        if denial is not None or not draft.owner:
            raise denial or Unclaimed
    return alter_now(command.name, space, command.sync, ctx)


def _denial(draft: Draft, origin: Member, term: int) -> Refused | None:
    """Why this node may submit nothing."""
    if not draft.owner:
        return None
    if draft.owner != origin.name:
        return ForeignOwner(draft.owner, draft.term)
    if (draft.incarnation, draft.term) != (origin.incarnation, term):
        return StaleOwner(draft.term)
    return None


class _Entrance:
    """What one `Submit` looks up once."""

    __slots__ = (
        "_bytes_max",
        "_ctx",
        "_denial",
        "_draft",
        "_fast",
        "_full",
        "_index",
        "_now",
        "_parts_max",
        "_put_entry",
    )

    def __init__(self, ctx: Context, draft: Draft, denial: Refused | None) -> None:
        settings = ctx.settings
        self._ctx = ctx
        self._draft = draft
        self._denial = denial
        self._fast = is_fast(ctx)
        self._full: QueueFull | None = None
        self._parts_max: int = settings["transaction_writes_max"]
        self._bytes_max: int = settings["transaction_bytes_max"]
        self._put_entry = ctx.table("entries").put
        self._index = ctx.index
        self._now = ctx.now

    def enter(self, transaction: Transaction) -> None:
        """Give the transaction its position. Raises Refused, and has written nothing then."""
        draft = self._draft
        if self._denial is not None:
            raise self._denial
        writes, independent = transaction.writes, transaction.independent
        sync, size = self._form(transaction)
        if sync:
            if independent:
                raise IndependentSync(self._sync_space(transaction))
            if not draft.owner:
                raise Unclaimed
        if independent and draft.head:
            self._require_free(transaction)
        if transaction.conditions:
            self._require(transaction.conditions, pending=draft.head > 0 and not independent)
        waits = not self._fast if sync else draft.head > 0 and not independent
        if draft.head:
            self._require_room(size, len(writes), waits)
        position = draft.last = draft.last + 1
        entry = Entry(sync, independent, writes, size, draft.term, self._now, self._index)
        self._put_entry(position, entry)
        if waits:
            draft.wait(position, entry)
        else:
            draft.settle(position, entry)
            if not independent:
                draft.confirmed = position
            if sync:
                draft.confirm_lag_ms = 0
        if draft.head:
            draft.held_bytes += size

    def enter_drop(self, name: str) -> bool:
        """Give the drop of a synchronous space a position. Whether it is confirmed at once.

        Raises Refused, and has written nothing then.
        """
        draft, waits = self._draft, not self._fast
        if self._denial is not None:
            raise self._denial
        if not draft.owner:
            raise Unclaimed
        if draft.head:
            self._require_room(0, 0, waits)
        position = draft.last = draft.last + 1
        entry = Entry(True, False, (), 0, draft.term, self._now, self._index)
        self._put_entry(position, entry)
        if waits:
            self._ctx.table("drops").put(position, name)
            draft.wait(position, entry)
        else:
            draft.settle(position, entry, name)
            draft.confirmed = position
            draft.confirm_lag_ms = 0
        return not waits

    def _form(self, transaction: Transaction) -> tuple[bool, int]:
        """Whether it is sync, and its bytes. Raises what its form alone is refused for."""
        draft, writes = self._draft, transaction.writes
        spaces = draft.spaces
        if not writes:
            raise EmptyTransaction
        parts = len(writes) + len(transaction.conditions)
        if parts > self._parts_max:
            raise TransactionTooLarge("writes and conditions", self._parts_max)
        sync, size = False, 0
        for write in writes:
            space = spaces.get(write.space) or draft.space(write.space)
            if space.sync:
                sync = True
            key, value = write.key, write.value
            if len(key) > KEY_BYTES_MAX:
                raise KeyTooLarge(write.space, KEY_BYTES_MAX)
            size += len(key) if value is None else len(key) + len(value)
        if size > self._bytes_max:
            raise TransactionTooLarge("bytes", self._bytes_max)
        if parts > 1:
            self._form_of_many(transaction)
        return sync, size

    def _form_of_many(self, transaction: Transaction) -> None:
        seen: dict[tuple[str, bytes], None] = {}
        for write in transaction.writes:
            place = write.space, write.key
            if place in seen:
                raise DuplicateWrite(*place)
            seen[place] = None
        for condition in transaction.conditions:
            self._draft.space(condition.space)
            if len(condition.key) > KEY_BYTES_MAX:
                raise KeyTooLarge(condition.space, KEY_BYTES_MAX)

    def _sync_space(self, transaction: Transaction) -> str:
        space = self._draft.space
        return next(write.space for write in transaction.writes if space(write.space).sync)

    def _require_free(self, transaction: Transaction) -> None:
        """What does not wait must not touch what waiting ones write: they came first."""
        places = [(write.space, write.key) for write in transaction.writes]
        places += [(condition.space, condition.key) for condition in transaction.conditions]
        for space, key in places:
            found = self._newest_pending(space, key)
            if found is not None:
                raise KeyPending(space, key, found[0])

    def _require(self, conditions: tuple[Condition, ...], *, pending: bool) -> None:
        """All conditions hold on the confirmed rows, or on what they will be."""
        for condition in conditions:
            value, position = self._found(condition, pending)
            match condition.kind:
                case "value":
                    holds = value == condition.value
                case "position":
                    holds = position == condition.position
                case "exists":
                    holds = (value is not None) == (condition.position > 0)
            if not holds:
                raise ConditionFailed(condition.space, condition.key, position)

    def _found(self, condition: Condition, pending: bool) -> tuple[bytes | None, int]:
        """The value and its position; (None, 0) where there is none."""
        if pending:
            newest = self._newest_pending(condition.space, condition.key)
            if newest is not None:
                position, value = newest
                return value, 0 if value is None else position
        id = self._draft.space(condition.space).id
        row: Row | None = self._ctx.table("rows").get((id, condition.key))
        return (None, 0) if row is None else (row.value, row.position)

    def _newest_pending(self, space: str, key: bytes) -> tuple[int, bytes | None] | None:
        prefix = self._draft.space(space).id, key
        pending = self._ctx.table("pending")
        for (_, _, position), value in pending.scan(prefix=prefix, reverse=True, limit=1):
            return position, value
        return None

    def _require_room(self, size: int, writes: int, waits: bool) -> None:
        """The queue is not empty: there is a place, too, for what waits, or only lies in it."""
        if waits and self._full is not None:
            raise self._full
        full = self._why_full(size, writes, waits)
        if full is not None:
            if waits:
                self._full = full
            raise full

    def _why_full(self, size: int, writes: int, waits: bool) -> QueueFull | None:
        draft, settings = self._draft, self._ctx.settings
        times = 1 if waits else SPAN_FACTOR
        entries_max = settings["queue_entries_max"]
        if draft.last + 1 - draft.head + 1 > times * entries_max:
            return QueueFull("entries", entries_max)
        bytes_max = settings["queue_bytes_max"]
        if draft.held_bytes + size > times * bytes_max:
            return QueueFull("bytes", bytes_max)
        writes_max = settings["queue_writes_max"]
        if waits and draft.pending_writes + writes > writes_max:
            return QueueFull("writes", writes_max)
        return None
