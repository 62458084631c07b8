"""Is this history linearizable? `check` says so, and if not, why.

    verdict = check_per_key(history, KeyValueStore())[b"k"]
    if verdict.violation is not None:
        print(verdict.violation.text())

The search is in wing_gong.py, what the operations mean in models.py. A search that fails has tried
everything and stands nowhere in particular, and it was looking ahead: where it failed says little
to a reader. So the culprit is looked for afterwards. A history cut off at some moment (what had
not returned by then becomes unknown) can only get worse by a later cut, so bisection finds the
first answer that cannot be explained: the history before it is linearizable, with it it is not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Literal

import msgspec

from raftkv.testing.explanation import Violation
from raftkv.testing.histories import Operation, by_key, validate
from raftkv.testing.models import Model, State
from raftkv.testing.wing_gong import Budget, Search, make_plan

__all__ = ["Budget", "Verdict", "check", "check_per_key"]

PROBE_STEPS_MIN = 100_000
PROBE_FACTOR = 4
"""A probe of the bisection may cost this many times what the verdict did; then it is given up."""


class Verdict(msgspec.Struct, frozen=True):
    """`violation` says why, if the outcome is "violation"; `limit` which budget was used up."""

    outcome: Literal["linearizable", "violation", "unknown"]
    operations: int
    steps: int
    configurations: int
    violation: Violation | None = None
    limit: str = ""


def check_per_key(
    history: Iterable[Operation],
    model: Model,
    budget: Budget | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> dict[Hashable, Verdict]:
    """Checks each key apart: `model` is that of one key, and the budget is for each."""
    parts = by_key(history)
    return {key: check(part, model, budget, clock) for key, part in parts.items()}


def check(
    history: Iterable[Operation],
    model: Model,
    budget: Budget | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Verdict:
    """Checks the whole history as that of one object, whatever its keys are.

    A pure function, but for `clock` when the budget is in seconds. Raises ValueError for rows that
    make no sense (histories.validate) and operations that the model does not know.
    """
    rows = validate(history)
    plan = make_plan(rows, model)
    search = Search(plan, model)
    budget = budget or Budget()
    found = search.run(budget, clock)
    cost = (len(plan.operations), search.steps, len(search.seen))
    if isinstance(found, str):
        return Verdict("unknown", *cost, limit=found)
    if found:
        return Verdict("linearizable", *cost)
    steps_max = max(PROBE_STEPS_MIN, PROBE_FACTOR * search.steps)
    probes = msgspec.structs.replace(budget, steps_max=steps_max)
    return Verdict("violation", *cost, violation=_explain(rows, model, probes, clock))


def _explain(
    history: Sequence[Operation], model: Model, budget: Budget, clock: Callable[[], float]
) -> Violation:
    """Bisects for the first answer that cannot be explained."""
    ends = sorted((o.end or 0, n) for n, o in enumerate(history) if o.outcome == "ok")
    good, bad = -1, len(ends) - 1
    while bad - good > 1:
        middle = (good + bad) // 2
        plan = make_plan([one for one, _ in _cut(history, ends[middle])], model)
        found = Search(plan, model).run(budget, clock)
        if isinstance(found, str):
            break
        good, bad = (middle, bad) if found else (good, middle)
    culprit = history[ends[bad][1]]
    order, state = _witness(_cut(history, ends[good]) if good >= 0 else [], model, budget, clock)
    # By identity: equal operations are not the same one.
    placed = {id(operation) for operation in order}
    pending = tuple(
        operation
        for one, operation in _cut(history, ends[bad])
        if one.outcome == "unknown" and id(operation) not in placed and not model.reads(operation)
    )
    return Violation(order, state, culprit, pending, good + 1, exact=bad - good == 1)


def _witness(
    part: Sequence[tuple[Operation, Operation]],
    model: Model,
    budget: Budget,
    clock: Callable[[], float],
) -> tuple[tuple[Operation, ...], State]:
    """An order of a linearizable part, as the history has the operations, and where it leads."""
    plan = make_plan([one for one, _ in part], model)
    search = Search(plan, model)
    search.run(budget, clock)
    originals = {id(one): operation for one, operation in part}
    state = model.initial
    order = []
    for move in search.order():
        state = model.step(state, plan.operations[move])
        order.append(originals[id(plan.operations[move])])
    return tuple(order), state


def _cut(history: Sequence[Operation], end: tuple[int, int]) -> list[tuple[Operation, Operation]]:
    """What is known at a moment: each operation as it is known then, and as it turned out."""
    part = []
    for number, operation in enumerate(history):
        if operation.start > end[0] or operation.outcome == "not_applied":
            continue
        if operation.outcome == "ok" and (operation.end or 0, number) > end:
            replace = msgspec.structs.replace
            one = replace(operation, outcome="unknown", output=None, end=None)
            part.append((one, operation))
        else:
            part.append((operation, operation))
    return part
