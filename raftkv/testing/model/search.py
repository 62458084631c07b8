"""A breadth-first walk over all states of a small model.

    outcome = search(Replication(bounds))
    outcome.states, outcome.complete, outcome.violation

A model names its first state, the steps that lead on from a state, and what is wrong with one. The
walk visits every state once: equal `canonical` forms are one state. Because it goes breadth-first,
the path to a violation is a shortest one.

Rules of this file: deterministic; it iterates no set, and the models must not either.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

__all__ = ["STATES_MAX", "Broken", "Model", "Outcome", "Violation", "search"]

# States: a state of the largest model takes about a kilobyte, so the walk stays below 2 GiB.
STATES_MAX = 1_000_000

State = TypeVar("State")


class Broken(Exception):
    """A step broke a promise of the model. The text names it."""


class Model(Protocol[State]):
    """What `search` walks over."""

    def first(self) -> State:
        """The state in which everything begins."""

    def steps(self, state: State) -> Iterable[tuple[str, State]]:
        """What may happen next: (what it is called, the state afterwards).

        Raises `Broken` if a step cannot even be taken without breaking a promise.
        """

    def broken(self, state: State) -> str:
        """Which promise the state breaks; empty if it keeps all."""

    def canonical(self, state: State) -> Hashable:
        """Equal for states that differ in nothing that matters, such as exchanged names."""


@dataclass(frozen=True, slots=True)
class Violation:
    """`what` is broken at the end of `path`, the names of the steps from the first state."""

    what: str
    path: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """`complete`: every state within the bounds was visited, or a violation was found."""

    states: int
    steps: int
    depth: int
    complete: bool
    violation: Violation | None = None


def search(model: Model[Any], states_max: int = STATES_MAX) -> Outcome:
    """Visit every state of `model`, at most `states_max`, or stop at the first violation."""
    first = model.first()
    # Canonical form -> number of the state; by number: (number of the state before, step).
    numbers: dict[Hashable, int] = {model.canonical(first): 0}
    origins: list[tuple[int, str]] = [(-1, "")]
    waiting: deque[tuple[int, int, Any]] = deque([(0, 0, first)])
    steps = depth = 0

    def ended(what: str, number: int, *last: str) -> Outcome:
        path = [*reversed(last)]
        while number > 0:
            number, step = origins[number]
            path.append(step)
        found = Violation(what, tuple(reversed(path)))
        return Outcome(len(numbers), steps, depth, True, found)

    if what := model.broken(first):
        return ended(what, 0)
    while waiting:
        number, depth, state = waiting.popleft()
        try:
            for step, after in model.steps(state):
                steps += 1
                form = model.canonical(after)
                if form in numbers:
                    continue
                if len(numbers) >= states_max:
                    return Outcome(len(numbers), steps, depth, False)
                numbers[form] = reached = len(numbers)
                origins.append((number, step))
                if what := model.broken(after):
                    return ended(what, reached)
                waiting.append((reached, depth + 1, after))
        except Broken as error:
            return ended(str(error), number)
    return Outcome(len(numbers), steps, depth, True)
