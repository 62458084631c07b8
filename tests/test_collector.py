"""collector.py: the garbage collector of a process that holds a large state."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

import raftkv
from raftkv import collector


@pytest.fixture
def undo() -> Iterator[None]:
    before = (gc.get_threshold(), list(gc.callbacks), gc.get_freeze_count())
    undo = raftkv.tune_gc()
    yield
    undo()
    assert (gc.get_threshold(), list(gc.callbacks)) == before[:2]
    assert gc.get_freeze_count() == 0


def test_nothing_is_changed_before_it_is_asked_for() -> None:
    # Garbage that refers to objects which were frozen for the suite would take these along.
    gc.collect()
    frozen = gc.get_freeze_count()
    collector.settle()
    gc.collect()
    assert gc.get_freeze_count() == frozen
    assert collector._after_collection not in gc.callbacks


@pytest.mark.usefixtures("undo")
def test_what_survives_a_full_collection_is_not_looked_at_again() -> None:
    lists = [[number] for number in range(1000)]
    before = gc.get_freeze_count()
    gc.collect()
    assert gc.get_freeze_count() >= before + 1000
    assert not any(each is lists[0] for each in gc.get_objects())


@pytest.mark.usefixtures("undo")
def test_new_circles_are_still_found() -> None:
    class Circle:
        found = 0

        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            Circle.found += 1

    for _ in range(10):
        Circle()
    gc.collect()
    assert Circle.found == 10


@pytest.mark.usefixtures("undo")
def test_a_second_call_changes_nothing() -> None:
    callbacks = list(gc.callbacks)
    raftkv.tune_gc()()
    assert list(gc.callbacks) == callbacks


@pytest.mark.usefixtures("undo")
def test_parts_of_a_state_can_be_settled_early() -> None:
    before = gc.get_freeze_count()
    lists = [[number] for number in range(1000)]
    collector.settle()
    assert gc.get_freeze_count() >= before + len(lists)
