"""The figures of the queues, from the rows of their producers and nodes and the facts of the loads.

Definitions, besides those of `bench.analysis.tables`:

- **Load**: layout, scenario, the way to commit, messages of a transaction (`batch`), and the number
  of producers. Several runs are added up.
- **Committed**: a transaction that its producer was told is committed. `unknown` are those of which
  nobody knew when their time was over: they may be committed.
- **Latency**: of committed transactions, from their first publication to the answer of the commit.
- **Messages per second**: those of transactions that were committed.
- **Per transaction**: what a whole load cost, until all nodes had applied it and moved all rows,
  divided by all its committed transactions, those of the warm-up too.

Every node was looked at when all was at rest. Wrong are, each counted once for each node:

    missing      a message of a committed transaction that a node has not exactly once
    strays       a message that no producer was told of, beyond those that `unknown` accounts for
    torn         a transaction, committed or not, of which a node has a part
    displaced    a message out of the order of its transaction or of its producer
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812  the name every Spark user knows

from bench import schema
from bench.analysis.tables import ALL, ratio, sorted_table
from bench.analysis.tables_sessions import count_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = [
    "LOAD",
    "WRONG",
    "prepared_txqueue",
    "txqueue",
    "txqueue_outcomes",
    "txqueue_verdicts",
    "wrong_of_txqueue",
]

LOAD = ("layout", "scenario", "way", "batch", "producers")
ONE = ("run", "layout", "load")
"""Names one load of one run."""

WRONG = ("missing", "strays", "torn", "displaced")

COUNT = "how_often"
_ROLLED_BACK = ("transaction_aborted", "rolled_back")
_UNKNOWN = ("transaction_unknown", "timeout", "error:outcome_unknown")
_COSTS = (
    *("entries", "commands", "raft_messages", "feed_messages", "call_messages"),
    "sent_bytes",
)


def prepared_txqueue(rows: DataFrame, facts: DataFrame) -> DataFrame:
    """Accepted rows of the queues with the load that they belong to, `class` and `end_us`.

    `class`: `ok`; `rolled_back`; `unknown`; `error` (refused, or never asked for).
    """
    outcome = F.col("outcome")
    kind = (
        F.when(outcome == "ok", "ok")
        .when(outcome.isin(list(_ROLLED_BACK)), "rolled_back")
        .when(outcome.isin(list(_UNKNOWN)), "unknown")
        .otherwise("error")
    )
    found = facts.select(*ONE, *LOAD[1:], "nodes")
    return (
        rows.where(F.col("op").isin(list(schema.TXQUEUE_OPS)))
        .select(
            *ONE,
            *("phase", "node", "op", "client", "index", "start_us", "duration_us", "outcome"),
            kind.alias("class"),
            (F.col("start_us") + F.col("duration_us")).alias("end_us"),
        )
        .join(F.broadcast(found), list(ONE))
    )


def txqueue(rows: DataFrame, facts: DataFrame, wrong: DataFrame) -> DataFrame:
    """Per load: transactions by class, throughput, latency, costs for each, wrong answers."""
    committed = _of(rows, "commit").where(F.col("phase") == "load")
    table = (
        _speed(committed)
        .join(_costs(rows, facts), list(LOAD), "left")
        .join(wrong.groupBy(*LOAD).agg(*_sums("checked", "wrong", *WRONG)), list(LOAD), "left")
    )
    return sorted_table(table, *LOAD)


def txqueue_outcomes(rows: DataFrame) -> DataFrame:
    """Per load and outcome: how many transactions, those of the warm-up too."""
    by = (*LOAD, "outcome")
    counted = _of(rows, "commit").groupBy(*by).agg(F.count("*").alias("count"))
    return sorted_table(counted, *by)


def txqueue_verdicts(wrong: DataFrame) -> DataFrame:
    """Sums of `wrong_of_txqueue` per layout, and over `all`."""
    table = (
        wrong.withColumn("layout", F.explode(F.array("layout", F.lit(ALL))))
        .groupBy("layout")
        .agg(F.count("*").alias("loads"), *_sums("committed", "checked", "wrong", *WRONG))
    )
    return sorted_table(table, "layout")


def wrong_of_txqueue(rows: DataFrame) -> DataFrame:
    """Per run and load: what was committed, how many messages nodes had to have, what was wrong."""
    told = (
        _of(rows, "commit")
        .groupBy(*ONE, "batch")
        .agg(
            count_of(F.col("class") == "ok").alias("committed"),
            count_of(F.col("class") == "unknown").alias("unknown"),
        )
        .withColumn("due", F.col("committed") * F.col("batch"))
        .withColumn("allowed", F.col("unknown") * F.col("batch"))
        .drop("batch")
    )
    due = _due(rows, told)
    counts = {
        "missing": _missing(rows, due),
        "strays": _strays(rows, told),
        "torn": _found(rows, "torn"),
        "displaced": _found(rows, "displaced"),
        "committed": told.select(*ONE, F.col("committed").alias(COUNT)),
        "checked": due.select(*ONE, F.col("due").alias(COUNT)),
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


def _speed(committed: DataFrame) -> DataFrame:
    committed_us = F.when(F.col("class") == "ok", F.col("duration_us"))
    window = F.max("end_us") - F.min("start_us")
    per_run = committed.groupBy("run", *LOAD).agg(window.alias("window_us"))
    windows = per_run.groupBy(*LOAD).agg(F.sum("window_us").alias("window_us"))
    measured = committed.groupBy(*LOAD).agg(
        F.count("*").alias("count"),
        *(
            count_of(F.col("class") == name).alias(name)
            for name in ("ok", "rolled_back", "unknown", "error")
        ),
        F.percentile(committed_us, F.array(F.lit(0.5), F.lit(0.95), F.lit(0.99))).alias("at"),
        F.max("duration_us").alias("longest_us"),
    )
    window_s = F.col("window_us") / 1e6
    return measured.join(windows, list(LOAD)).select(
        *LOAD,
        *("count", "ok", "rolled_back", "unknown", "error"),
        window_s.alias("window_s"),
        ratio(F.col("ok"), window_s).alias("committed_per_s"),
        ratio(F.col("ok") * F.col("batch"), window_s).alias("messages_per_s"),
        (F.col("at")[0] / 1e3).alias("p50_ms"),
        (F.col("at")[1] / 1e3).alias("p95_ms"),
        (F.col("at")[2] / 1e3).alias("p99_ms"),
        (F.col("longest_us") / 1e3).alias("longest_ms"),
    )


def _costs(rows: DataFrame, facts: DataFrame) -> DataFrame:
    committed = _of(rows, "commit").where(F.col("class") == "ok")
    counted = committed.groupBy(*ONE).agg(F.count("*").alias("transactions"))
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
    sent = F.col("raft_messages") + F.col("feed_messages") + F.col("call_messages")
    costs = {
        **{name: F.col(name) for name in ("entries", "commands")},
        "sent": sent,
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


def _missing(rows: DataFrame, due: DataFrame) -> DataFrame:
    found = _of(rows, "messages").select(*ONE, "node", F.col("index").alias("found"))
    looked = due.join(found, [*ONE, "node"], "left").fillna(0, ["found"])
    return looked.select(*ONE, F.greatest(F.lit(0), F.col("due") - F.col("found")).alias(COUNT))


def _strays(rows: DataFrame, told: DataFrame) -> DataFrame:
    found = _of(rows, "surplus").join(F.broadcast(told), list(ONE))
    return found.select(*ONE, F.greatest(F.lit(0), F.col("index") - F.col("allowed")).alias(COUNT))


def _found(rows: DataFrame, op: str) -> DataFrame:
    return _of(rows, op).select(*ONE, F.col("index").alias(COUNT))


# ---- small things ------------------------------------------------------------------------------


def _of(rows: DataFrame, op: str) -> DataFrame:
    return rows.where(F.col("op") == op)


def _sums(*names: str) -> list[Column]:
    return [F.sum(name).alias(name) for name in names]


def _all_there(name: str) -> Column:
    return F.count(name) == F.count(F.lit(1))
