"""Operators of a storm of regions: what people do to subscriptions, topics, regions and nodes.

They seek, delete and make anew, switch replication on and off, acknowledge for others, exclude
regions and let them return, forget them, change the mode, kill leaders. `finish` ends what they
have begun: all regions are active, everything is switched on, topics are as they were declared.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from raftkv.errors import Refused
from raftkv.testing.storm_worlds import EXCUSED

from .storm_programs import CALL_S, SUBS, Programs

if TYPE_CHECKING:
    from .storm import Seat, Storm

__all__ = ["Operators"]


class Operators(Programs):
    """See the module's text."""

    kind = "operator"

    def __init__(self, storm: Storm) -> None:
        super().__init__(storm)
        self._verbs: dict[str, tuple[int, Callable[[Seat, random.Random], Awaitable[Any]]]] = {
            "seek": (4, self._seek),
            "unsubscribe": (2, self._unsubscribe),
            "subscribe": (3, self._subscribe),
            "replicate": (3, self._replicate),
            "ack": (3, self._ack),
            "exclude": (3, self._exclude),
            "forget": (1, self._forget),
            "enable": (1, self._enable),
            "delete": (2, self._delete),
            "kill": (3, self._kill),
            "declare": (1, self._declare),
        }
        if storm.plan.mode == "changing":
            self._verbs["mode"] = (4, self._mode)

    @property
    def count(self) -> int:
        return self.plan.operators

    async def act(self, rng: random.Random, number: int) -> None:
        await asyncio.sleep(rng.uniform(0, 0.5))
        seat = self.storm.any_seat(rng)
        if seat is None:
            return
        names = list(self._verbs)
        name = rng.choices(names, [self._verbs[each][0] for each in names])[0]
        await self._verbs[name][1](seat, rng)
        self.marks[f"operator: {name}"] += 1

    # --- subscriptions ---

    async def _seek(self, seat: Seat, rng: random.Random) -> None:
        topic, sub, _ = rng.choice(SUBS)
        book = self.storm.ledger.book(seat.region, topic)
        where: Any = rng.choice(("earliest", "latest"))
        if book is not None and rng.random() < 0.6:
            where = rng.randint(0, book.next - 1)
        self.storm.ledger.sought.add((topic, sub))
        await self.at(seat, "seek", partial(seat.api.seek, topic, sub, where, timeout_s=CALL_S))

    async def _unsubscribe(self, seat: Seat, rng: random.Random) -> None:
        topic, sub, _ = rng.choice(SUBS)
        self.storm.ledger.sought.add((topic, sub))
        force = rng.random() < 0.7
        await self.at(
            seat,
            "unsubscribe",
            lambda: seat.api.unsubscribe(topic, sub, force=force, timeout_s=CALL_S),
        )

    async def _subscribe(self, seat: Seat, rng: random.Random) -> None:
        topic, sub, kind = rng.choice(SUBS)
        chosen: Any = rng.choice((kind, kind, "exclusive", "failover", "shared"))
        initial: Any = rng.choice(("earliest", "latest"))
        replicate = None if topic == "local" else rng.choice((None, True))
        await self.at(
            seat,
            "subscribe",
            lambda: seat.api.subscribe(
                topic, sub, kind=chosen, initial=initial, replicate=replicate, timeout_s=CALL_S
            ),
        )

    async def _replicate(self, seat: Seat, rng: random.Random) -> None:
        topic, sub, _ = rng.choice(SUBS)
        wanted = rng.random() < 0.6
        await self.at(
            seat,
            "replicate",
            lambda: seat.api.set_replicate(topic, sub, wanted, timeout_s=CALL_S),
        )

    async def _ack(self, seat: Seat, rng: random.Random) -> None:
        topic, sub, _ = rng.choice(SUBS)
        book = self.storm.ledger.book(seat.region, topic)
        if book is None or book.next <= book.first:
            return
        position = rng.randint(book.first, book.next - 1)
        if rng.random() < 0.5:
            await self.ack_to(seat, topic, sub, position)
            return
        positions = [position, rng.randint(book.first, book.next - 1)]
        self.storm.ledger.ask(seat.region, topic, sub, *positions)
        await self.at(seat, "ack", lambda: seat.api.ack(topic, sub, positions, timeout_s=CALL_S))

    async def ack_to(self, seat: Seat, topic: str, sub: str, position: int) -> None:
        """Skip all up to there."""
        self.storm.ledger.ask_to(seat.region, topic, sub, position)
        await self.at(
            seat, "ack_to", lambda: seat.api.ack_to(topic, sub, position, timeout_s=CALL_S)
        )

    # --- regions ---

    def _another(self, seat: Seat, rng: random.Random) -> str:
        return rng.choice(list(self.plan.known(seat.region)))

    async def _exclude(self, seat: Seat, rng: random.Random) -> None:
        """Excluded for a while."""
        other = self._another(seat, rng)
        await self.at(seat, "exclude", lambda: seat.api.exclude_region(other, timeout_s=CALL_S))
        await asyncio.sleep(rng.uniform(0.1, 1.5))
        again = self.storm.any_seat(rng, seat.region)
        if again is not None:
            await self.at(
                again, "include", lambda: again.api.include_region(other, timeout_s=CALL_S)
            )

    async def _forget(self, seat: Seat, rng: random.Random) -> None:
        """Excluded, forgotten, and added again."""
        other = self._another(seat, rng)
        for call in (seat.api.exclude_region, seat.api.remove_region):
            await self.at(seat, "forget", partial(call, other, timeout_s=CALL_S))
        await asyncio.sleep(rng.uniform(0, 0.3))
        await self._add(other, seat)

    async def _mode(self, seat: Seat, rng: random.Random) -> None:
        mode: Any = rng.choice(("vector", "snapshot"))
        for name in list(self.plan.regions):
            if rng.random() < 0.8 and (there := self.storm.any_seat(rng, name)) is not None:
                await self.at(there, "mode", partial(there.api.set_mode, mode, timeout_s=CALL_S))

    async def _enable(self, seat: Seat, rng: random.Random) -> None:
        for value in (False, True):
            await self.at(
                seat,
                "enable",
                partial(seat.host.set_setting, "enabled", value, timeout_s=CALL_S),
            )
            await asyncio.sleep(rng.uniform(0.05, 0.5))

    # --- topics, nodes ---

    async def _delete(self, seat: Seat, rng: random.Random) -> None:
        """The topic of one region, which is made anew."""
        await self.at(seat, "delete", lambda: seat.api.delete("local", timeout_s=CALL_S))
        await asyncio.sleep(rng.uniform(0, 0.2))
        await self.declare(seat, "local")

    async def _declare(self, seat: Seat, rng: random.Random) -> None:
        """As programs do at their start: with all limits, with none, or with other ones."""
        plan = rng.choice(self.plan.topics)
        how = rng.choice(("all", "none", "other", "changed"))
        if how == "all":
            await self.declare(seat, plan.name)
            return
        limits: dict[str, Any] = {}
        if how != "none":
            limits = {"backlog_bytes_max": plan.backlog_bytes_max + rng.choice((0, 1_000))}
        change = how == "changed"
        await self.at(
            seat,
            f"declare {plan.name}",
            lambda: seat.api.declare(plan.name, **limits, change=change, timeout_s=CALL_S),
        )

    async def declare(self, seat: Seat, name: str) -> None:
        """As the plan says."""
        plan = next(each for each in self.plan.topics if each.name == name)
        await self.at(
            seat,
            f"declare {name}",
            lambda: seat.api.declare(
                name,
                replicated=plan.replicated,
                compacted=plan.compacted,
                retention_s=plan.retention_s,
                retention_bytes=plan.retention_bytes,
                backlog_bytes_max=plan.backlog_bytes_max,
                change=True,
                timeout_s=CALL_S,
            ),
        )

    async def _kill(self, seat: Seat, rng: random.Random) -> None:
        """The leader of a region, which pulls and sweeps."""
        clusters = self.storm.clusters
        name = clusters.leader_of(seat.region)
        if name is not None and len(clusters.members[seat.region]) > 1:
            self.storm.world.crash(name, power_cut=rng.random() < 0.5)
            await asyncio.sleep(rng.uniform(0.1, 1.0))
            if not self.storm.world.host(name).is_up and seat.region not in clusters.dark:
                self.storm.world.restart(name)

    # --- the end ---

    async def finish(self) -> None:
        """All regions are active, and everything is switched on; again and again until it is."""
        rng = random.Random(f"{self.plan.seed}/finish")
        mode: Any = self.storm.final_mode
        for name in list(self.plan.regions):
            left: list[Callable[[Seat], Awaitable[Any]]] = [
                partial(self._set, "enabled", True),
                partial(self._set, "mode", mode),
                # Long enough for two rounds over the slowest wires.
                partial(self._set, "timeout_ms", 5_000),
            ]
            # An operator may have lowered a limit, which would refuse each publication of the end.
            left += [partial(self._declare_named, each.name) for each in self.plan.topics]
            left += [partial(self._add, other) for other in self.plan.known(name)]
            for topic, sub, _ in SUBS:
                if topic != "local":
                    left.append(partial(self._switch_on, topic, sub))
            await self._all(name, left, rng)

    async def _set(self, key: str, value: Any, seat: Seat) -> None:
        await self.at(seat, key, partial(seat.host.set_setting, key, value, timeout_s=CALL_S))

    async def _add(self, other: str, seat: Seat) -> None:
        fetches = self.plan.known(seat.region)[other]
        await self.at(
            seat, "add", lambda: seat.api.add_region(other, fetches=fetches, timeout_s=CALL_S)
        )

    async def begin(self) -> None:
        """Regions and topics, as the plan says."""
        rng = random.Random(f"{self.plan.seed}/begin")
        for name in list(self.plan.regions):
            left: list[Callable[[Seat], Awaitable[Any]]] = [
                partial(self._add, other) for other in self.plan.known(name)
            ]
            left += [partial(self._declare_named, each.name) for each in self.plan.topics]
            await self._all(name, left, rng)

    async def _declare_named(self, topic: str, seat: Seat) -> None:
        await self.declare(seat, topic)

    async def _all(
        self, region: str, left: list[Callable[[Seat], Awaitable[Any]]], rng: random.Random
    ) -> None:
        while left:
            seat = self.storm.any_seat(rng, region)
            if seat is not None:
                with contextlib.suppress(*EXCUSED):
                    await left[0](seat)
                    left.pop(0)
                    continue
            await asyncio.sleep(0.1)

    async def _switch_on(self, topic: str, sub: str, seat: Seat) -> None:
        call = partial(seat.api.set_replicate, topic, sub, True, timeout_s=CALL_S)
        await self._if_there(seat, "switch on", call)

    async def seek_back(self, seat: Seat, topic: str, sub: str) -> None:
        """Everything that is kept is wanted again."""
        self.storm.ledger.sought.add((topic, sub))
        call = partial(seat.api.seek, topic, sub, "earliest", timeout_s=CALL_S)
        await self._if_there(seat, "seek", call)

    async def _if_there(self, seat: Seat, what: str, call: Callable[[], Awaitable[Any]]) -> None:
        """Some are not there, and stay so."""
        try:
            await self.at(seat, what, call)
        except Refused as refusal:
            if type(refusal).__name__ not in ("UnknownSubscription", "UnknownTopic"):
                raise
