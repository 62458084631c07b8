"""The order of the analysis: read, check, compute, write tables and `summary.json`.

Keys of `summary.json` (format 1; keys are only ever added):

    format           1
    conditions       what the driver wrote about the machine and its arguments, unchanged
    input            files, files_damaged, rows, rows_accepted, rows_rejected,
                     rejected (scope, reason, count), runs
    operations, outcomes, error_totals, gaps, anomalies, verdicts, registry_ratios,
    layout_ratios, puts, gets, mixed, costs, outages, around_death, sessions, cluster_calls,
    cluster_call_roles, cluster_call_outcomes, cluster_call_verdicts, cluster_call_outages,
    cluster_call_death, limbo, limbo_outcomes, limbo_verdicts, txqueue, txqueue_outcomes,
    txqueue_verdicts, subscriptions, subscription_verdicts, benchmarks
                     the rows of the tables with these names, as lists of objects
    tables           every table's directory, relative to the summary; `over_time` and `rejected`
                     are only there

What the columns mean is written in `bench.analysis.tables`, and in `tables_sessions`,
`tables_cluster_calls`, `tables_limbo`, `tables_txqueue` and `tables_subscriptions` beside it.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable, Sequence
from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from pyarrow import parquet
from pyspark.sql import functions as F  # noqa: N812  the name every Spark user knows
from pyspark.sql import types as t

from bench.analysis import (
    AnalysisError,
    tables,
    tables_cluster_calls,
    tables_limbo,
    tables_sessions,
    tables_subscriptions,
    tables_txqueue,
)
from bench.analysis.benchmarks import read_benchmarks
from bench.analysis.checks import REASON, with_reason
from bench.analysis.figures import Figures, Rows
from bench.analysis.inputs import DamagedFile, Inputs, path_to_read, path_to_write
from bench.facts import (
    CALL_FACT_COLUMNS,
    FACT_COLUMNS,
    LIMBO_FACT_COLUMNS,
    SUBSCRIPTION_FACT_COLUMNS,
    TXQUEUE_FACT_COLUMNS,
    AnyFacts,
    CallFacts,
    LimboFacts,
    SubscriptionFacts,
    TxqueueFacts,
)
from bench.schema import Column, spark_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["FORMAT", "TABLES", "analyse", "write_summary"]

FORMAT = 1
TABLES = (
    "operations",
    "outcomes",
    "error_totals",
    "over_time",
    "gaps",
    "anomalies",
    "verdicts",
    "registry_ratios",
    "layout_ratios",
    "puts",
    "gets",
    "mixed",
    "costs",
    "outages",
    "around_death",
    "sessions",
    "cluster_calls",
    "cluster_call_roles",
    "cluster_call_outcomes",
    "cluster_call_verdicts",
    "cluster_call_outages",
    "cluster_call_death",
    "limbo",
    "limbo_outcomes",
    "limbo_verdicts",
    "txqueue",
    "txqueue_outcomes",
    "txqueue_verdicts",
    "subscriptions",
    "subscription_verdicts",
    "benchmarks",
)
"""The tables in the order in which they are computed; `rejected` is written besides."""

ONLY_ON_DISK = ("over_time", "rejected")
"""Not in the summary: these grow with the length of the run."""

Say = Callable[[str], None]


def analyse(spark: SparkSession, inputs: Inputs, say: Say) -> Figures:
    """Computes all tables, writes them below `inputs.directory`, returns their rows.

    `say` gets a word before each part of the work. Raises AnalysisError when no row is left.
    """
    say("checking rows")
    checked = _read_logs(spark, inputs.logs)
    accepted = checked.where(F.col(REASON).isNull())
    benchmark_table, damaged_benchmarks = read_benchmarks(spark, inputs.benchmarks)
    rejected = _rejected(spark, checked, (*inputs.damaged, *damaged_benchmarks)).cache()
    _write(rejected, inputs.directory, "rejected")
    counts = _input_counts(inputs, checked, rejected)
    if counts["rows_accepted"] == 0:
        raise AnalysisError(_nothing_left(inputs.directory, counts))
    prepared = tables.prepared(accepted).cache()
    by_group = tables.operations(prepared).cache()
    by_outcome = tables.outcomes(prepared).cache()
    by_kind = tables.anomalies(prepared).cache()
    facts = _facts(spark, inputs.loads, FACT_COLUMNS).cache()
    verdicts = tables.verdicts(by_kind).cache()
    costs = tables_sessions.costs(prepared, facts).cache()
    frames = {
        "operations": by_group,
        "outcomes": by_outcome,
        "error_totals": tables.error_totals(by_outcome),
        "over_time": tables.over_time(prepared),
        "gaps": tables.gaps(prepared),
        "anomalies": by_kind,
        "verdicts": verdicts,
        "registry_ratios": tables.registry_ratios(by_group),
        "layout_ratios": tables.layout_ratios(by_group),
        "puts": tables.puts(by_group),
        "gets": tables.gets(by_group),
        "mixed": tables.mixed(by_group),
        "costs": costs,
        "outages": tables_sessions.outages(prepared, facts),
        "around_death": tables_sessions.around_death(prepared, facts),
        "sessions": tables_sessions.sessions(by_group, verdicts, costs),
        **_cluster_calls(spark, accepted, inputs.call_loads),
        **_limbo(spark, accepted, inputs.limbo_loads),
        **_txqueue(spark, accepted, inputs.txqueue_loads),
        **_subscriptions(spark, accepted, inputs.subscription_loads),
        "benchmarks": benchmark_table,
    }
    rows: dict[str, Rows] = {}
    for name in TABLES:
        say(f"computing {name.replace('_', ' ')}")
        rows[name] = _write_and_collect(frames[name], inputs.directory, name)
    spark.catalog.clearCache()
    return Figures(inputs.conditions, counts, rows)


def write_summary(directory: Path, figures: Figures) -> Path:
    """Writes `summary.json`, whole or not at all. Returns its path."""
    summary: dict[str, Any] = {
        "format": FORMAT,
        "conditions": figures.conditions,
        "input": figures.input,
        **{name: rows for name, rows in figures.tables.items() if name not in ONLY_ON_DISK},
        "tables": {name: f"tables/{name}" for name in (*TABLES, "rejected")},
    }
    path = directory / "summary.json"
    temporary = directory / ".summary.json.tmp"
    text = json.dumps(summary, indent=2, allow_nan=False, ensure_ascii=False)
    temporary.write_text(text + "\n", encoding="utf-8")
    os.replace(temporary, path)
    return path


def _read_logs(spark: SparkSession, paths: tuple[Path, ...]) -> DataFrame:
    """All rows with the file they come from and the reason to set them aside, if any."""
    if paths:
        rows = spark.read.schema(spark_schema()).parquet(*map(path_to_read, paths))
        named = rows.select("*", F.col("_metadata.file_name").alias("file"))
    else:
        empty = t.StructType([*spark_schema().fields, t.StructField("file", t.StringType())])
        named = spark.createDataFrame([], empty)
    return with_reason(named)


def _facts(
    spark: SparkSession,
    loads: Sequence[AnyFacts],
    columns: tuple[Column, ...],
) -> DataFrame:
    """What is known of loads beside their rows."""
    rows = [msgspec.structs.astuple(facts) for facts in loads]
    return spark.createDataFrame(rows, spark_schema(columns))


def _cluster_calls(
    spark: SparkSession, accepted: DataFrame, loads: Sequence[CallFacts]
) -> dict[str, DataFrame]:
    """The tables of cluster calls by name."""
    facts = _facts(spark, loads, CALL_FACT_COLUMNS)
    if loads:
        facts = facts.cache()
        calls = tables_cluster_calls.prepared_calls(accepted, facts).cache()
        wrong = tables_cluster_calls.wrong_of_loads(calls).cache()
    else:
        # Spark makes nothing of a limit of nothing before it runs anything: most runs have none.
        facts = facts.limit(0)
        calls = tables_cluster_calls.prepared_calls(accepted.limit(0), facts)
        wrong = tables_cluster_calls.wrong_of_loads(calls)
    return {
        "cluster_calls": tables_cluster_calls.cluster_calls(calls, facts, wrong),
        "cluster_call_roles": tables_cluster_calls.cluster_call_roles(calls),
        "cluster_call_outcomes": tables_cluster_calls.cluster_call_outcomes(calls),
        "cluster_call_verdicts": tables_cluster_calls.cluster_call_verdicts(wrong),
        "cluster_call_outages": tables_cluster_calls.cluster_call_outages(calls),
        "cluster_call_death": tables_cluster_calls.cluster_call_death(calls),
    }


def _limbo(
    spark: SparkSession, accepted: DataFrame, loads: Sequence[LimboFacts]
) -> dict[str, DataFrame]:
    """The tables of the limbo by name."""
    facts = _facts(spark, loads, LIMBO_FACT_COLUMNS)
    if loads:
        facts = facts.cache()
        rows = tables_limbo.prepared_limbo(accepted, facts).cache()
        wrong = tables_limbo.wrong_of_limbo(rows).cache()
    else:
        # As with cluster calls: Spark makes nothing of a limit of nothing.
        facts = facts.limit(0)
        rows = tables_limbo.prepared_limbo(accepted.limit(0), facts)
        wrong = tables_limbo.wrong_of_limbo(rows)
    return {
        "limbo": tables_limbo.limbo(rows, facts, wrong),
        "limbo_outcomes": tables_limbo.limbo_outcomes(rows),
        "limbo_verdicts": tables_limbo.limbo_verdicts(wrong),
    }


def _txqueue(
    spark: SparkSession, accepted: DataFrame, loads: Sequence[TxqueueFacts]
) -> dict[str, DataFrame]:
    """The tables of the queues by name."""
    facts = _facts(spark, loads, TXQUEUE_FACT_COLUMNS)
    if loads:
        facts = facts.cache()
        rows = tables_txqueue.prepared_txqueue(accepted, facts).cache()
        wrong = tables_txqueue.wrong_of_txqueue(rows).cache()
    else:
        # As with cluster calls: Spark makes nothing of a limit of nothing.
        facts = facts.limit(0)
        rows = tables_txqueue.prepared_txqueue(accepted.limit(0), facts)
        wrong = tables_txqueue.wrong_of_txqueue(rows)
    return {
        "txqueue": tables_txqueue.txqueue(rows, facts, wrong),
        "txqueue_outcomes": tables_txqueue.txqueue_outcomes(rows),
        "txqueue_verdicts": tables_txqueue.txqueue_verdicts(wrong),
    }


def _subscriptions(
    spark: SparkSession, accepted: DataFrame, loads: Sequence[SubscriptionFacts]
) -> dict[str, DataFrame]:
    """The tables of subscriptions by name."""
    facts = _facts(spark, loads, SUBSCRIPTION_FACT_COLUMNS)
    if loads:
        facts = facts.cache()
        rows = tables_subscriptions.prepared_subscriptions(accepted, facts).cache()
    else:
        # As with cluster calls: Spark makes nothing of a limit of nothing.
        facts = facts.limit(0)
        rows = tables_subscriptions.prepared_subscriptions(accepted.limit(0), facts)
    return {
        "subscriptions": tables_subscriptions.subscriptions(rows, facts),
        "subscription_verdicts": tables_subscriptions.subscription_verdicts(rows),
    }


def _rejected(
    spark: SparkSession, checked: DataFrame, damaged: tuple[DamagedFile, ...]
) -> DataFrame:
    """Rows that break a rule (scope `row`) and files that cannot be read (scope `file`)."""
    rows = checked.where(F.col(REASON).isNotNull()).withColumn("scope", F.lit("row"))
    named = t.StructType([t.StructField(n, t.StringType()) for n in ("file", REASON, "scope")])
    files = spark.createDataFrame([(d.path.name, d.reason, "file") for d in damaged], named)
    order = ["scope", "file", REASON, *spark_schema().names]
    return files.unionByName(rows, allowMissingColumns=True).select(*order)


def _input_counts(inputs: Inputs, checked: DataFrame, rejected: DataFrame) -> dict[str, Any]:
    total = checked.agg(
        F.count("*").alias("rows"),
        F.count(REASON).alias("rejected"),
        F.array_sort(F.collect_set(F.when(F.col(REASON).isNull(), F.col("run")))).alias("runs"),
    ).collect()[0]
    reasons = [row.asDict() for row in tables.rejected_reasons(rejected).collect()]
    damaged = sum(row["count"] for row in reasons if row["scope"] == "file")
    return {
        "files": len(inputs.logs)
        + len(inputs.loads)
        + len(inputs.call_loads)
        + len(inputs.limbo_loads)
        + len(inputs.txqueue_loads)
        + len(inputs.subscription_loads)
        + len(inputs.benchmarks)
        + len(inputs.damaged),
        "files_damaged": damaged,
        "rows": total["rows"],
        "rows_accepted": total["rows"] - total["rejected"],
        "rows_rejected": total["rejected"],
        "rejected": reasons,
        "runs": list(total["runs"]),
    }


def _nothing_left(directory: Path, counts: dict[str, Any]) -> str:
    if not counts["rejected"]:
        return f"the log files in {directory}/log hold no rows: run `python -m bench run` again"
    first = max(counts["rejected"], key=lambda row: row["count"])
    return (
        f"nothing in {directory}/log can be used: {counts['files_damaged']} damaged files and "
        f"{counts['rows_rejected']} rows were set aside (most often: {first['reason']}); "
        f"see {directory}/tables/rejected, then run `python -m bench run` again"
    )


def _write_and_collect(frame: DataFrame, directory: Path, name: str) -> Rows:
    """One job of Spark for both: these tables are small, so the driver writes them itself."""
    table = frame.toArrow()
    target = directory / "tables" / name
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    parquet.write_table(table, target / "part-00000.parquet")
    return [{key: _plain(value) for key, value in row.items()} for row in table.to_pylist()]


def _write(frame: DataFrame, directory: Path, name: str) -> None:
    target = path_to_write(directory / "tables" / name)
    frame.coalesce(1).write.mode("overwrite").parquet(target)


def _plain(value: Any) -> Any:
    """A value that JSON can carry: no NaN, no dates."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, date | datetime):
        return value.isoformat()
    return value
