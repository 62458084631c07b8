"""A history: who asked for what, when, and what came of it. The input of every checker.

An `Operation` is plain data, so that histories travel: from the recorder (recorder.py) into a
Parquet file (bench/history.py), from there through Spark into a checker. The clock is of no
matter, as long as one clock stamped all of them: an operation whose `end` lies before the `start`
of another one came first, all others were concurrent. Equal stamps count as concurrent, because a
clock of finite resolution cannot tell.

What an outcome says:

    ok            it took effect at one moment between `start` and `end`, and answered `output`. A
                  compare-and-set that did not match is ok as well: its output is False.
    unknown       nobody knows (a time-out, a crash): it took effect at one moment after `start`,
                  however late, or never does. `end` and `output` say nothing.
    not_applied   it took no effect and never will. No checker looks at it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Literal, get_args

import msgspec

__all__ = ["Operation", "Outcome", "by_key", "clients", "validate"]

Outcome = Literal["ok", "unknown", "not_applied"]
OUTCOMES: tuple[str, ...] = get_args(Outcome)


class Operation(msgspec.Struct, frozen=True, gc=False):
    """One operation of one client.

    `input` and `output` are what the model (models.py) says for `op`; both hashable. `revision`
    is its place in the store's own order if the store tells it (revision_order.py), and no other
    checker believes it. `start` and `end` are in any unit of one clock; microseconds in ours.
    """

    process: str | int
    op: str
    key: Hashable
    input: Hashable = None
    output: Hashable = None
    start: int = 0
    end: int | None = None
    outcome: Outcome = "ok"
    revision: int | None = None


def validate(history: Iterable[Operation]) -> list[Operation]:
    """The history as a list. Raises ValueError, naming the operation, for what no clock stamps."""
    checked = list(history)
    for operation in checked:
        if operation.outcome not in OUTCOMES:
            raise ValueError(f"unknown outcome in {operation}: it is one of {', '.join(OUTCOMES)}")
        if operation.outcome == "ok" and operation.end is None:
            raise ValueError(f"{operation} is ok and has no end: without one it is unknown")
        if operation.end is not None and operation.end < operation.start:
            raise ValueError(f"{operation} ends before it starts: was it stamped by two clocks?")
    return checked


def by_key(history: Iterable[Operation]) -> dict[Hashable, list[Operation]]:
    """The operations of each key, in the order in which they stand in the history.

    Linearizability is local: a history is linearizable if and only if the part of each object is.
    So keys that no operation ties together may be checked apart, and at the same time.
    """
    parts: dict[Hashable, list[Operation]] = {}
    for operation in history:
        parts.setdefault(operation.key, []).append(operation)
    return parts


def clients(history: Iterable[Operation]) -> int:
    """How many clients took part."""
    return len({operation.process for operation in history})
