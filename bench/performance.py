"""The seed's performance test: sessions opened by brokers, with the registry on, off and both.

On 3 cores and 3 replicants (any layout with replicants), five scenarios in each of the three modes,
one right after the other, so that what stands side by side was measured side by side:

    initial, reconnect, same_client   the load alone
    lagging                           one replicant applies later what the others write: entries of
                                      the log, and what the old registry spreads to it. Its calls to
                                      other nodes and theirs to it are as fast as ever.
    leader_dies                       the leader's process is killed (SIGKILL) a third of the way
                                      through; it comes back when the load is over

The coordinator switches the replicated mode between two loads, and lets all sessions end first, so
that each load begins with an empty registry. Besides the rows of the log, each load leaves a file
of facts (`bench.facts`): the entries and messages that all of it cost, and what was done to it.

Messages are counted in the processes that send them. A killed process takes its count along, so
`leader_dies` has none.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from bench.clock import OsClock
from bench.control import Audit, Collect, Done, Flush, HangUp, Lag, Play, State, SwitchMode
from bench.coordinator import (
    LOOK_EVERY_S,
    Result,
    at_rest,
    evenly,
    replicated,
    tally_of,
    truth_of,
    wait_for_leader,
)
from bench.facts import PURPOSES, Facts, write_facts
from bench.layouts import Cluster
from bench.scenarios import Collected, Load
from bench.schema import SESSION_MODES

__all__ = ["KILL_AT_SHARE", "SessionTest", "Spent", "play_sessions", "spent_between"]

IDLE_S = 2.0
"""Long enough for a dozen heartbeats and several status messages of each node."""

SETTLE_TIMEOUT_S = 20.0
"""A node deletes the claims that lost a race one after the other: a sync of the disk for each."""

KILL_AT_SHARE = 1 / 3
"""Of the load: the rest is to show how the clients go on."""


@dataclass
class SessionTest:
    """What the loads of one cluster have in common. `idle_messages_per_s` is measured once."""

    out: Path
    lag_ms: float
    audit_clients_max: int
    show: Callable[[str], None]
    idle_messages_per_s: float | None = None


class Spent(msgspec.Struct, frozen=True):
    """What a load cost all nodes together. Messages are None where a process took them along."""

    entries: int
    commands: int
    messages: Mapping[str, int] | None
    sent_bytes: int | None
    handovers_lost: int
    hollow: int


@dataclass(frozen=True)
class _Times:
    """See `Facts`."""

    began_us: int
    elapsed_s: float
    switch_s: float


@dataclass
class _Strike:
    """When to kill the leader, and what came of it."""

    due_s: float
    killed: str | None = None
    killed_us: int | None = None


async def play_sessions(cluster: Cluster, load: Load, test: SessionTest) -> Result:
    """One scenario in one mode, audited. Raises WorkerFailed when a driver or node failed."""
    drivers, title = cluster.layout.drivers, f"{load.scenario} {load.registry}"
    test.show(f"{title}: switching to {SESSION_MODES[load.registry]}")
    switch_s = await _switch(cluster, load.registry)
    if test.idle_messages_per_s is None:
        test.idle_messages_per_s = await _idle(cluster)
    lag_s = test.lag_ms / 1000 if load.lagging else 0.0
    if load.lagging:
        await cluster.ask(load.lagging, Lag(lag_s), Done)
    before, began, began_us = await cluster.states(), time.monotonic(), OsClock().wall_us()
    strike = _strike_for(load)
    await _play(cluster, load, title, test.show, strike)
    test.show(f"{title}: coming to rest")
    await at_rest(cluster)
    if load.lagging:
        await cluster.ask(load.lagging, Lag(0.0), Done)
    if strike is not None and strike.killed is not None:
        await cluster.revive(strike.killed)
    await _settled(cluster)
    await replicated(cluster, load.registry, lag_s)
    elapsed_s, after = time.monotonic() - began, await cluster.states()
    test.show(f"{title}: auditing")
    await _audit(cluster, load, test.audit_clients_max)
    tally = tally_of(await cluster.states(), drivers)
    times = _Times(began_us, elapsed_s, switch_s)
    spent = spent_between(before, after, strike.killed if strike else None)
    write_facts(test.out, _facts(cluster, load, test, times, spent, strike))
    test.show(f"{title}: sessions end")
    await cluster.ask_all(cluster.layout.names, HangUp(), Done)
    await _settled(cluster)
    await replicated(cluster, load.registry, 0.0)
    await cluster.ask_all(cluster.layout.names, Flush(), Done)
    clients = load.clients * len(drivers)
    return Result(
        cluster.layout.name, load.scenario, load.registry, "replicant", clients, load.seconds, tally
    )


async def _switch(cluster: Cluster, registry: str) -> float:
    """How long it took until every node works in the mode, by its own copy."""
    began = time.monotonic()
    leader, _ = await wait_for_leader(cluster)
    await cluster.ask(leader, SwitchMode(SESSION_MODES[registry]), Done)
    await replicated(cluster, "", 0.0)
    return time.monotonic() - began


async def _settled(cluster: Cluster) -> None:
    """Until no node has rows to delete behind its clients' backs, or for so long.

    They belong to the costs of this load, not to the next one. What is left then, an audit finds.
    """
    deadline = time.monotonic() + SETTLE_TIMEOUT_S
    while any(state.in_doubt for state in (await cluster.states()).values()):
        if time.monotonic() > deadline:
            return
        await asyncio.sleep(LOOK_EVERY_S)


async def _idle(cluster: Cluster) -> float:
    """Messages per second of a cluster that nobody asks for anything."""
    before = _messages(await cluster.states())
    began = time.monotonic()
    await asyncio.sleep(IDLE_S)
    after = _messages(await cluster.states())
    return (sum(after.values()) - sum(before.values())) / (time.monotonic() - began)


def _strike_for(load: Load) -> _Strike | None:
    if load.scenario != "leader_dies":
        return None
    return _Strike(load.warmup_s + load.seconds * KILL_AT_SHARE)


async def _play(
    cluster: Cluster,
    load: Load,
    title: str,
    show: Callable[[str], None],
    strike: _Strike | None,
) -> None:
    drivers = cluster.layout.drivers
    await cluster.ask_all(drivers, load, Done)
    await cluster.ask_all(drivers, Play(), Done)
    began, ends_s = time.monotonic(), load.warmup_s + load.seconds
    while (elapsed_s := time.monotonic() - began) < ends_s:
        until_s = ends_s
        if strike is not None and strike.killed is None:
            until_s = min(ends_s, strike.due_s)
            if elapsed_s >= strike.due_s:
                await _kill_leader(cluster, strike)
                continue
        await asyncio.sleep(max(0.0, min(LOOK_EVERY_S, until_s - elapsed_s)))
        ok = tally_of(await cluster.states(), drivers).ok
        show(f"{title}: {ok:,} connects")
    if strike is not None and strike.killed is None:
        await _kill_leader(cluster, strike)  # the machine stood still for so long


async def _kill_leader(cluster: Cluster, strike: _Strike) -> None:
    leader, _ = await wait_for_leader(cluster)
    strike.killed, strike.killed_us = leader, OsClock().wall_us()
    await cluster.kill(leader)


async def _audit(cluster: Cluster, load: Load, clients_max: int) -> None:
    collected = await cluster.ask_all(cluster.layout.drivers, Collect(final=True), Collected)
    expectations = evenly(truth_of(list(collected.values())), clients_max)
    audit = Audit(load=load, expectations=tuple(expectations))
    await cluster.ask_all(cluster.layout.names, audit, Done)


def spent_between(
    before: Mapping[str, State], after: Mapping[str, State], killed: str | None = None
) -> Spent:
    """What the nodes did from one look to the other. A process that was killed began anew."""
    kept = [name for name in before if name in after and name != killed]
    entries = max(s.commit_index for s in after.values()) - max(
        s.commit_index for s in before.values()
    )
    # Every node applies every command, but for one that was given a snapshot instead.
    commands = max(after[name].commands_applied - before[name].commands_applied for name in kept)
    whole = len(kept) == len(after)
    sent = {
        purpose: count - _messages(before).get(purpose, 0)
        for purpose, count in _messages(after).items()
    }
    return Spent(
        entries,
        commands,
        sent if whole else None,
        sum(after[name].sent_bytes - before[name].sent_bytes for name in kept) if whole else None,
        sum(after[name].handovers_lost - before[name].handovers_lost for name in kept),
        sum(after[name].hollow - before[name].hollow for name in kept),
    )


def _messages(states: Mapping[str, State]) -> dict[str, int]:
    sums: dict[str, int] = {}
    for state in states.values():
        for purpose, count in state.messages.items():
            sums[purpose] = sums.get(purpose, 0) + count
    return sums


def _facts(
    cluster: Cluster,
    load: Load,
    test: SessionTest,
    times: _Times,
    spent: Spent,
    strike: _Strike | None,
) -> Facts:
    messages: dict[str, int | None] = dict.fromkeys(PURPOSES)
    if spent.messages is not None:
        messages = {name: spent.messages.get(purpose, 0) for name, purpose in PURPOSES.items()}
    return Facts(
        run=cluster.run,
        layout=cluster.layout.name,
        scenario=load.scenario,
        registry=load.registry,
        clients=load.clients * len(cluster.layout.drivers),
        began_us=times.began_us,
        elapsed_s=times.elapsed_s,
        switch_s=times.switch_s,
        entries=spent.entries,
        commands=spent.commands,
        **messages,
        sent_bytes=spent.sent_bytes,
        idle_messages_per_s=test.idle_messages_per_s,
        handovers_lost=spent.handovers_lost,
        # Clients that race for one id may be faster than the message of a session.
        hollow=None if load.scenario == "same_client" else spent.hollow,
        lagging=load.lagging,
        lag_ms=test.lag_ms if load.lagging else None,
        killed=None if strike is None else strike.killed,
        killed_us=None if strike is None else strike.killed_us,
    )
