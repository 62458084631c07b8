"""Proposals whose answer must not get lost.

`Host.propose` may end without a verdict: the answer was lost, the leader has changed, time was up.
Then the number of the proposal is settled (`Host.outcome`): applied with this result, refused, or
never to be applied. Only then may it be proposed again, so that nothing is done twice.

With a node's life ends its session, and its answers with it: "expired". Then too it will not be
applied any more, but whether it was nobody remembers; the state has to tell (`Lost`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from .errors import (
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

if TYPE_CHECKING:
    from .plugin import Counters, Host

__all__ = ["AGAIN", "RETRY_FIRST_S", "RETRY_MAX_S", "Lost", "Proposer"]

# A cluster without a leader is asked again after the first, and then ever more rarely.
RETRY_FIRST_S: Final = 0.02
RETRY_MAX_S: Final = 1.0

#: Refusals of the number, not of the command: a life has ended, and the next one may try again.
AGAIN: Final = (SessionExpired, StaleIncarnation, OutcomeExpired, SequenceTooFar)


class Lost(OutcomeUnknown):
    """The proposal was applied or will never be, and nobody remembers which: look at the state."""

    code = "proposal_lost"


class Proposer:
    """Proposes until there is a verdict. One per node. Deadlines are of `runtime.monotonic`."""

    def __init__(self, host: Host, counters: Counters) -> None:
        self._host = host
        self._counters = counters

    async def once(self, command: msgspec.Struct, deadline: float | None = None) -> Any:
        """The command's result; an unknown outcome is settled first.

        Raises `Refused` kinds, `NotApplied` kinds (nothing happened; those of an ended life are
        `NotApplied` too), `Lost`, and with a deadline OutcomeUnknown. Without one it goes on until
        there is a verdict.
        """
        try:
            return await self._host.propose(command, timeout_s=self._left(deadline))
        except OutcomeUnknown as error:
            self._counters.add("unknown_outcomes")
            return _typed(await self._settled(error, deadline), command)
        except AGAIN as error:
            raise NotApplied(f"this node begins a new life: {error}") from None

    async def until_verdict(self, command: msgspec.Struct, deadline: float) -> Any:
        """The same, proposed again while nothing has happened, up to the deadline.

        What is `Lost` is an OutcomeUnknown to whoever calls this.
        """
        delay_s = RETRY_FIRST_S
        while True:
            try:
                return await self.once(command, deadline)
            except (TooLarge, Stopped):
                raise
            except Lost as lost:
                raise OutcomeUnknown(str(lost)) from None
            except NotApplied:
                if self._host.runtime.monotonic() + delay_s >= deadline:
                    raise
                await self._host.runtime.sleep(delay_s)
                delay_s = min(2 * delay_s, RETRY_MAX_S)

    async def _settled(self, error: OutcomeUnknown, deadline: float | None) -> Any:
        delay_s = RETRY_FIRST_S
        while True:
            try:
                outcome = await self._host.outcome(
                    error.session, error.seq, timeout_s=self._left(deadline)
                )
                break
            except Stopped:
                raise error from None
            except (NotApplied, OutcomeUnknown, Refused) as again:
                self._host.log.debug("settling a proposal waits: %s", type(again).__name__)
            if deadline is not None and self._host.runtime.monotonic() + delay_s >= deadline:
                raise error
            await self._host.runtime.sleep(delay_s)
            delay_s = min(2 * delay_s, RETRY_MAX_S)
        if outcome.verdict == "applied":
            return outcome.result
        if outcome.verdict == "refused":
            if isinstance(outcome.result, AGAIN):
                raise NotApplied(f"this node begins a new life: {outcome.result}")
            raise outcome.result
        if outcome.verdict == "not_applied":
            raise NotApplied("the proposal was lost, and nothing happened")
        raise Lost(
            "this node was declared dead while the proposal was under way, and nobody remembers "
            "whether it was applied: look at the state"
        )

    def _left(self, deadline: float | None) -> float | None:
        """Seconds to the deadline; a little at least, so that what is late is still tried once."""
        if deadline is None:
            return None
        return max(RETRY_FIRST_S, deadline - self._host.runtime.monotonic())


def _typed(result: Any, command: msgspec.Struct) -> Any:
    """A node that has forgotten which command had the number hands out a plain list."""
    kind = getattr(type(command), "Result", None)
    return (
        msgspec.convert(result, kind) if isinstance(result, list) and kind is not None else result
    )
