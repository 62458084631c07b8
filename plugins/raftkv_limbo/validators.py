"""Validators: functions of the application that look at a transaction before it is confirmed.

    @limbo.validator("limits")
    async def limits(proposal: Proposal) -> None:
        if too_much(proposal.writes):
            raise Veto("more than the account has")

A validator says yes by returning, no by raising `Veto`. Anything else that it raises is a failure
of the validator and says nothing: it is run again, and the transaction waits. So a broken validator
can hold up a quorum, but neither confirm nor roll back anything. One that takes long holds up this
node's acknowledgements; it is cancelled when nobody asks for its answer any more, because the
setting names it no longer or the position is settled.

It has a say where the setting `quorum_validators` names it. It may be run more than once for one
position, on every node where it is registered, and for transactions that are settled meanwhile.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import msgspec

from .commands import NAME_CHARS_MAX, REASON_CHARS_MAX, VALIDATORS_MAX, Write

__all__ = ["Proposal", "Validator", "ValidatorCancelled", "Validators", "Veto", "place_of"]


class Proposal(msgspec.Struct, frozen=True):
    """A pending transaction, as a validator sees it."""

    position: int
    writes: tuple[Write, ...]
    term: int


class Veto(Exception):
    """Raised by a validator: the transaction shall be rolled back, and all that wait behind it."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason[:REASON_CHARS_MAX]


class ValidatorCancelled(Exception):
    """What a validator waited for was cancelled: it has failed, as by any other exception."""


Validator = Callable[[Proposal], Awaitable[None] | None]


class Validators:
    """What is registered on one node, by name."""

    def __init__(self) -> None:
        self._functions: dict[str, Validator] = {}

    def __len__(self) -> int:
        return len(self._functions)

    def __contains__(self, name: str) -> bool:
        return name in self._functions

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._functions))

    def add(self, name: str, function: Validator) -> None:
        """Raises ValueError for a name that is taken or no name, and for one too many."""
        if not 1 <= len(name) <= NAME_CHARS_MAX or not name.isascii():
            raise ValueError(f"the name of a validator has 1 to {NAME_CHARS_MAX} ASCII letters")
        if name in self._functions:
            raise ValueError(f"a validator {name!r} is registered already")
        if len(self._functions) >= VALIDATORS_MAX:
            raise ValueError(f"a node has {VALIDATORS_MAX} validators at most")
        self._functions[name] = function

    def ask(self, name: str, proposal: Proposal) -> Awaitable[None] | None:
        """Run a plain one, and raise what it raises; of an async one give what to wait for."""
        try:
            answer: Any = self._functions[name](proposal)
        except asyncio.CancelledError:
            # Of something that it looked at: to its caller it would mean to end.
            raise ValidatorCancelled from None
        return answer if inspect.isawaitable(answer) else None


def place_of(error: BaseException) -> str:
    """Where an error comes from, without its text: that may hold a user's data."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return type(error).__name__
    return f"{type(error).__name__} at {trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
