"""Callbacks on confirm and rollback: their order, what they see, on every node."""

from __future__ import annotations

import asyncio
import logging

import msgspec
import pytest

from raftkv.state import Envelope
from raftkv_limbo.api import LimboApi
from raftkv_limbo.commands import Submit, Transaction, Write
from raftkv_limbo.errors import RolledBack
from raftkv_limbo.hooks import Confirmed, Restored, Undone
from tests.plugins.raftkv_limbo.fakes import Cluster, asynchronous, story, sync, tag_of, until


class Heard:
    """What the callbacks of one node were told, in order."""

    def __init__(self, limbo: LimboApi) -> None:
        self.limbo = limbo
        self.events: list[Confirmed | Undone] = []
        self.in_rollback: list[bool] = []
        self.removes = [limbo.on_confirm(self.hear), limbo.on_rollback(self.hear)]

    def hear(self, event: Confirmed | Undone) -> None:
        self.events.append(event)
        self.in_rollback.append(self.limbo.hooks.is_in_rollback)

    @property
    def confirmed(self) -> list[int]:
        return [one.position for one in self.events if isinstance(one, Confirmed)]

    @property
    def undone(self) -> list[int]:
        return [one.position for one in self.events if isinstance(one, Undone)]


def hear_all(cluster: Cluster) -> dict[str, Heard]:
    return {name: Heard(node.opened) for name, node in cluster.nodes.items()}


@story()
async def test_every_node_hears_of_every_transaction(cluster: Cluster) -> None:
    heard = hear_all(cluster)
    limbo = await cluster.own("core1")
    await asyncio.gather(*(limbo.submit(sync(f"k{n}", str(n))) for n in range(300)))
    for one in heard.values():
        assert one.confirmed == list(range(1, 301))
        event = one.events[41]
        assert isinstance(event, Confirmed)
        # Each sees its own position as the confirmed one: the batch cannot be seen.
        assert (event.confirmed, event.term) == (42, 1)
        assert event.writes[0].value == b"41"
        assert not any(one.in_rollback)


@story(quorum="N", entries_kept=0)
async def test_confirmed_ones_come_oldest_first_all_at_once(cluster: Cluster) -> None:
    heard = hear_all(cluster)
    limbo = await cluster.own("core1")
    cluster.isolate("core3")
    for n in range(5):
        await limbo.submit(sync(f"k{n}"), wait="submit")
    await limbo.submit(asynchronous("behind"), wait="submit")
    await limbo.submit(asynchronous("independent"), order="independent")
    assert heard["core1"].confirmed == [7]
    cluster.heal("core3")
    await limbo.submit(sync("last"))
    assert heard["core1"].confirmed == [7, 1, 2, 3, 4, 5, 6, 8]
    assert heard["core3"].confirmed == heard["core2"].confirmed == heard["core1"].confirmed


@story(quorum="N")
async def test_undone_ones_come_newest_first(cluster: Cluster) -> None:
    heard = hear_all(cluster)
    limbo = await cluster.own("core1")
    cluster.isolate("core3")
    for n in range(5):
        await limbo.submit(sync(f"k{n}", str(n)), wait="submit")
        if n == 3:
            await limbo.submit(asynchronous("between"), order="independent")
    await limbo.rollback(3, "enough")
    assert heard["core2"].confirmed == [5]
    # Position 5 was independent, and stays.
    assert heard["core2"].undone == [6, 4, 3]
    last = heard["core2"].events[-1]
    assert isinstance(last, Undone)
    assert (last.reason, last.by, last.writes[0].value) == ("enough", "core1", b"2")
    assert heard["core2"].in_rollback == [False, True, True, True]
    assert not limbo.status().is_in_rollback
    cluster.heal("core3")
    await limbo.submit(sync("after"))
    for one in heard.values():
        assert one.confirmed == [5, 1, 2, 7]
        assert one.undone == [6, 4, 3]


@story(quorum="N")
async def test_callbacks_come_before_callers(cluster: Cluster) -> None:
    limbo = await cluster.own("core1")
    order: list[str] = []
    limbo.on_confirm(lambda event: order.append(f"callback {event.position}"))
    limbo.on_rollback(lambda event: order.append(f"undone {event.position}"))
    await limbo.submit(sync("a"))
    order.append("caller 1")
    cluster.isolate("core3")
    waits = asyncio.ensure_future(limbo.submit(sync("b"), timeout_s=60))
    await until(lambda: cluster.state.pending == 1)
    await limbo.rollback(2)
    with pytest.raises(RolledBack):
        await waits
    order.append("caller 2")
    assert order == ["callback 1", "caller 1", "undone 2", "caller 2"]
    cluster.heal("core3")


@story()
async def test_a_callback_that_fails_harms_nobody(
    cluster: Cluster,
) -> None:
    limbo = await cluster.own("core1")
    heard = Heard(limbo)

    def broken(event: Confirmed) -> None:
        raise RuntimeError(f"secret {event.writes[0].key!r}")

    limbo.on_confirm(broken)
    also = Heard(limbo)
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("raftkv.plugins.limbo")
    logger.addHandler(handler)
    try:
        for _ in range(3):
            await limbo.submit(sync("password"))
    finally:
        logger.removeHandler(handler)
    assert heard.confirmed == also.confirmed == [1, 2, 3]
    assert limbo.counters["hook_failures"] == 3
    assert len(lines) == 1
    assert "RuntimeError" in lines[0]
    assert "password" not in lines[0]


@story()
async def test_a_callback_is_taken_away(cluster: Cluster) -> None:
    limbo = await cluster.own("core1")
    heard = Heard(limbo)
    await limbo.submit(sync("a"))
    for remove in heard.removes:
        remove()
        remove()
    await limbo.submit(sync("b"))
    assert heard.confirmed == [1]


@story(quorum="N")
async def test_a_snapshot_is_told_as_such(cluster: Cluster) -> None:
    limbo, other = await cluster.own("core1"), cluster.limbo("core2")
    heard = Heard(other)
    jumps: list[Restored] = []
    other.on_restored(jumps.append)
    cluster.pause("core2")
    waits = asyncio.ensure_future(limbo.submit(sync("a"), timeout_s=60))
    await until(lambda: cluster.state.pending == 1)
    cluster.jump("core2")
    assert jumps == [Restored(0, 1)]
    await waits
    # What was pending in the snapshot is told when it is confirmed.
    assert heard.confirmed == [1]


def trimming(cluster: Cluster) -> Envelope:
    """A Submit of one async transaction, to be appended beside another command."""
    node = cluster.nodes["core1"]
    node.seq += 1
    submit = Submit((Transaction((Write("a", b"k", b""),)),), cluster.state.term)
    return Envelope(node.session, node.seq, 1, "limbo", msgspec.msgpack.encode(submit))


@story(quorum="N", entries_kept=0)
async def test_what_is_confirmed_and_trimmed_in_one_entry_of_the_log(cluster: Cluster) -> None:
    heard = hear_all(cluster)
    limbo = await cluster.own("core1")
    acks: list[Envelope] = []

    def keep(node: object, envelope: Envelope) -> bool:
        if node is cluster.nodes["core3"] and tag_of(envelope) == "ack":
            acks.append(envelope)
            return False
        return True

    cluster.filter = keep
    await limbo.submit(sync("a"), wait="submit")
    await limbo.submit(sync("b"), wait="submit")
    await until(lambda: len(acks) == 1 and len(cluster.table("nodes")) == 2)
    cluster.filter = lambda node, envelope: True
    cluster.append([acks[0], trimming(cluster), trimming(cluster)])
    await limbo.submit(sync("c"))
    assert heard["core2"].confirmed == [1, 2, 3, 4, 5]


@story()
async def test_a_node_listens_only_while_somebody_wants_to_hear(cluster: Cluster) -> None:
    limbo = await cluster.own("core1")
    machine = cluster.nodes["core1"].machine
    before = len(machine._capture._listeners)
    one, two = Heard(limbo), Heard(limbo)
    assert len(machine._capture._listeners) == before + 1
    for remove in one.removes:
        remove()
    assert len(machine._capture._listeners) == before + 1
    for remove in two.removes:
        remove()
    assert len(machine._capture._listeners) == before


@story()
async def test_of_what_was_before_the_start_nobody_hears(cluster: Cluster) -> None:
    limbo = await cluster.own("core1")
    await limbo.submit(sync("before"))
    early: list[Heard] = []
    cluster.prepare = lambda node: early.append(Heard(node.opened))  # type: ignore[method-assign]
    await cluster.restart("core2")
    await limbo.submit(sync("after"))
    assert early[0].confirmed == [2]


@story()
async def test_a_callback_that_would_never_run_is_refused(cluster: Cluster) -> None:
    """It is called, not awaited: nothing of a coroutine would ever happen."""
    limbo = cluster.limbo("core1")

    async def asynchronous_one(event: object) -> None:
        """Never reached."""

    for register in (limbo.on_confirm, limbo.on_rollback, limbo.on_restored):
        with pytest.raises(TypeError, match="spawn"):
            register(asynchronous_one)  # type: ignore[arg-type]


@story()
async def test_one_callback_registered_twice_is_taken_away_one_by_one(cluster: Cluster) -> None:
    limbo = await cluster.own("core1")
    heard: list[Confirmed] = []
    remove = limbo.on_confirm(heard.append)
    limbo.on_confirm(heard.append)
    remove()
    remove()
    await limbo.submit(sync("k"))
    assert len(heard) == 1
