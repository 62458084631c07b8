"""The figures of cluster calls, from the rows of callers and functions and the facts of loads.

Definitions, besides those of `bench.analysis.tables`:

- **Load**: layout, scenario, who takes part, function, place of the callers, their number, and for
  whom a call waits (`required`). Several runs are added up.
- **Committed**: a call with an id that stays: answered `ok`, `peers_lagging` or `stopped_nodes`, or
  run by any node as a replica, which only what is committed is.
- **Latency**: of calls that were answered with a commit, whoever was waited for in vain.
- **Per call**: what a whole load cost, until all nodes had executed it, divided by all its calls
  that were answered with a commit, those of the warm-up too.
- **Run**: one run of the function on one node. What a node must not do is counted over runs that
  returned; a run that failed may be repeated.

Wrong are, each counted once:

    repeated       a run of an id that the same process had run before
    out_of_order   a run of a lower id than one that the node had run before
    holes          a committed id that a node which takes part never ran
    aborted_runs   a replica's run of an id whose caller was told that it is committed nowhere
    double_ids     an answer with an id that another caller had got, too
    effects_wrong  a node's key whose version is not the number of committed ids: an effect on the
                   keyspace was lost, or was made twice
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import Column, Window
from pyspark.sql import functions as F  # noqa: N812  the name every Spark user knows

from bench import schema
from bench.analysis.tables import ALL, ratio, sorted_table
from bench.analysis.tables_sessions import around, count_of, per_s, quiet_times

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = [
    "LOAD",
    "WRONG",
    "cluster_call_death",
    "cluster_call_outages",
    "cluster_call_outcomes",
    "cluster_call_roles",
    "cluster_call_verdicts",
    "cluster_calls",
    "prepared_calls",
    "wrong_of_loads",
]

LOAD = ("layout", "scenario", "participants", "function", "place", "callers", "required")
ONE = ("run", "layout", "load")
"""Names one load of one run."""

WRONG = ("repeated", "out_of_order", "holes", "aborted_runs", "double_ids", "effects_wrong")

AFTER_US = 16_000_000
"""How much is drawn after the leader's death: it is declared down ten seconds later."""

COUNT = "how_often"
COMMITTED = ("ok", "peers_lagging", "stopped_nodes")
_COSTS = ("entries", "commands", "raft_messages", "feed_messages", "call_messages", "sent_bytes")


def prepared_calls(rows: DataFrame, facts: DataFrame) -> DataFrame:
    """Accepted rows of cluster calls with the load that they belong to, `class` and `end_us`.

    `class` of a call: `ok`; `partial` (committed, but not executed by all that it waited for);
    `failed` (init_failure: committed nowhere); `error` (no answer).
    """
    outcome = F.col("outcome")
    kind = (
        F.when(outcome == "ok", "ok")
        .when(outcome.isin(list(COMMITTED)), "partial")
        .when(outcome == "init_failure", "failed")
        .otherwise("error")
    )
    found = facts.select(*ONE, *LOAD[1:], "nodes", "killed", "killed_us")
    return (
        rows.where(F.col("op").isin(list(schema.CLUSTER_CALL_OPS)))
        .select(
            *ONE,
            *("phase", "node", "role", "op", "client", "index", "life", "start_us", "duration_us"),
            "outcome",
            kind.alias("class"),
            (F.col("start_us") + F.col("duration_us")).alias("end_us"),
        )
        .join(F.broadcast(found), list(ONE))
    )


def cluster_calls(calls: DataFrame, facts: DataFrame, wrong: DataFrame) -> DataFrame:
    """Per load: calls by class, throughput, latency, costs for each call, wrong answers."""
    measured = _speed(_of(calls, "call").where(F.col("phase") == "load"), LOAD)
    table = measured.join(_costs(calls, facts), list(LOAD), "left").join(
        wrong.groupBy(*LOAD).agg(*_sums("runs_checked", "wrong", *WRONG)), list(LOAD), "left"
    )
    return sorted_table(table, *LOAD)


def cluster_call_roles(calls: DataFrame) -> DataFrame:
    """As `cluster_calls` without costs and verdicts, by the role of the callers' nodes."""
    by = (*LOAD, "role")
    return sorted_table(_speed(_of(calls, "call").where(F.col("phase") == "load"), by), *by)


def cluster_call_outcomes(calls: DataFrame) -> DataFrame:
    """Per load and outcome: how many calls, those of the warm-up too."""
    by = (*LOAD, "outcome")
    return sorted_table(_of(calls, "call").groupBy(*by).agg(F.count("*").alias("count")), *by)


def wrong_of_loads(calls: DataFrame) -> DataFrame:
    """Per run and load: how many runs of functions were looked at, and what was wrong of them."""
    runs = calls.where(F.col("op").isin("initiate", "replicate"))
    returned = runs.where(F.col("class") == "ok")
    committed = _committed(calls)
    counts = {
        "repeated": _repeated(returned),
        "out_of_order": _out_of_order(runs),
        "holes": _holes(calls, returned, committed),
        "aborted_runs": _aborted_runs(calls, runs),
        "double_ids": _double_ids(calls),
        "effects_wrong": _effects_wrong(calls, committed),
        "runs_checked": runs.select(*ONE, F.lit(1).alias(COUNT)),
    }
    # One long table instead of a join for each kind. Loads without any of them are there, too.
    named = [one.withColumn("kind", F.lit(kind)) for kind, one in counts.items()]
    nothing = (
        calls.select(*ONE).distinct().select("*", F.lit(0).alias(COUNT), F.lit("").alias("kind"))
    )
    long = reduce(lambda one, other: one.unionByName(other), [nothing, *named])
    by_kind = {
        kind: F.sum(F.when(F.col("kind") == kind, F.col(COUNT)).otherwise(0)).alias(kind)
        for kind in counts
    }
    total = reduce(lambda one, other: one + other, map(F.col, WRONG))
    loads = calls.select(*ONE, *LOAD[1:]).distinct()
    wide = long.groupBy(*ONE).agg(*by_kind.values()).withColumn("wrong", total)
    return wide.join(F.broadcast(loads), list(ONE))


def cluster_call_verdicts(wrong: DataFrame) -> DataFrame:
    """Sums of `wrong_of_loads` per layout and scenario; each also over `all`."""
    table = (
        wrong.withColumn("layout", F.explode(F.array("layout", F.lit(ALL))))
        .withColumn("scenario", F.explode(F.array("scenario", F.lit(ALL))))
        .groupBy("layout", "scenario")
        .agg(F.count("*").alias("loads"), *_sums("runs_checked", "wrong", *WRONG))
    )
    return sorted_table(table, "layout", "scenario")


def cluster_call_outages(calls: DataFrame) -> DataFrame:
    """Per run and load in which the leader was killed: what its callers saw of it.

    As `tables_sessions.outages`, of calls that were committed: `partial` after the kill are those
    that all nodes were to execute, and that one which is down had not.
    """
    by = ["run", *LOAD, "killed"]
    found = _of(calls, "call").where(F.col("killed_us").isNotNull())
    committed, killed = F.col("class").isin("ok", "partial"), F.col("killed_us")
    later, in_load = F.col("end_us") >= killed, F.col("phase") == "load"
    settled_us = killed + 1_000_000
    seen = found.groupBy(*by).agg(
        F.min(F.when(committed & (F.col("start_us") >= killed), F.col("end_us") - killed)).alias(
            "first_us"
        ),
        F.max(F.when(later & committed, F.col("duration_us"))).alias("slowest_us"),
        count_of(later & (F.col("class") == "partial")).alias("partial"),
        count_of(later & (F.col("class") == "failed")).alias("failed"),
        count_of(later & (F.col("class") == "error")).alias("errors"),
        per_s(
            committed & in_load & ~later,
            F.min(F.when(in_load, F.col("start_us"))),
            F.max(killed),
        ).alias("before_per_s"),
        per_s(
            committed & in_load & (F.col("end_us") >= settled_us),
            F.max(settled_us),
            F.max(F.when(in_load, F.col("end_us"))),
        ).alias("after_per_s"),
    )
    gaps = quiet_times(found.where(committed), by)
    table = seen.join(gaps, by, "left").select(
        *by,
        *((F.col(f"{name}_us") / 1e3).alias(f"{name}_ms") for name in ("gap", "first", "slowest")),
        *("partial", "failed", "errors", "before_per_s", "after_per_s"),
    )
    return sorted_table(table, *LOAD, "run")


def cluster_call_death(calls: DataFrame) -> DataFrame:
    """Per run, load and tenth of a second around the kill: calls with a commit, and without.

    As `tables_sessions.around_death`, up to where the last call of the load began.
    """
    key = ["run", *LOAD]
    last_start = F.max("start_us").over(Window.partitionBy(*key))
    over = F.col("end_us") > last_start
    found = (
        _of(calls, "call")
        .where(F.col("killed_us").isNotNull())
        .withColumn("phase", F.when(over, "quiesce").otherwise(F.col("phase")))
    )
    kinds = {
        "ok": F.col("class") == "ok",
        "partial": F.col("class") == "partial",
        "error": F.col("class").isin("error", "failed"),
    }
    return sorted_table(around(found, key, kinds, AFTER_US), *LOAD, "run", "at_ms")


# ---- what a load is measured by ----------------------------------------------------------------


def _speed(calls: DataFrame, by: tuple[str, ...]) -> DataFrame:
    committed = F.col("class").isin("ok", "partial")
    answered_us = F.when(committed, F.col("duration_us"))
    window = F.max("end_us") - F.min("start_us")
    per_run = calls.groupBy("run", *by).agg(window.alias("window_us"))
    windows = per_run.groupBy(*by).agg(F.sum("window_us").alias("window_us"))
    measured = calls.groupBy(*by).agg(
        F.count("*").alias("count"),
        *(count_of(F.col("class") == name).alias(name) for name in ("ok", "partial", "failed")),
        count_of(F.col("class") == "error").alias("error"),
        F.percentile(answered_us, F.array(F.lit(0.5), F.lit(0.95), F.lit(0.99))).alias("at"),
        F.max(answered_us).alias("max_us"),
    )
    window_s = F.col("window_us") / 1e6
    return measured.join(windows, list(by)).select(
        *by,
        *("count", "ok", "partial", "failed", "error"),
        window_s.alias("window_s"),
        ratio(F.col("ok"), window_s).alias("throughput_per_s"),
        ratio(F.col("ok") + F.col("partial"), window_s).alias("committed_per_s"),
        (F.col("at")[0] / 1e3).alias("p50_ms"),
        (F.col("at")[1] / 1e3).alias("p95_ms"),
        (F.col("at")[2] / 1e3).alias("p99_ms"),
        (F.col("max_us") / 1e3).alias("max_ms"),
    )


def _costs(calls: DataFrame, facts: DataFrame) -> DataFrame:
    committed = F.col("class").isin("ok", "partial")
    counted = _of(calls, "call").groupBy(*ONE).agg(count_of(committed).alias("calls"))
    idle = F.col("idle_messages_per_s") * F.col("elapsed_s")
    table = (
        facts.join(counted, list(ONE))
        .groupBy(*LOAD)
        .agg(
            F.sum("calls").alias("calls"),
            # A run without a count makes the sum of counts too small for the sum of calls.
            *(F.when(_all_there(name), F.sum(name)).alias(name) for name in _COSTS),
            F.when(_all_there("raft_messages"), F.sum(idle)).alias("idle_messages"),
            F.max("killed").alias("killed"),
        )
    )
    messages = F.col("raft_messages") + F.col("feed_messages") + F.col("call_messages")
    per_call = {
        "entries": F.col("entries"),
        "commands": F.col("commands"),
        "messages": messages,
        **{name: F.col(f"{name}_messages") for name in ("raft", "feed", "call", "idle")},
        "bytes": F.col("sent_bytes"),
    }
    return table.select(
        *LOAD,
        "killed",
        *(
            ratio(value, F.col("calls")).alias(f"{name}_per_call")
            for name, value in per_call.items()
        ),
    )


# ---- what must not be --------------------------------------------------------------------------


def _committed(calls: DataFrame) -> DataFrame:
    """Every id of a load that is committed, once."""
    answered = (F.col("op") == "call") & F.col("outcome").isin(list(COMMITTED))
    known = calls.where((answered | (F.col("op") == "replicate")) & F.col("index").isNotNull())
    return known.select(*ONE, "index").distinct()


def _repeated(returned: DataFrame) -> DataFrame:
    in_one_life = returned.groupBy(*ONE, "node", "life", "index").count()
    return in_one_life.select(*ONE, (F.col("count") - 1).alias(COUNT))


def _out_of_order(runs: DataFrame) -> DataFrame:
    """Lives come one after the other, and within one a node runs one function at a time."""
    before = (
        Window.partitionBy(*ONE, "node")
        .orderBy("life", "start_us")
        .rowsBetween(Window.unboundedPreceding, -1)
    )
    returned = F.when(F.col("class") == "ok", F.col("index"))
    later = runs.withColumn("highest", F.max(returned).over(before))
    return _counted(later.where(F.col("index") < F.col("highest")))


def _holes(calls: DataFrame, returned: DataFrame, committed: DataFrame) -> DataFrame:
    nodes = calls.select(*ONE, F.explode(F.split("nodes", " ")).alias("node")).distinct()
    due = committed.join(F.broadcast(nodes), list(ONE))
    return _counted(due.join(returned.select(*due.columns), due.columns, "left_anti"))


def _aborted_runs(calls: DataFrame, runs: DataFrame) -> DataFrame:
    aborted = _of(calls, "call").where(
        (F.col("outcome") == "init_failure") & F.col("index").isNotNull()
    )
    replicas = runs.where(F.col("op") == "replicate")
    return _counted(replicas.join(aborted.select(*ONE, "index"), [*ONE, "index"], "left_semi"))


def _double_ids(calls: DataFrame) -> DataFrame:
    answers = _of(calls, "call").where(F.col("index").isNotNull())
    by_id = answers.groupBy(*ONE, "index").count()
    return by_id.select(*ONE, (F.col("count") - 1).alias(COUNT))


def _effects_wrong(calls: DataFrame, committed: DataFrame) -> DataFrame:
    due = committed.groupBy(*ONE).agg(F.count("*").alias("due"))
    counted = _of(calls, "effects").select(*ONE, F.col("index").alias("made"))
    compared = counted.join(due, list(ONE), "left").fillna(0, ["due"])
    return _counted(compared.where(F.col("made") != F.col("due")))


def _counted(wrong: DataFrame) -> DataFrame:
    """Each of these rows counts once."""
    return wrong.select(*ONE, F.lit(1).alias(COUNT))


# ---- small things ------------------------------------------------------------------------------


def _of(calls: DataFrame, op: str) -> DataFrame:
    return calls.where(F.col("op") == op)


def _sums(*names: str) -> list[Column]:
    return [F.sum(name).alias(name) for name in names]


def _all_there(name: str) -> Column:
    return F.count(name) == F.count(F.lit(1))
