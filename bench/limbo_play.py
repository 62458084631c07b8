"""Loads of the limbo on a running cluster, one after the other: the coordinator of `bench.limbo`.

Each load goes the same way: the quorum is set, the leader becomes the owner and gets a space for
the load, its writers write and come to an end, every node applies what is left and acknowledges it,
and the load's facts are written. Then every node looks for what the writers were told is confirmed,
and the space is dropped and swept, so that no load finds the rows of another.

All loads of a layout have one cluster: the quorum is a setting that changes while it runs.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.clock import OsClock
from bench.control import (
    AskConfirmed,
    AwaitCallers,
    CheckRows,
    Confirmed,
    Done,
    DropRows,
    Flush,
    OwnLimbo,
    Ran,
    State,
)
from bench.coordinator import (
    LOOK_EVERY_S,
    REST_TIMEOUT_S,
    Result,
    replicated,
    tally_of,
    wait_for_leader,
)
from bench.facts import PURPOSES, LimboFacts, write_limbo_facts
from bench.layouts import Cluster, WorkerFailed
from bench.limbo import LimboLoad
from bench.live import Tally
from bench.performance import IDLE_S, Spent, spent_between
from bench.schema import LIMBO_QUORUMS, LIMBO_SCENARIO

__all__ = ["LimboRun", "LimboTest", "idle_messages", "play_limbo", "settled", "swept"]

WRITE_TIMEOUT_S = 10.0
"""Of one transaction: several elections, and thousands of times what it takes."""


@dataclass(frozen=True)
class LimboRun:
    """One load; the words are those of `bench.schema`."""

    quorum: str
    writers: int
    seconds: float
    value_bytes: int

    @property
    def title(self) -> str:
        return f"limbo, {LIMBO_QUORUMS[self.quorum]}, {self.writers} writers"


@dataclass
class LimboTest:
    """What the loads of one cluster have in common. `idle_messages_per_s` is measured once."""

    out: Path
    show: Callable[[str], None]
    idle_messages_per_s: float | None = None
    loads: int = 0


async def play_limbo(cluster: Cluster, run: LimboRun, test: LimboTest) -> Result:
    """One load, its facts, and what every node has of it. Raises WorkerFailed."""
    test.loads += 1
    owner, _ = await wait_for_leader(cluster)
    if test.idle_messages_per_s is None:
        test.idle_messages_per_s = await idle_messages(cluster)
    load = _load(run, test.loads)
    await cluster.ask(owner, OwnLimbo(run.quorum, load.number), Done)
    await replicated(cluster, "", 0.0)
    before, began, began_us = await cluster.states(), time.monotonic(), OsClock().wall_us()
    tally = await _written(cluster, owner, load, test)
    test.show(f"{run.title}: coming to rest")
    await settled(cluster)
    elapsed_s, after = time.monotonic() - began, await cluster.states()
    test.show(f"{run.title}: every node is looked at")
    confirmed = await cluster.ask(owner, AskConfirmed(), Confirmed)
    nodes = cluster.layout.names
    await cluster.ask_all(nodes, CheckRows(load, confirmed.transactions), Done)
    await cluster.ask_all(nodes, Flush(), Done)
    acks = sum(after[name].acks - before[name].acks for name in nodes)
    spent = spent_between(before, after)
    facts = _facts(cluster, run, load, owner, test, (began_us, elapsed_s), spent, acks)
    write_limbo_facts(test.out, facts)
    # Only the owner drops a synchronous space.
    await cluster.ask(owner, DropRows(load.number), Done)
    await swept(cluster)
    return Result(
        cluster.layout.name, LIMBO_SCENARIO, f"quorum: {LIMBO_QUORUMS[run.quorum]}",
        "leader, the owner", run.writers, run.seconds, tally,
    )  # fmt: skip


def _load(run: LimboRun, number: int) -> LimboLoad:
    return LimboLoad(
        load=f"limbo-{number}",
        number=number,
        scenario=LIMBO_SCENARIO,
        writers=run.writers,
        seconds=run.seconds,
        warmup_s=min(1.0, run.seconds / 4),
        value_bytes=run.value_bytes,
        timeout_s=WRITE_TIMEOUT_S,
    )


async def idle_messages(cluster: Cluster) -> float:
    """Messages per second of a cluster that nobody asks for anything."""
    before, began = _messages(await cluster.states()), time.monotonic()
    await asyncio.sleep(IDLE_S)
    return (_messages(await cluster.states()) - before) / (time.monotonic() - began)


def _messages(states: dict[str, State]) -> int:
    return sum(count for state in states.values() for count in state.messages.values())


async def _written(cluster: Cluster, owner: str, load: LimboLoad, test: LimboTest) -> Tally:
    """The writers write, to their last answer. Their tally, for the terminal."""
    await cluster.ask(owner, load, Done)
    began, ends_s = time.monotonic(), load.warmup_s + load.seconds
    while (elapsed_s := time.monotonic() - began) < ends_s:
        await asyncio.sleep(min(LOOK_EVERY_S, ends_s - elapsed_s))
        ok = tally_of(await cluster.states(), [owner]).ok
        test.show(f"{load.load}, {load.writers} writers: {ok:,} confirmed")
    ran = await cluster.ask(owner, AwaitCallers(), Ran, WRITE_TIMEOUT_S + REST_TIMEOUT_S)
    tally = Tally()
    tally.include(ran.outcomes, ran.buckets)
    return tally


async def settled(cluster: Cluster) -> None:
    """Until nothing is pending on any node, and the log does not grow any more.

    A node may still be writing its acknowledgement of what others have confirmed already, or moving
    the rows of what was decided: that is a cost of this load, too.
    """
    deadline = time.monotonic() + REST_TIMEOUT_S
    last = -1
    while True:
        await replicated(cluster, "", 0.0)
        states = await cluster.states()
        grown = max(state.commit_index for state in states.values())
        pending = max(state.pending for state in states.values())
        if pending == 0 and grown == last:
            return
        if time.monotonic() > deadline:
            raise WorkerFailed(
                f"{pending} transactions are pending, or the log still grows, "
                f"{REST_TIMEOUT_S:.0f} s after the load"
            )
        last = grown
        await asyncio.sleep(LOOK_EVERY_S)


async def swept(cluster: Cluster) -> None:
    """Until no node has rows of a dropped space, or of a deleted queue."""
    deadline = time.monotonic() + REST_TIMEOUT_S
    while any(state.rows_dropped for state in (await cluster.states()).values()):
        if time.monotonic() > deadline:
            raise WorkerFailed(f"dropped rows are still there after {REST_TIMEOUT_S:.0f} s")
        await asyncio.sleep(LOOK_EVERY_S)


def _facts(
    cluster: Cluster,
    run: LimboRun,
    load: LimboLoad,
    owner: str,
    test: LimboTest,
    times: tuple[int, float],
    spent: Spent,
    acks: int,
) -> LimboFacts:
    assert spent.messages is not None, "no process was killed"
    began_us, elapsed_s = times
    return LimboFacts(
        run=cluster.run,
        layout=cluster.layout.name,
        load=load.load,
        scenario=load.scenario,
        quorum=run.quorum,
        writers=run.writers,
        owner=owner,
        nodes=" ".join(cluster.layout.names),
        began_us=began_us,
        elapsed_s=elapsed_s,
        entries=spent.entries,
        commands=spent.commands,
        acks=acks,
        **{name: spent.messages.get(purpose, 0) for name, purpose in PURPOSES.items()},
        sent_bytes=spent.sent_bytes,
        idle_messages_per_s=test.idle_messages_per_s,
    )
