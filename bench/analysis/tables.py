"""Every figure of the analysis, as functions from DataFrame to DataFrame.

Definitions, which the report repeats in words:

- **Group**: layout, scenario, phase, role, registry, op, consistency (`none` but for gets). Besides
  each role there is the role `all`, except for puts and gets: their roles are measured one after
  the other, so a sum would mean nothing.
- **Window** of a group: from its first start to its last end, for each run; runs are added up.
- **Classes**: `ok`; `refused` (the registry's verdict against the caller, a correct answer);
  `error` (no answer); for audits `wrong`.
- **Throughput**: ok operations per second of the window. **Answered** counts refusals too.
- **Latency**: exact percentiles (linear between neighbouring ranks) and maximum over all answered
  operations. Errors have no latency; they are counted beside it, so a timeout cannot hide in it.
- **Retried**: operations that needed more than one attempt.
- **Anomaly**: a wrong answer; see `anomalies`. This is the only place that decides what is one.
- **Gap**: the longest time between two successive ok operations of a group: what a client of a
  cluster whose leader dies would see.

Ratios say "first is r times second" for throughput and for latency alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import Column, Window
from pyspark.sql import functions as F  # noqa: N812  the name every Spark user knows

from bench import schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = [
    "ALL",
    "GROUP",
    "anomalies",
    "error_totals",
    "gaps",
    "gets",
    "layout_ratios",
    "mixed",
    "operations",
    "outcomes",
    "over_time",
    "prepared",
    "puts",
    "ratio",
    "registry_ratios",
    "rejected_reasons",
    "sorted_table",
    "verdicts",
]

ALL = "all"
NONE = "none"
GROUP = ("layout", "scenario", "phase", "role", "registry", "op", "consistency")
BUCKET_US = 1_000_000
"""Throughput over time is counted in buckets of one second."""

_ORDER: dict[str, tuple[str, ...]] = {
    "layout": schema.LAYOUTS,
    "scenario": schema.SCENARIOS,
    "phase": schema.PHASES,
    "role": (ALL, *schema.ROLES),
    "registry": schema.REGISTRIES,
    "op": schema.OPS,
    "consistency": (NONE, *schema.CONSISTENCIES),
    "kind": schema.ANOMALIES,
    "participants": tuple(schema.CLUSTER_CALL_PARTICIPANTS),
    "function": tuple(schema.CLUSTER_CALL_FUNCTIONS),
    "place": tuple(schema.CLUSTER_CALL_PLACES),
    "quorum": tuple(schema.LIMBO_QUORUMS),
    "way": tuple(schema.TXQUEUE_WAYS),
    "mode": tuple(schema.SUBSCRIPTION_MODES),
}


def prepared(rows: DataFrame) -> DataFrame:
    """Accepted rows with `class` and `end_us`, each once for its role and once for `all`.

    Without those of cluster calls, the limbo, the queues and subscriptions: `tables_cluster_calls`,
    `tables_limbo`, `tables_txqueue` and `tables_subscriptions` have them.
    """
    outcome = F.col("outcome")
    kind = (
        F.when(outcome == "ok", "ok")
        .when(outcome.isin(list(schema.AUDIT_ANOMALIES)), "wrong")
        .when(outcome.isin(list(schema.REFUSALS)), "refused")
        .otherwise("error")
    )
    alone = F.col("op").isin("put", "get")
    roles = F.when(alone, F.array("role")).otherwise(F.array("role", F.lit(ALL)))
    apart = [
        *(*schema.CLUSTER_CALL_OPS, *schema.LIMBO_OPS),
        *(*schema.TXQUEUE_OPS, *schema.SUBSCRIPTION_OPS),
    ]
    others = rows.where(~F.col("op").isin(apart))
    return others.select(
        "run",
        *(name for name in GROUP if name not in ("role", "consistency")),
        # Not null: groups are joined by their keys, and no null equals another.
        F.coalesce("consistency", F.lit(NONE)).alias("consistency"),
        *("node", "attempt", "start_us", "duration_us"),
        *("outcome", "session_present", "expected_present"),
        kind.alias("class"),
        (F.col("start_us") + F.col("duration_us")).alias("end_us"),
        F.explode(roles).alias("role"),
    )


def operations(rows: DataFrame, apart: Sequence[str] = ()) -> DataFrame:
    """Per group: counts, throughput, exact percentiles, errors, retries.

    `apart`: more columns whose values are kept apart, such as `run`.
    """
    group = [*apart, *GROUP]
    answered_us = F.when(F.col("class") != "error", F.col("duration_us"))
    measured = rows.groupBy(*group).agg(
        # Sets, because two countDistinct make Spark multiply every row by three.
        F.size(F.collect_set("run")).alias("runs"),
        F.size(F.collect_set("node")).alias("nodes"),
        F.count("*").alias("count"),
        *(_count_of_class(name) for name in ("ok", "refused", "error", "wrong")),
        F.sum((F.col("attempt") > 1).cast("long")).alias("retried"),
        F.max("attempt").alias("attempt_max"),
        F.percentile(answered_us, F.array(F.lit(0.5), F.lit(0.95), F.lit(0.99))).alias("at"),
        F.max(answered_us).alias("max_us"),
    )
    window_s = F.col("window_us") / 1e6
    answered = F.col("ok") + F.col("refused") + F.col("wrong")
    table = measured.join(_windows(rows, group), group).select(
        *group,
        "runs",
        "nodes",
        "count",
        "ok",
        "refused",
        "error",
        "wrong",
        "retried",
        "attempt_max",
        window_s.alias("window_s"),
        ratio(F.col("ok"), window_s).alias("throughput_per_s"),
        ratio(answered, window_s).alias("answered_per_s"),
        (F.col("at")[0] / 1e3).alias("p50_ms"),
        (F.col("at")[1] / 1e3).alias("p95_ms"),
        (F.col("at")[2] / 1e3).alias("p99_ms"),
        (F.col("max_us") / 1e3).alias("max_ms"),
        (F.col("refused") / F.col("count")).alias("refused_share"),
        (F.col("error") / F.col("count")).alias("error_share"),
        (F.col("retried") / F.col("count")).alias("retried_share"),
    )
    return sorted_table(table, *group)


def outcomes(rows: DataFrame) -> DataFrame:
    """Per group and outcome: how often. Errors by kind are those of class `error`."""
    table = rows.groupBy(*GROUP, "class", "outcome").agg(F.count("*").alias("count"))
    return sorted_table(table, *GROUP, "class", "outcome")


def error_totals(outcome_table: DataFrame) -> DataFrame:
    """Sums of `outcomes` over all groups, for errors alone: how often each kind came up."""
    # The role `all` repeats the others.
    errors = outcome_table.where((F.col("class") == "error") & (F.col("role") != ALL))
    return sorted_table(errors.groupBy("outcome").agg(F.sum("count").alias("count")), "outcome")


def over_time(rows: DataFrame) -> DataFrame:
    """Per run, group and second since the phase began: operations that ended in it.

    Seconds without any are there, with zeros. `whole` is false for a group's first and last second
    when the group does not cover it: such a bucket says nothing about throughput.
    """
    phase = ("run", "layout", "scenario", "phase", "registry")
    group = ("run", *GROUP)
    began = rows.groupBy(*phase).agg(F.min("start_us").alias("began_us"))
    offset_us = F.col("end_us") - F.col("began_us")
    # Cached: small, and the only look at all rows. The spans are worked out from it.
    counted = (
        rows.join(F.broadcast(began), list(phase))
        .groupBy(*group, _bucket(offset_us).alias("second"))
        .agg(
            F.count("*").alias("count"),
            _count_of_class("ok"),
            _count_of_class("error"),
            F.min(F.col("start_us") - F.col("began_us")).alias("first_us"),
            F.max(offset_us).alias("last_us"),
        )
        .cache()
    )
    spans = counted.groupBy(*group).agg(
        F.min("first_us").alias("first_us"), F.max("last_us").alias("last_us")
    )
    seconds = F.sequence(_bucket(F.col("first_us")), _bucket(F.col("last_us")))
    grid = spans.withColumn("second", F.explode(seconds))
    whole = (F.col("second") * BUCKET_US >= F.col("first_us")) & (
        (F.col("second") + 1) * BUCKET_US <= F.col("last_us")
    )
    filled = [F.coalesce(F.col(name), F.lit(0)).alias(name) for name in ("count", "ok", "error")]
    counted = counted.drop("first_us", "last_us")
    table = grid.join(counted, [*group, "second"], "left").select(
        *group, "second", *filled, whole.alias("whole")
    )
    return sorted_table(table, *group, "second")


def gaps(rows: DataFrame) -> DataFrame:
    """Per group: the longest time between two successive ok operations, over all runs."""
    in_order = Window.partitionBy("run", *GROUP).orderBy("end_us")
    ok = rows.where(F.col("class") == "ok")
    waited = ok.withColumn("gap_us", F.col("end_us") - F.lag("end_us").over(in_order))
    table = waited.groupBy(*GROUP).agg((F.max("gap_us") / 1e3).alias("gap_max_ms"))
    return sorted_table(table, *GROUP)


def anomalies(rows: DataFrame) -> DataFrame:
    """Per layout, scenario, phase, role and registry: wrong answers by kind, and how many checked.

    A connect is checked when the driver knew which `session_present` it had to get and got one. An
    audit row is checked for each of the four kinds it may find, unless the audit itself failed.
    """
    group = ("layout", "scenario", "phase", "role", "registry")
    present, expected = F.col("session_present"), F.col("expected_present")
    connects = rows.where(
        (F.col("op") == "connect") & present.isNotNull() & expected.isNotNull()
    ).select(
        *group, F.lit(schema.WRONG_PRESENT).alias("kind"), (present != expected).alias("wrong")
    )
    kinds = F.array(*(F.lit(kind) for kind in schema.AUDIT_ANOMALIES))
    audits = (
        rows.where((F.col("op") == "audit") & (F.col("class") != "error"))
        .withColumn("kind", F.explode(kinds))
        .select(*group, "kind", (F.col("outcome") == F.col("kind")).alias("wrong"))
    )
    table = (
        connects.unionByName(audits)
        .groupBy(*group, "kind")
        .agg(
            F.sum(F.col("wrong").cast("long")).alias("anomalies"),
            F.count("*").alias("checked"),
        )
        .withColumn("share", F.col("anomalies") / F.col("checked"))
    )
    return sorted_table(table, *group, "kind")


def verdicts(anomaly_table: DataFrame) -> DataFrame:
    """Sums of `anomalies` per registry, layout and scenario; each also over `all`."""
    kinds = {
        kind: F.sum(F.when(F.col("kind") == kind, F.col("anomalies")).otherwise(0)).alias(kind)
        for kind in schema.ANOMALIES
    }
    connects = F.when(F.col("kind") == schema.WRONG_PRESENT, F.col("checked")).otherwise(0)
    # An audit is checked for four kinds at once; one of them stands for the number of audits.
    audits = F.when(F.col("kind") == schema.AUDIT_ANOMALIES[0], F.col("checked")).otherwise(0)
    table = (
        anomaly_table.where(F.col("role") == ALL)
        .withColumn("layout", F.explode(F.array("layout", F.lit(ALL))))
        .withColumn("scenario", F.explode(F.array("scenario", F.lit(ALL))))
        .groupBy("registry", "layout", "scenario")
        .agg(
            F.sum(connects).alias("connects_checked"),
            F.sum(audits).alias("audits_checked"),
            F.sum("anomalies").alias("anomalies"),
            *kinds.values(),
        )
    )
    wrong_audits = reduce(lambda one, other: one + other, map(F.col, schema.AUDIT_ANOMALIES))
    table = table.withColumns(
        {
            "audits_wrong": wrong_audits,
            "connects_wrong_share": ratio(F.col(schema.WRONG_PRESENT), F.col("connects_checked")),
            "audits_wrong_share": ratio(wrong_audits, F.col("audits_checked")),
        }
    )
    return sorted_table(table, "layout", "scenario", "registry")


def registry_ratios(operation_table: DataFrame) -> DataFrame:
    """The registry on (lcr) against off (legacy), for every group that has both."""
    keys = [key for key in GROUP if key != "registry"]
    on = _figures(operation_table.where(F.col("registry") == "lcr"), keys, "lcr")
    off = _figures(operation_table.where(F.col("registry") == "legacy"), keys, "legacy")
    return sorted_table(_with_ratios(on.join(off, keys), "lcr", "legacy"), *keys)


def layout_ratios(operation_table: DataFrame) -> DataFrame:
    """Every layout against every other (`base`) that comes before it in LAYOUTS."""
    keys = [key for key in GROUP if key != "layout"]
    figures = operation_table.where(F.col("op") != "audit")
    base = _figures(figures, [*keys, "layout"], "base").withColumnRenamed("layout", "base")
    other = _figures(figures, [*keys, "layout"], "layout")
    pairs = other.join(base, keys).where(_rank("base") < _rank("layout"))
    table = _with_ratios(pairs, "layout", "base").select(
        "layout", "base", *keys, *_ratio_columns("layout", "base")
    )
    return sorted_table(table, "layout", "base", *keys)


def puts(operation_table: DataFrame) -> DataFrame:
    """The scenario `puts` by layout, caller's role and calls in flight: a view of `operations`."""
    return _calls(operation_table, "puts", "layout", "role")


def gets(operation_table: DataFrame) -> DataFrame:
    """The scenario `gets` by layout, consistency, caller's role and calls in flight: a view too."""
    return _calls(operation_table, "gets", "layout", "consistency", "role")


def mixed(operation_table: DataFrame) -> DataFrame:
    """The scenario `mixed`: its gets and its puts, which share what is in flight, by themselves."""
    return _calls(operation_table, "mixed", "layout", "role", "op")


def _calls(operation_table: DataFrame, scenario: str, *keys: str) -> DataFrame:
    in_flight = F.regexp_extract("phase", "^c([0-9]+)$", 1)
    table = operation_table.where((F.col("scenario") == scenario) & (in_flight != "")).select(
        *keys,
        in_flight.try_cast("int").alias("in_flight"),
        *("count", "ok", "error", "throughput_per_s"),
        *("p50_ms", "p95_ms", "p99_ms", "max_ms", "window_s"),
    )
    return sorted_table(table, *keys, "in_flight")


def rejected_reasons(rejected: DataFrame) -> DataFrame:
    """How many files and rows were set aside, by reason."""
    table = rejected.groupBy("scope", "reason").agg(F.count("*").alias("count"))
    return sorted_table(table, "scope", "reason")


def _windows(rows: DataFrame, group: Sequence[str]) -> DataFrame:
    by_run = dict.fromkeys(["run", *group])
    per_run = rows.groupBy(*by_run).agg((F.max("end_us") - F.min("start_us")).alias("window_us"))
    return per_run.groupBy(*group).agg(F.sum("window_us").alias("window_us"))


def _figures(table: DataFrame, keys: list[str], prefix: str) -> DataFrame:
    names = ("throughput_per_s", "p50_ms", "p99_ms")
    return table.select(*keys, *(F.col(name).alias(f"{prefix}_{name}") for name in names))


def _with_ratios(table: DataFrame, first: str, second: str) -> DataFrame:
    for name, unit in (("throughput", "per_s"), ("p50", "ms"), ("p99", "ms")):
        above, below = F.col(f"{first}_{name}_{unit}"), F.col(f"{second}_{name}_{unit}")
        table = table.withColumn(f"{name}_ratio", ratio(above, below))
    return table


def _ratio_columns(first: str, second: str) -> list[str]:
    figures = (("throughput", "per_s"), ("p50", "ms"), ("p99", "ms"))
    return [
        column
        for name, unit in figures
        for column in (f"{first}_{name}_{unit}", f"{second}_{name}_{unit}", f"{name}_ratio")
    ]


def ratio(above: Column, below: Column) -> Column:
    """Null, not infinity, when there is nothing to divide by."""
    return F.when(below > 0, above / below)


def _count_of_class(name: str) -> Column:
    return F.sum((F.col("class") == name).cast("long")).alias(name)


def _bucket(offset_us: Column) -> Column:
    return F.floor(offset_us / BUCKET_US)


def _rank(name: str) -> Column:
    """The place of a value in the order of the schema; c16 stands behind c1, before c64."""
    values = _ORDER["layout" if name == "base" else name]
    ranks = (F.when(F.col(name) == value, F.lit(place)) for place, value in enumerate(values))
    number = F.regexp_extract(F.col(name), "([0-9]+)$", 1)
    in_flight = F.when(number != "", number.try_cast("int") + len(values))
    return F.coalesce(reduce(lambda one, other: F.coalesce(one, other), ranks), in_flight)


def sorted_table(table: DataFrame, *keys: str) -> DataFrame:
    """A stable order, that of the schema where it has one, in one file."""
    by = [_rank(key) if key in _ORDER or key == "base" else F.col(key) for key in keys]
    return table.coalesce(1).sortWithinPartitions(*by)
