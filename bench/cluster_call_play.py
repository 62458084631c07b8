"""Cluster calls on a running cluster, load by load: the coordinator of `bench.cluster_calls`.

Each load goes the same way: callers are sent off where they are to sit, they come to an end, every
node executes what is left, and the load's facts are written. Then the next one begins, on the same
cluster: ids go on, and nothing of a load is left for the next to pay for.

    cluster_calls                the load alone
    cluster_calls_lagging        one replicant applies everything so much later
    cluster_calls_leader_dies    the leader's process is killed (SIGKILL) and comes back when the
                                 load is over; no caller is in it

What the dead leader had begun holds up all others until the cluster has declared it down, ten
seconds later (`raft.node_down_ms`): the load is long enough to see how they go on after that.

Whether replicants execute calls is a setting of the cluster, so each choice has its own cluster.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from msgspec.structs import replace

from bench.clock import OsClock
from bench.cluster_calls import ClusterCallLoad
from bench.control import AwaitCallers, Done, Effects, Flush, Lag, Ran, State, TakePart
from bench.coordinator import (
    LOOK_EVERY_S,
    REST_TIMEOUT_S,
    Result,
    leader_of,
    node_of,
    replicated,
    tally_of,
    wait_for_leader,
)
from bench.executions import LoadName, rows_of_executions
from bench.facts import PURPOSES, CallFacts, write_call_facts
from bench.layouts import Cluster, Layout, WorkerFailed
from bench.live import Tally
from bench.performance import IDLE_S, Spent, spent_between
from bench.schema import CLUSTER_CALL_PARTICIPANTS, RowWriter

__all__ = [
    "ClusterCallRun",
    "ClusterCallTest",
    "begin",
    "collect_executions",
    "participants_of",
    "placed",
    "play_cluster_calls",
]

CALL_TIMEOUT_S = 20.0
"""Of one call: several times an election, and far more than a lag of half a second needs."""


@dataclass(frozen=True)
class ClusterCallRun:
    """One load; the words are those of `bench.schema`.

    `kill_after_s`: when the leader is killed, after the warm-up; None: it is not.
    """

    scenario: str
    function: str
    required: str
    place: str
    callers: int
    participants: str
    seconds: float
    kill_after_s: float | None = None

    @property
    def title(self) -> str:
        return (
            f"{self.scenario.replace('_', ' ')}, {self.function}, required {self.required}, "
            f"{self.callers} {self.place}"
        )


@dataclass
class ClusterCallTest:
    """What the loads of one cluster have in common. `idle_messages_per_s` is measured once.

    `loads` are those that were played, by the number that stands in the calls' arguments.
    """

    out: Path
    lag_ms: float
    show: Callable[[str], None]
    idle_messages_per_s: float | None = None
    loads: dict[int, LoadName] = field(default_factory=dict)


@dataclass
class _Kill:
    """When the leader is to be killed, and what came of it."""

    due_s: float
    leader: str
    over: bool = False
    killed: str | None = None
    killed_us: int | None = None


def participants_of(layout: Layout, participants: str) -> list[str]:
    """The nodes that execute calls, in order."""
    return layout.names if participants == "all" else layout.core_names


def placed(layout: Layout, run: ClusterCallRun, leader: str) -> dict[str, int]:
    """How many callers sit on which node."""
    if run.place != "everywhere":
        return {node_of(layout, run.place, leader): run.callers}
    names = [name for name in layout.names if name != leader or run.kill_after_s is None]
    share, rest = divmod(run.callers, len(names))
    counts = {name: share + (place < rest) for place, name in enumerate(names)}
    return {name: count for name, count in counts.items() if count}


async def begin(cluster: Cluster, participants: str) -> None:
    """Sets who takes part, and waits until they do. Raises WorkerFailed."""
    leader, _ = await wait_for_leader(cluster)
    await cluster.ask(leader, TakePart(participants == "all"), Done)
    await _executed(cluster, participants_of(cluster.layout, participants))


async def play_cluster_calls(
    cluster: Cluster, run: ClusterCallRun, test: ClusterCallTest
) -> Result:
    """One load, and its facts. Raises WorkerFailed when a node failed or does not come to rest."""
    leader, _ = await wait_for_leader(cluster)
    if test.idle_messages_per_s is None:
        test.idle_messages_per_s = await _idle(cluster)
    lagging = cluster.layout.drivers[0] if run.scenario == "cluster_calls_lagging" else None
    kill = _kill_for(run, leader)
    load = _load(run, len(test.loads) + 1, lagging)
    test.loads[load.number] = (load.load, load.scenario)
    if lagging is not None:
        await cluster.ask(lagging, Lag(test.lag_ms / 1000), Done)
    before, began, began_us = await cluster.states(), time.monotonic(), OsClock().wall_us()
    tally = await _called(cluster, load, placed(cluster.layout, run, leader), test, kill)
    test.show(f"{run.title}: coming to rest")
    if lagging is not None:
        await cluster.ask(lagging, Lag(0.0), Done)
    if kill is not None and kill.killed is not None:
        await cluster.revive(kill.killed)
    nodes = participants_of(cluster.layout, run.participants)
    await _executed(cluster, nodes)
    await replicated(cluster, "", test.lag_ms / 1000 if lagging else 0.0)
    elapsed_s, after = time.monotonic() - began, await cluster.states()
    if run.function == "keyspace":
        leader, _ = await wait_for_leader(cluster)
        await cluster.ask(leader, Effects(load, tuple(nodes)), Done)
    await cluster.ask_all(cluster.layout.names, Flush(), Done)
    spent = spent_between(before, after, kill.killed if kill else None)
    write_call_facts(test.out, _facts(cluster, run, load, test, (began_us, elapsed_s), spent, kill))
    return Result(
        cluster.layout.name,
        run.scenario,
        f"{run.function}, required {run.required}",
        f"{run.place}; {CLUSTER_CALL_PARTICIPANTS[run.participants]}",
        run.callers,
        run.seconds,
        tally,
    )


def collect_executions(cluster: Cluster, test: ClusterCallTest) -> None:
    """Adds a row to the log for every run of a function. Raises OSError. To be called at the end.

    Also after a load that failed: what its nodes executed says why, perhaps.
    """
    with RowWriter(test.out, cluster.run, f"{cluster.layout.name}-executions") as writer:
        for row in rows_of_executions(cluster.data, cluster.run, cluster.layout.name, test.loads):
            writer.add(row)


def _load(run: ClusterCallRun, number: int, lagging: str | None) -> ClusterCallLoad:
    return ClusterCallLoad(
        load=f"{run.participants}-{number}",
        number=number,
        scenario=run.scenario,
        function=run.function,
        required=run.required,
        callers=0,
        seconds=run.seconds,
        warmup_s=_warmup_s(run),
        timeout_s=CALL_TIMEOUT_S,
        lagging=lagging,
    )


def _warmup_s(run: ClusterCallRun) -> float:
    return min(1.0, run.seconds / 4)


def _kill_for(run: ClusterCallRun, leader: str) -> _Kill | None:
    return None if run.kill_after_s is None else _Kill(_warmup_s(run) + run.kill_after_s, leader)


async def _idle(cluster: Cluster) -> float:
    """Messages per second of a cluster that nobody asks for anything."""
    before, began = _messages(await cluster.states()), time.monotonic()
    await asyncio.sleep(IDLE_S)
    after = _messages(await cluster.states())
    return (after - before) / (time.monotonic() - began)


def _messages(states: Mapping[str, State]) -> int:
    return sum(sum(state.messages.values()) for state in states.values())


async def _called(
    cluster: Cluster,
    load: ClusterCallLoad,
    places: Mapping[str, int],
    test: ClusterCallTest,
    kill: _Kill | None,
) -> Tally:
    """The callers play, to their last answer. Their tally, for the terminal."""
    await asyncio.gather(
        *(
            cluster.ask(name, replace(load, callers=callers), Done)
            for name, callers in places.items()
        )
    )
    began, ends_s = time.monotonic(), load.warmup_s + load.seconds
    due_s = ends_s if kill is None else kill.due_s
    while True:
        elapsed_s = time.monotonic() - began
        # First of all: a coordinator that was held up kills the leader late, and not never.
        if kill is not None and not kill.over and elapsed_s >= due_s:
            await _kill_leader(cluster, kill)
            due_s = ends_s
            continue
        if elapsed_s >= ends_s:
            break
        await asyncio.sleep(min(LOOK_EVERY_S, due_s - elapsed_s))
        ok = tally_of(await cluster.states(), list(places)).ok
        test.show(f"{load.load} {load.function}, required {load.required}: {ok:,} calls")
    over = await cluster.ask_all(list(places), AwaitCallers(), Ran, CALL_TIMEOUT_S + REST_TIMEOUT_S)
    tally = Tally()
    for ran in over.values():
        tally.include(ran.outcomes, ran.buckets)
    return tally


async def _kill_leader(cluster: Cluster, kill: _Kill) -> None:
    """Kills the leader, unless the office has moved to where callers sit: then nobody is."""
    kill.over = True
    if leader_of(await cluster.states()) == kill.leader:
        kill.killed, kill.killed_us = kill.leader, OsClock().wall_us()
        await cluster.kill(kill.leader)


async def _executed(cluster: Cluster, nodes: Sequence[str]) -> None:
    """Until exactly these nodes take part, and every one shows that all have executed all calls."""
    deadline = time.monotonic() + REST_TIMEOUT_S
    while True:
        states = await cluster.states()
        last = max(state.last_call for state in states.values())
        wanted = dict.fromkeys(nodes, last)
        if all(state.cursors == wanted for state in states.values()):
            return
        if time.monotonic() > deadline:
            shown = {name: state.cursors for name, state in states.items()}
            raise WorkerFailed(
                f"{', '.join(nodes)} did not execute all calls up to {last} within "
                f"{REST_TIMEOUT_S:.0f} s. The nodes show: {shown}"
            )
        await asyncio.sleep(LOOK_EVERY_S / 5)


def _facts(
    cluster: Cluster,
    run: ClusterCallRun,
    load: ClusterCallLoad,
    test: ClusterCallTest,
    times: tuple[int, float],
    spent: Spent,
    kill: _Kill | None,
) -> CallFacts:
    messages: dict[str, int | None] = dict.fromkeys(PURPOSES)
    if spent.messages is not None:
        messages = {name: spent.messages.get(purpose, 0) for name, purpose in PURPOSES.items()}
    began_us, elapsed_s = times
    return CallFacts(
        run=cluster.run,
        layout=cluster.layout.name,
        load=load.load,
        scenario=run.scenario,
        function=run.function,
        required=run.required,
        place=run.place,
        callers=run.callers,
        participants=run.participants,
        nodes=" ".join(participants_of(cluster.layout, run.participants)),
        began_us=began_us,
        elapsed_s=elapsed_s,
        entries=spent.entries,
        commands=spent.commands,
        **messages,
        sent_bytes=spent.sent_bytes,
        idle_messages_per_s=test.idle_messages_per_s,
        lagging=load.lagging,
        lag_ms=test.lag_ms if load.lagging else None,
        killed=None if kill is None else kill.killed,
        killed_us=None if kill is None else kill.killed_us,
    )
