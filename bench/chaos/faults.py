"""What can go wrong: each kind of fault with its target, its undoing, and the proof that it struck.

A kind is an async context manager: entering does it, leaving undoes it. What it yields is an
`Injected`, whose `proof` is filled as soon as it is known that the fault did happen: a process
that the kernel says is dead or held, bytes that the proxy has held back, a system call that failed.
A fault without a proof has not been tested, and a run with a kind that never struck has failed.

Kinds are of two families, that of processes and disks and that of links; one of each may be at
work at one time, two of the same family never, so that each can undo what it has done.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field

from bench.chaos.cluster import ChaosCluster, ChaosError
from bench.chaos.files import Order
from bench.chaos.power import Loss

__all__ = ["KINDS", "LINK_KINDS", "PROCESS_KINDS", "Injected", "World"]

DISK_TIMEOUT_S = 10.0
"""A node whose disk fails must have stopped by then."""

STOPPED_TIMEOUT_S = 2.0


@dataclass
class Injected:
    """One fault at work. `findings` are violations that the fault itself has seen."""

    kind: str
    target: str
    proof: str = ""
    findings: list[str] = field(default_factory=list)


@dataclass
class World:
    """What faults act on. `loss` sums up what power cuts took."""

    cluster: ChaosCluster
    rng: random.Random
    loss: Loss = field(default_factory=lambda: Loss(0, 0, 0))

    async def leader(self) -> str:
        """The leader, or any core while there is none."""
        try:
            return await self.cluster.leader(1.0)
        except ChaosError:
            return self.core()

    def core(self) -> str:
        return self.rng.choice(self.cluster.layout.core_names)

    async def one_core(self) -> str:
        return await self.leader() if self.rng.random() < 0.5 else self.core()

    async def some(self) -> list[str]:
        """Whom to strike: the leader, one node, a majority of the cores, or all."""
        dice, cluster = self.rng.random(), self.cluster
        cores = cluster.layout.core_names
        if dice < 0.4:
            return [await self.leader()]
        if dice < 0.65:
            return [self.rng.choice(cluster.names)]
        if dice < 0.85:
            return sorted(self.rng.sample(cores, len(cores) // 2 + 1))
        return list(cluster.names)


Kind = Callable[[World], AbstractAsyncContextManager[Injected]]


# Processes ---------------------------------------------------------------------------------------


def _kill_proof(world: World, before: int, killed: list[str]) -> str:
    codes = {one.name: one.code for one in world.cluster.exits[before:]}
    dead = [name for name in killed if codes.get(name) == -signal.SIGKILL]
    return f"{len(dead)} killed" if dead else ""


@contextlib.asynccontextmanager
async def _kill(world: World) -> AsyncIterator[Injected]:
    """kill -9; what was written stays, as the kernel has it."""
    names = await world.some()
    before = len(world.cluster.exits)
    killed = await world.cluster.kill(names)
    yield Injected("kill", ", ".join(killed), _kill_proof(world, before, killed))
    await world.cluster.start(killed)


@contextlib.asynccontextmanager
async def _power(world: World) -> AsyncIterator[Injected]:
    """kill -9, and what was not synced is gone."""
    names = await world.some()
    before = len(world.cluster.exits)
    killed = await world.cluster.kill(names)
    loss = world.cluster.cut_power(killed, world.rng)
    world.loss += loss
    proof = _kill_proof(world, before, killed)
    yield Injected("power", ", ".join(killed), proof and f"{proof}, {loss.bytes} bytes lost")
    await world.cluster.start(killed)


@contextlib.asynccontextmanager
async def _restart(world: World) -> AsyncIterator[Injected]:
    """SIGTERM: the node stops cleanly, a leader hands over first."""
    name = await world.one_core()
    before = len(world.cluster.exits)
    await world.cluster.stop([name])
    codes = [one.code for one in world.cluster.exits[before:] if one.name == name]
    injected = Injected("restart", name, "ended cleanly" if codes == [0] else "")
    if codes and codes != [0]:
        injected.findings.append(f"{name} ended with {codes} on SIGTERM, not with 0")
    yield injected
    await world.cluster.start([name])


@contextlib.asynccontextmanager
async def _stop(world: World) -> AsyncIterator[Injected]:
    """SIGSTOP: the process is there, its connections too, and it does nothing."""
    cluster = world.cluster
    names = [name for name in await world.some() if name in cluster.running]
    for name in names:
        cluster.send_signal(name, signal.SIGSTOP)
    injected = Injected("stop", ", ".join(names))
    try:
        with contextlib.suppress(TimeoutError):  # then there is no proof
            async with asyncio.timeout(STOPPED_TIMEOUT_S):
                while not all(cluster.is_stopped(name) for name in names):
                    await asyncio.sleep(0.001)
                injected.proof = f"{len(names)} held" if names else ""
        yield injected
    finally:
        for name in names:
            cluster.send_signal(name, signal.SIGCONT)


# Disks -------------------------------------------------------------------------------------------


def _failing(kind: str, order: Order, *, loses_unsynced: bool) -> Kind:
    """A disk that refuses: the node must stop itself, and nothing else may happen to it."""

    @contextlib.asynccontextmanager
    async def fail(world: World) -> AsyncIterator[Injected]:
        cluster, name = world.cluster, await world.one_core()
        before = len(cluster.strikes(name))
        injected = Injected(kind, name)
        try:
            if name in cluster.running:
                cluster.order(name, order)
                code = await cluster.exited(name, DISK_TIMEOUT_S)
                struck = len(cluster.strikes(name)) - before
                if struck and cluster.fault_code(code):
                    injected.proof = f"{struck} failed, the node stopped itself"
                elif struck:
                    injected.findings.append(
                        f"{name} has not stopped itself after a failed {kind} (exit {code})"
                    )
            yield injected
        finally:
            cluster.order(name, None)
        if name not in cluster.running and loses_unsynced and world.rng.random() < 0.5:
            # After a failed sync the kernel may have dropped the pages.
            world.loss += cluster.cut_power([name], world.rng)
        await cluster.start([name])

    return fail


@contextlib.asynccontextmanager
async def _slow(world: World) -> AsyncIterator[Injected]:
    """Every sync takes long: from a busy disk to one that hangs beyond an election time-out."""
    cluster, name = world.cluster, await world.one_core()
    delay_s = world.rng.choice([0.03, 0.1, 0.3, 1.5])
    before = len(cluster.strikes(name))
    cluster.order(name, Order(fsync="slow", delay_s=delay_s))
    injected = Injected("slow", f"{name} by {delay_s * 1000:.0f} ms")
    try:
        yield injected
    finally:
        cluster.order(name, None)
        struck = len(cluster.strikes(name)) - before
        injected.proof = f"{struck} slow syncs" if struck else ""


# Links -------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def _links(world: World, injected: Injected) -> AsyncIterator[Injected]:
    """Undoes whatever was done to links; the proof is what the proxy has held, cut or delayed."""
    before = world.cluster.network.evidence()
    try:
        yield injected
    finally:
        met = world.cluster.network.evidence() - before
        injected.proof = f"{met} bytes or connections met it" if met > 0 else ""
        world.cluster.network.heal()


@contextlib.asynccontextmanager
async def _partition(world: World) -> AsyncIterator[Injected]:
    """A group of nodes apart from the others: cut or silent, both ways or one."""
    rng, cluster = world.rng, world.cluster
    apart = {await world.one_core()}
    apart |= {name for name in cluster.names if rng.random() < 0.2}
    if apart >= set(cluster.names):
        apart = {cluster.names[0]}
    others = [name for name in cluster.names if name not in apart]
    state = "cut" if rng.random() < 0.35 else "silent"
    both = rng.random() < 0.6
    ones = sorted(apart)
    if not both and rng.random() < 0.5:
        ones, others = others, ones
    how = f"{state}, {'both ways' if both else 'one way'}"
    target = f"{'+'.join(ones)} from {'+'.join(others)} ({how})"
    async with _links(world, Injected("partition", target)) as injected:
        cluster.network.separate(ones, others, "cut" if state == "cut" else "silent", both=both)
        yield injected


@contextlib.asynccontextmanager
async def _link(world: World) -> AsyncIterator[Injected]:
    """One link between two cores only, so that not everybody sees the same; or it flaps."""
    rng, network = world.rng, world.cluster.network
    one, other = rng.sample(world.cluster.layout.core_names, 2)
    if rng.random() < 0.6:  # between two followers there is little to hold back
        one = await world.leader()
        other = rng.choice([name for name in world.cluster.layout.core_names if name != one])
    flaps = rng.random() < 0.4
    target = f"{one} and {other} ({'flapping' if flaps else 'silent'})"

    async def flap() -> None:
        while True:
            network.separate([one], [other], "cut")
            await asyncio.sleep(0.1)
            network.separate([one], [other], "open")
            await asyncio.sleep(0.2)

    async with _links(world, Injected("link", target)) as injected:
        flapping = asyncio.create_task(flap()) if flaps else None
        if not flaps:
            network.separate([one], [other], "silent")
        try:
            yield injected
        finally:
            if flapping is not None:
                flapping.cancel()
                await asyncio.wait([flapping])


@contextlib.asynccontextmanager
async def _delay(world: World) -> AsyncIterator[Injected]:
    """A node far away, or all of them, or behind a thin line; one direction may differ."""
    rng, cluster = world.rng, world.cluster
    far = [await world.one_core()] if rng.random() < 0.7 else cluster.layout.core_names
    delay_s = rng.choice([0.005, 0.02, 0.1, 0.25])
    rate = rng.choice([0.0, 0.0, 100_000.0])
    back_s = delay_s if rng.random() < 0.5 else 0.0
    target = f"{'+'.join(far)} by {delay_s * 1000:.0f}/{back_s * 1000:.0f} ms"
    async with _links(world, Injected("delay", target)) as injected:
        for one in far:
            for other in cluster.names:
                if other != one:
                    cluster.network.slow_down(one, other, delay_s, rate)
                    cluster.network.slow_down(other, one, back_s, rate)
        yield injected


PROCESS_KINDS: dict[str, Kind] = {
    "kill": _kill,
    "power": _power,
    "restart": _restart,
    "stop": _stop,
    "fsync": _failing("fsync", Order(fsync="error"), loses_unsynced=True),
    "write": _failing("write", Order(write="error"), loses_unsynced=False),
    "full": _failing("full", Order(write="full"), loses_unsynced=False),
    "slow": _slow,
}

LINK_KINDS: dict[str, Kind] = {
    "partition": _partition,
    "link": _link,
    "delay": _delay,
}

KINDS: dict[str, Kind] = {**PROCESS_KINDS, **LINK_KINDS}
