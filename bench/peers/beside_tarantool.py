"""Tarantool and raftkv's limbo in turns: transactions that wait for a quorum, from writers inside.

Both have three members, and both acknowledge nothing that is not synced to disk. A writer is a
fiber inside Tarantool's master, or a task inside the node that owns the limbo, which is Raft's
leader, too: one transaction outstanding, a write of one key of its own, of 64 bytes, until it is
confirmed. One side is idle while the other is measured; in every second round the order is turned
round.

**What stands beside what.** Quorum 3 of 3 is Tarantool's in its stable form, and the reference:
both of raftkv's quorums stand beside it, and are held against the aim. With a quorum of 2 of 3
Tarantool 2.6 hangs: some write waits for its time-out and is rolled back with all behind it,
although nothing is wrong with the replicas. That is shown beside raftkv's 2 of 3, and its rates
mean nothing; a new cluster is made for it in each round, so that what an earlier hang may have left
is not held against it.

In raftkv 2 of 3 is Raft's own majority: a transaction is confirmed by the entry that carries it,
without any acknowledgement. 3 of 3 is a quorum of the limbo: every node acknowledges in the log.

**Over the network** the writers are in a process of their own: on Tarantool's side fibers that
share a connection of net.box, as is usual there; on raftkv's side wrk, with a connection for each
writer, and requests in JSON. So this compares two ways to come in as much as what is behind the
door, and nothing is held against an aim but that nobody hangs.

**The loss of a member** is played last, for both quorums: one of three members is killed (SIGKILL),
writers write once each, with the same time-out, and the member comes back when all have an answer.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from bench import wrk
from bench.arguments import positive
from bench.embedded_node import Answer
from bench.embedding import Cores, Member
from bench.limbo_asked import Fates, Own, SeenHere, WriteOnce, WriteOwnKeys
from bench.peers import debian
from bench.peers.children import cpu_seconds
from bench.peers.debian import Program
from bench.peers.figures import Aim, Comparison, Loss, Sample, lines
from bench.peers.peer import Peer, Step, numbers
from bench.peers.tarantool import MASTER, MEMBERS, WITHOUT_ANSWER, Loaded, Tarantool

__all__ = ["AGAINST", "QUORUMS", "TARANTOOL", "Plan", "aim_of", "measure", "over_network"]

PEER: Final = "tarantool"
WARM_UP_S: Final = 1.0
KEYS: Final = 32
"""Of each writer: it comes back to the first one after so many."""

VALUE_BYTES: Final = 64
LOSS_WRITERS: Final = 16
FIRST_LOST_KEY: Final = 10_000_000
BACK_TIMEOUT_S: Final = 30.0

ALL: Final = "quorum 3 of 3"
MOST: Final = "quorum 2 of 3"
QUORUMS: Final[Mapping[str, int]] = {ALL: 3, MOST: 2}
EXPRESSIONS: Final[Mapping[str, str]] = {ALL: "N", MOST: "N / 2 + 1"}


def over_network(quorum: str) -> str:
    """The load of writers outside."""
    return f"{quorum}, network"


#: raftkv's load -> Tarantool's beside it.
AGAINST: Final = {
    MOST: (ALL, MOST),
    ALL: (ALL,),
    over_network(MOST): (over_network(ALL),),
    over_network(ALL): (over_network(ALL),),
}

HANG_MS: Final = 1000.0
"""Who waits so long hangs: half of Tarantool's time-out, hundreds of times what a write takes."""

TIMES: Final = {16: 1.0, 64: 1.2}
"""The aim: so many times the rate of Tarantool's quorum 3 of 3, by the number of writers."""


def aim_of(_load: str, beside: str, writers: int) -> Aim:
    """Nobody may ever hang; a rate is held against the stable quorum only."""
    times = TIMES.get(writers, 0.0) if beside == ALL else 0.0
    return Aim(times=times, longest_ms=HANG_MS)


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What to measure. `timeout_s`: Tarantool's for a quorum, and of raftkv's writers."""

    writers: Sequence[int] = (1, 16, 64, 256)
    seconds: float = 5
    rounds: int = 3
    timeout_s: float = 2.0
    network: bool = True
    loss: bool = True

    @property
    def steps(self) -> int:
        """How many measurements there will be, the two to warm up, and the losses of a member."""
        each = 2 * len(QUORUMS) + (1 + len(QUORUMS) if self.network else 0)
        return 2 + self.rounds * len(self.writers) * each + (4 if self.loss else 0)


async def measure(
    plan: Plan, place: Path, peer: Tarantool, cores: Cores, step: Step
) -> tuple[list[Sample], list[Loss]]:
    """Run the plan; `peer` has quorum 3 of 3. Raises `TarantoolFailed`, `WorkerFailed`."""
    turns = _Turns(plan, place, peer, cores, step)
    await turns.warm_up()
    for number in range(plan.rounds):
        await turns.round(number)
        if plan.network:
            await turns.network_round(number)
    losses = await turns.losses() if plan.loss else []
    return turns.samples, losses


class _Turns:
    def __init__(self, plan: Plan, place: Path, peer: Tarantool, cores: Cores, step: Step) -> None:
        self.samples: list[Sample] = []
        self._plan = plan
        self._place = place
        self._peer = peer
        self._cores = cores
        self._step = step
        self._wrk = debian.find("wrk") if plan.network else Program("wrk")

    async def warm_up(self) -> None:
        """Let both come to speed; what is found is thrown away."""
        writers = max(self._plan.writers)
        self._step("warming up tarantool")
        await self._loaded(self._peer, writers, WARM_UP_S)
        self._step("warming up raftkv")
        owner = await self._own(MOST)
        await owner.ask(self._asked(writers, WARM_UP_S))

    async def round(self, number: int) -> None:
        for quorum in QUORUMS:
            async with self._of(quorum) as peer:
                for writers in self._plan.writers:
                    if number % 2:
                        await self._ours(quorum, number, writers)
                    await self._theirs(quorum, number, writers, peer)
                    if not number % 2:
                        await self._ours(quorum, number, writers)

    async def network_round(self, number: int) -> None:
        """Writers outside: Tarantool with quorum 3 of 3, raftkv with both."""
        for writers in self._plan.writers:
            sides = [self._theirs_outside, *(self._ours_outside(each) for each in QUORUMS)]
            for side in sides if number % 2 == 0 else reversed(sides):
                await side(number, writers)

    async def _theirs_outside(self, number: int, writers: int) -> None:
        load = over_network(ALL)
        self._step(f"{load}, {writers} writers, tarantool")
        await asyncio.to_thread(self._peer.settle)
        before_s = cpu_seconds(self._peer.pids)
        found = await asyncio.to_thread(
            self._peer.load_over_network, writers=writers, seconds=self._plan.seconds, keys=KEYS,
            value_bytes=VALUE_BYTES,
        )  # fmt: skip
        used_s = cpu_seconds(self._peer.pids) - before_s
        self._add(
            load, PEER, number, writers, found.took_us, found.refused_us, found.late,
            answers={"confirmed": len(found.took_us), **found.problems}, used_s=used_s,
        )  # fmt: skip

    def _ours_outside(self, quorum: str) -> Callable[[int, int], Awaitable[None]]:
        async def measured(number: int, writers: int) -> None:
            load = over_network(quorum)
            self._step(f"{load}, {writers} writers, raftkv")
            await self._own(quorum)
            _, leader = await self._cores.leader()
            asked = wrk.Load(
                word="limbo", connections=writers, seconds=max(1, round(self._plan.seconds)),
                keys=KEYS * writers, value_bytes=VALUE_BYTES,
            )  # fmt: skip
            pids = self._cores.pids
            run = await asyncio.to_thread(wrk.run, self._wrk, leader.endpoint, asked, pids)
            self.samples.append(
                Sample(
                    load=load, in_flight=writers, side="raftkv", round=number,
                    per_s=round(run.per_s, 1), p50_ms=run.p50_ms, p99_ms=run.p99_ms,
                    longest_ms=run.max_ms, refused=run.refused, failed=run.failed,
                    client_cpu=run.client_cpu, server_cpu=run.server_cpu,
                )
            )  # fmt: skip
            await self._cores.settled()

        return measured

    async def losses(self) -> list[Loss]:
        """What writers see while one of three members is gone."""
        found = []
        for quorum in QUORUMS:
            self._step(f"{quorum}, a member is lost, tarantool")
            async with self._of(quorum) as peer:
                found.append(await self._their_loss(quorum, peer))
            self._step(f"{quorum}, a member is lost, raftkv")
            found.append(await self._our_loss(quorum))
        return found

    @contextlib.asynccontextmanager
    async def _of(self, quorum: str) -> AsyncIterator[Tarantool]:
        """Tarantool with this quorum: the one that runs all the time, or a new one."""
        if quorum == ALL:
            yield self._peer
            return
        with tempfile.TemporaryDirectory(dir=self._place) as place:
            new = Tarantool(Path(place), quorum=QUORUMS[quorum], timeout_s=self._plan.timeout_s)
            with new:
                await self._loaded(new, max(self._plan.writers), min(WARM_UP_S, 0.2))
                yield new

    async def _theirs(self, quorum: str, number: int, writers: int, peer: Tarantool) -> None:
        self._step(f"{quorum}, {writers} writers, tarantool")
        before_s = cpu_seconds(peer.pids)
        found = await self._loaded(peer, writers, self._plan.seconds)
        used_s = cpu_seconds(peer.pids) - before_s
        self._add(
            quorum, PEER, number, writers, found.took_us, found.refused_us, found.late,
            answers={"confirmed": len(found.took_us), **found.problems}, used_s=used_s,
        )  # fmt: skip

    async def _loaded(self, peer: Tarantool, writers: int, seconds: float) -> Loaded:
        await asyncio.to_thread(peer.settle)
        return await asyncio.to_thread(
            peer.load, writers=writers, seconds=seconds, keys=KEYS, value_bytes=VALUE_BYTES
        )

    async def _ours(self, quorum: str, number: int, writers: int) -> None:
        self._step(f"{quorum}, {writers} writers, raftkv")
        owner = await self._own(quorum)
        before_s = cpu_seconds(self._cores.pids)
        found = (await owner.ask(self._asked(writers, self._plan.seconds))).limbo
        used_s = cpu_seconds(self._cores.pids) - before_s
        self._add(
            quorum, "raftkv", number, writers, found.took_us, found.others_us, found.late,
            answers=found.answers, used_s=used_s,
        )  # fmt: skip
        await self._cores.settled()

    def _asked(self, writers: int, seconds: float) -> WriteOwnKeys:
        return WriteOwnKeys(writers, seconds, KEYS, VALUE_BYTES, self._plan.timeout_s)

    async def _own(self, quorum: str) -> Member:
        """The leader, as the owner of a limbo with this quorum."""
        leader, _ = await self._cores.leader()
        await leader.ask(Own(EXPRESSIONS[quorum]))
        return leader

    def _add(
        self,
        load: str,
        side: str,
        number: int,
        writers: int,
        took_us: list[int],
        others_us: list[int],
        late: int,
        *,
        answers: dict[str, int],
        used_s: float,
    ) -> None:
        """The rate is of what was confirmed within the time; the longest wait is anybody's."""
        took_us.sort()
        self.samples.append(
            Sample(
                load=load, in_flight=writers, side=side, round=number,
                per_s=round((len(took_us) - late) / self._plan.seconds, 1),
                p50_ms=_quantile_ms(took_us, 0.5), p99_ms=_quantile_ms(took_us, 0.99),
                longest_ms=max([*took_us, *others_us], default=0) / 1000,
                failed=len(others_us), answers=answers,
                server_cpu=round(used_s / self._plan.seconds, 2),
            )
        )  # fmt: skip

    async def _their_loss(self, quorum: str, peer: Tarantool) -> Loss:
        lost = MEMBERS
        keys: Any = {"writers": LOSS_WRITERS, "first": FIRST_LOST_KEY, "value": "new"}
        await asyncio.to_thread(peer.settle)
        peer.kill(lost)
        told = await asyncio.to_thread(peer.once, **keys)
        # From this thread: a process that is started dies with the thread that started it.
        peer.revive(lost)
        await asyncio.to_thread(peer.settle)
        there = {
            f"m{member}": await asyncio.to_thread(peer.seen, member, **keys)
            for member in range(MASTER, MEMBERS + 1)
        }
        # It decides before it answers: whatever was answered and not confirmed was rolled back.
        silent = told.problems.get(WITHOUT_ANSWER, 0)
        undone = LOSS_WRITERS - told.confirmed - silent
        answers = {"confirmed": told.confirmed, **told.problems}
        return Loss(
            side=PEER, quorum=quorum, writers=LOSS_WRITERS, timeout_ms=self._plan.timeout_s * 1000,
            answers=_positive(answers), shortest_ms=min(told.waits_us) / 1000,
            longest_ms=max(told.waits_us) / 1000, seen_meanwhile=told.seen_meanwhile,
            settled=_positive(
                {"confirmed": told.confirmed, "rolled back": undone, WITHOUT_ANSWER: silent}
            ),
            settled_ms=None, there=there,
        )  # fmt: skip

    async def _our_loss(self, quorum: str) -> Loss:
        owner = await self._own(quorum)
        lost = next(member for member in self._cores.members if member is not owner)
        name, timeout_s = f"lost-{QUORUMS[quorum]}", self._plan.timeout_s
        await lost.kill()
        told = (await owner.ask(WriteOnce(name, LOSS_WRITERS, timeout_s))).limbo
        began_s = time.monotonic()
        await lost.spawn()
        back, fates = await asyncio.gather(
            lost.answer(), owner.ask(Fates(tuple(told.positions), BACK_TIMEOUT_S))
        )
        assert isinstance(back, Answer)
        settled_ms = (time.monotonic() - began_s) * 1000 if told.positions else None
        settled = Counter(fates.limbo.answers)
        settled["confirmed"] += told.answers.get("confirmed", 0)
        await self._cores.caught_up()
        seen = SeenHere(name, LOSS_WRITERS)
        there = {each.name: (await each.ask(seen)).limbo.seen for each in self._cores.members}
        waits_us = [*told.took_us, *told.others_us]
        return Loss(
            side="raftkv", quorum=quorum, writers=LOSS_WRITERS, timeout_ms=timeout_s * 1000,
            answers=told.answers, shortest_ms=min(waits_us) / 1000,
            longest_ms=max(waits_us) / 1000, seen_meanwhile=told.seen_meanwhile,
            settled=_positive(settled), settled_ms=settled_ms, there=there,
        )  # fmt: skip


def _positive(counts: Mapping[str, int]) -> dict[str, int]:
    return {name: count for name, count in counts.items() if count}


def _quantile_ms(in_order_us: Sequence[int], share: float) -> float | None:
    if not in_order_us:
        return None
    return in_order_us[min(len(in_order_us) - 1, int(len(in_order_us) * share))] / 1000


def _plan(given: argparse.Namespace) -> Plan:
    return Plan(
        writers=given.writers,
        seconds=given.seconds,
        rounds=given.rounds,
        timeout_s=given.timeout_s,
        network=not given.no_network,
        loss=not given.no_loss,
    )


async def _compare(
    given: argparse.Namespace, place: Path, step: Step, conditions: dict[str, Any]
) -> Comparison:
    """Start both, run the plan, end both."""
    for name in (PEER, "raftkv"):
        (place / name).mkdir()
    plan = _plan(given)
    with Tarantool(place / PEER, quorum=QUORUMS[ALL], timeout_s=plan.timeout_s) as peer:
        async with Cores(place / "raftkv", limbo=True) as cores:
            samples, losses = await measure(plan, place, peer, cores, step)
        return Comparison(
            peer=PEER,
            peer_version=peer.version,
            conditions=conditions,
            lines=lines(samples, PEER, AGAINST, aim_of),
            samples=samples,
            losses=losses,
        )


_WHERE: Final = (
    "Both: three members, synced to disk before a write is acknowledged; writers inside the master "
    "or owner, each with one transaction of one key outstanding."
)


def _notes(found: Comparison) -> list[str]:
    judged = [line for line in found.lines if line.aim is not None]
    missed = sum(not line.met for line in judged)
    notes = [_WHERE, f"Aims: {len(judged) - missed} of {len(judged)} met."]
    loads = [*QUORUMS, *map(over_network, QUORUMS)]
    for side in (PEER, "raftkv"):
        for load in loads:
            chosen = [each for each in found.samples if (each.side, each.load) == (side, load)]
            if chosen:
                notes.append(_waits(side, load, chosen))
    return notes


def _waits(side: str, load: str, samples: Sequence[Sample]) -> str:
    """How often a load had somebody who hangs, and what became of the writes."""
    hung = sum((each.longest_ms or 0.0) >= HANG_MS for each in samples)
    answers: Counter[str] = Counter()
    for each in samples:
        answers.update(each.answers)
    told = "".join(f"; {count:,} {name}" for name, count in answers.items() if count)
    longest_ms = max(each.longest_ms or 0.0 for each in samples)
    return (
        f"{side}, {load}: a writer waited {HANG_MS / 1000:g} s or longer in {hung} of "
        f"{len(samples)} loads (longest {longest_ms:,.1f} ms){told}."
    )


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--writers", type=numbers, default=[1, 16, 64, 256], metavar="N,N",
        help="at once (default: 1,16,64,256)",
    )  # fmt: skip
    parser.add_argument(
        "--timeout-s", type=positive, default=2.0, metavar="S",
        help="Tarantool's for a quorum, and of raftkv's writers (default: 2)",
    )  # fmt: skip
    parser.add_argument("--no-network", action="store_true", help="without writers outside")
    parser.add_argument("--no-loss", action="store_true", help="without the loss of a member")


TARANTOOL: Final = Peer(
    name=PEER,
    summary="Debian's tarantool 2.6: transactions that wait for a quorum, by writers inside",
    add_arguments=_add_arguments,
    steps=lambda given: _plan(given).steps,
    compare=_compare,
    notes=_notes,
)
