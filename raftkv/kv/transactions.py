"""Transactions: trees for callers, flat rows in the log, and etcd's rules for both.

Rules of this file
1. In the log every inner transaction has a number greater than that of the one it stands in, is
   named exactly once, and lies at most TXN_DEPTH_MAX deep. What is not so is refused: what follows
   goes down into inner transactions by recursion, and must not depend on the stack of this node.
2. All comparisons, those of inner transactions too, see the keyspace as it was before. The branches
   are chosen first (`_choose`), as etcd does.
3. Then, along the chosen branches only, what could refuse is looked for before anything is done:
   keys for ignore_value and ignore_lease and leases must exist before the transaction, revisions to
   be read must be readable. The order decides which refusal is given, and is etcd's.
   Last the work is counted that the ranges will take (budget.py).
4. One execution puts a key at most once, and does not both put and delete it. The check goes by the
   *shape* of the transaction (`_check_shape`): each list of comparisons may hold or not, in every
   combination, so only the two branches of one inner transaction exclude each other. A deletion of
   all keys from one on counts too. Before FORMAT_TXN a key that one inner transaction puts and a
   later one deletes is let pass, as etcd 3.4 does; then one revision has two events of that key,
   in order.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice, repeat
from types import GeneratorType
from typing import Final

from raftkv.errors import Refused
from raftkv.plugin import Context, Steps, at_once

from .budget import FORMAT_COST, reserve
from .certain import require_certain
from .changing import SLICE_KEYS, Changing, check_ignored, require_key
from .commands import (
    FROM_KEY,
    Compare,
    DeleteRangeOp,
    DuplicateKey,
    FlatTxn,
    FlatTxnResult,
    LimitExceeded,
    LogOperation,
    LogResult,
    NestedResult,
    NestedTxn,
    Operation,
    OperationResult,
    PutOp,
    RangeOp,
    Txn,
    TxnOp,
    TxnOutcome,
    TxnResult,
)
from .leasing import require_lease
from .meeting import meeting
from .plain import OPERATORS, TARGETS, swap

__all__ = [
    "TXN_DEPTH_MAX",
    "apply_txn",
    "branch_of",
    "check_words",
    "flatten",
    "part_of",
    "too_many",
    "unflatten",
]

# etcd's is its limit of operations. Nobody writes one by hand that is this deep, and decoding,
# checking and applying one takes a small part of Python's stack.
TXN_DEPTH_MAX: Final = 32

#: The format of the keyspace from which a deletion in a later inner transaction counts as well.
FORMAT_TXN: Final = 4

Part = Txn | FlatTxn


# Trees ------------------------------------------------------------------------------------------


def flatten(
    compare: Iterable[Compare], success: Iterable[Operation], failure: Iterable[Operation]
) -> Txn:
    """The transaction as the log keeps it."""
    nested: list[FlatTxn] = []
    todo: list[TxnOp] = []

    def flat(operations: Iterable[Operation]) -> tuple[LogOperation, ...]:
        found: list[LogOperation] = []
        for operation in operations:
            if isinstance(operation, TxnOp):
                todo.append(operation)
                found.append(NestedTxn(len(todo) - 1))
            else:
                found.append(operation)
        return tuple(found)

    outer = Txn(tuple(compare), flat(success), flat(failure))
    for inner in todo:  # grows meanwhile
        nested.append(FlatTxn(tuple(inner.compare), flat(inner.success), flat(inner.failure)))
    return Txn(outer.compare, outer.success, outer.failure, tuple(nested)) if nested else outer


def unflatten(outcome: TxnOutcome) -> TxnResult:
    """The result as callers see it."""
    inner: dict[int, TxnResult] = {}

    def tree(results: Sequence[LogResult]) -> tuple[OperationResult, ...]:
        return tuple(
            inner[result.number] if isinstance(result, NestedResult) else result
            for result in results
        )

    for number in reversed(range(len(outcome.nested))):
        part = outcome.nested[number]
        inner[number] = TxnResult(outcome.revision, part.succeeded, tree(part.results))
    return TxnResult(outcome.revision, outcome.succeeded, tree(outcome.results))


# Limits, before anything is looked at -----------------------------------------------------------


def too_many(txn: Txn, ops_max: int) -> LimitExceeded | None:
    """Why the transaction has too many operations, or None. Malformed ones are Refused.

    Each level counts its longest part, comparisons or a branch, and what is left is for the levels
    inside of it.
    """
    lefts: list[int | None] = [None] * len(txn.nested)
    depths = [0] * len(txn.nested)
    for number in range(-1, len(txn.nested)):
        part, left = part_of(txn, number), ops_max if number < 0 else lefts[number]
        if left is None:
            raise Refused("the transaction is malformed: an inner one has no place")
        longest = max(len(part.compare), len(part.success), len(part.failure))
        if longest > left:
            limit = "txn_ops_max" if number < 0 else "txn_ops_max/inner"
            return LimitExceeded.of(limit, longest, ops_max)
        for operation in (*part.success, *part.failure):
            if type(operation) is NestedTxn:
                inner = operation.number
                if not number < inner < len(txn.nested) or lefts[inner] is not None:
                    raise Refused("the transaction is malformed: bad numbers of inner ones")
                lefts[inner] = left - longest
                depths[inner] = 1 if number < 0 else depths[number] + 1
                if depths[inner] > TXN_DEPTH_MAX:
                    return LimitExceeded.of("txn_depth", TXN_DEPTH_MAX)
    return None


def part_of(txn: Txn, number: int) -> Part:
    """The inner transaction of that number; below 0 the transaction itself."""
    return txn if number < 0 else txn.nested[number]


# Applying ---------------------------------------------------------------------------------------


def apply_txn(txn: Txn, ctx: Context) -> TxnOutcome | Steps[TxnOutcome]:
    """See `Txn`. One that compares, reads or deletes many keys is applied in slices."""
    swapped = swap(txn, ctx)
    if swapped is not None:
        return swapped
    refusal = too_many(txn, ctx.settings["txn_ops_max"])
    if refusal is not None:
        raise refusal
    check_words(txn, txn)
    _check_shape(txn, ctx.version)
    change = Changing(ctx)
    if change.compares_many(txn):
        return _compared_in_slices(txn, change, ctx)
    chosen: dict[int, bool] = {}
    _choose(txn, -1, change, chosen)
    return _apply_chosen(txn, chosen, change, ctx)


def _compared_in_slices(txn: Txn, change: Changing, ctx: Context) -> Steps[TxnOutcome]:
    chosen: dict[int, bool] = {}
    yield from _choose_in_slices(txn, -1, change, chosen)
    applied = _apply_chosen(txn, chosen, change, ctx)
    if isinstance(applied, GeneratorType):
        outcome: TxnOutcome = yield from applied
        return outcome
    assert isinstance(applied, TxnOutcome)
    return applied


def _apply_chosen(
    txn: Txn, chosen: dict[int, bool], change: Changing, ctx: Context
) -> TxnOutcome | Steps[TxnOutcome]:
    _check_puts(txn, -1, chosen, change, ctx)
    _check_ranges(txn, -1, chosen, change)
    operations = tuple(_chosen_operations(txn, -1, chosen))
    if (
        ctx.version >= FORMAT_COST
        and reserve(operations, ctx, change.budget) > change.budget.rows_max
    ):
        require_certain(operations, ctx)
    steps = _apply_in_slices(txn, chosen, change)
    return steps if change.takes_long(operations) else at_once(steps)


def _apply_in_slices(txn: Txn, chosen: dict[int, bool], change: Changing) -> Steps[TxnOutcome]:
    nested: list[FlatTxnResult] = []
    results = yield from _perform(txn, -1, chosen, change, nested)
    yield from change.finishing()
    return TxnOutcome(change.revision, chosen[-1], results, tuple(nested))


def check_words(txn: Txn, part: Part) -> None:
    """What can be said of each operation by itself, in the order of the request."""
    for compare in part.compare:
        _check_compare(compare)
    for operation in (*part.success, *part.failure):
        if type(operation) is NestedTxn:
            check_words(txn, txn.nested[operation.number])
            continue
        assert not isinstance(operation, NestedTxn)
        require_key(operation.key)
        if type(operation) is PutOp:
            check_ignored(operation)


def _check_compare(compare: Compare) -> None:
    require_key(compare.key)
    wanted = bytes if compare.target == "value" else int
    if type(compare.operand) is not wanted:
        raise Refused(
            f"a comparison of {compare.target} needs an operand of type {wanted.__name__}"
        )


class _Deletions:
    """A union of key ranges, kept as intervals that do not touch, in order."""

    def __init__(self) -> None:
        self._starts: list[bytes] = []
        self._ends: list[bytes | None] = []  # None: no end

    def add(self, start: bytes, end: bytes | None) -> None:
        """Add start <= k < end."""
        if end is not None and end <= start:
            return
        starts, ends = self._starts, self._ends
        low = bisect_right(starts, start)
        if low > 0:
            before = ends[low - 1]
            if before is None or before >= start:
                low -= 1
                start = starts[low]
                end = before if _later(before, end) else end
        high = len(starts) if end is None else bisect_right(starts, end)
        if high > low and _later(ends[high - 1], end):
            end = ends[high - 1]
        starts[low:high] = [start]
        ends[low:high] = [end]

    def add_all(self, other: _Deletions) -> None:
        """Add another union, which is used up."""
        if len(other._starts) > len(self._starts):
            # The smaller one into the larger: or each level would add what is inside of it anew.
            self._starts, other._starts = other._starts, self._starts
            self._ends, other._ends = other._ends, self._ends
        for start, end in zip(other._starts, other._ends, strict=True):
            self.add(start, end)

    def numbered(self, number: int) -> Iterator[tuple[bytes, bytes | None, int]]:
        """Its intervals, each with this number."""
        return zip(self._starts, self._ends, repeat(number))

    def __contains__(self, key: bytes) -> bool:
        place = bisect_right(self._starts, key) - 1
        if place < 0:
            return False
        end = self._ends[place]
        return end is None or key < end


def _later(one: bytes | None, other: bytes | None) -> bool:
    return other is not None and (one is None or one > other)


def _check_shape(txn: Txn, version: int) -> None:
    """Raise DuplicateKey if an execution could put a key twice, or both put and delete it."""
    both_ways = version >= FORMAT_TXN
    try:
        for branch in (txn.success, txn.failure):
            if len(branch) > 1 or txn.nested:
                _intervals(txn, branch, both_ways=both_ways)
    except _Meet as met:
        # Up to then the text is a part of the state.
        which = meeting(txn, met.key) if both_ways else ""
        raise DuplicateKey(f"{met}: {which}" if which else str(met)) from None


def _intervals(
    txn: Txn, operations: Sequence[LogOperation], *, both_ways: bool
) -> tuple[dict[bytes, None], _Deletions]:
    """Return the keys that a branch puts and those that it deletes, or raise _Meet.

    A put of an inner transaction is compared with the deletions of this branch, with those of the
    inner transactions that precede it, and with `both_ways` also with those that follow it.
    """
    deletions = _Deletions()
    for operation in operations:
        if type(operation) is DeleteRangeOp:
            key, end = operation.key, operation.range_end
            if not end:
                deletions.add(key, key + b"\0")
            else:
                deletions.add(key, None if end == FROM_KEY else end)
    puts: dict[bytes, None] = {}
    inner_puts: list[tuple[bytes, int]] = []
    inner_deletions: list[tuple[bytes, bytes | None, int]] = []
    for operation in operations:
        if type(operation) is NestedTxn:
            number = operation.number
            inner = txn.nested[number]
            puts_then, deletions_then = _intervals(txn, inner.success, both_ways=both_ways)
            puts_else, deletions_else = _intervals(txn, inner.failure, both_ways=both_ways)
            for key in puts_then:
                _put_once(key, puts, deletions)
            for key in puts_else:
                if key not in puts_then:
                    _put_once(key, puts, deletions)
            if both_ways:
                inner_puts += zip(puts_then, repeat(number))
                inner_puts += zip(puts_else, repeat(number))
                inner_deletions += deletions_then.numbered(number)
                inner_deletions += deletions_else.numbered(number)
            deletions.add_all(deletions_then)
            deletions.add_all(deletions_else)
    _check_inner(inner_puts, inner_deletions)
    for operation in operations:
        if type(operation) is PutOp:
            _put_once(operation.key, puts, deletions)
    return puts, deletions


def _check_inner(
    puts: list[tuple[bytes, int]], deletions: list[tuple[bytes, bytes | None, int]]
) -> None:
    """Raise _Meet if an inner transaction deletes a key that another one puts.

    Each is given with the number of its inner transaction. One sort of the keys and two searches
    for each deletion.
    """
    puts.sort()
    keys = [key for key, _ in puts]
    # Of each put the place of the next one that is in another inner transaction.
    following = [len(puts)] * len(puts)
    for place in range(len(puts) - 2, -1, -1):
        same = puts[place + 1][1] == puts[place][1]
        following[place] = following[place + 1] if same else place + 1
    for start, end, number in deletions:
        place = bisect_left(keys, start)
        stop = len(keys) if end is None else bisect_left(keys, end)
        if place < stop and puts[place][1] == number:
            place = following[place]
        if place < stop:
            raise _Meet(keys[place], deletes=True)


def _put_once(key: bytes, puts: dict[bytes, None], deletions: _Deletions) -> None:
    if key in puts:
        raise _Meet(key, deletes=False)
    if key in deletions:
        raise _Meet(key, deletes=True)
    puts[key] = None


class _Meet(Exception):
    """Two operations of one execution change a key."""

    def __init__(self, key: bytes, *, deletes: bool) -> None:
        what = f"both puts and deletes {key!r}" if deletes else f"puts {key!r} twice"
        super().__init__(f"the transaction {what}, in one revision")
        self.key = key


def _choose(txn: Txn, number: int, change: Changing, chosen: dict[int, bool]) -> None:
    """Compare, and choose the branches: of this one and of those inside of the chosen branch."""
    part = part_of(txn, number)
    chosen[number] = all(_holds(compare, change) for compare in part.compare)
    for operation in branch_of(part, chosen[number]):
        if type(operation) is NestedTxn:
            _choose(txn, operation.number, change, chosen)


def _choose_in_slices(
    txn: Txn, number: int, change: Changing, chosen: dict[int, bool]
) -> Steps[None]:
    """As `_choose`, which takes less for a few comparisons."""
    part = part_of(txn, number)
    chosen[number] = True
    for compare in part.compare:
        if not (yield from _holds_in_slices(compare, change)):
            chosen[number] = False
            break
    for operation in branch_of(part, chosen[number]):
        if type(operation) is NestedTxn:
            yield from _choose_in_slices(txn, operation.number, change, chosen)


def branch_of(part: Part, succeeded: bool) -> tuple[LogOperation, ...]:
    """What is done if the comparisons hold, or do not."""
    return part.success if succeeded else part.failure


def _check_puts(
    txn: Txn, number: int, chosen: dict[int, bool], change: Changing, ctx: Context
) -> None:
    for operation in branch_of(part_of(txn, number), chosen[number]):
        if type(operation) is NestedTxn:
            _check_puts(txn, operation.number, chosen, change, ctx)
        elif type(operation) is PutOp:
            if operation.ignore_value or operation.ignore_lease:
                change.require_present(operation.key)
            if operation.lease:
                require_lease(ctx, operation.lease)


def _check_ranges(txn: Txn, number: int, chosen: dict[int, bool], change: Changing) -> None:
    for operation in branch_of(part_of(txn, number), chosen[number]):
        if type(operation) is NestedTxn:
            _check_ranges(txn, operation.number, chosen, change)
        elif type(operation) is RangeOp:
            change.require_revision(operation)


def _chosen_operations(txn: Txn, number: int, chosen: dict[int, bool]) -> Iterator[LogOperation]:
    """What will be done, in order, without the inner transactions around it."""
    for operation in branch_of(part_of(txn, number), chosen[number]):
        if type(operation) is NestedTxn:
            yield from _chosen_operations(txn, operation.number, chosen)
        else:
            yield operation


def _perform(
    txn: Txn,
    number: int,
    chosen: dict[int, bool],
    change: Changing,
    nested: list[FlatTxnResult],
) -> Steps[tuple[LogResult, ...]]:
    results: list[LogResult] = []
    for operation in branch_of(part_of(txn, number), chosen[number]):
        if type(operation) is PutOp:
            results.append(change.put(operation))
        elif type(operation) is RangeOp:
            results.append(change.read(operation))
            if operation.range_end:
                yield
        elif type(operation) is DeleteRangeOp:
            results.append((yield from change.delete(operation)))
        else:
            assert isinstance(operation, NestedTxn)
            place = len(nested)
            succeeded = chosen[operation.number]
            nested.append(FlatTxnResult(succeeded, ()))
            inner = yield from _perform(txn, operation.number, chosen, change, nested)
            nested[place] = FlatTxnResult(succeeded, inner)
            results.append(NestedResult(place))
    return tuple(results)


def _holds(compare: Compare, change: Changing) -> bool:
    """Whether a comparison holds now."""
    holds, operand = OPERATORS[compare.op], compare.operand
    found = change.compared(compare)
    first = next(found, None)
    if first is None:
        return compare.target != "value" and holds(0, operand)
    target = TARGETS[compare.target]
    if not holds(target(first), operand):
        return False
    return all(map(holds, map(target, found), repeat(operand)))


def _holds_in_slices(compare: Compare, change: Changing) -> Steps[bool]:
    """As `_holds`, SLICE_KEYS at a time. No key is read, and counted, before its turn."""
    holds, operand = OPERATORS[compare.op], compare.operand
    found, none = change.compared(compare), True
    target = TARGETS[compare.target]
    for first in found:
        none = False
        some = chain((first,), islice(found, SLICE_KEYS - 1))
        if not all(map(holds, map(target, some), repeat(operand))):
            return False
        yield
    return not none or (compare.target != "value" and holds(0, operand))
