"""waste.py: what is large is freed in steps, by whoever has the time."""

from __future__ import annotations

import weakref
from typing import Any

from raftkv.waste import ITEMS_PER_SWEEP, KEPT_ITEMS_MIN, SWEEP_PAUSE_S, Sweeper, Waste
from tests.fakes import FakeRuntime


class Item:
    """Something whose end can be seen."""


def test_small_things_are_not_kept() -> None:
    waste = Waste()
    waste.add([0] * KEPT_ITEMS_MIN)
    assert len(waste) == 0


def test_lists_and_dicts_go_step_by_step() -> None:
    for make in (list, lambda items: dict(enumerate(items))):
        items: list[Any] = [Item() for _ in range(KEPT_ITEMS_MIN + 88)]
        alive = weakref.WeakSet(items)
        waste = Waste()
        waste.add(make(items))
        items.clear()
        assert len(alive) == 600
        assert waste.sweep(400)
        assert len(alive) == 200
        assert not waste.sweep(400)
        assert len(alive) == 0
        assert not waste.sweep()


def test_the_sweeper_works_while_there_is_work_and_gives_way() -> None:
    runtime, waste = FakeRuntime(), Waste()
    waste.add(list(range(ITEMS_PER_SWEEP * 2 + 1)))
    sweeper = Sweeper(runtime, waste)
    waste.add(list(range(KEPT_ITEMS_MIN + 1)))
    left = []
    while len(waste):
        runtime.advance(SWEEP_PAUSE_S)
        left.append(len(waste))
    assert left == [2, 2, 1, 0]
    assert not runtime._timers
    waste.add(list(range(KEPT_ITEMS_MIN + 1)))
    runtime.advance(SWEEP_PAUSE_S)
    assert len(waste) == 0
    sweeper.stop()
    waste.add(list(range(KEPT_ITEMS_MIN + 1)))
    assert not runtime._timers
