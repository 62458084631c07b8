"""A client of the simulated cluster that confirms no answer, and asks again for old ones.

Under a session of its own it sends small transactions with large answers, to any node, and never
raises its floor. So the state reaches the bounds of what it keeps of a session and of all clients
(outcome_check.py makes them small) and drops outcomes. Then the client sends some of the commands
again under their numbers. What must hold: each is answered as before, or is `OutcomeExpired`. That
none takes effect once more, the check of all single writes sees.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any, Final

from raftkv.errors import NodeFault, NotApplied, OutcomeExpired, OutcomeUnknown, Refused
from raftkv.foreign import Ticket
from raftkv.kv.commands import PutOp, RangeOp, Txn
from raftkv.testing.host import HostCrashed
from raftkv.testing.outcome_check import OUTCOMES_FORMAT

if TYPE_CHECKING:
    from raftkv.node import Node
    from raftkv.testing.simulated import SimulatedCluster

__all__ = ["Unconfirmed"]

# Between two sessions, on average, and between two commands.
SESSION_S: Final = 1.5
PAUSE_S: Final = 0.05
# Of one session: three times what is kept of it. Of these, how many are sent again.
COMMANDS: Final = 12
REPEATED: Final = 5
# Of each value, and how many of them an answer has. They fit into the tiny limits of some runs.
VALUE_BYTES: Final = 600
READ_KEYS: Final = 2
TIMEOUT_S: Final = 3.0


class Unconfirmed:
    """`storm` runs until it is cancelled."""

    def __init__(self, cluster: SimulatedCluster, rng: random.Random) -> None:
        self._cluster = cluster
        self._rng = rng
        self._sent = 0

    async def storm(self) -> None:
        while True:
            await asyncio.sleep(self._rng.expovariate(1 / SESSION_S))
            found = self._cluster.some_node(self._rng)
            if found is not None and found[1].machine.core_format >= OUTCOMES_FORMAT:
                session = await self._open(*found)
                if session:
                    await self._use(session)

    async def _open(self, name: str, node: Node) -> int:
        """The number of a new session; 0 if there is none, or it is not known."""
        try:
            handle = await self._cluster.world.call(name, node.foreign.open_session(TIMEOUT_S))
        except (NotApplied, Refused, OutcomeUnknown, HostCrashed, NodeFault):
            return 0
        return int(handle.partition("-")[0])

    async def _use(self, session: int) -> None:
        answers: dict[int, Any] = {}
        commands: dict[int, Txn] = {}
        for seq in range(1, COMMANDS + 1):
            commands[seq] = self._command()
            answers[seq] = await self._ask(session, seq, commands[seq])
            await asyncio.sleep(PAUSE_S)
        for seq in self._rng.sample(sorted(commands), REPEATED):
            again = await self._ask(session, seq, commands[seq])
            first = answers[seq]
            if None not in (first, again) and again != first:
                self._cluster.violated(
                    "a number has one answer",
                    f"number {seq} of session {session} was done at revision {first.revision}, and "
                    f"again at {again.revision}",
                )

    def _command(self) -> Txn:
        """A write whose answer has some values that were written before."""
        self._sent += 1
        first, key = _key(self._sent - READ_KEYS), _key(self._sent)
        return Txn((), (PutOp(key, bytes(VALUE_BYTES)), RangeOp(first, key)))

    async def _ask(self, session: int, seq: int, command: Txn) -> Any:
        """The answer; None if there is none."""
        found = self._cluster.some_node(self._rng)
        if found is None:
            return None
        name, node = found
        proposal = node.foreign.propose(Ticket(session, seq, 1), "kv", command, TIMEOUT_S)
        try:
            answer = await self._cluster.world.call(name, proposal)
        except OutcomeExpired:
            self._cluster.marks.hit("outcome dropped")
            return None
        except (NotApplied, Refused, OutcomeUnknown, HostCrashed, NodeFault):
            return None  # it may take effect once, now or later
        put = command.success[0]
        assert isinstance(put, PutOp)
        self._cluster.load.acknowledged.add(put.key)
        return answer


def _key(number: int) -> bytes:
    return b"unconfirmed/%06d" % max(0, number)
