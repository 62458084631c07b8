"""A finding made small: pieces are left out as long as the same finding remains (ddmin)."""

from __future__ import annotations

from collections.abc import Callable

from raftkv.testing.fuzz.target import Case, Target, kind_of

__all__ = ["shrink"]

# Runs of the target; a finding is usually small after some hundreds.
ATTEMPTS_MAX = 3000


def shrink(target: Target, case: Case, kind: str, attempts_max: int = ATTEMPTS_MAX) -> Case:
    """The smallest case found that has a finding of that kind. `case` itself must have it."""
    attempts = 0

    def same(candidate: Case) -> bool:
        nonlocal attempts
        attempts += 1
        if attempts > attempts_max:
            return False
        try:
            target.run(candidate)
        except Exception as error:
            return kind_of(error) == kind
        return False

    for name in sorted(case.parts):
        rest = {other: data for other, data in case.parts.items() if other != name}
        if rest and same(_with(case, rest)):
            case = _with(case, rest)
    for name in sorted(case.parts):
        case = _shrink_part(case, name, same)
    return case


def _with(case: Case, parts: dict[str, bytes]) -> Case:
    return Case(parts, case.sample, case.choice)


def _shrink_part(case: Case, name: str, same: Callable[[Case], bool]) -> Case:
    """Leave out runs of bytes, ever shorter ones."""
    length = len(case.parts[name]) // 2
    while length:
        at = 0
        while at < len(case.parts[name]):
            data = case.parts[name]
            candidate = _with(case, {**case.parts, name: data[:at] + data[at + length :]})
            if same(candidate):
                case = candidate
            else:
                at += length
        length //= 2
    return case
