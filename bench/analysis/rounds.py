"""Side by side: the figures of every round of every side, and how the sides compare.

Each side has a log of its own; each round of it is a run. The figures are those of
`tables.operations`, kept apart by side and round. A ratio is taken within a round, because two
sides of one round ran minutes apart at most and two rounds did not: whatever else the machine did
hits both. What is shown is the median of the rounds' ratios, and between which values they lie.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812  the name every Spark user knows

from bench import schema
from bench.analysis import AnalysisError, tables
from bench.analysis.checks import REASON, with_reason
from bench.analysis.figures import CONNECTS
from bench.analysis.inputs import find_inputs, path_to_read
from bench.analysis.words import EQUAL_WITHIN

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["KEYS", "Comparison", "Spread", "compared", "figures_by_round"]

KEYS = ("layout", "scenario", "registry", "op", "consistency", "role", "phase")
FIGURES = ("throughput_per_s", "p50_ms", "p99_ms")


class Spread(msgspec.Struct, frozen=True):
    """Ratios of the rounds: the side divided by the base."""

    median: float
    low: float
    high: float


class Comparison(msgspec.Struct, frozen=True):
    """One group of operations on one side against the base: medians of the rounds, ratios.

    `verdict`: "slower" or "faster" if every single round says so, by more than the difference that
    two runs of the same code have; else "equal".
    """

    group: dict[str, str]
    side: str
    rounds: int
    base_throughput_per_s: float
    throughput_per_s: float
    base_p50_ms: float
    p50_ms: float
    throughput: Spread
    p50: Spread
    p99: Spread
    errors: int
    verdict: str


def figures_by_round(spark: SparkSession, sides: Mapping[str, Path]) -> list[dict[str, Any]]:
    """One row for each side, round and group: its keys, FIGURES and `error`.

    Raises AnalysisError when a log is missing, or holds a damaged file or row: half a side would
    compare wrongly.
    """
    prepared = reduce(
        lambda one, other: one.unionByName(other),
        (_side(spark, name, directory) for name, directory in sides.items()),
    )
    table = tables.operations(prepared, apart=("side", "round"))
    load = (F.col("phase") == CONNECTS["phase"]) & (F.col("role") == CONNECTS["role"])
    shown = table.where(
        F.col("op").isin("put", "get") | ((F.col("op") == CONNECTS["op"]) & load)
    ).select("side", "round", *KEYS, *FIGURES, "error")
    return [row.asDict() for row in shown.collect()]


def _side(spark: SparkSession, name: str, directory: Path) -> DataFrame:
    inputs = find_inputs(directory)
    if inputs.damaged:
        first = inputs.damaged[0]
        raise AnalysisError(f"{first.path} cannot be used ({first.reason}): compare anew")
    paths = map(path_to_read, inputs.logs)
    rows = with_reason(spark.read.schema(schema.spark_schema()).parquet(*paths)).cache()
    wrong = rows.where(F.col(REASON).isNotNull()).select(REASON).first()
    if wrong is not None:
        raise AnalysisError(f"rows of {directory} break the log's rules ({wrong[REASON]})")
    # Names of runs begin with the time at which they began.
    rounds = rows.select("run").distinct()
    rounds = rounds.withColumn("round", F.dense_rank().over(Window.orderBy("run")))
    return tables.prepared(rows).join(F.broadcast(rounds), "run").withColumn("side", F.lit(name))


def compared(rows: Sequence[Mapping[str, Any]], base: str) -> list[Comparison]:
    """Every group of every other side against the base, in the order of the log's words."""
    found: dict[tuple[str, ...], dict[str, dict[int, Mapping[str, Any]]]] = {}
    for row in rows:
        group = found.setdefault(tuple(row[key] for key in KEYS), {})
        group.setdefault(row["side"], {})[row["round"]] = row
    comparisons = []
    for key in sorted(found, key=_order):
        sides = found[key]
        for side in sides:
            if side != base and base in sides:
                comparison = _compare(dict(zip(KEYS, key, strict=True)), side, sides, base)
                comparisons += [] if comparison is None else [comparison]
    return comparisons


def _compare(
    group: dict[str, str],
    side: str,
    sides: Mapping[str, Mapping[int, Mapping[str, Any]]],
    base: str,
) -> Comparison | None:
    """None if no round has figures of both."""
    pairs = [
        (sides[side][number], sides[base][number])
        for number in sorted(sides[side])
        if number in sides[base]
    ]
    pairs = [pair for pair in pairs if all(one[name] for one in pair for name in FIGURES)]
    if not pairs:
        return None
    throughput = _spread(pairs, "throughput_per_s")
    return Comparison(
        group=group,
        side=side,
        rounds=len(pairs),
        base_throughput_per_s=statistics.median(b["throughput_per_s"] for _, b in pairs),
        throughput_per_s=statistics.median(a["throughput_per_s"] for a, _ in pairs),
        base_p50_ms=statistics.median(b["p50_ms"] for _, b in pairs),
        p50_ms=statistics.median(a["p50_ms"] for a, _ in pairs),
        throughput=throughput,
        p50=_spread(pairs, "p50_ms"),
        p99=_spread(pairs, "p99_ms"),
        errors=sum(a["error"] for a, _ in pairs),
        verdict=_verdict(throughput),
    )


def _spread(pairs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]], name: str) -> Spread:
    ratios = [one[name] / other[name] for one, other in pairs]
    return Spread(statistics.median(ratios), min(ratios), max(ratios))


def _verdict(throughput: Spread) -> str:
    if throughput.high < 1 - EQUAL_WITHIN:
        return "slower"
    return "faster" if throughput.low > 1 + EQUAL_WITHIN else "equal"


def _order(key: tuple[str, ...]) -> tuple[Any, ...]:
    words = {
        "layout": schema.LAYOUTS,
        "scenario": schema.SCENARIOS,
        "op": schema.OPS,
        "role": schema.ROLES,
    }
    ranks: list[Any] = []
    for name, value in zip(KEYS, key, strict=True):
        if name == "phase":
            ranks.append(int(value[1:]) if value[1:].isdecimal() else 0)
        else:
            known = words.get(name, ())
            ranks.append((known.index(value) if value in known else len(known), value))
    return tuple(ranks)
