"""One load on a running cluster, from its first client to the audit. The coordinator's side.

A load with a registry has four parts: the clients play (warmup, load); everything that was under
way ends; replication comes to rest; every node's registry is compared with the truth that the
drivers gathered. Puts have only the first part.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from bench.control import Audit, CallLoad, Collect, Done, Flush, Play, Ran, State
from bench.layouts import HTTP_CALLER, Cluster, Layout, WorkerFailed
from bench.live import Tally
from bench.scenarios import Collected, Load
from bench.truth import Expectation, merged, without_discarded
from raftkv.plugin import Consistency

__all__ = [
    "CALLERS",
    "CallRun",
    "Result",
    "at_rest",
    "evenly",
    "leader_of",
    "node_of",
    "play",
    "replicated",
    "run_calls",
    "tally_of",
    "truth_of",
    "wait_for_leader",
]

LOOK_EVERY_S = 0.25
REST_TIMEOUT_S = 60.0
"""For clients under way to finish: longer than any time-out of theirs, with its retries."""

LEADER_TIMEOUT_S = 15.0

DIRTY = ("legacy", "session-off", "session-both")
"""Whoever writes into the old registry."""

LEGACY_REST_S = 0.5
"""The old registry cannot say whether a write is still spreading; this and four times the lag is
more than the two hops that a row takes at most."""


@dataclass(frozen=True)
class Result:
    """A load for the terminal: its tally over so many seconds."""

    layout: str
    scenario: str
    registry: str
    caller: str
    clients: int
    seconds: float
    tally: Tally


CALLERS = ("leader", "follower", "replicant", "http", "http_follower", "http_replicant")
"""Where callers of puts and gets may sit: inside a node of that kind, or outside, over HTTP."""


@dataclass(frozen=True)
class CallRun:
    """Puts, gets or both from one place; the last four as in `bench.control.CallLoad`."""

    caller: str
    in_flight: int
    seconds: float
    value_bytes: int
    scenario: str = "puts"
    put_every: int = 1
    consistency: Consistency = "linearizable"
    calls_max: int = 1_000_000


async def play(
    cluster: Cluster,
    load: Load,
    lag_ms: float,
    audit_clients_max: int,
    show: Callable[[str], None],
) -> Result:
    """One scenario with one registry. Raises WorkerFailed when a driver or node failed."""
    layout = cluster.layout
    title = f"{load.scenario} {load.registry}"
    await cluster.ask_all(layout.drivers, load, Done)
    await cluster.ask_all(layout.drivers, Play(), Done)
    began = time.monotonic()
    while (elapsed_s := time.monotonic() - began) < load.warmup_s + load.seconds:
        await asyncio.sleep(min(LOOK_EVERY_S, load.warmup_s + load.seconds - elapsed_s))
        ok = tally_of(await cluster.states(), layout.drivers).ok
        show(f"{title}: {ok:,} connects")
    show(f"{title}: coming to rest")
    await at_rest(cluster)
    await replicated(cluster, load.registry, lag_ms / 1000)
    show(f"{title}: auditing")
    collected = await cluster.ask_all(layout.drivers, Collect(final=True), Collected)
    expectations = evenly(truth_of(list(collected.values())), audit_clients_max)
    audit = Audit(load=load, expectations=tuple(expectations))
    await cluster.ask_all(layout.names, audit, Done)
    tally = tally_of(await cluster.states(), layout.drivers)
    await cluster.ask_all(layout.names, Flush(), Done)
    caller = "replicant" if layout.replicants else "core"
    clients = load.clients * len(layout.drivers)
    return Result(layout.name, load.scenario, load.registry, caller, clients, load.seconds, tally)


async def run_calls(cluster: Cluster, calls: CallRun, show: Callable[[str], None]) -> Result:
    """Calls from one place with so many in flight."""
    reads = calls.scenario if calls.put_every == 1 else f"{calls.scenario}, {calls.consistency}"
    show(f"{reads}, {calls.caller}, {calls.in_flight} in flight")
    leader, states = await wait_for_leader(cluster)
    over_http = calls.caller.startswith("http")
    serves = node_of(cluster.layout, calls.caller.removeprefix("http_"), leader)
    place = HTTP_CALLER if over_http else serves
    request = CallLoad(
        in_flight=calls.in_flight,
        seconds=calls.seconds,
        value_bytes=calls.value_bytes,
        scenario=calls.scenario,
        put_every=calls.put_every,
        consistency=calls.consistency,
        calls_max=calls.calls_max,
        endpoint=states[serves].endpoint if over_http else None,
        serves=serves if over_http else None,
        role=calls.caller if over_http else None,
    )
    ran = await cluster.ask(place, request, Ran, calls.seconds + 60)
    await cluster.ask(place, Flush(), Done)
    tally = Tally()
    tally.include(ran.outcomes, ran.buckets)
    return Result(
        cluster.layout.name, reads, "none", calls.caller, calls.in_flight, ran.elapsed_s, tally
    )


def node_of(layout: Layout, kind: str, leader: str) -> str:
    """The first follower or replicant if `kind` is one and the layout has it, else the leader."""
    names = {"follower": [name for name in layout.core_names if name != leader]}
    names["replicant"] = layout.replicant_names
    return next(iter(names.get(kind, ())), leader)


def leader_of(states: Mapping[str, State]) -> str | None:
    """The node that says it leads; None if none does, or more than one."""
    leaders = [name for name, state in states.items() if state.role == "leader"]
    return leaders[0] if len(leaders) == 1 else None


def truth_of(collected: Sequence[Collected]) -> list[Expectation]:
    """What the audit must find, from what all drivers saw."""
    races = [each.race for each in collected if each.race is not None]
    if races:
        return [merged(races)]
    discarded = frozenset(channel for each in collected for channel in each.discarded)
    return [
        without_discarded(expected, discarded)
        for each in collected
        for expected in each.expectations
    ]


def evenly(items: Sequence[Expectation], count_max: int) -> list[Expectation]:
    """At most so many of them, spread over the whole."""
    if len(items) <= count_max:
        return list(items)
    return [items[number * len(items) // count_max] for number in range(count_max)]


def tally_of(states: Mapping[str, State], drivers: Sequence[str]) -> Tally:
    """The connects of the load, of all drivers together."""
    tally = Tally()
    for driver in drivers:
        tally.include(states[driver].outcomes, states[driver].buckets)
    return tally


async def at_rest(cluster: Cluster, look_every_s: float = LOOK_EVERY_S / 5) -> None:
    """Until no client is under way, in no driver and on no way between two."""
    deadline = time.monotonic() + REST_TIMEOUT_S
    while True:
        states = await cluster.ask_all(cluster.layout.drivers, Collect(), Collected)
        for state in states.values():
            if state.faults:
                raise WorkerFailed("a client of the driver failed: " + "; ".join(state.faults[:3]))
        busy = sum(state.busy for state in states.values())
        travelling = sum(state.sent - state.received for state in states.values())
        if busy == 0 and travelling == 0:
            return
        if time.monotonic() > deadline:
            raise WorkerFailed(
                f"{busy} clients are still under way and {travelling} between drivers, "
                f"{REST_TIMEOUT_S:.0f} s after the load"
            )
        await asyncio.sleep(look_every_s)


async def replicated(cluster: Cluster, registry: str, lag_s: float) -> None:
    """Until every node has applied what the leader has committed, and the old registry spread."""
    if registry in DIRTY:
        await asyncio.sleep(LEGACY_REST_S + 4 * lag_s)
    leader, states = await wait_for_leader(cluster)
    target = states[leader].commit_index
    deadline = time.monotonic() + REST_TIMEOUT_S
    while (behind := [n for n, s in states.items() if s.applied_index < target]) != []:
        if time.monotonic() > deadline:
            raise WorkerFailed(
                f"{', '.join(behind)} did not apply index {target} within {REST_TIMEOUT_S:.0f} s"
            )
        await asyncio.sleep(LOOK_EVERY_S / 5)
        states = await cluster.states()
    # The last entry may still be on its way through a plugin's own hooks.
    await asyncio.sleep(lag_s)


async def wait_for_leader(cluster: Cluster) -> tuple[str, dict[str, State]]:
    """The leader's name, and what all nodes say. Raises WorkerFailed if there is none for long."""
    deadline = time.monotonic() + LEADER_TIMEOUT_S
    while True:
        states = await cluster.states()
        if (leader := leader_of(states)) is not None:
            return leader, states
        if time.monotonic() > deadline:
            raise WorkerFailed(f"the cluster had no leader for {LEADER_TIMEOUT_S:.0f} s")
        await asyncio.sleep(LOOK_EVERY_S)
