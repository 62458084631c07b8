"""The validators of a storm of the limbo: they approve, veto, fail, and take their time.

What each of them approved on which node is written down in the step in which it returns. So an
acknowledgement that names a validator can be held against it: nobody speaks for a validator that
was not asked.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from raftkv_limbo.commands import Ack
from raftkv_limbo.validators import Proposal, Veto

from .storm_ledger import Effect, Step

if TYPE_CHECKING:
    from .storm import Seat, Storm

__all__ = ["Judges"]

SLOW_S = 0.05


class Judges:
    """All validators of one run, on all nodes."""

    def __init__(self, storm: Storm) -> None:
        self._storm = storm
        self._plan = storm.plan
        # (validator, node) -> positions that it approved there, in any life.
        self._approved: dict[tuple[str, str], set[int]] = {}
        self.strict = True

    def register(self, seat: Seat) -> None:
        """As an embedding program does, when the node opens."""
        for name in self._plan.validators:
            seat.api.validator(name, self._function(name, seat))

    def stop(self) -> None:
        """From now on they approve of everything."""
        self.strict = False

    def _function(self, name: str, seat: Seat) -> Callable[[Proposal], Awaitable[None]]:
        rng = random.Random(f"{self._plan.seed}/{name}/{seat.name}/{seat.boots}")

        async def judge(proposal: Proposal) -> None:
            storm, marks = self._storm, self._storm.marks
            position = storm.log.ledger.positions.get(proposal.position)
            writes = tuple((each.space, each.key, each.value) for each in proposal.writes)
            if position is None or position.writes != writes or not position.sync:
                storm.violated("validators see what is pending", [f"{proposal} is {position}"])
            if rng.random() < 0.3:
                await asyncio.sleep(rng.uniform(0, SLOW_S))
            if self.strict and rng.random() < self._plan.broken_share:
                marks["validator failed"] += 1
                raise LookupError("the validator is not well")
            # The same on every node, so that a veto is not a matter of who is asked.
            drawn = random.Random(f"{self._plan.seed}/{name}/{proposal.position}").random()
            if self.strict and drawn < self._plan.veto_share:
                marks["validator vetoed"] += 1
                raise Veto(f"{name} dislikes {proposal.position}")
            marks["validator approved"] += 1
            self._approved.setdefault((name, seat.name), set()).add(proposal.position)

        return judge

    def check(self, step: Step, effect: Effect) -> list[str]:
        """Whether an acknowledgement speaks for validators that were asked."""
        command: Any = step.command
        if not isinstance(command, Ack) or step.origin is None:
            return []
        ledger, node = self._storm.log.ledger, step.origin[0]
        open_now = {*ledger.queue, *effect.confirmed}
        asked = [
            number
            for number in open_now
            if number <= command.upto and ledger.positions[number].sync
        ]
        return [
            f"{node} acknowledges {number} for {name}, which did not approve of it there"
            for name in command.validators
            for number in sorted(asked)
            if number not in self._approved.get((name, node), ())
        ]
