"""Many writers at once on real nodes: each is confirmed once, in one order that all nodes see.

Under three quorums: Raft's own majority (nobody acknowledges anything), all cores, and all members
with replicants among them. Durations are printed and noted with the result, and judge nothing.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from raftkv_limbo.commands import Ack, Condition, Write
from raftkv_limbo.errors import RolledBack
from raftkv_limbo.refusals import ConditionFailed, ForeignOwner
from tests.plugins.raftkv_limbo.cluster import DEADLINE_S, LimboCluster, play

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

Noting = Callable[[str, object], None]

WRITERS = 256
ROUNDS = 8
QUORUMS: dict[str, dict[str, Any]] = {
    "majority": {},
    "all cores": {"quorum": "N"},
    "all members": {"quorum": "N", "quorum_over": "members"},
}


@pytest.fixture(params=list(QUORUMS))
def quorum(request: pytest.FixtureRequest) -> dict[str, Any]:
    return QUORUMS[request.param]


def shape(quorum: dict[str, Any]) -> dict[str, Any]:
    """Three cores, with two replicants where they count."""
    return {"replicants": 2 if "quorum_over" in quorum else 0, "entries_kept": 1_000, **quorum}


def test_256_writers(quorum: dict[str, Any], record_property: Noting) -> None:
    async def body(cluster: LimboCluster) -> None:
        limbo = cluster.limbo("core1")
        # (position, writer, round) in the order in which the callers were told
        told: list[tuple[int, int, int]] = []

        async def write(writer: int) -> None:
            for round_ in range(ROUNDS):
                value = b"%d/%d" % (writer, round_)
                done = await limbo.submit(
                    [Write("sync", b"own/%d" % writer, value), Write("sync", b"last", value)],
                    timeout_s=DEADLINE_S,
                )
                assert done.state == "confirmed"
                told.append((done.position, writer, round_))

        loop = asyncio.get_running_loop()
        began = loop.time()
        await asyncio.gather(*(write(writer) for writer in range(WRITERS)))
        duration_s = loop.time() - began
        total = WRITERS * ROUNDS
        print(
            f"{total} transactions of {WRITERS} writers, {quorum or 'majority'}: {duration_s:.2f} s"
        )
        record_property("duration_s", round(duration_s, 2))

        # Every one once, told in the order of the positions, which is that of the calls.
        positions = [position for position, _, _ in told]
        assert positions == list(range(1, total + 1))
        for writer in range(WRITERS):
            own = [round_ for _, who, round_ in told if who == writer]
            assert own == list(range(ROUNDS))
        await cluster.converge()
        state = cluster.state()
        assert (state.confirms, state.rollbacks, state.pending) == (total, 0, 0)
        _, last_writer, last_round = told[-1]
        for node in cluster.nodes:
            assert cluster.seats[node.name].confirmed == list(range(1, total + 1))
            for writer in range(WRITERS):
                assert cluster.row(node.name, b"own/%d" % writer) == b"%d/%d" % (writer, ROUNDS - 1)
            assert cluster.row(node.name, b"last") == b"%d/%d" % (last_writer, last_round)
        # Raft's own quorum needs no word; others need fewer than one word per transaction.
        if not quorum:
            assert cluster.acks() == 0
        else:
            assert 0 < cluster.acks() < total * len(cluster.nodes)

    play(body, **shape(quorum))


def test_256_writers_with_conditions_lose_no_update(quorum: dict[str, Any]) -> None:
    """They all count in one place; a condition is judged in the order of the queue."""

    async def body(cluster: LimboCluster) -> None:
        limbo = cluster.limbo("core1")
        await cluster.put("core1", b"count", b"0")
        failed: Counter[int] = Counter()

        async def count(writer: int) -> None:
            while True:
                row = await limbo.get("sync", b"count", view="pending")
                assert row is not None
                more = b"%d" % (int(row.value) + 1)
                try:
                    await limbo.submit(
                        [Write("sync", b"count", more)],
                        [Condition("sync", b"count", "position", None, row.position)],
                        timeout_s=DEADLINE_S,
                    )
                except ConditionFailed:
                    failed[writer] += 1
                else:
                    return

        await asyncio.gather(*(count(writer) for writer in range(64)))
        print(f"{sum(failed.values())} conditions failed on the way")
        await cluster.converge()
        for node in cluster.nodes:
            assert cluster.row(node.name, b"count") == b"64"
        assert cluster.state().rollbacks == 0

    play(body, **shape(quorum))


@pytest.mark.parametrize("seed", [7, 77])
def test_verdicts_are_the_same_everywhere_when_writes_and_rollbacks_and_promotions_mix(
    seed: int,
) -> None:
    """What callers were told is what every node has; a confirmed one is never undone."""
    print(f"seed {seed}")

    async def body(cluster: LimboCluster) -> None:
        rng = random.Random(seed)
        # What callers were told, of each position once.
        told: list[tuple[int, str]] = []
        stopping = False

        async def write(writer: int) -> None:
            number = 0
            while not stopping:
                number += 1
                name = cluster.state().owner
                space = "sync" if writer % 4 else "async"
                try:
                    done = await cluster.put(name, b"%d/%d" % (writer, number), space=space)
                    told.append((done.position, "confirmed"))
                except RolledBack as error:
                    told.append((error.position, "rolled back"))
                except ForeignOwner:
                    await asyncio.sleep(0)

        async def disturb() -> None:
            for round_ in range(30):
                name = rng.choice(["core1", "core2", "core3"])
                release = cluster.hold(Ack, rng.choice(["core1", "core2", "core3"]))
                await asyncio.sleep(rng.uniform(0.0, 0.03))
                limbo = cluster.limbo(name)
                if round_ % 2:
                    await limbo.promote(DEADLINE_S, rest="roll back")
                elif cluster.state().head:
                    await asyncio.gather(
                        limbo.rollback(cluster.state().head, "a test"), return_exceptions=True
                    )
                release()
                await asyncio.sleep(rng.uniform(0.0, 0.03))

        writing = [asyncio.ensure_future(write(writer)) for writer in range(32)]
        await disturb()
        stopping = True
        await asyncio.gather(*writing)
        await cluster.converge()
        fates = dict(told)
        assert len(fates) == len(told)
        kinds = Counter(fates.values())
        print(dict(kinds), f"term {cluster.state().term}")
        assert set(kinds) == {"confirmed", "rolled back"}
        positions = sorted(fates)
        assert cluster.fates_everywhere(*positions) == [fates[p] for p in positions]
        # Nobody else has got a position: all were told what became of theirs.
        assert positions == list(range(1, cluster.state().last + 1))

    play(body, quorum="N", rollbacks_kept=10_000)
