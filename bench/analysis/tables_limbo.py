"""The figures of the limbo, from the rows of its writers and nodes and the facts of its loads.

Definitions, besides those of `bench.analysis.tables`:

- **Load**: layout, scenario, the quorum in force, and the number of writers. Several runs are added
  up.
- **Confirmed**: a transaction that its writer was told is confirmed. `unknown` are those of which
  nothing was decided, or nobody knew, when their time was over: they may be confirmed later.
- **Latency**: of confirmed transactions, from their first line to the verdict.
- **Per transaction**: what a whole load cost, until all nodes had applied and acknowledged it,
  divided by all its confirmed transactions, those of the warm-up too.

Every node was asked for each confirmed transaction of the load, when all was at rest. Wrong are,
each counted once:

    missing           a confirmed transaction that a node does not have, with value and position
    strays            a row that no writer was told of, beyond those that `unknown` accounts for
    double_positions  a position that two confirmed transactions got
    out_of_order      a position below that of an earlier transaction of the same writer
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import Column, Window
from pyspark.sql import functions as F  # noqa: N812  the name every Spark user knows

from bench import schema
from bench.analysis.tables import ALL, ratio, sorted_table
from bench.analysis.tables_sessions import count_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = [
    "LOAD",
    "WRONG",
    "limbo",
    "limbo_outcomes",
    "limbo_verdicts",
    "prepared_limbo",
    "wrong_of_limbo",
]

LOAD = ("layout", "scenario", "quorum", "writers")
ONE = ("run", "layout", "load")
"""Names one load of one run."""

WRONG = ("missing", "strays", "double_positions", "out_of_order")

COUNT = "how_often"
_UNKNOWN = ("still_pending", "submit_unknown", "timeout", "error:outcome_unknown")
_COSTS = (
    *("entries", "commands", "acks", "raft_messages", "feed_messages", "call_messages"),
    "sent_bytes",
)


def prepared_limbo(rows: DataFrame, facts: DataFrame) -> DataFrame:
    """Accepted rows of the limbo with the load that they belong to, `class` and `end_us`.

    `class`: `ok`; `rolled_back`; `unknown`; `error` (refused, or never written).
    """
    outcome = F.col("outcome")
    kind = (
        F.when(outcome.isin("ok", "rolled_back"), outcome)
        .when(outcome.isin(list(_UNKNOWN)), "unknown")
        .otherwise("error")
    )
    found = facts.select(*ONE, *LOAD[1:], "nodes")
    return (
        rows.where(F.col("op").isin(list(schema.LIMBO_OPS)))
        .select(
            *ONE,
            *("phase", "node", "op", "client", "index", "start_us", "duration_us", "outcome"),
            kind.alias("class"),
            (F.col("start_us") + F.col("duration_us")).alias("end_us"),
        )
        .join(F.broadcast(found), list(ONE))
    )


def limbo(rows: DataFrame, facts: DataFrame, wrong: DataFrame) -> DataFrame:
    """Per load: transactions by class, throughput, latency, costs for each, wrong answers."""
    written = _of(rows, "submit").where(F.col("phase") == "load")
    table = (
        _speed(written)
        .join(_costs(rows, facts), list(LOAD), "left")
        .join(wrong.groupBy(*LOAD).agg(*_sums("checked", "wrong", *WRONG)), list(LOAD), "left")
    )
    return sorted_table(table, *LOAD)


def limbo_outcomes(rows: DataFrame) -> DataFrame:
    """Per load and outcome: how many transactions, those of the warm-up too."""
    by = (*LOAD, "outcome")
    counted = _of(rows, "submit").groupBy(*by).agg(F.count("*").alias("count"))
    return sorted_table(counted, *by)


def limbo_verdicts(wrong: DataFrame) -> DataFrame:
    """Sums of `wrong_of_limbo` per layout, and over `all`."""
    table = (
        wrong.withColumn("layout", F.explode(F.array("layout", F.lit(ALL))))
        .groupBy("layout")
        .agg(F.count("*").alias("loads"), *_sums("confirmed", "checked", "wrong", *WRONG))
    )
    return sorted_table(table, "layout")


def wrong_of_limbo(rows: DataFrame) -> DataFrame:
    """Per run and load: what was confirmed, how often a node was asked for it, what was wrong."""
    written = _of(rows, "submit")
    confirmed = written.where(F.col("class") == "ok")
    told = written.groupBy(*ONE).agg(
        count_of(F.col("class") == "ok").alias("due"),
        count_of(F.col("class") == "unknown").alias("unknown"),
    )
    counts = {
        "missing": _missing(rows, told),
        "strays": _strays(rows, told),
        "double_positions": _double_positions(confirmed),
        "out_of_order": _out_of_order(confirmed),
        "confirmed": told.select(*ONE, F.col("due").alias(COUNT)),
        "checked": _due(rows, told).select(*ONE, F.col("due").alias(COUNT)),
    }
    # One long table instead of a join for each kind.
    named = [one.withColumn("kind", F.lit(kind)) for kind, one in counts.items()]
    long = reduce(lambda one, other: one.unionByName(other), named)
    by_kind = [
        F.sum(F.when(F.col("kind") == kind, F.col(COUNT)).otherwise(0)).alias(kind)
        for kind in counts
    ]
    total = reduce(lambda one, other: one + other, map(F.col, WRONG))
    loads = rows.select(*ONE, *LOAD[1:]).distinct()
    wide = long.groupBy(*ONE).agg(*by_kind).withColumn("wrong", total)
    return wide.join(F.broadcast(loads), list(ONE))


# ---- what a load is measured by ----------------------------------------------------------------


def _speed(written: DataFrame) -> DataFrame:
    confirmed_us = F.when(F.col("class") == "ok", F.col("duration_us"))
    window = F.max("end_us") - F.min("start_us")
    per_run = written.groupBy("run", *LOAD).agg(window.alias("window_us"))
    windows = per_run.groupBy(*LOAD).agg(F.sum("window_us").alias("window_us"))
    measured = written.groupBy(*LOAD).agg(
        F.count("*").alias("count"),
        *(
            count_of(F.col("class") == name).alias(name)
            for name in ("ok", "rolled_back", "unknown", "error")
        ),
        F.percentile(confirmed_us, F.array(F.lit(0.5), F.lit(0.95), F.lit(0.99))).alias("at"),
        F.max("duration_us").alias("longest_us"),
    )
    window_s = F.col("window_us") / 1e6
    return measured.join(windows, list(LOAD)).select(
        *LOAD,
        *("count", "ok", "rolled_back", "unknown", "error"),
        window_s.alias("window_s"),
        ratio(F.col("ok"), window_s).alias("confirmed_per_s"),
        (F.col("at")[0] / 1e3).alias("p50_ms"),
        (F.col("at")[1] / 1e3).alias("p95_ms"),
        (F.col("at")[2] / 1e3).alias("p99_ms"),
        (F.col("longest_us") / 1e3).alias("longest_ms"),
    )


def _costs(rows: DataFrame, facts: DataFrame) -> DataFrame:
    confirmed = _of(rows, "submit").where(F.col("class") == "ok")
    counted = confirmed.groupBy(*ONE).agg(F.count("*").alias("transactions"))
    idle = F.col("idle_messages_per_s") * F.col("elapsed_s")
    table = (
        facts.join(counted, list(ONE))
        .groupBy(*LOAD)
        .agg(
            F.sum("transactions").alias("transactions"),
            # A run without a count makes the sum of counts too small for that of transactions.
            *(F.when(_all_there(name), F.sum(name)).alias(name) for name in _COSTS),
            F.sum(idle).alias("idle_messages"),
        )
    )
    messages = F.col("raft_messages") + F.col("feed_messages") + F.col("call_messages")
    costs = {
        **{name: F.col(name) for name in ("entries", "commands", "acks")},
        "messages": messages,
        **{name: F.col(f"{name}_messages") for name in ("raft", "feed", "call", "idle")},
        "bytes": F.col("sent_bytes"),
    }
    return table.select(
        *LOAD,
        *(
            ratio(value, F.col("transactions")).alias(f"{name}_per_transaction")
            for name, value in costs.items()
        ),
        ratio(F.col("transactions"), F.col("entries")).alias("transactions_per_entry"),
    )


# ---- what must not be --------------------------------------------------------------------------


def _due(rows: DataFrame, told: DataFrame) -> DataFrame:
    """A row for each node that had to be looked at, also if it never was."""
    nodes = rows.select(*ONE, F.explode(F.split("nodes", " ")).alias("node")).distinct()
    return nodes.join(F.broadcast(told), list(ONE))


def _missing(rows: DataFrame, told: DataFrame) -> DataFrame:
    found = _of(rows, "rows").select(*ONE, "node", F.col("index").alias("found"))
    looked = _due(rows, told).join(found, [*ONE, "node"], "left").fillna(0, ["found"])
    return looked.select(*ONE, F.greatest(F.lit(0), F.col("due") - F.col("found")).alias(COUNT))


def _strays(rows: DataFrame, told: DataFrame) -> DataFrame:
    found = _of(rows, "strays").join(F.broadcast(told), list(ONE))
    return found.select(*ONE, F.greatest(F.lit(0), F.col("index") - F.col("unknown")).alias(COUNT))


def _double_positions(confirmed: DataFrame) -> DataFrame:
    by_position = confirmed.groupBy(*ONE, "index").count()
    return by_position.select(*ONE, (F.col("count") - 1).alias(COUNT))


def _out_of_order(confirmed: DataFrame) -> DataFrame:
    """A writer has one transaction outstanding, so its positions must grow."""
    before = (
        Window.partitionBy(*ONE, "client")
        .orderBy("start_us")
        .rowsBetween(Window.unboundedPreceding, -1)
    )
    later = confirmed.withColumn("highest", F.max("index").over(before))
    return later.where(F.col("index") < F.col("highest")).select(*ONE, F.lit(1).alias(COUNT))


# ---- small things ------------------------------------------------------------------------------


def _of(rows: DataFrame, op: str) -> DataFrame:
    return rows.where(F.col("op") == op)


def _sums(*names: str) -> list[Column]:
    return [F.sum(name).alias(name) for name in names]


def _all_there(name: str) -> Column:
    return F.count(name) == F.count(F.lit(1))
