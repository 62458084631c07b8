"""Windows of sessions so small that the simulated world fills them, and what must not follow."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Final, NoReturn

import msgspec

import raftkv.outbox
from raftkv.errors import SequenceTooFar
from raftkv.state import OutcomeReport, SettleOutcome, sessions
from raftkv.testing.current import running_host
from raftkv.testing.patching import around, replaced

__all__ = ["WORLD_WINDOW", "checked_answers", "small_windows"]

# Above half of what any node of a scenario has in flight at one time, and a node with a share of
# the load uses so many numbers within the 30 s for which one that timed out can be asked for.
WORLD_WINDOW: Final = 256


def small_windows() -> contextlib.AbstractContextManager[None]:
    """While this is entered, new sessions judge WORLD_WINDOW numbers above their floor."""
    return replaced(sessions, "SESSION_WINDOW", WORLD_WINDOW)


@contextlib.contextmanager
def checked_answers(violated: Callable[[str, str], NoReturn]) -> Iterator[None]:
    """While this is entered, the proposal queues of the nodes are checked.

    A command that is refused without a verdict is a violation: streams keep the order of commands,
    so a number that the session does not judge was given out too early, not overtaken. So is a
    command that goes on under a new number although a copy of it may be applied under the former,
    and one that ends as not applied by the rejection of one copy while another one has left.
    """
    queues = raftkv.outbox.Outbox
    known: weakref.WeakKeyDictionary[Any, set[tuple[int, int]]] = weakref.WeakKeyDictionary()
    with (
        around(queues, "settle", lambda settle: _answered(settle, known, violated)),
        around(queues, "_renumber", lambda renumber: _renumbered(renumber, known, violated)),
        around(queues, "rejected", lambda rejected: _rejected(rejected, violated)),
    ):
        yield


_decode_question = msgspec.msgpack.Decoder(SettleOutcome).decode


def _answered(
    settle: Callable[..., None],
    known: weakref.WeakKeyDictionary[Any, set[tuple[int, int]]],
    violated: Callable[[str, str], NoReturn],
) -> Callable[..., None]:
    """Note what was not applied by the word of the log, and never will be."""

    def checked(queue: Any, seq: int, outcome: Any, **named: Any) -> None:
        if type(outcome) is SequenceTooFar:
            violated(
                "a refusal is a verdict",
                f"{running_host()} gave out number {seq}, which its session cannot judge yet",
            )
        waiter = queue._sent.get(seq)
        # The questions of the queue itself are not given up, so they are there to be read.
        if waiter is not None and waiter.kind is SettleOutcome and waiter.command:
            asked = _decode_question(waiter.command)
            if type(outcome) is OutcomeReport and outcome.verdict == "not_applied":
                known.setdefault(queue, set()).add((asked.session, asked.seq))
        settle(queue, seq, outcome, **named)

    return checked


def _renumbered(
    renumber: Callable[..., None],
    known: weakref.WeakKeyDictionary[Any, set[tuple[int, int]]],
    violated: Callable[[str, str], NoReturn],
) -> Callable[..., None]:
    def checked(queue: Any, waiter: Any) -> None:
        number = (queue.session, waiter.seq)
        if waiter.sends and number not in known.get(queue, ()):
            violated(
                "a command has one number at a time",
                f"{running_host()} gave number {waiter.seq} up, of which a copy may be applied",
            )
        renumber(queue, waiter)

    return checked


def _rejected(
    rejected: Callable[..., None], violated: Callable[[str, str], NoReturn]
) -> Callable[..., None]:
    def checked(queue: Any, seq: int, error: Exception) -> None:
        waiter = queue._sent.get(seq)
        copies = 0 if waiter is None else waiter.sends
        open_before = copies > 1 and not waiter.future.done()
        rejected(queue, seq, error)
        if open_before and (waiter.over or waiter.future.done() or not waiter.sends):
            violated(
                "a refusal is a verdict",
                f"{running_host()} ended number {seq} by the rejection of one of {copies} copies",
            )

    return checked
