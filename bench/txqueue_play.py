"""Loads of the queues on a running cluster, one after the other: the coordinator of
`bench.txqueue`.

Each load goes the same way: the leader makes queues for it, its producers publish and commit and
come to an end, every node applies what is left, and the load's facts are written. Then every node
looks for what the producers were told is committed, and the queues are deleted and swept, so that
no load finds the messages of another.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.clock import OsClock
from bench.control import (
    AskCommitted,
    AwaitCallers,
    CheckQueues,
    Committed,
    Done,
    DropQueues,
    Flush,
    MakeQueues,
    Ran,
)
from bench.coordinator import (
    LOOK_EVERY_S,
    REST_TIMEOUT_S,
    Result,
    replicated,
    tally_of,
    wait_for_leader,
)
from bench.facts import PURPOSES, TxqueueFacts, write_txqueue_facts
from bench.layouts import Cluster
from bench.limbo_play import idle_messages, settled, swept
from bench.live import Tally
from bench.performance import Spent, spent_between
from bench.schema import TXQUEUE_SCENARIO, TXQUEUE_WAYS
from bench.txqueue import TxqueueLoad

__all__ = ["TxqueueRun", "TxqueueTest", "play_txqueue"]

COMMIT_TIMEOUT_S = 10.0
"""Of one transaction: several elections, and thousands of times what it takes."""


@dataclass(frozen=True)
class TxqueueRun:
    """One load; the words are those of `bench.schema`."""

    way: str
    batch: int
    producers: int
    seconds: float
    value_bytes: int

    @property
    def title(self) -> str:
        return f"txqueue, {TXQUEUE_WAYS[self.way]} of {self.batch}, {self.producers} producers"


@dataclass
class TxqueueTest:
    """What the loads of one cluster have in common. `idle_messages_per_s` is measured once."""

    out: Path
    show: Callable[[str], None]
    idle_messages_per_s: float | None = None
    loads: int = 0


async def play_txqueue(cluster: Cluster, run: TxqueueRun, test: TxqueueTest) -> Result:
    """One load, its facts, and what every node has of it. Raises WorkerFailed."""
    test.loads += 1
    leader, _ = await wait_for_leader(cluster)
    if test.idle_messages_per_s is None:
        test.idle_messages_per_s = await idle_messages(cluster)
    load = _load(run, test.loads)
    await cluster.ask(leader, MakeQueues(load.number), Done)
    await replicated(cluster, "", 0.0)
    before, began, began_us = await cluster.states(), time.monotonic(), OsClock().wall_us()
    tally = await _produced(cluster, leader, load, test)
    test.show(f"{run.title}: coming to rest")
    await settled(cluster)
    elapsed_s, after = time.monotonic() - began, await cluster.states()
    test.show(f"{run.title}: every node is looked at")
    committed = await cluster.ask(leader, AskCommitted(), Committed)
    nodes = cluster.layout.names
    await cluster.ask_all(nodes, CheckQueues(load, committed.transactions), Done)
    await cluster.ask_all(nodes, Flush(), Done)
    spent = spent_between(before, after)
    write_txqueue_facts(
        test.out, _facts(cluster, run, load, leader, test, (began_us, elapsed_s), spent)
    )
    leader, _ = await wait_for_leader(cluster)
    await cluster.ask(leader, DropQueues(load.number), Done)
    await swept(cluster)
    return Result(
        cluster.layout.name, TXQUEUE_SCENARIO, f"{TXQUEUE_WAYS[run.way]} of {run.batch}",
        "leader", run.producers, run.seconds, tally,
    )  # fmt: skip


def _load(run: TxqueueRun, number: int) -> TxqueueLoad:
    return TxqueueLoad(
        load=f"txqueue-{number}",
        number=number,
        scenario=TXQUEUE_SCENARIO,
        way=run.way,
        batch=run.batch,
        producers=run.producers,
        seconds=run.seconds,
        warmup_s=min(1.0, run.seconds / 4),
        value_bytes=run.value_bytes,
        timeout_s=COMMIT_TIMEOUT_S,
    )


async def _produced(cluster: Cluster, leader: str, load: TxqueueLoad, test: TxqueueTest) -> Tally:
    """The producers commit, to their last answer. Their tally, for the terminal."""
    await cluster.ask(leader, load, Done)
    began, ends_s = time.monotonic(), load.warmup_s + load.seconds
    while (elapsed_s := time.monotonic() - began) < ends_s:
        await asyncio.sleep(min(LOOK_EVERY_S, ends_s - elapsed_s))
        ok = tally_of(await cluster.states(), [leader]).ok
        test.show(f"{load.load}, {load.producers} producers: {ok:,} committed")
    ran = await cluster.ask(leader, AwaitCallers(), Ran, COMMIT_TIMEOUT_S + REST_TIMEOUT_S)
    tally = Tally()
    tally.include(ran.outcomes, ran.buckets)
    return tally


def _facts(
    cluster: Cluster,
    run: TxqueueRun,
    load: TxqueueLoad,
    node: str,
    test: TxqueueTest,
    times: tuple[int, float],
    spent: Spent,
) -> TxqueueFacts:
    assert spent.messages is not None, "no process was killed"
    began_us, elapsed_s = times
    return TxqueueFacts(
        run=cluster.run,
        layout=cluster.layout.name,
        load=load.load,
        scenario=load.scenario,
        way=run.way,
        batch=run.batch,
        producers=run.producers,
        node=node,
        nodes=" ".join(cluster.layout.names),
        began_us=began_us,
        elapsed_s=elapsed_s,
        entries=spent.entries,
        commands=spent.commands,
        **{name: spent.messages.get(purpose, 0) for name, purpose in PURPOSES.items()},
        sent_bytes=spent.sent_bytes,
        idle_messages_per_s=test.idle_messages_per_s,
    )
