"""The measures of all guards of the structure, and their limits.

A ceiling may only fall and a floor only rise. A limit is as near to the count as its step allows:
what one change has won, the next one cannot lose.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.guards.apply_half import ApplyHalf
from tests.guards.assertions import Assertions
from tests.guards.circles import Circles
from tests.guards.clones import Clones
from tests.guards.dead import Dead
from tests.guards.layout import Layout
from tests.guards.measure import Guard, Measure, measure
from tests.guards.private_access import PrivateAccess
from tests.guards.public_api import PublicApi
from tests.guards.skeleton import Skeleton
from tests.guards.sources import ROOT, sources, without_collector
from tests.guards.spread import Spread
from tests.guards.wheel import Wheel

LIMITS = Path(__file__).resolve().parent / "limits.json"
# In a failure; the rest is listed on request.
PLACES_SHOWN = 20


def guards() -> list[Guard]:
    return [
        Circles(),
        PrivateAccess(),
        Layout(),
        Dead(),
        Skeleton(),
        PublicApi(),
        Clones(),
        Assertions(),
        Spread(),
        Wheel(),
        ApplyHalf(),
    ]


@functools.cache
def measures_of_today(root: Path = ROOT) -> dict[str, Measure]:
    """The measures of the files below `root`, taken once per process."""
    with without_collector():
        return measure(sources(root), guards())


def limit_of(found: Measure) -> int:
    """The limit that fits a count: the next multiple of the step, above or below."""
    steps = -(-found.count // found.step) if found.kind == "ceiling" else found.count // found.step
    return steps * found.step


def violations(measures: Mapping[str, Measure], limits: Mapping[str, int]) -> list[str]:
    """One text per measure that is on the wrong side of its limit."""
    return [
        _described(found, f"at {_bound(found)} {limits[name]}")
        for name, found in measures.items()
        if name in limits and _is_worse(found.count, limits[name], found)
    ]


def loose_limits(measures: Mapping[str, Measure], limits: Mapping[str, int]) -> list[str]:
    """The limits that are missing, that no measure has, or that a better count has left behind."""
    found = [f"{name}: no guard measures this" for name in limits.keys() - measures.keys()]
    for name, each in measures.items():
        if name not in limits:
            found.append(f"{name}: {each.count}, and no limit")
        elif _is_worse(limits[name], limit_of(each), each):
            found.append(f"{name}: {each.count}, but the {each.kind} is {limits[name]}")
    return sorted(found)


def tightened(measures: Mapping[str, Measure], limits: Mapping[str, int]) -> dict[str, int]:
    """The limits after today's counts: none is loosened, and a new measure gets its count."""
    best = {"ceiling": min, "floor": max}
    return {
        name: best[each.kind](limits.get(name, limit_of(each)), limit_of(each))
        for name, each in sorted(measures.items())
    }


def table(measures: Mapping[str, Measure], limits: Mapping[str, int]) -> str:
    """The measures as text, one per line."""
    rows = [("measure", "today", "limit", "what is counted")]
    for name, each in measures.items():
        sign = "<=" if each.kind == "ceiling" else ">="
        limit = f"{sign} {limits[name]:,}" if name in limits else "none"
        rows.append((name, f"{each.count:,}", limit, each.what))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return "\n".join(
        f"{name:<{widths[0]}}  {count:>{widths[1]}}  {limit:>{widths[2]}}  {what}"
        for name, count, limit, what in rows
    )


def as_document(measures: Mapping[str, Measure], limits: Mapping[str, int]) -> dict[str, Any]:
    """The measures for `--json`."""
    return {
        name: {
            "count": each.count,
            "kind": each.kind,
            "limit": limits.get(name),
            "what": each.what,
        }
        for name, each in measures.items()
    }


def load_limits(path: Path = LIMITS) -> dict[str, int]:
    """The stored limits; none before the first ones are written."""
    if not path.exists():
        return {}
    loaded: dict[str, int] = json.loads(path.read_text(encoding="utf-8"))
    return loaded


def store_limits(limits: Mapping[str, int], path: Path = LIMITS) -> None:
    path.write_text(json.dumps(limits, indent=0, sort_keys=True) + "\n", encoding="utf-8")


def _is_worse(count: int, limit: int, of: Measure) -> bool:
    return count > limit if of.kind == "ceiling" else count < limit


def _bound(of: Measure) -> str:
    return "most" if of.kind == "ceiling" else "least"


def _described(found: Measure, limit: str) -> str:
    """A count with some of its places, those in the files that were changed last before others."""
    newest = sorted(found.places, key=_changed_at, reverse=True)
    shown = [f"    {place}" for place in newest[:PLACES_SHOWN]]
    if len(newest) > len(shown):
        shown.append(f"    ... python -m tests.guards --places {found.name} has all {len(newest)}")
    return "\n".join([f"{found.name}: {found.count} {found.what}, {limit}", *shown])


def _changed_at(place: str) -> float:
    path = ROOT / place.partition(":")[0]
    return path.stat().st_mtime if path.exists() else 0.0
