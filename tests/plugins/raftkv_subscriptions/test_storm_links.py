"""The wires of a storm of regions do what TCP does, and what happens to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from raftkv.testing.world import World
from raftkv_subscriptions.links.errors import LinkBroken
from raftkv_subscriptions.testing.storm_links import LINES_MAX, Network, _Stream


def violated(check: str, found: Sequence[str]) -> None:
    assert not found, (check, found)


def network(delay_s: float = 0.1) -> tuple[World, Network, _Stream]:
    world = World(1)
    regions = {"a": ["a-core1"], "b": ["b-core1"]}
    made = Network(world, regions, lambda name: None, violated, lambda target, source: delay_s, {})
    stream = _Stream(made, made.wire("a", "b"), "b-core1", ())
    made.add(stream)
    return world, made, stream


async def put(stream: _Stream, *lines: bytes) -> None:
    for line in lines:
        await stream.put(line)


async def read(stream: _Stream, count: int) -> list[bytes]:
    return [await stream.next() for _ in range(count)]


def complete(world: World, coroutine: Any) -> Any:
    return world.complete(coroutine, 30)


def test_lines_come_in_their_order_after_the_delay() -> None:
    world, _, stream = network()
    lines = [b"%d" % n for n in range(LINES_MAX)]
    complete(world, put(stream, *lines))
    assert complete(world, read(stream, LINES_MAX)) == lines
    assert 0.08 <= world.loop.now <= 0.4
    world.close()


def test_a_target_that_does_not_read_stops_the_source() -> None:
    world, _, stream = network()
    lines = [b"%d" % n for n in range(LINES_MAX + 1)]
    putting = world.spawn(put(stream, *lines), "put")
    world.run(10)
    assert not putting.done()
    assert complete(world, read(stream, 1)) == [b"0"]
    world.run(1)
    assert putting.done()
    world.close()


def test_a_cut_breaks_both_ends_at_once_and_loses_what_is_on_its_way() -> None:
    world, made, stream = network()
    complete(world, put(stream, b"lost"))
    made.cut("a", "b")
    with pytest.raises(LinkBroken):
        complete(world, read(stream, 1))
    with pytest.raises(LinkBroken):
        complete(world, put(stream, b"more"))
    world.close()


def test_a_mute_wire_is_silent_and_what_was_sent_comes_later() -> None:
    world, made, stream = network()
    made.mute("a", "b")
    complete(world, put(stream, b"late"))
    reading = world.spawn(read(stream, 1), "read")
    world.run(5)
    assert not reading.done()
    made.heal("a", "b")
    world.run(0.1)
    assert reading.result() == [b"late"]
    world.close()


def test_what_was_sent_before_the_end_still_comes() -> None:
    world, _, stream = network()
    complete(world, put(stream, b"last"))
    stream.end("it ended")
    assert complete(world, read(stream, 1)) == [b"last"]
    with pytest.raises(LinkBroken, match="it ended"):
        complete(world, read(stream, 1))
    world.close()
