"""What a node with the limbo is asked to do for `bench peers tarantool`, and how it does it.

The same as the writers inside Tarantool's master (`bench/peers/tarantool_node.lua`): a load in a
closed loop on few keys of each writer's own, and, for the loss of a member, one transaction of each
writer, all at once, of which readers see what they see.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import TYPE_CHECKING, Final

import msgspec

from bench.clock import OsClock
from bench.limbo import answer_of, write_until
from raftkv.errors import RaftkvError
from raftkv.state import SetSetting

if TYPE_CHECKING:
    from raftkv import Node
    from raftkv_limbo import LimboApi

__all__ = [
    "Fates",
    "LimboAsk",
    "LimboTold",
    "Own",
    "SeenHere",
    "WriteOnce",
    "WriteOwnKeys",
    "limbo_answer",
]

SPACE: Final = "bench"
_OWN_TIMEOUT_S: Final = 30.0


class Own(msgspec.Struct, frozen=True, tag="limbo-own"):
    """Make the space, set the quorum (an expression in N, over the cores), become the owner."""

    quorum: str


class WriteOwnKeys(msgspec.Struct, frozen=True, tag="limbo-write"):
    """A closed loop of so many writers, each on `keys` keys of its own."""

    writers: int
    seconds: float
    keys: int
    value_bytes: int
    timeout_s: float


class WriteOnce(msgspec.Struct, frozen=True, tag="limbo-once"):
    """One transaction of each writer, all at once, on keys whose names begin with `name`."""

    name: str
    writers: int
    timeout_s: float


class Fates(msgspec.Struct, frozen=True, tag="limbo-fates"):
    """Wait so long until each of these positions is decided, and say how."""

    positions: tuple[int, ...]
    timeout_s: float


class SeenHere(msgspec.Struct, frozen=True, tag="limbo-seen"):
    """How many of the keys of `WriteOnce` does a reader of this node see, confirmed?"""

    name: str
    writers: int


LimboAsk = Own | WriteOwnKeys | WriteOnce | Fates | SeenHere


class LimboTold(msgspec.Struct, frozen=True, kw_only=True):
    """The answer; each request fills what it asks for.

    `took_us`: of confirmed transactions; `others_us`: of all others. `late`: how many were
    confirmed after the time was up. `answers` counts what writers were told, `positions` are those
    of transactions that were not confirmed in time. `seen_meanwhile`: halfway through the time-out.
    """

    took_us: list[int] = []
    others_us: list[int] = []
    late: int = 0
    answers: dict[str, int] = {}
    positions: list[int] = []
    seen: int = 0
    seen_meanwhile: int = 0


async def limbo_answer(node: Node, limbo: LimboApi, asked: LimboAsk) -> LimboTold:
    """Do what is asked."""
    match asked:
        case Own(quorum):
            await _own(node, limbo, quorum)
            return LimboTold()
        case WriteOwnKeys():
            return await _load(limbo, asked)
        case WriteOnce():
            return await _once(limbo, asked)
        case Fates(positions, timeout_s):
            return LimboTold(answers=await _fates(limbo, positions, timeout_s))
        case SeenHere(name, writers):
            return LimboTold(seen=await _seen(limbo, name, writers))


async def _own(node: Node, limbo: LimboApi, quorum: str) -> None:
    await node.propose("core", SetSetting.of("limbo", "quorum", quorum), timeout_s=_OWN_TIMEOUT_S)
    if not any(space.name == SPACE for space in limbo.spaces()):
        await limbo.create_space(SPACE, sync=True)
    await limbo.promote(timeout_s=_OWN_TIMEOUT_S)


async def _load(limbo: LimboApi, asked: WriteOwnKeys) -> LimboTold:
    from raftkv_limbo import Write

    names = [b"%d" % number for number in range(asked.writers * asked.keys)]
    value, keys = b"v" * asked.value_bytes, asked.keys
    until_s = time.perf_counter() + asked.seconds
    took_us: list[int] = []
    others_us: list[int] = []
    answers: Counter[str] = Counter()
    late = 0

    def write(writer: int, turn: int) -> Write:
        return Write(SPACE, names[writer * keys + turn % keys], value)

    def note(
        _writer: int, _turn: int, began: float, ended: float, outcome: str, _position: int | None
    ) -> None:
        nonlocal late
        if outcome == "ok":
            took_us.append(round((ended - began) * 1e6))
            late += ended > until_s
        else:
            others_us.append(round((ended - began) * 1e6))
            answers[outcome] += 1

    writers = range(asked.writers)
    await write_until(limbo, writers, until_s, write, note, OsClock(), asked.timeout_s)
    answers["confirmed"] = len(took_us)
    return LimboTold(took_us=took_us, others_us=others_us, late=late, answers=dict(answers))


async def _once(limbo: LimboApi, asked: WriteOnce) -> LimboTold:
    from raftkv_limbo import Write

    took_us: list[int] = []
    others_us: list[int] = []
    positions: list[int] = []
    answers: Counter[str] = Counter()

    async def writer(number: int) -> None:
        began = time.perf_counter()
        write, told = Write(SPACE, _name(asked.name, number), b"new"), others_us
        try:
            await limbo.submit([write], wait="complete", timeout_s=asked.timeout_s)
        except RaftkvError as error:
            answers[answer_of(error).replace("_", " ")] += 1
            position = getattr(error, "position", None)
            positions.extend([] if position is None else [position])
        else:
            answers["confirmed"] += 1
            told = took_us
        told.append(round((time.perf_counter() - began) * 1e6))

    tasks = [asyncio.ensure_future(writer(number)) for number in range(asked.writers)]
    await asyncio.sleep(asked.timeout_s / 2)
    meanwhile = await _seen(limbo, asked.name, asked.writers)
    await asyncio.gather(*tasks)
    return LimboTold(
        took_us=took_us, others_us=others_us, answers=dict(answers), positions=positions,
        seen_meanwhile=meanwhile,
    )  # fmt: skip


async def _fates(limbo: LimboApi, positions: tuple[int, ...], timeout_s: float) -> dict[str, int]:
    counts: Counter[str] = Counter()

    async def fate(position: int) -> None:
        try:
            found: str = (await limbo.wait_verdict(position, timeout_s=timeout_s)).fate
        except RaftkvError as error:
            found = answer_of(error).replace("_", " ")
        counts[found] += 1

    await asyncio.gather(*(fate(position) for position in positions))
    return dict(counts)


async def _seen(limbo: LimboApi, name: str, writers: int) -> int:
    rows = [
        await limbo.get(SPACE, _name(name, number), view="confirmed") for number in range(writers)
    ]
    return sum(row is not None for row in rows)


def _name(name: str, number: int) -> bytes:
    return b"%s-%d" % (name.encode(), number)
