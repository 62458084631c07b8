"""What a round of `python -m bench deaths` has shown, and whether that is right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

__all__ = ["BOUND_S", "STOPS_S", "MemberState", "Report", "Round", "judge", "states", "worst_s"]

#: For how long the leader is stopped, in turns.
STOPS_S: Final = (8.0, 11.0, 14.0)

#: A process that was killed is declared dead within `node_down_ms` and this.
BOUND_S: Final = 3.0


class MemberState(msgspec.Struct, frozen=True):
    """A member as the log has it."""

    incarnation: int
    up: bool


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """One process was stopped for `seconds`, or killed.

    `role`: what it was then. `before` and `after`: the members, before it and once every node was
    ready again, from the log. `declared_s`: after how long it was declared dead; None if it was
    not while that was waited for.
    """

    kind: Literal["stop", "kill"]
    name: str
    role: Literal["leader", "follower", "replicant"]
    seconds: float = 0.0
    before: dict[str, MemberState]
    after: dict[str, MemberState]
    declared_s: float | None = None
    findings: tuple[str, ...] = ()


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What `--json` prints. `findings` are those of the end; rounds have their own."""

    layout: str
    node_down_s: float
    rounds: list[Round]
    acknowledged: int
    findings: list[str]

    @property
    def passed(self) -> bool:
        """Whether nothing was found wrong."""
        return not self.findings and not any(each.findings for each in self.rounds)


def states(members: Sequence[Mapping[str, Any]]) -> dict[str, MemberState]:
    """The members in a status, by name."""
    return {each["name"]: MemberState(each["incarnation"], each["up"]) for each in members}


def judge(found: Round, node_down_s: float) -> tuple[str, ...]:
    """What is wrong with a round, in words; empty if all is well."""
    wrong = []
    for name, before in found.before.items():
        after = found.after.get(name)
        if after is None or not after.up:
            wrong.append(f"{name} is not up again")
        elif name != found.name and after.incarnation != before.incarnation:
            wrong.append(f"{name} ran all the time and was declared dead")
    own = found.after.get(found.name)
    ended = own is None or own.incarnation != found.before[found.name].incarnation
    if found.kind == "stop" and ended and found.seconds <= node_down_s:
        wrong.append(f"{found.name} was declared dead after {found.seconds:g} s")
    if found.kind == "kill":
        limit_s = node_down_s + BOUND_S
        if found.declared_s is None:
            wrong.append(f"{found.name} was killed and not declared dead")
        elif found.declared_s > limit_s:
            wrong.append(
                f"{found.name} was declared dead {found.declared_s:.2f} s after it was killed; "
                f"{limit_s:g} s are allowed"
            )
    return tuple(wrong)


def worst_s(rounds: Sequence[Round], role: str) -> float | None:
    """The longest time to a declaration among the kills of this role."""
    return max((r.declared_s for r in rounds if r.role == role and r.declared_s), default=None)
