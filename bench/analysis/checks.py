"""The log's own rules, as Spark columns: which rows are set aside, and why.

Parquet knows types, not meaning. A row that says an operation took less than no time, or names a
layout that does not exist, would silently become a group of its own or bend a percentile. Each rule
has a name in words; a row that breaks several is set aside once, with all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812  the name every Spark user knows

from bench import schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["REASON", "with_reason"]

REASON = "reason"
"""Name of the added column: null for a row that breaks no rule."""


def with_reason(rows: DataFrame) -> DataFrame:
    """Adds the column `reason`: every rule that the row breaks, joined by '; ', or null."""
    rules = _rules()
    any_broken = reduce(lambda one, other: one | other, (condition for _, condition in rules))
    words = F.concat_ws("; ", *(F.when(condition, F.lit(reason)) for reason, condition in rules))
    # Words are made for broken rows alone: nearly all rows are good, and there are millions.
    return rows.withColumn(REASON, F.when(any_broken, words))


def _rules() -> list[tuple[str, Column]]:
    """Pairs of reason and condition. A null makes the condition null, which breaks nothing."""
    nulls = [
        (f"{column.name} is missing", F.col(column.name).isNull())
        for column in schema.COLUMNS
        if column.required
    ]
    return [
        *nulls,
        ("attempt is below 1", F.col("attempt") < 1),
        ("start_us is not after the epoch", F.col("start_us") <= 0),
        ("duration_us is negative", F.col("duration_us") < 0),
        ("index is negative", F.col("index") < 0),
        ("unknown layout", _not_one_of("layout", schema.LAYOUTS)),
        ("unknown scenario", _not_one_of("scenario", schema.SCENARIOS)),
        ("unknown phase", _not_one_of("phase", schema.PHASES, schema.PHASE_OF_CALLS)),
        ("unknown registry", _not_one_of("registry", schema.REGISTRIES)),
        ("unknown role", _not_one_of("role", schema.ROLES)),
        ("unknown op", _not_one_of("op", schema.OPS)),
        ("unknown consistency", _not_one_of("consistency", schema.CONSISTENCIES)),
        ("a get without consistency", (F.col("op") == "get") & F.col("consistency").isNull()),
        ("a cluster call without load", _of_cluster_call() & F.col("load").isNull()),
        ("a transaction of the limbo without load", _of_limbo() & F.col("load").isNull()),
        ("a transaction of the queues without load", _of_txqueue() & F.col("load").isNull()),
        ("a row of subscriptions without load", _of_subscriptions() & F.col("load").isNull()),
        ("a confirmed transaction without position", _is_confirmed() & _is_null("index")),
        ("a run without id or life", _of_run() & (_is_null("index") | _is_null("life"))),
        ("unknown outcome", _unknown_outcome()),
        ("run or node is empty", (F.col("run") == "") | (F.col("node") == "")),
    ]


def _not_one_of(column: str, values: Sequence[str], pattern: str | None = None) -> Column:
    known = F.col(column).isin(list(values))
    if pattern is not None:
        known = known | F.col(column).rlike(f"^({pattern})\\z")
    return ~known


def _unknown_outcome() -> Column:
    """What may come out depends on the operation: an audit finds, other operations answer."""
    answers = _not_one_of("outcome", ("ok", *schema.REFUSALS, *schema.ERRORS), schema.ERROR_CODE)
    findings = _not_one_of(
        "outcome", ("ok", *schema.AUDIT_ANOMALIES, *schema.ERRORS), schema.ERROR_CODE
    )
    results = _not_one_of(
        "outcome", ("ok", *schema.CALL_RESULTS, *schema.ERRORS), schema.ERROR_CODE
    )
    verdicts = _not_one_of(
        "outcome", ("ok", *schema.LIMBO_RESULTS, *schema.ERRORS), schema.ERROR_CODE
    )
    commits = _not_one_of(
        "outcome", ("ok", *schema.TXQUEUE_RESULTS, *schema.ERRORS), schema.ERROR_CODE
    )
    moves = _not_one_of("outcome", ("ok", *schema.SUBSCRIPTION_RESULTS))
    return (
        F.when(F.col("op") == "audit", findings)
        .when(_of_limbo(), verdicts)
        .when(_of_txqueue(), commits)
        .when(_of_subscriptions(), moves)
        .when(_of_cluster_call(), results)
        .otherwise(answers)
    )


def _of_cluster_call() -> Column:
    return F.col("op").isin(list(schema.CLUSTER_CALL_OPS))


def _of_limbo() -> Column:
    return F.col("op").isin(list(schema.LIMBO_OPS))


def _of_txqueue() -> Column:
    return F.col("op").isin(list(schema.TXQUEUE_OPS))


def _of_subscriptions() -> Column:
    return F.col("op").isin(list(schema.SUBSCRIPTION_OPS))


def _is_confirmed() -> Column:
    return (F.col("op") == "submit") & (F.col("outcome") == "ok")


def _of_run() -> Column:
    return F.col("op").isin("initiate", "replicate")


def _is_null(column: str) -> Column:
    return F.col(column).isNull()
