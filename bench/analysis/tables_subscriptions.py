"""The figures of subscriptions in two regions, from the rows of moves and the facts of the loads.

Definitions, besides those of `bench.analysis.tables`:

- **Load**: layout of each region, mode, messages per second, and the delay between the regions, in
  each direction. Several runs are added up.
- **A move**: from the call of an acknowledgement in one region until the other region's cursor
  covers its message. Percentiles are over the moves that were seen; those that never came
  (`never_moved`) are counted beside them. There are as many moves as acknowledgements, and one of
  these may be for many messages.
- **Within a second**: the share of all acknowledgements whose move took no longer.
- **Again**: messages that were acknowledged in the first region and that the consumer that took
  over got nevertheless: the duplicates of a move, while messages still came, and at rest. Of
  several runs they are of all moves; `again_most` and `rest_most` are of the move that had most.
- **Skipped**: messages that nobody acknowledged and nobody got. There must be none.
- **Per message**: what both regions spent from the first message until the consumer left, divided
  by the messages published until then. Ratios are to the same rate in a subscription that is not
  replicated, whose messages go to the other region all the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812  the name every Spark user knows

from bench import schema
from bench.analysis.tables import ALL, ratio, sorted_table
from bench.analysis.tables_sessions import count_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["LOAD", "prepared_subscriptions", "subscription_verdicts", "subscriptions"]

LOAD = ("layout", "scenario", "mode", "delay_ms", "rate_per_s")
ONE = ("run", "layout", "load")
"""Names one load of one run."""

COUNTS = ("received", "again", "again_quiesced", "skipped")
_COSTS = ("entries", "far_entries", "commands", "far_commands", "link_bytes", "cpu_s")


def prepared_subscriptions(rows: DataFrame, facts: DataFrame) -> DataFrame:
    """Accepted rows of subscriptions with the load that they belong to."""
    found = facts.select(*ONE, *LOAD[1:])
    return (
        rows.where(F.col("op").isin(list(schema.SUBSCRIPTION_OPS)))
        .select(*ONE, "op", "index", "duration_us", "outcome")
        .join(F.broadcast(found), list(ONE))
    )


def subscriptions(rows: DataFrame, facts: DataFrame) -> DataFrame:
    """Per load: moves, duplicates of a move, costs of a message."""
    table = (
        _costs(facts)
        .join(_moves(rows), list(LOAD), "left")
        .join(_counts(rows, LOAD), list(LOAD), "left")
    )
    return sorted_table(table, *LOAD)


def subscription_verdicts(rows: DataFrame) -> DataFrame:
    """Per layout, and over `all`: how many messages were got after moves, again, and skipped."""
    spread = rows.withColumn("layout", F.explode(F.array("layout", F.lit(ALL))))
    loads = spread.groupBy("layout").agg(F.countDistinct("run", "load").alias("loads"))
    vector = F.col("mode") == "vector"
    wrong = spread.groupBy("layout").agg(
        _sum_of("skipped", F.lit(True)).alias("skipped"),
        # What is at rest is known exactly in this mode, so there must be none.
        _sum_of("again_quiesced", vector).alias("again_at_rest"),
        _sum_of("received", F.lit(True)).alias("received"),
    )
    table = loads.join(wrong, ["layout"]).withColumn(
        "wrong", F.col("skipped") + F.col("again_at_rest")
    )
    return sorted_table(table, "layout")


def _moves(rows: DataFrame) -> DataFrame:
    moves = rows.where(F.col("op") == "moved")
    moved = F.col("outcome") == "ok"
    took_us = F.when(moved, F.col("duration_us"))
    soon = moved & (F.col("duration_us") <= 1_000_000)
    measured = moves.groupBy(*LOAD).agg(
        F.count("*").alias("acks"),
        count_of(~moved).alias("never_moved"),
        count_of(soon).alias("soon"),
        F.percentile(took_us, F.array(F.lit(0.5), F.lit(0.95), F.lit(0.99))).alias("at"),
        F.max(took_us).alias("longest_us"),
    )
    return measured.select(
        *LOAD,
        *("acks", "never_moved"),
        (F.col("at")[0] / 1e3).alias("p50_ms"),
        (F.col("at")[1] / 1e3).alias("p95_ms"),
        (F.col("at")[2] / 1e3).alias("p99_ms"),
        (F.col("longest_us") / 1e3).alias("longest_ms"),
        ratio(F.col("soon"), F.col("acks")).alias("within_a_second_share"),
    )


def _counts(rows: DataFrame, by: tuple[str, ...]) -> DataFrame:
    """Sums, and the most of one move. A load has one row of each."""
    most = (("again_most", "again"), ("rest_most", "again_quiesced"))
    return rows.groupBy(*by).agg(
        *(_sum_of(name, F.lit(True)).alias(name) for name in COUNTS),
        *(F.max(F.when(F.col("op") == op, F.col("index"))).alias(name) for name, op in most),
    )


def _costs(facts: DataFrame) -> DataFrame:
    sums = facts.groupBy(*LOAD).agg(
        *(
            F.sum(name).alias(name)
            for name in ("published", "acked", "elapsed_s", "errors", *_COSTS)
        )
    )
    published = F.col("published")
    each = sums.select(
        *LOAD,
        *("published", "acked", "errors"),
        ratio(published, F.col("elapsed_s")).alias("messages_per_s"),
        ratio(F.col("entries") + F.col("far_entries"), published).alias("entries_per_message"),
        ratio(F.col("commands") + F.col("far_commands"), published).alias("commands_per_message"),
        ratio(F.col("link_bytes"), published).alias("link_bytes_per_message"),
        ratio(F.col("cpu_s") * 1e6, published).alias("cpu_us_per_message"),
    )
    costs = ("entries", "commands", "link_bytes", "cpu_us")
    base = each.where(F.col("mode") == "off").select(
        "layout",
        "rate_per_s",
        *(F.col(f"{name}_per_message").alias(f"{name}_off") for name in costs),
    )
    return each.join(F.broadcast(base), ["layout", "rate_per_s"], "left").select(
        *each.columns,
        *(ratio(F.col(f"{name}_per_message"), F.col(f"{name}_off")).alias(f"{name}_ratio")
          for name in costs),
    )  # fmt: skip


def _sum_of(op: str, which: Column) -> Column:
    return F.sum(F.when((F.col("op") == op) & which, F.col("index")).otherwise(0))
