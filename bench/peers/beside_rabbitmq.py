"""RabbitMQ's quorum queues and raftkv's in turns: publications that survive, and who takes them.

Both have three members on loopback, and both acknowledge what a majority has synced to disk. There
is one queue on each side, with its leader where the clients are. One side is idle while the other
is measured; in every second round the order is turned round. The queue is emptied before each
measurement, and afterwards it must hold just what producers were told.

**Producers** have one batch of 64-byte messages outstanding each. RabbitMQ's are channels of a
process outside; a batch is confirmed message by message (publisher confirms), or by tx.commit
(`amqp_client.py`). raftkv's commit a TX with the batch: as tasks inside the leader's node, or in a
process outside, over its door, with a session and a request outstanding each (`door_client.py`).
Every pair is shown. They do not promise the same: a TX is there as a whole on every node or not at
all, and its outcome can be asked for later; of a batch with confirms, and of one with tx.commit,
any part may be there.

**Consumers** take what is in the queue and acknowledge in batches. RabbitMQ pushes deliveries, and
answers no acknowledgement; raftkv's are asked for, are noted in the log, and an acknowledgement is
answered when it is, too. Both have 100 messages at most, two batches of 100, and do not wait for
one acknowledgement before the next; raftkv's ask for one half while they acknowledge the other.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from bench.arguments import positive_int
from bench.asked import AskedProcess
from bench.embedding import Cores
from bench.peers import debian
from bench.peers.children import cpu_seconds
from bench.peers.figures import Comparison, Sample, lines
from bench.peers.peer import Peer, Step, numbers
from bench.peers.rabbitmq import RabbitMq
from bench.txqueue_asked import (
    ConsumeBatches,
    MakeQueue,
    ProduceBatches,
    PurgeQueue,
    QueueDepth,
    TxqueueTold,
)

__all__ = ["AGAINST", "RABBITMQ", "Plan", "measure"]

PEER: Final = "rabbitmq"
QUEUE: Final = "bench"
MEMBERS: Final = 3
VALUE_BYTES: Final = 64
WARM_UP_S: Final = 1.0
FILL_BATCH: Final = 100
PREFETCH: Final = 100
# The broker's count of a queue may come after its confirmations.
LOOKS: Final = 50
LOOK_S: Final = 0.1
FILL_PRODUCERS: Final = 16
FILL_TIMEOUT_S: Final = 120.0

BATCHES: Final = (1, 10, 100)


def confirms(batch: int) -> str:
    """RabbitMQ's load with publisher confirms."""
    return f"confirms of {batch}"


def commits(batch: int) -> str:
    """RabbitMQ's load with tx.commit."""
    return f"tx.commit of {batch}"


def inside(batch: int) -> str:
    """raftkv's load of producers in the leader."""
    return f"TX of {batch}, inside"


def door(batch: int) -> str:
    """raftkv's load of producers at the leader's door."""
    return f"TX of {batch}, door"


def acks(batch: int, where: str = "") -> str:
    """Consumers that acknowledge so many at once: RabbitMQ's, or raftkv's inside or at the door."""
    return f"consume, acks of {batch}{where and f', {where}'}"


class _Against(dict[str, tuple[str, ...]]):
    """RabbitMQ's loads beside each of raftkv's, for batches of any size."""

    def __init__(self, batches: Sequence[int]) -> None:
        super().__init__()
        for batch in batches:
            for ours in (inside(batch), door(batch)):
                self[ours] = (commits(batch), confirms(batch))
            for where in ("inside", "door"):
                self[acks(batch, where)] = (acks(batch),)


AGAINST: Final = _Against


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What to measure."""

    producers: Sequence[int] = (1, 16, 64)
    batches: Sequence[int] = BATCHES
    consumers: Sequence[int] = (1, 16)
    messages: int = 10_000
    seconds: float = 3
    rounds: int = 3

    @property
    def steps(self) -> int:
        """How many measurements there will be, and the two to warm up."""
        produced = 4 * len(self.producers) * len(self.batches)
        consumed = 3 * len(self.consumers) * len(self.batches)
        return 2 + self.rounds * (produced + consumed)


async def measure(
    plan: Plan, place: Path, peer: RabbitMq, cores: Cores, step: Step
) -> list[Sample]:
    """Run the plan. Raises `RabbitMqFailed`, `WorkerFailed`."""
    from bench.peers.amqp_client import AmqpSetup, AmqpTold, Declare
    from bench.peers.door_client import DoorSetup, DoorTold

    _, leader = await cores.leader()
    amqp = AskedProcess(
        "amqp", "bench.peers.amqp_client", AmqpSetup(peer.ports[0]), AmqpTold, place
    )
    outside = AskedProcess(
        "door", "bench.peers.door_client", DoorSetup(leader.endpoint), DoorTold, place
    )
    clients = (amqp, outside)
    try:
        for client in clients:
            await client.spawn()
            await client.answer()
        await amqp.ask(Declare(QUEUE, MEMBERS))
        turns = _Turns(plan, peer, cores, amqp, outside, step)
        await turns.warm_up()
        for number in range(plan.rounds):
            await turns.round(number)
        return turns.samples
    finally:
        await asyncio.gather(*(client.end() for client in clients))


class _Turns:
    def __init__(
        self, plan: Plan, peer: RabbitMq, cores: Cores, amqp: Any, outside: Any, step: Step
    ) -> None:
        self.samples: list[Sample] = []
        self._plan = plan
        self._peer = peer
        self._cores = cores
        self._amqp = amqp
        self._outside = outside
        self._step = step

    async def warm_up(self) -> None:
        """Let both come to speed; what is found is thrown away."""
        from bench.peers.amqp_client import Produce

        at_once = max(self._plan.producers)
        self._step("warming up rabbitmq")
        await self._amqp.ask(Produce(QUEUE, "confirms", 10, at_once, WARM_UP_S, VALUE_BYTES))
        self._step("warming up raftkv")
        leader, _ = await self._cores.leader()
        await leader.ask(MakeQueue(QUEUE))
        asked = ProduceBatches(QUEUE, 10, at_once, WARM_UP_S, VALUE_BYTES)
        await leader.ask(asked)
        await self._outside.ask(asked)

    async def round(self, number: int) -> None:
        turned = number % 2 == 1
        for batch in self._plan.batches:
            for at_once in self._plan.producers:
                sides: list[Callable[[int, int, int], Awaitable[None]]] = [
                    self._confirmed, self._committed, self._inside, self._at_door
                ]  # fmt: skip
                for side in reversed(sides) if turned else sides:
                    await side(number, batch, at_once)
            for at_once in self._plan.consumers:
                sides = [self._their_acks, self._acks_inside, self._acks_at_door]
                for side in reversed(sides) if turned else sides:
                    await side(number, batch, at_once)

    async def _confirmed(self, number: int, batch: int, at_once: int) -> None:
        await self._theirs(confirms(batch), "confirms", number, batch, at_once)

    async def _committed(self, number: int, batch: int, at_once: int) -> None:
        await self._theirs(commits(batch), "tx", number, batch, at_once)

    async def _theirs(self, load: str, way: Any, number: int, batch: int, at_once: int) -> None:
        from bench.peers.amqp_client import Depth, Produce, Purge

        self._step(f"{load}, {at_once} producers, rabbitmq")
        await self._amqp.ask(Purge(QUEUE))
        seconds = self._plan.seconds
        used = _Used(self._amqp.pid, self._peer.pids)
        told = await self._amqp.ask(Produce(QUEUE, way, batch, at_once, seconds, VALUE_BYTES))
        cpu = used.cores(told.seconds)
        depth = 0
        for _ in range(LOOKS):
            depth = (await self._amqp.ask(Depth(QUEUE))).messages
            if depth >= told.messages:
                break
            await asyncio.sleep(LOOK_S)
        self._add(
            load, PEER, number, at_once, told, failed=told.failed,
            lost=max(0, told.messages - depth), **cpu,
        )  # fmt: skip

    async def _inside(self, number: int, batch: int, at_once: int) -> None:
        leader, _ = await self._cores.leader()

        async def ask(asked: msgspec.Struct) -> TxqueueTold:
            return (await leader.ask(asked)).txqueue

        await self._ours(inside(batch), ask, None, number, batch, at_once)

    async def _at_door(self, number: int, batch: int, at_once: int) -> None:
        pid = self._outside.pid
        await self._ours(door(batch), self._outside.ask, pid, number, batch, at_once)

    async def _ours(
        self,
        load: str,
        ask: Callable[[msgspec.Struct], Awaitable[TxqueueTold]],
        client: int | None,
        number: int,
        batch: int,
        at_once: int,
    ) -> None:
        self._step(f"{load}, {at_once} producers, raftkv")
        leader, _ = await self._cores.leader()
        await leader.ask(PurgeQueue(QUEUE))
        used = _Used(client, list(self._cores.pids))
        told = await ask(ProduceBatches(QUEUE, batch, at_once, self._plan.seconds, VALUE_BYTES))
        cpu = used.cores(told.seconds)
        depth = (await leader.ask(QueueDepth(QUEUE))).txqueue.messages
        self._add(
            load, "raftkv", number, at_once, told, failed=sum(told.answers.values()),
            answers=told.answers, lost=max(0, told.messages - depth), **cpu,
        )  # fmt: skip
        await self._cores.settled()

    async def _their_acks(self, number: int, batch: int, at_once: int) -> None:
        from bench.peers.amqp_client import Consume, Produce, Purge

        load, messages = acks(batch), self._plan.messages
        self._step(f"{load}, {at_once} consumers, rabbitmq")
        await self._amqp.ask(Purge(QUEUE))
        await self._amqp.ask(
            Produce(
                QUEUE, "confirms", FILL_BATCH, FILL_PRODUCERS, FILL_TIMEOUT_S, VALUE_BYTES, messages
            )
        )
        used = _Used(self._amqp.pid, self._peer.pids)
        told = await self._amqp.ask(Consume(QUEUE, batch, at_once, messages, _prefetch(batch)))
        self._took(load, PEER, number, at_once, told, used)

    async def _acks_inside(self, number: int, batch: int, at_once: int) -> None:
        leader = await self._filled(acks(batch, "inside"), at_once)
        used = _Used(None, list(self._cores.pids))
        asked = self._consume(batch, at_once)
        told = (await leader.ask(asked)).txqueue
        self._took(acks(batch, "inside"), "raftkv", number, at_once, told, used)
        await self._cores.settled()

    async def _acks_at_door(self, number: int, batch: int, at_once: int) -> None:
        await self._filled(acks(batch, "door"), at_once)
        used = _Used(self._outside.pid, list(self._cores.pids))
        asked = self._consume(batch, at_once)
        told = await self._outside.ask(asked)
        self._took(acks(batch, "door"), "raftkv", number, at_once, told, used)
        await self._cores.settled()

    def _consume(self, batch: int, at_once: int) -> ConsumeBatches:
        return ConsumeBatches(QUEUE, batch, at_once, self._plan.messages, _prefetch(batch))

    async def _filled(self, load: str, at_once: int) -> Any:
        """The leader, whose queue holds enough."""
        self._step(f"{load}, {at_once} consumers, raftkv")
        leader, _ = await self._cores.leader()
        await leader.ask(PurgeQueue(QUEUE))
        await leader.ask(
            ProduceBatches(
                QUEUE, FILL_BATCH, FILL_PRODUCERS, FILL_TIMEOUT_S, VALUE_BYTES, self._plan.messages
            )
        )
        return leader

    def _took(
        self, load: str, side: str, number: int, at_once: int, told: Any, used: _Used
    ) -> None:
        self.samples.append(
            Sample(
                load=load, in_flight=at_once, side=side, round=number,
                per_s=round(told.messages / told.seconds, 1), **used.cores(told.seconds),
            )
        )  # fmt: skip

    def _add(self, load: str, side: str, number: int, at_once: int, told: Any, **more: Any) -> None:
        """The rate is of all messages until the last answer; latencies are of whole batches.

        A load ends with every producer's last batch. With many large ones outstanding that is a
        good part of the load: were it left out, who answers them late would seem slower than it is.
        """
        took_us = sorted(told.took_us)
        self.samples.append(
            Sample(
                load=load, in_flight=at_once, side=side, round=number,
                per_s=round(told.messages / told.seconds, 1),
                p50_ms=_quantile_ms(took_us, 0.5), p99_ms=_quantile_ms(took_us, 0.99),
                longest_ms=took_us[-1] / 1000 if took_us else None, **more,
            )
        )  # fmt: skip


def _prefetch(batch: int) -> int:
    """Two batches, so that one is on its way while the other is handled; or as many as is usual."""
    return max(PREFETCH, 2 * batch)


class _Used:
    """Processor time of a client, if there is one, and of all servers, from now on."""

    def __init__(self, client: int | None, servers: Sequence[int]) -> None:
        self._client = [] if client is None else [client]
        self._servers = servers
        self._before = cpu_seconds(self._client), cpu_seconds(servers)

    def cores(self, seconds: float) -> dict[str, Any]:
        """Cores used on average."""
        client = cpu_seconds(self._client) - self._before[0]
        server = cpu_seconds(self._servers) - self._before[1]
        return {
            "client_cpu": round(client / seconds, 2) if self._client else None,
            "server_cpu": round(server / seconds, 2),
        }


def _quantile_ms(in_order_us: Sequence[int], share: float) -> float | None:
    if not in_order_us:
        return None
    return in_order_us[min(len(in_order_us) - 1, int(len(in_order_us) * share))] / 1000


def _plan(given: argparse.Namespace) -> Plan:
    return Plan(
        producers=given.producers, batches=given.batches, consumers=given.consumers,
        messages=given.messages, seconds=given.seconds, rounds=given.rounds,
    )  # fmt: skip


async def _compare(
    given: argparse.Namespace, place: Path, step: Step, conditions: dict[str, Any]
) -> Comparison:
    """Start both, run the plan, end both."""
    if importlib.util.find_spec("pika") is None:
        raise debian.Missing("pika is not installed: pip install 'raftkv[bench]'")
    for name in (PEER, "raftkv"):
        (place / name).mkdir()
    plan = _plan(given)
    with RabbitMq(place / PEER, members=MEMBERS) as peer:
        async with Cores(place / "raftkv", txqueue=True) as cores:
            samples = await measure(plan, place, peer, cores, step)
        return Comparison(
            peer=PEER,
            peer_version=peer.version,
            conditions=conditions,
            lines=lines(samples, PEER, AGAINST(plan.batches)),
            samples=samples,
        )


_WHERE: Final = (
    "Both: three members on loopback, synced to disk on two of them before a batch is answered. "
    "rabbitmq: one quorum queue, clients in a process of their own (pika), on the node of its "
    "leader. raftkv: one queue, producers and consumers inside the leader's node, or in a process "
    "of their own at its door. Rates are of messages, latencies of batches."
)
_PROMISES: Final = (
    "A TX is there as a whole or not at all, on every node. A batch with confirms or tx.commit may "
    "be there in part; rabbitmq answers no acknowledgement of a consumer, raftkv does."
)


def _notes(found: Comparison) -> list[str]:
    notes = [_WHERE, _PROMISES]
    gone = [each for each in found.samples if each.lost]
    notes += [f"{each.side} lost {each.lost} messages of {each.load}." for each in gone]
    if not gone:
        notes.append("After each load the queue held every message that producers were told of.")
    for side, name in ((PEER, "rabbitmq's client"), ("raftkv", "raftkv's at the door")):
        used = [each.client_cpu for each in found.samples if each.side == side and each.client_cpu]
        if used:
            notes.append(f"{name} used {max(used):.2f} of a processor at most.")
    return notes


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--producers", type=numbers, default=[1, 16, 64], metavar="N,N",
        help="at once (default: 1,16,64)",
    )  # fmt: skip
    parser.add_argument(
        "--batches", type=numbers, default=list(BATCHES), metavar="N,N",
        help="messages of a batch (default: 1,10,100)",
    )  # fmt: skip
    parser.add_argument(
        "--consumers", type=numbers, default=[1, 16], metavar="N,N",
        help="at once (default: 1,16)",
    )  # fmt: skip
    parser.add_argument(
        "--messages", type=positive_int, default=10_000, metavar="N",
        help="that are consumed in a measurement (default: 10000)",
    )  # fmt: skip


RABBITMQ: Final = Peer(
    name=PEER,
    summary="Debian's rabbitmq-server 3.10: quorum queues, publisher confirms and tx.commit",
    add_arguments=_add_arguments,
    steps=lambda given: _plan(given).steps,
    compare=_compare,
    notes=_notes,
)
