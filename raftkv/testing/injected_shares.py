"""Injected bugs of what a command may cost others; see planted.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from raftkv.raft.applying import Applying
from raftkv.raft.composition import COSTLY_ROWS, Composition
from raftkv.state.hiding import Hidden
from raftkv.testing.planting import wrapping

__all__: list[str] = []


@wrapping(
    "entry-at-once",
    "an entry is applied to its end in one turn, however long that takes",
    Applying,
    "run",
    seeds_max=60,
)
def _entry_at_once(run: Callable[..., bool]) -> Callable[..., bool]:
    def broken(applying: Applying, until: float) -> bool:
        return run(applying, float("inf"))

    return broken


@wrapping(
    "costly-first",
    "the costly commands of an entry stand before the cheap ones",
    Composition,
    "take",
    seeds_max=60,
)
def _costly_first(take: Callable[..., list[bytes]]) -> Callable[..., list[bytes]]:
    def broken(composition: Composition, *arguments: Any) -> list[bytes]:
        batch = take(composition, *arguments)
        costly = [command for command in batch if composition._estimate(command) > COSTLY_ROWS]
        return costly + [command for command in batch if command not in costly]

    return broken


@wrapping(
    "shares-by-session",
    "costly commands are shared between sessions, whichever node they come from",
    Composition,
    "_sort",
    seeds_max=200,
)
def _shares_by_session(sort: Callable[..., None]) -> Callable[..., None]:
    def broken(composition: Composition, name: str, *arguments: Any) -> None:
        sort(composition, "", *arguments)

    return broken


@wrapping(
    "half-a-command",
    "readers see a command that is applied in slices before it has ended",
    Hidden,
    "take_up",
    seeds_max=60,
)
def _half_a_command(_: Callable[..., None]) -> Callable[..., None]:
    def broken(hidden: Hidden) -> None:
        """Hides nothing."""

    return broken
