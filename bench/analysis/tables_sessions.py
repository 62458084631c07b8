"""The figures of the performance test, from the log's rows and the facts of its loads.

Definitions, besides those of `bench.analysis.tables`:

- **Per connect**: what a whole load cost (its warm-up, its goodbyes and the removal of what was
  taken over included), divided by all connects of that load that were answered, refusals included:
  a refusal costs entries and messages, too. Several runs are added up.
- **Message**: one frame that a node sent to another, whatever for, heartbeats included. A call is
  two messages. What an idle cluster would have sent meanwhile stands beside it.
- **Outage**: what clients saw of the leader's death. Its gap is the longest time between two
  successive ok connects of which the later one ended after the kill; connects that were under way
  and could be answered without a leader shorten it. The first answer is that of a connect which
  *began* after the kill.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql import Column, Window
from pyspark.sql import functions as F  # noqa: N812  the name every Spark user knows

from bench import schema
from bench.analysis.tables import ALL, ratio, sorted_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = [
    "around",
    "around_death",
    "costs",
    "count_of",
    "outages",
    "per_s",
    "quiet_times",
    "sessions",
]

LOAD = ("layout", "scenario", "registry")

SLICE_US = 100_000
BEFORE_US = 2_000_000
AFTER_US = 6_000_000
"""How much of a load is drawn around the leader's death, in slices of a tenth of a second."""

_SUMS = ("entries", "commands", "raft_messages", "feed_messages", "call_messages", "sent_bytes")


def costs(rows: DataFrame, facts: DataFrame) -> DataFrame:
    """Per layout, scenario and registry: entries, commands and messages, also for each connect."""
    answered = F.col("class").isin("ok", "refused")
    connects = (
        _connects(rows, schema.PHASES)
        .groupBy("run", *LOAD)
        .agg(F.sum(answered.cast("long")).alias("connects"))
    )
    idle = F.col("idle_messages_per_s") * F.col("elapsed_s")
    table = (
        facts.join(connects, ["run", *LOAD])
        .groupBy(*LOAD)
        .agg(
            F.sum("connects").alias("connects"),
            # A run without a count makes the sum of counts too small for the sum of connects.
            *(F.when(_all_there(name), F.sum(name)).alias(name) for name in _SUMS),
            F.when(_all_there("raft_messages"), F.sum(idle)).alias("idle_messages"),
            F.max("switch_s").alias("switch_s"),
            F.sum("handovers_lost").alias("handovers_lost"),
            F.sum("hollow").alias("hollow"),
        )
    )
    messages = F.col("raft_messages") + F.col("feed_messages") + F.col("call_messages")
    per_connect = {
        "entries": F.col("entries"),
        "commands": F.col("commands"),
        "messages": messages,
        **{name: F.col(f"{name}_messages") for name in ("raft", "feed", "call", "idle")},
        "bytes": F.col("sent_bytes"),
    }
    table = table.withColumns(
        {
            f"{name}_per_connect": ratio(value, F.col("connects"))
            for name, value in per_connect.items()
        }
    )
    return sorted_table(table, *LOAD)


def outages(rows: DataFrame, facts: DataFrame) -> DataFrame:
    """Per run, layout and registry in which the leader was killed: what the clients saw of it.

    `before_per_s` and `after_per_s` are ok connects per second of the phase `load` up to the kill,
    and from a second after it on.
    """
    key = ["run", *LOAD]
    kills = facts.where(F.col("killed_us").isNotNull()).select(*key, "killed", "killed_us")
    found = _connects(rows, ("load", "quiesce")).join(F.broadcast(kills), key)
    ok, killed = F.col("class") == "ok", F.col("killed_us")
    gaps = quiet_times(found.where(ok), key)
    later, in_load = F.col("end_us") >= killed, F.col("phase") == "load"
    settled_us = killed + 1_000_000
    before = ok & in_load & ~later
    after = ok & in_load & (F.col("end_us") >= settled_us)
    wrong = F.col("session_present") != F.col("expected_present")
    table = (
        found.groupBy(*key, "killed")
        .agg(
            F.min(F.when(ok & (F.col("start_us") >= killed), F.col("end_us") - killed)).alias(
                "first_us"
            ),
            F.max(F.when(later & (F.col("class") != "error"), F.col("duration_us"))).alias(
                "slowest_us"
            ),
            count_of(later & (F.col("class") == "error")).alias("errors"),
            count_of(later & wrong).alias("wrong_flags"),
            per_s(before, F.min(F.when(in_load, F.col("start_us"))), F.max(killed)).alias(
                "before_per_s"
            ),
            per_s(after, F.max(settled_us), F.max(F.when(in_load, F.col("end_us")))).alias(
                "after_per_s"
            ),
        )
        .join(gaps, key, "left")
    )
    return sorted_table(
        table.select(
            *key,
            "killed",
            (F.col("gap_us") / 1e3).alias("gap_ms"),
            (F.col("first_us") / 1e3).alias("first_ms"),
            (F.col("slowest_us") / 1e3).alias("slowest_ms"),
            "errors",
            "wrong_flags",
            "before_per_s",
            "after_per_s",
        ),
        "layout",
        "registry",
        "run",
    )


def around_death(rows: DataFrame, facts: DataFrame) -> DataFrame:
    """Per run, layout, registry and tenth of a second around the kill: ok and failed connects.

    By when they ended. `at_ms` is where the slice begins, 0 at the kill. Slices without any connect
    are there.
    """
    key = ["run", *LOAD]
    kills = facts.where(F.col("killed_us").isNotNull()).select(*key, "killed_us")
    found = _connects(rows, ("warmup", "load", "quiesce")).join(F.broadcast(kills), key)
    kinds = {name: F.col("class") == name for name in ("ok", "error")}
    return sorted_table(around(found, key, kinds), "layout", "registry", "run", "at_ms")


def quiet_times(ok: DataFrame, key: Sequence[str]) -> DataFrame:
    """Per `key` the longest time `gap_us` between two ends, the later of them after `killed_us`.

    `ok` are the operations that count.
    """
    in_order = Window.partitionBy(*key).orderBy("end_us")
    return (
        ok.withColumn("gap_us", F.col("end_us") - F.lag("end_us").over(in_order))
        .where(F.col("end_us") >= F.col("killed_us"))
        .groupBy(*key)
        .agg(F.max("gap_us").alias("gap_us"))
    )


def around(
    found: DataFrame,
    key: Sequence[str],
    kinds: Mapping[str, Column],
    after_us: int = AFTER_US,
) -> DataFrame:
    """Per `key` and tenth of a second around `killed_us`: how many of each kind ended in it."""
    begins, ends = (F.col(name) - F.col("killed_us") for name in ("start_us", "end_us"))
    counted = (
        found.where((ends >= -BEFORE_US) & (ends < after_us))
        .groupBy(*key, F.floor(ends / SLICE_US).alias("slice"))
        .agg(*(count_of(kind).alias(name) for name, kind in kinds.items()))
    )
    # Only slices in which clients were at work from beginning to end.
    in_load = F.col("phase") != "quiesce"
    first = F.greatest(F.ceil(F.min(begins) / SLICE_US), F.lit(-BEFORE_US // SLICE_US))
    last = F.floor(F.max(F.when(in_load, ends)) / SLICE_US) - 1
    spans = found.groupBy(*key).agg(
        first.alias("first"), F.least(last, F.lit(after_us // SLICE_US - 1)).alias("last")
    )
    slices = F.explode(F.sequence(F.col("first").cast("long"), F.col("last").cast("long")))
    grid = spans.where(F.col("first") <= F.col("last")).select(*key, slices.alias("slice"))
    return grid.join(counted, [*key, "slice"], "left").select(
        *key,
        (F.col("slice") * (SLICE_US // 1000)).alias("at_ms"),
        *(F.coalesce(name, F.lit(0)).alias(name) for name in kinds),
    )


def sessions(
    operation_table: DataFrame, verdict_table: DataFrame, cost_table: DataFrame
) -> DataFrame:
    """Per layout, scenario and mode: speed, costs and wrong answers in one line.

    A view of the other tables; the speed is that of connects under load, all callers together.
    """
    speed = operation_table.where(
        (F.col("op") == "connect")
        & (F.col("phase") == "load")
        & (F.col("role") == ALL)
        & F.col("registry").isin(list(schema.SESSION_MODES))
    ).select(
        *LOAD,
        *("count", "ok", "refused", "error", "throughput_per_s", "answered_per_s"),
        *("p50_ms", "p99_ms", "max_ms", "refused_share"),
    )
    judged = verdict_table.select(
        *LOAD, "connects_checked", "audits_checked", "anomalies", *schema.ANOMALIES
    )
    cost = cost_table.select(
        *LOAD,
        *("entries_per_connect", "commands_per_connect", "messages_per_connect"),
        *("raft_per_connect", "feed_per_connect", "call_per_connect", "idle_per_connect"),
        *("bytes_per_connect", "handovers_lost", "hollow", "switch_s"),
    )
    table = speed.join(judged, list(LOAD), "left").join(cost, list(LOAD), "left")
    return sorted_table(table, *LOAD)


def _connects(rows: DataFrame, phases: Sequence[str]) -> DataFrame:
    """The connects with sessions, each once."""
    return rows.where(
        (F.col("op") == "connect")
        & (F.col("role") == ALL)
        & F.col("registry").isin(list(schema.SESSION_MODES))
        & F.col("phase").isin(list(phases))
    )


def count_of(condition: Column) -> Column:
    """How many rows it is true for."""
    return F.sum(F.coalesce(condition, F.lit(False)).cast("long"))


def _all_there(name: str) -> Column:
    return F.count(name) == F.count(F.lit(1))


def per_s(condition: Column, began_us: Column, ended_us: Column) -> Column:
    """How often per second, over the time between two moments; null if there is none."""
    return ratio(count_of(condition), (ended_us - began_us) / 1e6)
