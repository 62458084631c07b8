"""Who owns the queue in a storm of the limbo, and what operators do besides: both through any node.

Promoters promote and demote, one node and now and then several at once, as people and programs do
who do not know of each other. Operators change the quorum and the limits, roll back what is
pending, make, alter and drop spaces, look and flush: mostly what fits the moment, sometimes what
does not. What they are refused or not answered, they leave.

In the end (`settle`) they give the healed cluster a quorum that it can have, and one owner.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from raftkv.errors import NotApplied, OutcomeUnknown, Refused
from raftkv.testing.storm_worlds import EXCUSED
from raftkv_limbo.commands import (
    Ack,
    AlterFenced,
    AlterSpace,
    Demote,
    DropFenced,
    DropSpace,
    Promote,
    RollBack,
    Submit,
    Sweep,
    Transaction,
    Veto,
    Write,
)
from raftkv_limbo.promoting import Rest

from .storm_plan import KEYS, SPACES, VALIDATORS, ZONES
from .storm_quorum import QUORUMS, Basis, nodes_needed

if TYPE_CHECKING:
    from .storm import Seat, Storm

__all__ = ["Operators"]

# How long one verb may take.
VERB_S = 3.0
# Between two tries in the end.
AGAIN_S = 0.2
# A node whose life is over owns nothing that anybody could use: somebody notices after this time.
NOTICED_S = 0.3
SETTLE_S = 8.0
EXTRA = "extra"
REASON = "an operator's wish"

RESTS: tuple[Rest, ...] = ("wait", "wait", "roll back")

Work = Callable[[], Awaitable[Any]]


class Operators:
    """Promoters and operators of one run."""

    def __init__(self, storm: Storm) -> None:
        self._storm = storm
        self._world = storm.world
        self._plan = storm.plan
        self._marks = storm.marks
        self._rng = random.Random(f"{storm.plan.seed}/operators")
        self.running = False

    def start(self) -> None:
        self.running = True
        self._world.spawn(self._found(), "founder")
        self._world.spawn(self._promote_and_demote(), "promoters")
        if self._plan.verbs:
            self._world.spawn(self._operate(), "operators")

    def stop(self) -> None:
        """Nothing more is done."""
        self.running = False

    # --- one deed ---

    async def _try(self, seat: Seat, what: str, work: Work) -> Any:
        """Do it on the node; the answer, or the error that it was refused with."""

        async def bounded() -> Any:
            async with asyncio.timeout(2 * SETTLE_S):
                return await work()

        self._world.note(seat.name, f"operator: {what}")
        if not self._storm.is_seated(seat):
            return None
        try:
            done = await self._world.call(seat.name, bounded())
        except (*EXCUSED, TimeoutError) as error:
            self._world.note(seat.name, f"operator: {what}: {type(error).__name__}")
            return error
        return done

    async def _found(self) -> None:
        """Make the spaces, as soon as there is a cluster."""
        while missing := [name for name in SPACES if name not in self._storm.log.ledger.spaces]:
            seat = self._storm.any_seat(self._rng)
            if seat is not None:
                name = missing[0]
                made = partial(seat.api.create_space, name, sync=SPACES[name])
                await self._try(seat, f"create {name}", made)
            await asyncio.sleep(0.01)
            if not self.running:
                return

    # --- owners ---

    async def _promote_and_demote(self) -> None:
        rng, every_s = self._rng, self._plan.promote_every_s
        wait_s = NOTICED_S
        while True:
            await asyncio.sleep(wait_s)
            if not self.running:
                return
            owner = self._storm.owner_seat()
            wait_s = rng.expovariate(1 / every_s)
            if owner is None:
                wait_s = min(wait_s, NOTICED_S)
            for _ in range(rng.choice((1, 1, 1, 2, 3))):
                seat = self._storm.any_seat(rng)
                if seat is not None:
                    self._world.spawn(self._change(seat, owner), "promoter")

    async def _change(self, seat: Seat, owner: Seat | None) -> None:
        rng, marks = self._rng, self._marks
        demotes = owner is not None and rng.random() < 0.2
        if demotes and owner is not None and rng.random() < 0.8:
            seat = owner
        rest: Rest = rng.choice(RESTS)
        timeout_s = rng.choice((0.2, 1.0, VERB_S))
        api = seat.api
        verb = api.demote if demotes else api.promote
        name = "demote" if demotes else "promote"
        done = await self._try(
            seat, f"{name}, rest {rest}", lambda: verb(timeout_s=timeout_s, rest=rest)
        )
        if isinstance(done, Exception):
            marks[f"promotion refused {type(done).__name__}"] += isinstance(done, Refused)
            marks["promote timed out"] += type(done).__name__ == "PromoteTimedOut"
            marks["promote in another promote"] += type(done).__name__ == "InAnotherPromote"
            if not isinstance(done, Refused | NotApplied | OutcomeUnknown):
                marks[f"promotion raised {type(done).__name__}"] += 1
        elif done is not None:
            who = self._storm.log.ledger.terms.get(done.term, ("nobody yet", 0))[0]
            if who != ("" if demotes else seat.name):
                text = f"{name} on {seat.name} is answered {done}, and {who!r} owns that term"
                self._storm.violated("one owner a term", [text])
            marks["promoted again"] += seat is owner and not demotes

    # --- operators ---

    async def _operate(self) -> None:
        rng, verbs = self._rng, self._plan.verbs
        while True:
            await asyncio.sleep(rng.expovariate(1 / self._plan.operate_every_s))
            if not self.running:
                return
            seat = self._storm.any_seat(rng)
            if seat is None:
                continue
            verb = rng.choices(list(verbs), list(verbs.values()))[0]
            await self._try(seat, verb, self._verb(seat, verb))

    def _verb(self, seat: Seat, verb: str) -> Work:
        api, host, rng = seat.api, seat.host, self._rng
        ledger = self._storm.log.ledger
        space = rng.choice([*ledger.spaces, EXTRA])
        match verb:
            case "quorum":
                return lambda: _set(host, "quorum", rng.choice(list(QUORUMS)))
            case "over":
                return lambda: _set(host, "quorum_over", rng.choice(("cores", "members")))
            case "zones":
                zones = {} if rng.random() < 0.5 else {rng.choice(ZONES): rng.choice((1, 2))}
                return lambda: _set(host, "quorum_zones", zones)
            case "validators":
                named = {name: rng.choice((1, 1, 2)) for name in self._plan.validators}
                chosen = {name: n for name, n in named.items() if rng.random() < 0.4}
                return lambda: _set(host, "quorum_validators", chosen)
            case "limits":
                key, value = rng.choice(
                    (
                        ("queue_entries_max", rng.choice((1, 4, 1000))),
                        ("queue_bytes_max", rng.choice((1, 100, 1 << 20))),
                        ("queue_writes_max", rng.choice((1, 5, 1000))),
                        ("rollback_after_ms", rng.choice((0, 0, 300))),
                    )
                )
                return lambda: _set(host, key, value)
            case "roll back":
                waiting = ledger.queue or [ledger.last]
                position = max(1, rng.choice(waiting) + rng.choice((0, 0, 0, -2, 2)))
                return lambda: api.rollback(position, REASON, timeout_s=VERB_S)
            case "create":
                name = rng.choice([EXTRA, *sorted(SPACES.keys() - ledger.spaces.keys())])
                return lambda: api.create_space(name, sync=SPACES.get(name, rng.random() < 0.5))
            case "drop":
                owner = self._owner_or(seat)
                return lambda: owner.api.drop_space(space, timeout_s=VERB_S)
            case "alter":
                owner = self._owner_or(seat)
                return lambda: owner.api.alter_space(space, sync=rng.random() < 0.5)
            case "leader promotes":
                return lambda: _set(host, "leader_promotes", rng.random() < 0.5)
            case "flush":
                return lambda: api.flush(timeout_s=VERB_S)
            case "raw":
                command = self._raw()
                return lambda: host.propose(command, timeout_s=VERB_S)
            case _:
                return lambda: self._look(seat)

    def _owner_or(self, seat: Seat) -> Seat:
        """Who may change a synchronous space, most of the time."""
        owner = self._storm.owner_seat()
        return owner if owner is not None and self._rng.random() < 0.8 else seat

    def _raw(self) -> Any:
        """A command that no node of ours would send now: the log must judge it all the same."""
        rng, ledger = self._rng, self._storm.log.ledger
        term = max(0, ledger.term - rng.choice((0, 0, 1)))
        position = rng.randint(0, ledger.last + 2)
        write = Write(rng.choice([*SPACES, EXTRA]), KEYS[0], b"raw")
        return rng.choice(
            (
                Promote(term, position),
                Promote(term, ledger.last),
                Demote(term, position),
                RollBack(position, term, REASON),
                Submit((Transaction((write,)), Transaction((write, write))), term),
                Submit((), term),
                Ack(position),
                Veto(position, rng.choice(VALIDATORS), REASON),
                Sweep(1),
                DropFenced(EXTRA, term),
                AlterFenced(EXTRA, rng.random() < 0.5, term),
                DropSpace(EXTRA),
                AlterSpace(EXTRA, False),
            )
        )

    async def _look(self, seat: Seat) -> None:
        """Whatever these show, they must not fail; and what they say of verdicts is true."""
        api, rng, ledger = seat.api, self._rng, self._storm.log.ledger
        queue = api.status().queue
        if queue.age_ms and not queue.len:
            self._storm.violated("status is true", [f"{seat.name} shows {queue}"])
        api.spaces()
        if not ledger.last:
            return
        position = ledger.positions[rng.randint(1, ledger.last)]
        told = api.verdict(position.number)
        behind = told.fate in ("pending", "unknown", "forgotten")
        if told.fate != position.fate and not behind:
            text = f"{seat.name} says {told} of {position}"
            self._storm.violated("one verdict for each position", [text])

    # --- the end ---

    async def settle(self) -> None:
        """A quorum that can be had, the spaces, and one owner; each until it is done."""
        rng = self._rng
        wanted: dict[str, Any] = {
            "leader_promotes": False,
            "rollback_after_ms": 0,
            "quorum_zones": {},
            "quorum_validators": dict.fromkeys(self._plan.validators, 1),
            "quorum_over": rng.choice(("cores", "members")),
            "transaction_writes_max": 128,
        }
        for key, value in wanted.items():
            await self._until_done(f"{key} = {value}", partial(_set_on, key, value))
        quorums = ["N", "max(2, N - 1)", "N / 2 + 1"]
        rng.shuffle(quorums)
        possible = partial(self._set_possible, [*quorums, "1"])
        await self._until_done("a quorum that can be had", possible)
        await self._until_done("promote", self._promote)

    async def promote(self, seat: Seat) -> Any:
        """Once, in peace; what it was answered, or the error."""
        return await self._try(seat, "promote", lambda: self._promote(seat))

    async def _promote(self, seat: Seat) -> Any:
        return await seat.api.promote(timeout_s=SETTLE_S, rest="wait")

    async def _set_possible(self, quorums: Sequence[str], seat: Seat) -> None:
        """The first one that the nodes in service can give."""
        host, view = seat.host, seat.host.view()
        for quorum in quorums:
            basis = Basis(host.members, view.voters, {**host.settings, "quorum": quorum})
            here = sum(name in self._storm.names for name in basis.counting())
            if nodes_needed(basis) <= here:
                return await _set(host, "quorum", quorum)

    async def _until_done(self, what: str, work: Callable[[Seat], Awaitable[Any]]) -> None:
        while True:
            seat = self._storm.any_seat(self._rng)
            if seat is not None:
                done = await self._try(seat, what, partial(work, seat))
                if not isinstance(done, Exception):
                    return
            await asyncio.sleep(AGAIN_S)


async def _set_on(key: str, value: Any, seat: Seat) -> None:
    await _set(seat.host, key, value)


async def _set(host: Any, key: str, value: Any) -> None:
    await host.set_setting(key, value, timeout_s=VERB_S)
