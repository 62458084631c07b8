"""Injected bugs of death verdicts: a node that runs is declared dead, or a dead one is not.

They need what a drill does (death_drill.py), so most seeds do not show them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Final

from msgspec import structs

from raftkv.detector import Detector
from raftkv.failure_detector import FailureDetector, Observed, Suspect
from raftkv.presence import Presences
from raftkv.raft import wire
from raftkv.raft.transport import Link
from raftkv.state.core import Core
from raftkv.testing.patching import replaced
from raftkv.testing.planting import BUGS, Bug, wrapping
from raftkv.verdicts import Verdicts

__all__: list[str] = []

SEEDS_MAX: Final = 200
LONG_AGO_S: Final = -1e9


@contextlib.contextmanager
def _sent_again() -> Iterator[None]:
    """The fault of 0.1.0: the proposal queue sends a verdict again to the next leader."""

    def regardless_of_the_term(core: Core, command: Any, ctx: Any) -> Any:
        return core._ended(command.name, command.incarnation, ctx)

    with (
        replaced(Verdicts, "_checked", lambda verdicts, envelope: envelope),
        replaced(Core, "_declare_dead", regardless_of_the_term),
    ):
        yield


BUGS["verdict-sent-again"] = Bug(
    "a verdict is sent again to the next leader, and no term is compared", _sent_again, False,
    SEEDS_MAX,
)  # fmt: skip


@wrapping(
    "verdict-alone",
    "the leader declares dead whom it alone does not hear",
    FailureDetector,
    "_agreed",
    seeds_max=SEEDS_MAX,
)
def _alone(agreed: Callable[..., bool]) -> Callable[..., bool]:
    return lambda decider, suspect, seen: True


@wrapping(
    "verdict-missing-report",
    "a report that is missing counts as one that the node was not heard",
    FailureDetector,
    "_agreed",
    seeds_max=SEEDS_MAX,
)
def _missing_report(agreed: Callable[..., bool]) -> Callable[..., bool]:
    def broken(decider: FailureDetector, suspect: Suspect, seen: Observed) -> bool:
        noticed_at = decider._noticed_at[suspect.name, suspect.incarnation]
        reports = [
            report
            for voter in seen.voters
            if voter not in (seen.me, suspect.raft_id)
            and (report := decider._reports.get(voter)) is not None
            and report.made_at >= noticed_at
        ]
        others = len([voter for voter in seen.voters if voter != suspect.raft_id])
        against = others - sum(suspect.name in report.heard for report in reports)
        return against > len(seen.voters) // 2 if suspect.core else against == others

    return broken


@wrapping(
    "verdict-open-stream",
    "a node counts as heard as long as its stream is open",
    Presences,
    "update",
    seeds_max=SEEDS_MAX,
)
def _open_stream(update: Callable[..., None]) -> Callable[..., None]:
    def broken(presences: Presences, streams: Any, now: float) -> None:
        update(presences, streams, now)
        for seen in presences._seen.values():
            if seen.at is not None:
                seen.at = now

    return broken


@wrapping(
    "verdict-right-after-election",
    "a new leader counts the silence from before it led",
    FailureDetector,
    "_note",
    seeds_max=SEEDS_MAX,
)
def _right_after_election(note: Callable[..., None]) -> Callable[..., None]:
    def broken(decider: FailureDetector, suspects: list[Suspect], seen: Observed) -> None:
        decider._led_at = LONG_AGO_S
        for suspect in suspects:
            key = (suspect.name, suspect.incarnation)
            decider._heard_at.setdefault(key, LONG_AGO_S)
        note(decider, suspects, seen)

    return broken


@contextlib.contextmanager
def _absent() -> Iterator[None]:
    """Neither guard: a long step counts in full, and a late timer is not noticed."""

    def step(decider: FailureDetector, now: float) -> None:
        if decider._stepped_at is not None:
            decider._clock += max(0.0, now - decider._stepped_at)
        decider._stepped_at = now

    with (
        replaced(FailureDetector, "step", step),
        replaced(Detector, "_alarm", lambda detector: detector._look()),
    ):
        yield


BUGS["verdict-own-absence"] = Bug(
    "a leader that stood still takes its own absence for the silence of others", _absent, False,
    SEEDS_MAX,
)  # fmt: skip


@wrapping(
    "verdict-known-leader-only",
    "a core reports only to the leader that it follows, which a hanging disk holds up",
    Detector,
    "on_presence",
    seeds_max=SEEDS_MAX,
)
def _known_leader_only(on_presence: Callable[..., None]) -> Callable[..., None]:
    def broken(detector: Detector, link: Link, message: wire.Presence) -> None:
        engine = detector._engine
        if engine.leading is None and link.peer_id != engine.leader:
            message = structs.replace(message, term=0)
        on_presence(detector, link, message)

    return broken
