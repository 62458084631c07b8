"""Positions and vectors are exchangeable, exactly, with holes, blocks and what was trimmed."""

from __future__ import annotations

import random
from collections.abc import Collection

import pytest

from raftkv.plugin import Context
from raftkv_subscriptions import views
from raftkv_subscriptions.commands import Sweep, Swept
from raftkv_subscriptions.mapping import (
    covers,
    holes_between,
    number_in,
    position_of,
    vector_at,
    with_vector,
)
from raftkv_subscriptions.plugin import Subscriptions
from raftkv_subscriptions.retention import trim
from raftkv_subscriptions.rows import BLOCK, Hole, Vector
from tests.plugins.raftkv_subscriptions.pure import RegionLog, copies, copy


class Trimming(Subscriptions):
    """Its Sweep only trims the topics that it names."""

    def apply(self, command: object, ctx: Context) -> object:
        if not isinstance(command, Sweep):
            return super().apply(command, ctx)
        rows, more = 0, False
        for name in command.topics:
            topic = ctx.table("topics")[name]
            topic, touched, left = trim(ctx, name, topic, command.rows_max)
            ctx.table("topics").put(name, topic)
            rows, more = rows + touched, more or left
        return Swept(rows, more)


class Naive:
    """Every message that ever was, by position."""

    def __init__(self) -> None:
        self.all: dict[int, tuple[str, int]] = {}

    def note(self, log: RegionLog) -> None:
        topic = log.topic()
        for (id, position), stored in log.table("messages").items():
            if id == topic.id and position >= topic.first:
                self.all[position] = (stored.origin, stored.seq)

    def vector_at(self, position: int) -> Vector:
        numbers: dict[str, int] = {}
        for at, (origin, seq) in sorted(self.all.items()):
            if at <= position:
                numbers[origin] = seq
        return tuple(sorted(numbers.items()))

    def position_of(self, first: int, vector: Vector, origins: Collection[str] | None) -> int:
        """`first`: those before it are trimmed."""
        have, last = dict(vector), first - 1
        for at, (origin, seq) in sorted(self.all.items()):
            if at >= first:
                if (origins is None or origin in origins) and seq > have.get(origin, 0):
                    return at - 1
                last = at
        return last


# --- vectors as values ----------------------------------------------------------------------------


def test_vectors() -> None:
    assert number_in((("a", 3), ("b", 2)), "b") == 2
    assert number_in((("a", 3),), "b") == 0
    assert covers((("a", 3), ("b", 2)), (("a", 3),))
    assert covers((), ())
    assert not covers((("a", 3),), (("a", 4),))
    assert not covers((), (("a", 1),))
    assert with_vector((("b", 2),), (("a", 1), ("b", 1), ("c", 0))) == (("a", 1), ("b", 2))


# --- by hand --------------------------------------------------------------------------------------


def test_of_a_topic_without_messages() -> None:
    log = RegionLog(others=("b",))
    assert vector_at(log.view(), 1, 0) == ()
    assert vector_at(log.view(), 1, 99) == ()
    assert position_of(log.view(), 1, ()) == 0
    assert position_of(log.view(), 1, (("a", 7),)) == 0
    assert vector_at(log.view(), 99, 5) == ()
    assert position_of(log.view(), 99, ()) == 0


def test_of_a_deleted_topic() -> None:
    log = RegionLog()
    log.publish("t", "x")
    log.delete("t")
    assert vector_at(log.view(), 1, 1) == ()
    log.declare("t")
    assert vector_at(log.view(), 2, 1) == ()
    assert position_of(log.view(), 2, ()) == 1
    log.publish("t", "y")
    assert vector_at(log.view(), 2, 1) == ()
    assert vector_at(log.view(), 2, 2) == (("a", 2),)
    assert position_of(log.view(), 2, (("a", 1),)) == 1
    assert position_of(log.view(), 2, (("a", 2),)) == 2


def test_two_origins() -> None:
    log = RegionLog(others=("b",))
    log.publish("t", "x")
    log.deliver("t", "b", *copies("b", 1, 2))
    log.publish("t", "y")
    view = log.view()
    assert [vector_at(view, 1, p) for p in range(6)] == [
        (),
        (("a", 1),),
        (("a", 1), ("b", 1)),
        (("a", 1), ("b", 2)),
        (("a", 2), ("b", 2)),
        (("a", 2), ("b", 2)),
    ]
    assert position_of(view, 1, (("a", 1), ("b", 1))) == 2
    assert position_of(view, 1, (("b", 9),)) == 0
    assert position_of(view, 1, (("b", 1),), ("b",)) == 2
    assert position_of(view, 1, (("a", 1),), ("a",)) == 3
    assert position_of(view, 1, (), ()) == 4


def test_a_hole_is_in_front_of_the_next_message_only() -> None:
    log = RegionLog(others=("b",))
    log.deliver("t", "b", copy("b", 1), Hole("b", 2, 5))
    log.publish("t", "x")
    assert vector_at(log.view(), 1, 2) == (("a", 1), ("b", 1))
    assert views.vector_of(log.view(), "t") == (("a", 1), ("b", 5))
    log.deliver("t", "b", copy("b", 6))
    assert vector_at(log.view(), 1, 2) == (("a", 1), ("b", 1))
    assert vector_at(log.view(), 1, 3) == (("a", 1), ("b", 6))
    assert position_of(log.view(), 1, (("a", 1), ("b", 5))) == 2
    assert views.holes_of(log.view(), 1) == (("b", 2, 5),)


def test_the_holes_of_a_stretch() -> None:
    log = RegionLog(others=("b",))
    log.deliver("t", "b", Hole("b", 1, 3), copy("b", 4), Hole("b", 5, 9), Hole("c", 1, 20))
    view = log.view()

    def holes(first: int, last: int, origin: str = "b") -> list[tuple[int, int]]:
        return list(holes_between(view, 1, origin, first, last))

    assert holes(1, 20) == [(1, 3), (5, 9)]
    assert holes(2, 2) == [(2, 2)]
    assert holes(3, 6) == [(3, 3), (5, 6)]
    assert holes(4, 4) == []
    assert holes(6, 30) == [(6, 9)]
    assert holes(10, 30) == []
    assert holes(19, 30, "c") == [(19, 20)]
    assert holes(1, 30, "d") == []


@pytest.mark.parametrize("position", [BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 2 * BLOCK + 1])
def test_at_the_edges_of_blocks(position: int) -> None:
    log = RegionLog(checks=False)
    for _ in range(3):
        log.publish("t", *["x"] * BLOCK)
    assert vector_at(log.view(), 1, position) == (("a", position),)
    assert position_of(log.view(), 1, (("a", position),)) == position


def test_what_was_trimmed_is_nobodys() -> None:
    log = RegionLog(plugin=Trimming)
    log.publish("t", *["x"] * 10)
    log.now += 1_000
    log.declare("t", retention_ms=1)
    assert log.anywhere(Sweep(("t",), 4)) == Swept(4, True)
    view = log.view()
    assert log.topic().first == 5
    assert [vector_at(view, 1, p) for p in (0, 3, 4, 5)] == [
        (("a", 4),),
        (("a", 4),),
        (("a", 4),),
        (("a", 5),),
    ]
    assert position_of(view, 1, ()) == 4
    assert position_of(view, 1, (("a", 2),)) == 4
    assert position_of(view, 1, (("a", 7),)) == 7
    assert log.anywhere(Sweep(("t",))) == Swept(6, False)
    view = log.view()
    assert (log.topic().first, log.topic().next) == (11, 11)
    assert vector_at(view, 1, 3) == (("a", 10),)
    assert position_of(view, 1, ()) == 10
    log.publish("t", "y")
    assert vector_at(log.view(), 1, 10) == (("a", 10),)
    assert position_of(log.view(), 1, ()) == 10


# --- against a model ------------------------------------------------------------------------------


def step(log: RegionLog, chance: random.Random) -> None:
    """A few messages, holes or trimmed ones."""
    what = chance.random()
    origin = chance.choice("bcd")
    known = log.vector().get(origin, 0)
    if what < 0.3:
        log.publish("t", *["x"] * chance.choice((1, 2, 90)))
    elif what < 0.8:
        log.deliver("t", "b", *copies(origin, known + 1, known + chance.choice((1, 3, 120))))
    elif what < 0.93:
        last = known + chance.randint(1, 40)
        more = (copy(origin, last + 1),) if chance.random() < 0.5 else ()
        log.deliver("t", "b", Hole(origin, chance.randint(1, known + 1), last), *more)
    else:
        log.now += 1_000
        log.anywhere(Sweep(("t",), chance.choice((1, 50, 700))))


@pytest.mark.parametrize("seed", range(6))
def test_any_history(seed: int) -> None:
    chance = random.Random(seed)
    log, naive = RegionLog(others=("b",), plugin=Trimming, checks=False), Naive()
    log.declare("t", retention_ms=500, replicated=False)
    for _ in range(60):
        naive.note(log)
        step(log, chance)
    log.check()
    naive.note(log)
    topic, view = log.topic(), log.view()
    places = {topic.first, topic.next - 1, topic.next, 1}
    places |= {chance.randint(1, topic.next + 3) for _ in range(60)}
    places |= {block * BLOCK + d for block in range(topic.next // BLOCK + 1) for d in (-1, 0, 1)}
    for position in sorted(places):
        at = max(position, topic.first - 1)
        assert vector_at(view, 1, position) == naive.vector_at(at), (seed, position)
        vector = naive.vector_at(at)
        assert position_of(view, 1, vector) == min(at, topic.next - 1), (seed, position)
    for _ in range(80):
        vector = tuple(
            (origin, chance.randint(1, top + 5))
            for origin, top in naive.vector_at(topic.next)
            if chance.random() < 0.8
        )
        origins = chance.choice((None, ("a",), ("b", "c"), ("a", "d"), ()))
        expected = naive.position_of(topic.first, vector, origins)
        assert position_of(view, 1, vector, origins) == expected, (seed, vector, origins)
