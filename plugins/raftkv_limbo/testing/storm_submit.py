"""What becomes of the transactions of one `Submit`, said once more.

Each stands alone: it gets the next position, or it is refused for a reason that is true. Which one
of several true reasons is told, the log may choose; without one it must not refuse, and with one it
must not accept. Conditions are judged by what all before it leave behind, those of the same command
too; those of an independent one by what is confirmed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from raftkv_limbo.commands import (
    KEY_BYTES_MAX,
    SPAN_FACTOR,
    Condition,
    Rejected,
    Submit,
    Submitted,
    Transaction,
    Write,
)
from raftkv_limbo.refusals import refusal_of

from .storm_ledger import Effect, Key, Ledger, Position, Step
from .storm_quorum import Basis, is_fast

__all__ = ["Batch", "submitted"]

Found = list[str]


def submitted(step: Step, ledger: Ledger, effect: Effect) -> Iterator[str]:
    """Put into `effect` what enters and what of it is confirmed at once; tell what is wrong."""
    command, result = step.command, step.result
    assert isinstance(command, Submit)
    if step.refusal is not None or not isinstance(result, Submitted) or step.origin is None:
        yield f"refused as a whole: {step.refusal!r}"
        return
    batch = Batch(step, ledger, effect)
    rejected = {each.at: each for each in result.rejected}
    for at, transaction in enumerate(command.transactions):
        yield from batch.take(transaction, rejected.pop(at, None))
    if rejected:
        yield f"it rejects places that are not there: {sorted(rejected)}"
    yield from batch.told(result)


class Batch:
    """One `Submit` as it is gone through, or one drop."""

    def __init__(self, step: Step, ledger: Ledger, effect: Effect) -> None:
        self._step = step
        self._ledger = ledger
        self._effect = effect
        self._settings = step.settings
        self._fast = is_fast(Basis(step.members, step.voters, step.settings))
        # What is there if all that is pending is confirmed, where that is something else; and what
        # this very command has confirmed.
        self._pending = ledger.pending_rows()
        self._confirmed: dict[Key, tuple[bytes, int] | None] = {}
        self._waiting = [ledger.positions[number] for number in ledger.queue]
        self._last = ledger.last
        self._dropping = ledger.dropping()
        # One that would wait found no room: those after it that would wait may be refused as well,
        # so that none overtakes it.
        self._full = False

    def take(self, transaction: Transaction, rejected: Rejected | None) -> Iterator[str]:
        """The next one, and what the log did with it."""
        reasons = dict(self._reasons(transaction))
        if rejected is None:
            if reasons:
                yield f"accepts {_shown(transaction)}, although {', '.join(reasons)}"
            self._enter(transaction)
            return
        name = type(refusal_of(rejected.code, rejected.args)).__name__
        if name == "QueueFull" and self._full:
            return
        self._full = self._full or name == "QueueFull"
        if name not in reasons:
            yield f"rejects {_shown(transaction)} as {name} {rejected.args}, and only {reasons}"
        elif reasons[name] is not None and reasons[name] != rejected.args:
            yield f"rejects {_shown(transaction)} as {name} {rejected.args}, not {reasons[name]}"

    def told(self, result: Submitted) -> Iterator[str]:
        """Whether the answer says what became of them."""
        entered, effect = self._effect.entered, self._effect
        if entered and result.first != entered[0].number:
            yield f"the first position is {entered[0].number}, not {result.first}"
        if result.index != self._step.index:
            yield f"it was at {self._step.index}, not {result.index}"
        if result.term != self._ledger.term:
            yield f"the term is {self._ledger.term}, not {result.term}"
        for each in entered:
            if not each.independent and (each.number <= result.confirmed) != (
                each.number in effect.confirmed
            ):
                yield f"it says confirmed up to {result.confirmed}, and {each} is another"

    # --- reasons to refuse ---

    def _reasons(self, transaction: Transaction) -> Iterator[tuple[str, Any]]:
        """Every reason that is true, with its arguments where there is one answer only."""
        writes, ledger, settings = transaction.writes, self._ledger, self._settings
        if not writes:
            yield "EmptyTransaction", ()
        if len({(each.space, each.key) for each in writes}) < len(writes):
            yield "DuplicateWrite", None
        parts: tuple[Write | Condition, ...] = (*writes, *transaction.conditions)
        if any(len(each.key) > KEY_BYTES_MAX for each in parts):
            yield "KeyTooLarge", None
        too_many = len(parts) > settings["transaction_writes_max"]
        if too_many or _size(transaction) > settings["transaction_bytes_max"]:
            yield "TransactionTooLarge", None
        if any(each.space not in ledger.spaces for each in parts):
            yield "UnknownSpace", None
        if any(each.space in self._dropping for each in parts):
            yield "DropPending", None
        sync = self._is_sync(transaction)
        if sync and transaction.independent:
            yield "IndependentSync", None
        yield from self._who(sync)
        for condition in transaction.conditions:
            if condition.space in ledger.spaces:
                yield from self._condition(condition, transaction.independent)
        if transaction.independent:
            touched = [(each.space, each.key) for each in parts]
            if any(key in self._pending for key in touched):
                yield "KeyPending", None
        yield from self._room(transaction, sync)

    def _who(self, sync: bool) -> Iterator[tuple[str, Any]]:
        ledger, origin = self._ledger, self._step.origin
        assert origin is not None
        if not ledger.owner:
            if sync:
                yield "Unclaimed", ()
        elif origin[0] != ledger.owner:
            yield "ForeignOwner", (ledger.owner, ledger.term)
        elif origin[1] != ledger.incarnation or self._step.command.term != ledger.term:
            yield "StaleOwner", (ledger.term,)

    def _condition(self, condition: Condition, independent: bool) -> Iterator[tuple[str, Any]]:
        key = (condition.space, condition.key)
        row = self._row(key, confirmed=independent)
        value, position = (None, 0) if row is None else row
        holds = {
            "value": value == condition.value,
            "position": position == condition.position,
            "exists": (row is not None) == bool(condition.position),
        }[condition.kind]
        if not holds:
            # Of several conditions the log may name any.
            yield "ConditionFailed", None

    def _room(self, transaction: Transaction, sync: bool) -> Iterator[tuple[str, Any]]:
        if not self._waiting:
            return
        settings, head = self._settings, self._waiting[0].number
        held = [*self._kept(head)]
        entries = self._last - head + 2
        size = sum(each.bytes for each in held) + _size(transaction)
        if transaction.independent and not sync:
            # It does not wait, but its entry stays as long as an older one is pending.
            if (
                entries > SPAN_FACTOR * settings["queue_entries_max"]
                or size > SPAN_FACTOR * settings["queue_bytes_max"]
            ):
                yield "QueueFull", None
            return
        writes = sum(len(each.writes) for each in self._waiting) + len(transaction.writes)
        if (
            entries > settings["queue_entries_max"]
            or size > settings["queue_bytes_max"]
            or writes > settings["queue_writes_max"]
        ):
            yield "QueueFull", None

    def drop_reasons(self) -> Iterator[tuple[str, Any]]:
        """Why the sender may not drop a synchronous space."""
        yield from self._who(True)
        yield from self._room(Transaction(()), True)

    def who_reasons(self) -> Iterator[tuple[str, Any]]:
        """Why the sender is not the owner, in the term of the command."""
        yield from self._who(True)

    def enter_drop(self, space: str) -> None:
        """The drop of a synchronous space gets the next position."""
        self._enter(Transaction(()), drops=space)

    def _kept(self, head: int) -> Iterator[Position]:
        for number in range(head, self._ledger.last + 1):
            yield self._ledger.positions[number]
        yield from (each for each in self._effect.entered if each.number >= head)

    # --- entering ---

    def _enter(self, transaction: Transaction, drops: str = "") -> None:
        step, effect = self._step, self._effect
        assert step.origin is not None
        self._last += 1
        position = Position(
            number=self._last,
            sync=bool(drops) or self._is_sync(transaction),
            independent=transaction.independent,
            writes=tuple((each.space, each.key, each.value) for each in transaction.writes),
            node=step.origin[0],
            incarnation=step.origin[1],
            term=self._ledger.term,
            index=step.index,
            bytes=_size(transaction),
            drops=drops,
        )
        at_once = position.independent or self._fast or not (position.sync or self._waiting)
        rows = self._confirmed if at_once else self._pending
        for space, key, value in position.writes:
            rows[(space, key)] = None if value is None else (value, position.number)
        effect.entered.append(position)
        if at_once:
            effect.confirmed.append(position.number)
        else:
            self._waiting.append(position)

    def _row(self, key: Key, *, confirmed: bool) -> tuple[bytes, int] | None:
        if not confirmed and key in self._pending:
            return self._pending[key]
        if key in self._confirmed:
            return self._confirmed[key]
        return self._ledger.rows.get(key)

    def _is_sync(self, transaction: Transaction) -> bool:
        return any(self._ledger.spaces.get(each.space, False) for each in transaction.writes)


def _size(transaction: Transaction) -> int:
    return sum(len(each.key) + len(each.value or b"") for each in transaction.writes)


def _shown(transaction: Transaction) -> str:
    kind = "independent " if transaction.independent else ""
    return f"{kind}{transaction.writes} if {transaction.conditions}"
