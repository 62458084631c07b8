"""Contradictions that can be seen without a search: the zones of states that are made once.

Let only one operation be able to make a state. Then the state holds without a break from the first
moment at which it is known to have been there (the first return among the operations that make or
demand it) to the last moment at which it is known to be still needed (the last call among them):
its zone. So no two zones overlap, and an operation that begins and ends inside a zone must leave
the state as it is. Gibbons and Korach decide whole histories of distinct writes like this.

Here it only refutes, in n log n steps, what a store that loses or forgets writes typically does
(stale reads, lost updates, answers out of thin air). The search would have to exhaust every order
of the history before the fault to say the same. What has no contradiction is left to the search.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from raftkv.testing.models import ANY, NOTHING, Model, State

if TYPE_CHECKING:
    from raftkv.testing.wing_gong import Plan

__all__ = ["contradicts_itself"]

Zone = tuple[int, int, State]


def contradicts_itself(plan: Plan, model: Model) -> bool:
    """Whether the history is certainly not linearizable. False says nothing."""
    if any(made is ANY for made in plan.makes):
        return False
    makers = _by_state(plan.makes)
    zones: list[Zone] = []
    for state, demanders in _by_state(plan.demands[: plan.known]).items():
        made_by = makers.get(state, [])
        if len(made_by) > 1 or (made_by and state == model.initial):
            continue
        if not made_by and state != model.initial:
            return True  # Nobody made what was seen.
        first = min(plan.returns[move] for move in demanders)
        if made_by and first < plan.calls[made_by[0]]:
            return True  # It was seen before anybody asked for it.
        if not made_by:
            first = 0  # It was there from the beginning.
        elif made_by[0] < plan.known:
            first = min(first, plan.returns[made_by[0]])
        last = max(plan.calls[move] for move in demanders)
        if first < last:
            zones.append((first, last, state))
    zones.sort(key=lambda zone: zone[:2])
    if any(later[0] < earlier[1] for earlier, later in pairwise(zones)):
        return True
    return _breaks_a_zone(plan, model, zones)


def _breaks_a_zone(plan: Plan, model: Model, zones: Sequence[Zone]) -> bool:
    firsts = [zone[0] for zone in zones]
    for move in range(plan.known):
        place = bisect_right(firsts, plan.calls[move]) - 1
        if place >= 0 and plan.returns[move] < zones[place][1]:
            state = zones[place][2]
            if model.step(state, plan.operations[move]) != state:
                return True
    return False


def _by_state(states: Sequence[State]) -> dict[State, list[int]]:
    moves: dict[State, list[int]] = {}
    for move, state in enumerate(states):
        if state is not ANY and state is not NOTHING:
            moves.setdefault(state, []).append(move)
    return moves
