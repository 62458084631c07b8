"""Injected bugs of the outcomes that the state keeps; see planted.py and outcome_check.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from raftkv.state.sessions import DROPPED, Session, Sessions
from raftkv.testing.planting import wrapping

__all__: list[str] = []


@wrapping(
    "outcomes-of-a-session-unbounded",
    "the outcomes of a client's session are kept, however many bytes they have",
    Session,
    "drop_beyond",
    seeds_max=50,
)
def _session_unbounded(drop_beyond: Callable[..., None]) -> Callable[..., None]:
    return lambda session, bytes_max, newest: None


@wrapping(
    "outcomes-of-all-unbounded",
    "the outcomes of each client are bounded, and those of all clients are not",
    Sessions,
    "drop_beyond",
    seeds_max=50,
)
def _all_unbounded(drop_beyond: Callable[..., None]) -> Callable[..., None]:
    return lambda sessions, bytes_max, current: None


@wrapping(
    "dropped-outcome-forgotten",
    "nothing is left of an outcome that was dropped, so its command is executed again",
    Session,
    "drop_beyond",
    seeds_max=50,
)
def _forgotten(drop_beyond: Callable[..., None]) -> Callable[..., None]:
    def broken(session: Session, bytes_max: int, newest: int) -> None:
        drop_beyond(session, bytes_max, newest)
        kept: dict[int, Any] = session.done
        session.done = {seq: kept[seq] for seq in kept if kept[seq] is not DROPPED}

    return broken
