"""Why a history is not linearizable, made for the eye.

The longest linearizable part of the history is shown by the last operations of an order that
explains it, each with a bar from its start to its end; below them the first answer that cannot be
explained. A reader compares the bars: what lies left of another bar had to come before it. Times
are drawn by rank, because clocks leave gaps that say nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from raftkv.testing.histories import Operation

__all__ = ["Violation", "brief", "show"]

VALUE_CHARS_MAX = 40
BAR_CHARS = 24
PENDING_MAX = 8


class Violation(msgspec.Struct, frozen=True):
    """No order explains all answers.

    The first `answers` of them, by time, fit together: `order` is one that explains them, with what
    else it needs of operations that had not returned by then, and `state` is what it leads to.
    `culprit` is the operation whose answer came next and fits no order of all that had been asked
    for by then. `pending` could have come before it, and is of no help. Not `exact`: the budget
    did not allow to find the first such answer; there is one up to the culprit's.
    """

    order: tuple[Operation, ...]
    state: Any
    culprit: Operation
    pending: tuple[Operation, ...]
    answers: int
    exact: bool

    def text(self, tail: int = 8) -> str:
        """The explanation, a few lines; `tail` is how many operations of the order are shown."""
        last = self.order[-tail:] if tail else ()
        pending = sorted(self.pending, key=lambda one: one.start)[-PENDING_MAX:]
        bars = _Bars([*last, self.culprit, *pending])
        placed = len(self.order)
        lines = [f"not linearizable: the first {self.answers} answers fit together"]
        if last:
            lines.append("the last ones of an order:" if placed > len(last) else "an order:")
        for number, operation in enumerate(last, placed - len(last) + 1):
            lines.append(f"{number:7} {bars.of(operation)} {_who(operation)}")
        what = "the next answer fits neither this order nor any other:"
        if not self.exact:
            what = "some answer up to this one fits no order (the budget ended the search for it):"
        lines.append(f"the state is then {show(self.state)}; {what}")
        lines.append(f"      x {bars.of(self.culprit)} {_who(self.culprit)}")
        if pending:
            lines.append("what else was asked for by then is of no help:")
        for operation in pending:
            lines.append(f"      ? {bars.of(operation)} {_who(operation)}")
        if len(self.pending) > len(pending):
            lines.append(f"        and {len(self.pending) - len(pending)} older ones")
        return "\n".join(lines)


def show(value: object) -> str:
    """A value, short enough for a line."""
    text = repr(value)
    if len(text) <= VALUE_CHARS_MAX:
        return text
    half = VALUE_CHARS_MAX // 2 - 2
    return f"{text[:half]}...{text[-half:]}"


def brief(operation: Operation) -> str:
    """What was asked and answered, such as `cas 1 -> 2: False`."""
    given = operation.input
    if isinstance(given, tuple):
        asked = " -> ".join(show(part) for part in given)
    else:
        asked = "" if given is None else show(given)
    words = f"{operation.op} {asked}".strip()
    if operation.outcome != "ok":
        return f"{words} ({operation.outcome})"
    answers = operation.output is not None or given is None
    return f"{words}: {show(operation.output)}" if answers else words


def _who(operation: Operation) -> str:
    return f"[{operation.process}] {brief(operation)}"


class _Bars:
    """Draws operations on one scale of time, by the rank of their ends: clocks leave gaps."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        times = {one.start for one in operations} | {one.end or one.start for one in operations}
        self._rank = {time: rank for rank, time in enumerate(sorted(times))}

    def of(self, operation: Operation) -> str:
        first = self._column(operation.start)
        if operation.end is None:
            return "|" + "." * first + "<" + "-" * (BAR_CHARS - first - 1) + "|"
        last = self._column(operation.end)
        bar = "=" if last == first else "<" + "-" * (last - first - 1) + ">"
        return "|" + "." * first + bar + "." * (BAR_CHARS - last - 1) + "|"

    def _column(self, time: int) -> int:
        return self._rank[time] * (BAR_CHARS - 1) // max(1, len(self._rank) - 1)
