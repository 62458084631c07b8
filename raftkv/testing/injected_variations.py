"""Injected bugs of old disks and of the core format; see planted.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from raftkv.core_format import CoreFormat, FormatSurvey
from raftkv.errors import Refused
from raftkv.raft.leading import Leading
from raftkv.state import activation, snapshot
from raftkv.state.machine import StateMachine
from raftkv.testing.current import running_host
from raftkv.testing.patching import replaced
from raftkv.testing.planting import BUGS, Bug, wrapping

__all__: list[str] = []


@wrapping(
    "loss-only-logged",
    "a leader that finds entries lost, which were acknowledged, only logs it",
    Leading,
    "_distrust",
    seeds_max=200,
)
def _only_logged(distrust: Callable[..., None]) -> Callable[..., None]:
    return lambda leading: None


@wrapping(
    "distrusted-counts",
    "what a distrusted voter acknowledges counts for a commit",
    Leading,
    "_counted",
    seeds_max=200,
)
def _distrusted_counts(counted: Callable[..., int]) -> Callable[..., int]:
    def broken(leading: Leading, voter: str) -> int:
        if voter in leading._engine.configuration.distrusted and voter in leading._progress:
            return leading._progress[voter].match
        return counted(leading, voter)

    return broken


@wrapping(
    "raised-by-majority",
    "the core format is raised although some members do not know it",
    CoreFormat,
    "_look",
    seeds_max=200,
)
def _raised_by_majority(look: Callable[..., Any]) -> Callable[..., Any]:
    async def broken(core_format: CoreFormat, part: Any) -> tuple[FormatSurvey, Any]:
        survey, connections = await look(core_format, part)
        if 2 * len(survey.missing) < len(survey.members):
            survey = msgspec.structs.replace(survey, missing=[])
        return survey, connections

    return broken


BUGS["format-by-software"] = Bug(
    "a node decides in the newest core format that its software knows",
    lambda: replaced(
        StateMachine, "core_format", property(lambda machine: machine.core_format_max)
    ),
    seeds_max=200,
)


@wrapping(
    "gone-members-count",
    "a member that is gone for good holds up the formats of plugins",
    activation,
    "counts",
    seeds_max=200,
    members=True,
)
def _gone_members_count(_: Callable[..., bool]) -> Callable[..., bool]:
    return lambda member, voters, now: True


@wrapping(
    "refusal-texts-are-state",
    "the text of a refusal, which a node words for itself, is a part of the state",
    snapshot,
    "encode_outcome",
    seeds_max=50,
)
def _refusal_texts(encode: Callable[..., tuple[int, bytes]]) -> Callable[..., tuple[int, bytes]]:
    def broken(outcome: Any, refusals: Any, *, texts: bool = True) -> tuple[int, bytes]:
        kind, data = encode(outcome, refusals, texts=texts)
        return (
            (kind, data + running_host().encode()) if isinstance(outcome, Refused) else (kind, data)
        )

    return broken
