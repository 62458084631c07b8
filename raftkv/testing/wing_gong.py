"""Is this history linearizable? The search of Wing and Gong as Lowe improved it, in Python.

Every operation must be given one moment between its start and its end so that the operations, done
one after another at these moments, answer what they did answer (models.py). The search builds such
an order from the front. Calls and returns stand in a linked list by time; whatever was called
before the first return may come next. What is taken is lifted out of the list; a dead end puts the
last one back (in constant time) and tries its successor. Two orders of the same operations that
lead to the same state have the same future, so each configuration is visited once.

The problem is NP-complete: the search is quick for what stores do, not for what an enemy might
write. Five rules cut it down. Each keeps an answer if there is one:

1.  A read that fits now is taken now, and nothing else is tried in its place: moving it to the
    front of any valid order breaks nothing, as it changes no state.
2.  Looking ahead: no operation may change a state that another one demands, when nothing that
    begins before that one's return could make it again. With distinct values this finds a wrong
    turn at once, where the plain search would first permute all that is concurrent.
3.  Operations of unknown outcome are no entries of the list (they never return and would be walked
    over for ever): they are tried when nothing else fits, among equal ones the first alone, and
    never if they would change nothing.
4.  What directly follows one of unknown outcome must need it. If it fits without it, either the
    unknown one was useless (same state) or could have come later (they commute).
    Rules 1, 3 and 4 agree with each other because all of them strive for the same order: the valid
    one with the fewest operations of unknown outcome, then the earliest reads, then the latest
    operations of unknown outcome.
5.  A configuration is (number of operations taken from the front without a gap, the gaps behind
    as a bit set, the set of unknown ones, state, what rule 4 looks at). The bit set is as wide as
    what is concurrent, not as the history: hashing it costs the same after a million operations.

What contradicts itself plainly is refuted before any search (zones.py): a search that fails has
to exhaust all that came before the fault.

A budget bounds memory and time; when it is used up, the answer is "unknown", never a guess.

There is no recursion: histories are longer than Python's stack. What is ugly: what a move does is
undone by hand (`_lift`, `_unlift`), so these two must change together.

Measured on one core of a small virtual machine with CPython 3.11, 1 % of the outcomes unknown:
100,000 operations of 16 clients over 100 keys at 155,000 operations/s; the same number of 8 clients
all on one key at 40,000/s. A stale read in 4,000 operations on one key: refuted and explained in
0.4 s. All recorded histories of tests/histories together: 0.1 s.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from raftkv.testing.histories import Operation
from raftkv.testing.models import ANY, NOTHING, REFUSED, Model, State
from raftkv.testing.zones import contradicts_itself

__all__ = ["Budget", "Plan", "Search", "make_plan"]

CLOCK_STEPS: Final = 4096
"""Steps between two looks at the clock: some milliseconds."""


class Budget(msgspec.Struct, frozen=True):
    """How much one search may cost. A step tries one operation in one place: about 1 us."""

    steps_max: int = 50_000_000
    # About 300 bytes each: 300 MB, for the worst of histories alone.
    configurations_max: int = 1_000_000
    # None: no bound, so that the same history always gets the same answer, on any machine.
    seconds_max: float | None = None


class Plan(NamedTuple):
    """A history laid out for the search.

    `operations`: those with an answer, by start, then (from `known`) the unknown ones, by start.
    `events`: at each position of the list the operation called there, or -1 for a return.
    `calls`, `returns`: positions for each operation; an unknown one is called at the position of
    the first event behind its start, and returns never.
    `twins`: for each operation the equal one of unknown outcome before it, or -1.
    """

    operations: list[Operation]
    known: int
    events: list[int]
    calls: list[int]
    returns: list[int]
    twins: list[int]
    reads: list[bool]
    demands: list[State]
    makes: list[State]


def make_plan(history: Sequence[Operation], model: Model) -> Plan:
    known = sorted((o for o in history if o.outcome == "ok"), key=_start)
    unknown = sorted((o for o in history if o.outcome == "unknown"), key=_start)
    unknown = [o for o in unknown if not model.reads(o)]
    operations = [*known, *unknown]
    # Calls before returns at equal times: what touches is concurrent.
    order = [(o.start, 0, n) for n, o in enumerate(known)]
    order += [(o.end or 0, 1, n) for n, o in enumerate(known)]
    order.sort()
    events, calls, returns = [-1], [0] * len(known), [0] * len(known)
    for position, (_, is_return, n) in enumerate(order, 1):
        events.append(-1 if is_return else n)
        (returns if is_return else calls)[n] = position
    events.append(-1)
    twins, last = [-1] * len(known), dict[Any, int]()
    for n, operation in enumerate(unknown, len(known)):
        calls.append(1 + bisect_left(order, (operation.start, 1, -1)))
        same = (operation.op, operation.key, operation.input)
        twins.append(last.get(same, -1))
        last[same] = n
    makes = [model.makes(o) for o in operations]
    demands = [model.demands(o) for o in operations]
    if any(made is ANY for made in makes):
        demands = [ANY] * len(operations)
    reads = [model.reads(o) for o in operations]
    return Plan(operations, len(known), events, calls, returns, twins, reads, demands, makes)


def _start(operation: Operation) -> int:
    return operation.start


_FREE: Final = object()
"""In place of (state before, operation) when the last move was not of unknown outcome (rule 4)."""

Configuration = tuple[int, int, int, State, State]


class Frame(NamedTuple):
    """A move, where the search stood, and the configuration before it; a list by its tails."""

    below: Frame | None
    move: int
    at: int
    configuration: Configuration


class Search:
    """The search itself; `run` once."""

    def __init__(self, plan: Plan, model: Model) -> None:
        self.plan = plan
        self.model = model
        self.step = model.step
        self.known = plan.known
        self.following = [*range(1, len(plan.events)), 0]
        self.preceding = [0, *range(len(plan.events) - 1)]
        # Rule 2: what demands a state, by return, and what makes it, by call.
        self.taken = bytearray(len(plan.operations))
        self.demanders = _queues(plan.demands[: plan.known], plan.returns)
        self.makers = _queues(plan.makes, plan.calls)
        self.base = self.window = self.used = 0
        self.state: State = model.initial
        self.before: Any = _FREE
        self.frame: Frame | None = None
        self.depth = 0
        self.seen: set[Configuration] = set()
        # The cursor: a position of the list, and behind its first return an unknown operation.
        self.at = self.following[0]
        self.unknown = plan.known
        self.steps = 0

    def run(self, budget: Budget, clock: Callable[[], float]) -> bool | str:
        """Whether there is an order, or the name of the budget that was used up."""
        if contradicts_itself(self.plan, self.model):
            return False
        end_s = None if budget.seconds_max is None else clock() + budget.seconds_max
        while self.depth < self.known:
            self.steps += 1
            if self.steps > budget.steps_max:
                return "steps_max"
            if len(self.seen) >= budget.configurations_max:
                return "configurations_max"
            if end_s is not None and self.steps % CLOCK_STEPS == 0 and clock() > end_s:
                return "seconds_max"
            move = self.plan.events[self.at]
            if move >= 0:
                here, self.at = self.at, self.following[self.at]
            else:
                here, move = self.at, self._next_unknown()
            if move >= 0:
                self._try(move, here)
            elif not self._back():
                return False
        return True

    def order(self) -> list[int]:
        """The operations in the order that the search has now; all of them after it was found."""
        moves = []
        frame = self.frame
        while frame is not None:
            moves.append(frame.move)
            frame = frame.below
        return moves[::-1]

    def _next_unknown(self) -> int:
        """Rule 3: the next one of unknown outcome that may come before the first return, or -1."""
        plan, known = self.plan, self.known
        for move in range(self.unknown, len(plan.operations)):
            if plan.calls[move] > self.at:
                break
            twin = plan.twins[move]
            if not self.used >> (move - known) & 1 and (
                twin < 0 or self.used >> (twin - known) & 1
            ):
                self.unknown = move + 1
                return move
        return -1

    def _try(self, move: int, here: int) -> None:
        """Takes the operation as the next one, unless it does not fit or leads to nothing new."""
        plan, state, is_known = self.plan, self.state, move < self.known
        new = self.step(state, plan.operations[move])
        if new is REFUSED:
            return
        if new == state:
            if not is_known:  # Rule 3.
                return
        elif self._strands(state, move):
            return
        if self.before is not _FREE and self._needless(move, new):
            return
        base, window, used = self.base, self.window, self.used
        after: Any = _FREE
        if is_known:
            window |= 1 << (move - base)
            if window & 1:
                gap = (~window & (window + 1)).bit_length() - 1
                base += gap
                window >>= gap
        else:
            used |= 1 << (move - self.known)
            after = (state, move)
        configuration = (base, window, used, new, after)
        if configuration in self.seen:
            return
        self.seen.add(configuration)
        before = (self.base, self.window, self.used, state, self.before)
        self.frame = Frame(self.frame, move, here, before)
        self.base, self.window, self.used, self.state, self.before = configuration
        self._lift(move)
        self.at, self.unknown = self.following[0], self.known

    def _strands(self, state: State, move: int) -> bool:
        """Rule 2: whether another operation needs the state that this one takes away."""
        demanders = self.demanders.get(state)
        other = -1 if demanders is None else demanders.first(self.taken, move)
        if other < 0:
            return False
        makers = self.makers.get(state)
        maker = -1 if makers is None else makers.first(self.taken, move)
        return maker < 0 or self.plan.calls[maker] > self.plan.returns[other]

    def _needless(self, move: int, new: State) -> bool:
        """Rule 4: whether this operation does not need the unknown one just before it."""
        before, last = self.before
        other = self.step(before, self.plan.operations[move])
        if other is REFUSED:
            return False
        if other == new:
            return True
        # Two unknown ones that commute come in the order of their starts.
        commutes = self.step(other, self.plan.operations[last]) == new
        return commutes and (move < self.known or move < last)

    def _lift(self, move: int) -> None:
        plan = self.plan
        if move < self.known:
            following, preceding = self.following, self.preceding
            for position in (plan.calls[move], plan.returns[move]):
                earlier, later = preceding[position], following[position]
                following[earlier] = later
                preceding[later] = earlier
            self.depth += 1
        self.taken[move] = 1

    def _back(self) -> bool:
        """Undoes the last move that has an alternative. False if there is none."""
        plan = self.plan
        while self.frame is not None:
            self.frame, move, at, configuration = self.frame
            self.base, self.window, self.used, self.state, self.before = configuration
            self._unlift(move)
            if not plan.reads[move]:  # Rule 1.
                self.at = self.following[at] if move < self.known else at
                self.unknown = self.known if move < self.known else move + 1
                return True
        return False

    def _unlift(self, move: int) -> None:
        plan = self.plan
        if move < self.known:
            following, preceding = self.following, self.preceding
            for position in (plan.returns[move], plan.calls[move]):
                following[preceding[position]] = position
                preceding[following[position]] = position
            self.depth -= 1
            if plan.demands[move] is not ANY:
                self.demanders[plan.demands[move]].back(move)
        self.taken[move] = 0
        if (made := plan.makes[move]) is not NOTHING and made is not ANY:
            self.makers[made].back(move)


class _Queue:
    """Operations in a fixed order, and the first of them that is not taken yet."""

    __slots__ = ("_at", "_moves", "_places")

    def __init__(self, moves: list[int]) -> None:
        self._moves = moves
        self._places = {move: place for place, move in enumerate(moves)}
        self._at = 0

    def first(self, taken: bytearray, but: int) -> int:
        """The first one that is neither taken nor `but`, or -1."""
        moves, at = self._moves, self._at
        while at < len(moves) and taken[moves[at]]:
            at += 1
        self._at = at
        while at < len(moves) and (taken[moves[at]] or moves[at] == but):
            at += 1
        return moves[at] if at < len(moves) else -1

    def back(self, move: int) -> None:
        """The operation is no longer taken."""
        self._at = min(self._at, self._places[move])


def _queues(states: Sequence[State], times: Sequence[int]) -> dict[State, _Queue]:
    moves: dict[State, list[int]] = {}
    for move, state in enumerate(states):
        if state is not ANY and state is not NOTHING:
            moves.setdefault(state, []).append(move)
    return {state: _Queue(sorted(some, key=times.__getitem__)) for state, some in moves.items()}
