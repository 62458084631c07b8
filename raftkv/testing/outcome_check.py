"""Bounds of kept outcomes so small that the simulated world reaches them, and that they hold.

The sizes are taken of the outcomes themselves, not of what the state counts while it is written to.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Final

from raftkv.state import machine as machine_module
from raftkv.state import sessions as sessions_module
from raftkv.state.machine import StateMachine
from raftkv.state.sessions import OUTCOME_KEPT_BYTES, Session, Sessions
from raftkv.state.snapshot import outcome_size
from raftkv.testing.patching import around, replaced

__all__ = ["OUTCOMES_FORMAT", "WORLD_OUTCOME_BYTES", "small_outcomes", "too_many_outcomes"]

#: The core format from which on the bounds are in force.
OUTCOMES_FORMAT: Final = 2
#: Of one client's session: a few answers of unconfirmed.py.
WORLD_OUTCOME_BYTES: Final = 4 * 1024
# Of all of them: one or two sessions of that client.
WORLD_OUTCOMES_BYTES: Final = 10 * 1024


@contextlib.contextmanager
def small_outcomes() -> Iterator[None]:
    """While this is entered, machines that are made keep that many bytes of outcomes at most."""

    def wrap(init: Callable[..., None]) -> Callable[..., None]:
        def small(sessions: Sessions, *arguments: Any, **named: Any) -> None:
            init(sessions, *arguments, **{"bytes_max": WORLD_OUTCOMES_BYTES, **named})

        return small

    with (
        around(sessions_module.Sessions, "__init__", wrap),
        replaced(machine_module, "OUTCOME_BYTES_MAX", WORLD_OUTCOME_BYTES),
    ):
        yield


def too_many_outcomes(name: str, machine: StateMachine) -> str:
    """What a node keeps beyond the bounds; empty if nothing. Between two entries.

    The outcome that came last, and the session that was used last, may exceed them. Which these
    are is not known here: they count for as much as the largest one.
    """
    if machine.core_format < OUTCOMES_FORMAT:
        return ""
    most: int = vars(machine_module)["OUTCOME_BYTES_MAX"]  # as it is replaced above
    kept = [0]
    for session in machine._sessions.by_id.values():
        if session.node:
            continue
        sizes = _sizes(machine, session)
        if sum(sizes) - max(sizes, default=0) > most:
            return f"{name} keeps {sum(sizes)} bytes of outcomes of session {session.id}"
        kept.append(sum(sizes) + OUTCOME_KEPT_BYTES * len(session.done))
    if sum(kept) - max(kept) > machine._sessions.bytes_max:
        return f"{name} keeps {sum(kept)} bytes of outcomes of {len(kept) - 1} clients"
    return ""


def _sizes(machine: StateMachine, session: Session) -> list[int]:
    return [outcome_size(outcome, machine._refusals) for outcome in session.done.values()]
