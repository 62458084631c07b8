"""The rules of both modes, tried out on the small model: sound as they are, each one needed."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftkv_subscriptions.testing.model import (
    OPERATIONS,
    Broken,
    Region,
    Rules,
    World,
    broken_rules,
)

STEPS = st.lists(st.tuples(st.integers(0, len(OPERATIONS) - 1), st.integers(0, 2**20)), max_size=80)
#: Numbers that choose nothing, or two messages, or the end of the line.
ANY, TWO, LATEST, EARLIEST, MANY = 0, 1, 0, 1, 4


def walk(seed: int, *, rules: Rules | None = None, names: str = "abc", ring: bool = False) -> World:
    source = random.Random(seed)
    world = World(names, rules, ring=ring)
    steps = [(source.randrange(len(OPERATIONS)), source.randrange(2**20)) for _ in range(100)]
    world.run(steps)
    return world


# --- sound ----------------------------------------------------------------------------------------


@settings(max_examples=300, derandomize=True, database=None)
@given(steps=STEPS, names=st.sampled_from(["ab", "abc", "abcd"]), ring=st.booleans())
def test_nothing_is_passed_that_nobody_acknowledged_and_all_converge(
    steps: Sequence[tuple[int, int]], names: str, ring: bool
) -> None:
    world = World(names, ring=ring)
    world.run(steps)
    world.settle()


def test_long_walks_use_snapshots_and_stay_sound() -> None:
    snapshots = updates = holes = masks = 0
    for seed in range(400):
        for names, ring in (("ab", False), ("abc", False), ("abc", True)):
            try:
                world = walk(seed, names=names, ring=ring)
                world.settle()
            except Broken as broken:
                raise AssertionError(f"seed {seed}, {names}, ring {ring}: {broken}") from None
            for region in world.regions.values():
                snapshots += len(region.snapshots)
                updates += len(region.updates)
                holes += len(region.holes)
                masks += 0 if region.sub is None else len(region.sub.mask)
    # The walks go where the rules matter.
    assert min(snapshots, updates, holes, masks) >= 20, (snapshots, updates, holes, masks)


# --- needed ---------------------------------------------------------------------------------------


def three(world: World) -> tuple[Region, Region, Region]:
    return world.regions["a"], world.regions["b"], world.regions["c"]


def late_creation_after_trimming(world: World) -> None:
    """b trimmed a1 before it knew the subscription; c hears of it from b."""
    a, b, c = three(world)
    world.subscribe(a, b, EARLIEST)
    world.publish(a, b, ANY)
    world.pull(b, a, MANY)
    world.pull(c, a, MANY)
    world.trim(b, a, MANY)
    assert b.first == 1
    world.tell(b, a, 1)
    world.hear(b, a, 0)
    world.tell(c, b, 1)
    world.hear(c, b, 0)
    assert c.sub is not None
    world.check()
    assert c.mark() == 0


def complete(world: World, here: Region, *others: Region) -> None:
    """All rounds of a snapshot, with everything that is on its way before."""
    world.start(here, others[0], 1)
    for _ in range(2):
        for other in others:
            world.answer(other, here, ANY)
        for other in others:
            world.pull(here, other, MANY)
            world.answered(here, other, ANY)
    assert here.pending is None
    assert here.snapshots


def update_of_one_that_began_late(world: World) -> None:
    """a's subscription never wanted a1, which nobody acknowledged."""
    a, b, c = three(world)
    world.publish(a, b, ANY)
    world.pull(b, a, MANY)
    world.subscribe(a, b, LATEST)
    world.subscribe(b, a, EARLIEST)
    complete(world, a, b, c)
    world.update(a, b, ANY)
    world.updated(b, a, ANY)
    world.check()
    assert b.mark() == 0


def update_at_a_hole(world: World) -> None:
    """c's message is in b, and gone in c before a, which was excluded there, fetches it."""
    a, b, c = three(world)
    world.subscribe(a, b, EARLIEST)
    world.subscribe(b, a, EARLIEST)
    world.publish(c, a, ANY)
    world.pull(b, c, MANY)
    world.toggle_excluded(c, a, ANY)
    world.trim(c, b, ANY)
    world.toggle_excluded(c, a, ANY)
    world.pull(a, c, MANY)
    assert a.holes == {("c", 1)}
    complete(world, a, b, c)
    world.update(a, b, ANY)
    world.pull(b, a, MANY)
    world.updated(b, a, ANY)
    world.check()
    assert b.mark() == 0


def old_update_after_trimming(world: World) -> None:
    """An update for a position that b has trimmed, long after."""
    a, b, c = three(world)
    world.subscribe(a, b, EARLIEST)
    world.publish(a, b, TWO)
    world.pull(b, a, MANY)
    complete(world, a, b, c)
    world.acknowledge(a, b, ANY)
    world.acknowledge(a, b, ANY)
    world.update(a, b, ANY)
    world.publish(a, b, TWO)
    world.pull(b, a, MANY)
    world.pull(c, a, MANY)
    world.trim(b, a, 3)
    assert b.first == 4
    world.updated(b, a, ANY)
    world.check()
    assert b.sub is not None


def first_answers_again_in_round_two(world: World) -> None:
    """c1 is in b's first answer, and not here. Both first answers come once more."""
    a, b, c = three(world)
    world.start(a, b, 1)
    world.answer(c, a, ANY)
    world.publish(c, a, ANY)
    world.pull(b, c, MANY)
    world.answer(b, a, ANY)
    for _ in range(2):
        world.answered(a, b, ANY)
        world.answered(a, c, ANY)
    world.check()
    assert a.pending is not None
    assert a.pending.round == 2


def one_round_of_three(world: World) -> None:
    """c answers, publishes c1, which reaches b before b answers."""
    a, b, c = three(world)
    world.start(a, b, 1)
    world.answer(c, a, ANY)
    world.publish(c, a, ANY)
    world.pull(b, c, MANY)
    world.answer(b, a, ANY)
    world.answered(a, b, ANY)
    world.answered(a, c, ANY)
    world.check()
    assert a.pending is not None


def one_that_does_not_answer(world: World) -> None:
    """The message M1-b of the seed: in c, not in a, and b is silent."""
    a, b, c = three(world)
    world.publish(b, a, ANY)
    world.pull(c, b, MANY)
    world.start(a, b, 1)
    for _ in range(2):
        world.answer(c, a, ANY)
        world.answered(a, c, ANY)
    world.check()
    assert a.pending is not None
    assert not a.snapshots


def one_that_returned_meanwhile(world: World) -> None:
    """c was excluded when it began, and is back before b, which has c1, answers."""
    a, b, c = three(world)
    world.toggle_excluded(a, c, ANY)
    world.start(a, b, 1)
    world.toggle_excluded(a, c, ANY)
    world.publish(c, a, ANY)
    world.pull(b, c, MANY)
    world.answer(b, a, ANY)
    world.answered(a, b, ANY)
    world.check()
    assert not a.snapshots


def one_that_is_excluded(world: World) -> None:
    """b has c1, a not yet: b's link brings it, and the answer waits for it."""
    a, b, c = three(world)
    world.toggle_excluded(a, c, ANY)
    world.publish(c, a, ANY)
    world.pull(b, c, MANY)
    complete(world, a, b)
    assert a.line == [("c", 1)]
    assert a.snapshots == [(1, {"b": 1})]


def sought_back_while_others_tell(world: World) -> None:
    """What b knows was acknowledged before the seek must not move a on."""
    a, b, _ = three(world)
    world.subscribe(a, b, EARLIEST)
    world.publish(a, b, ANY)
    world.acknowledge(a, b, ANY)
    world.tell(b, a, 1)
    world.hear(b, a, 0)
    world.seek(a, b, 0)
    world.tell(a, b, 1)
    world.hear(a, b, 0)
    world.check()
    assert a.mark() == 0


CASES: dict[str, Callable[[World], None]] = {
    "base_as_told": late_creation_after_trimming,
    "update_excepts": update_of_one_that_began_late,
    "update_excepts_holes": update_at_a_hole,
    "old_positions_say_nothing": old_update_after_trimming,
    "rounds_are_numbered": first_answers_again_in_round_two,
    "second_round": one_round_of_three,
    "all_answer": one_that_does_not_answer,
    "outsiders_checked": one_that_returned_meanwhile,
    "seek_masks": sought_back_while_others_tell,
}
#: These the walks find; the others need more luck than a test should have.
FOUND_BY_WALKS = (
    "links_keep_order",
    "base_is_no_ack",
    "holes_are_no_acks",
    "trimmed_are_no_acks",
    "sets_not_positions",
    "seek_masks",
    "markers_in_order",
)


def test_every_rule_has_a_case_or_is_found_by_walks() -> None:
    assert {name for name, _ in broken_rules()} == {*CASES, *FOUND_BY_WALKS}


@pytest.mark.parametrize("case", [*CASES.values(), one_that_is_excluded])
def test_the_cases_are_sound(case: Callable[[World], None]) -> None:
    case(World("abc"))


@pytest.mark.parametrize("name", list(CASES))
def test_a_broken_rule_is_noticed_in_its_case(name: str) -> None:
    rules = dict(broken_rules())[name]
    with pytest.raises(Broken):
        CASES[name](World("abc", rules))


@pytest.mark.parametrize("name", FOUND_BY_WALKS)
def test_a_broken_rule_is_found_by_walks(name: str) -> None:
    rules = dict(broken_rules())[name]
    for seed in range(2_000):
        try:
            walk(seed, rules=rules)
        except Broken:
            return
    raise AssertionError(f"2,000 walks do not notice that {name} is broken")
