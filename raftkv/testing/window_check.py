"""Windows of sessions so small that the simulated world fills them, and what must not follow."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Final, NoReturn

import raftkv.outbox
from raftkv.errors import SequenceTooFar
from raftkv.state import sessions
from raftkv.testing.current import running_host
from raftkv.testing.patching import around, replaced

__all__ = ["WORLD_WINDOW", "checked_answers", "small_windows"]

# Above half of what any node of a scenario has in flight at one time, and a node with a share of
# the load uses so many numbers within the 30 s for which one that timed out can be asked for.
WORLD_WINDOW: Final = 256


def small_windows() -> contextlib.AbstractContextManager[None]:
    """While this is entered, new sessions judge WORLD_WINDOW numbers above their floor."""
    return replaced(sessions, "SESSION_WINDOW", WORLD_WINDOW)


def checked_answers(
    violated: Callable[[str, str], NoReturn],
) -> contextlib.AbstractContextManager[None]:
    """While this is entered, a command of a node that is refused without a verdict is a violation.

    Streams keep the order of commands, so a number that the session does not judge was given out
    too early, not overtaken.
    """

    def wrap(settle: Callable[..., None]) -> Callable[..., None]:
        def checked(queue: Any, seq: int, outcome: Any, **named: Any) -> None:
            if type(outcome) is SequenceTooFar:
                violated(
                    "a refusal is a verdict",
                    f"{running_host()} gave out number {seq}, which its session cannot judge yet",
                )
            settle(queue, seq, outcome, **named)

        return checked

    return around(raftkv.outbox.Outbox, "settle", wrap)
