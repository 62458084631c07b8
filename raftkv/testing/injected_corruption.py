"""Injected bugs of the comparison of states; see planted.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from raftkv import corruption_check
from raftkv.corruption_check import CorruptionCheck
from raftkv.raft import corrupt_marker
from raftkv.rebuild import Rebuild
from raftkv.state.digests import SESSIONS, DigestWalk
from raftkv.testing.planting import wrapping

__all__: list[str] = []


@wrapping(
    "digest-of-live-rows",
    "the walk for digests sees rows as they are now, not as they were at the entry",
    DigestWalk,
    "slices",
    seeds_max=200,
)
def _live_rows(slices: Callable[..., Any]) -> Callable[..., Any]:
    def broken(walk: DigestWalk, *arguments: Any) -> Iterator[tuple[int, int]]:
        for step in slices(walk, *arguments):
            for _, _, table in walk._frozen._tables:
                table._saved.clear()
            yield step

    return broken


@wrapping(
    "digest-without-sessions",
    "sessions and their outcomes are left out of the comparison",
    DigestWalk,
    "slices",
    members=True,
    seeds_max=200,
)
def _without_sessions(slices: Callable[..., Any]) -> Callable[..., Any]:
    def broken(walk: DigestWalk, *arguments: Any) -> Iterator[tuple[int, int]]:
        yield from slices(walk, *arguments)
        walk.tables.pop(SESSIONS, None)

    return broken


@wrapping(
    "corrupt-unmarked",
    "a corrupt core stops without marking its directory",
    corrupt_marker,
    "mark",
    members=True,
    seeds_max=200,
)
def _unmarked(mark: Callable[..., None]) -> Callable[..., None]:
    return lambda *arguments, **named: None


@wrapping(
    "corrupt-goes-on",
    "a core that is certain to be corrupt only raises the alarm",
    CorruptionCheck,
    "_leave",
    members=True,
    seeds_max=200,
)
def _goes_on(leave: Callable[..., None]) -> Callable[..., None]:
    return lambda check, verdict, index: check._raise_alarm(verdict, index)


@wrapping(
    "rebuilt-gives-up",
    "a rebuilt core stops when a core that has not learned of its removal yet refuses it",
    Rebuild,
    "on_wiped",
    members=True,
    seeds_max=200,
)
def _gives_up(on_wiped: Callable[..., bool]) -> Callable[..., bool]:
    return lambda rebuild, text: False


@wrapping(
    "corrupt-answers",
    "a core that knows its state to be corrupt answers from it until it stops",
    corruption_check,
    "withdraw",
    members=True,
    seeds_max=200,
)
def _answers(withdraw: Callable[..., None]) -> Callable[..., None]:
    return lambda node, fault: None
