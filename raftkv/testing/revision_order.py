"""A second opinion in linear time: replay the history in the store's own order.

A store with revisions tells its order: each answer carries the revision at which it took place (its
own, for a change; else the newest one that it saw). Sorting by it and replaying the model shows at
once whether the answers fit; going through the starts shows whether the order keeps time. Nothing
is searched, so millions of operations are no matter, and a fault is found even where the search
would find another order that hides it. But it believes the revisions: the search does not, and so
each of them sees faults that the other does not.

Operations of unknown outcome have no revision. Where an answer does not fit, one of them that
would make it fit is put before it, once; if only several together could, the answer is "unknown".
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Literal

import msgspec

from raftkv.testing.explanation import brief, show
from raftkv.testing.histories import Operation, validate
from raftkv.testing.models import REFUSED, Model, State

__all__ = ["RevisionVerdict", "check_by_revision"]


class RevisionVerdict(msgspec.Struct, frozen=True):
    """`reason` says what does not fit, or why it cannot be said; empty if all is well."""

    outcome: Literal["consistent", "violation", "unknown"]
    operations: int
    reason: str = ""


# (revision, 1 for what changed nothing): who reads a revision comes after who made it.
Place = tuple[int, int]


def check_by_revision(history: Iterable[Operation], model: Model) -> RevisionVerdict:
    """Checks the operations of one key, all of whose answers carry a revision.

    Raises ValueError as `linearizability.check` does.
    """
    rows = validate(history)
    known = [one for one in rows if one.outcome == "ok"]
    unknown = [one for one in rows if one.outcome == "unknown" and not model.reads(one)]
    bare = sum(one.revision is None for one in known)
    if bare:
        reason = f"{bare} of {len(known)} answers carry no revision"
        return RevisionVerdict("unknown", len(known), reason)
    placed = sorted(((_place(one, model), one) for one in known), key=lambda pair: pair[0])
    reason = _twice(placed) or _untimely(placed)
    if reason:
        return RevisionVerdict("violation", len(known), reason)
    return _replay([one for _, one in placed], unknown, model)


def _place(operation: Operation, model: Model) -> Place:
    changed = not model.reads(operation)
    # A deletion of what did not exist makes no revision.
    return operation.revision or 0, 0 if changed else 1


def _twice(placed: Sequence[tuple[Place, Operation]]) -> str:
    for (place, one), (other_place, other) in pairwise(placed):
        if place == other_place and place[1] == 0:
            return f"revision {place[0]} was given to {_name(one)} and to {_name(other)}"
    return ""


def _untimely(placed: Sequence[tuple[Place, Operation]]) -> str:
    """An operation that began after another one had ended must not come before it."""
    latest: tuple[Place, Operation] | None = None
    ended: list[tuple[int, int]] = []
    by_start = sorted(placed, key=lambda pair: pair[1].start)
    for number, (place, operation) in enumerate(by_start):
        while ended and ended[0][0] < operation.start:
            other = by_start[heapq.heappop(ended)[1]]
            latest = other if latest is None or other[0] > latest[0] else latest
        if latest is not None and latest[0] > place:
            return (
                f"{_name(operation)} has revision {place[0]}, but began after "
                f"{_name(latest[1])} had ended, with revision {latest[0][0]}"
            )
        heapq.heappush(ended, (operation.end or 0, number))
    return ""


def _replay(
    known: Sequence[Operation], unknown: Sequence[Operation], model: Model
) -> RevisionVerdict:
    state, spare = model.initial, list(unknown)
    for operation in known:
        new = model.step(state, operation)
        if new is REFUSED:
            new = _with_help(state, operation, spare, model)
        if new is REFUSED:
            what = f"{_name(operation)} at revision {operation.revision}, where the replayed state"
            reason = f"{what} is {show(state)}"
            outcome: Literal["unknown", "violation"] = "unknown" if unknown else "violation"
            return RevisionVerdict(outcome, len(known), reason)
        state = new
    return RevisionVerdict("consistent", len(known))


def _with_help(state: State, operation: Operation, spare: list[Operation], model: Model) -> State:
    """The state after one of unknown outcome, which is spare no more, and the operation."""
    for number, helper in enumerate(spare):
        if helper.start <= (operation.end or 0):
            new = model.step(model.step(state, helper), operation)
            if new is not REFUSED:
                del spare[number]
                return new
    return REFUSED


def _name(operation: Operation) -> str:
    return f"[{operation.process}] {brief(operation)}"
