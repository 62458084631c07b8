"""A proposal whose answer does not get lost.

`Host.propose` may end without a verdict: the answer was lost, the leader changed, time was up. Who
has run a function cannot shrug at that: to run it again would be a second run, to forget it a call
that was never decided. So the number of the proposal is settled first (`Host.outcome`: applied with
this result, refused, or never to be applied), and only then it is proposed again.

Whether it still makes sense is asked of the state each time (`wanted`), because the world goes on
while a node is cut off: an operator passes the call, the reservation expires, the node's life ends.
With a life ends its session, and the answers with it. Then too the state knows: this node's new
life stands behind everything that the old one could have written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from raftkv.errors import (
    NotApplied,
    OutcomeExpired,
    OutcomeUnknown,
    Refused,
    SequenceTooFar,
    SessionExpired,
    StaleIncarnation,
    Stopped,
    TooLarge,
)
from raftkv.plugin import Host

from .metrics import Counters

__all__ = ["NotWanted", "Proposer", "always"]

# A cluster without a leader is asked again after the first, and then ever more rarely.
RETRY_FIRST_S: Final = 0.05
RETRY_MAX_S: Final = 2.0


class NotWanted(Exception):
    """It was not applied, and need not be any more: the state says so."""


def always() -> bool:
    return True


class Proposer:
    """Proposes until there is a verdict. One per node."""

    def __init__(self, host: Host, counters: Counters) -> None:
        self._host = host
        self._counters = counters

    async def submit(self, command: msgspec.Struct, wanted: Callable[[], bool] = always) -> Any:
        """The command's result, applied on this node. Takes as long as it takes.

        Raises `Refused` kinds (the verdict), `TooLarge`, `Stopped`, and `NotWanted` when `wanted`
        says no: then the command was not applied, or what it would have done has been done.
        """
        delay_s = RETRY_FIRST_S
        while True:
            if not wanted():
                raise NotWanted(type(command).__name__)
            try:
                return await self._host.propose(command)
            except OutcomeUnknown as error:
                self._counters.add("unknown_outcomes")
                verdict, result = await self._settle(error)
                if verdict == "applied":
                    return result
                if verdict == "refused":
                    raise result from None
                continue
            except (TooLarge, Stopped):
                raise
            except (NotApplied, SessionExpired, StaleIncarnation, OutcomeExpired, SequenceTooFar):
                # Nothing happened under this number; the next one may belong to a new life.
                await self._host.runtime.sleep(delay_s)
                delay_s = min(2 * delay_s, RETRY_MAX_S)

    async def _settle(self, error: OutcomeUnknown) -> tuple[str, Any]:
        """What became of a proposal; ("expired", None) when the answer is no longer kept.

        Afterwards it cannot be applied any more, and this node has applied all that came before.
        A proposal of an ended life is refused first, and settled by the next life.
        """
        delay_s = RETRY_FIRST_S
        while True:
            try:
                outcome = await self._host.outcome(error.session, error.seq)
                return outcome.verdict, outcome.result
            except Stopped:
                raise
            except (NotApplied, OutcomeUnknown, Refused) as again:
                self._host.log.debug("calls: settling a proposal waits: %s", type(again).__name__)
            await self._host.runtime.sleep(delay_s)
            delay_s = min(2 * delay_s, RETRY_MAX_S)
