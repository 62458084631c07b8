"""The JSON files of pytest-benchmark (`pytest bench --benchmark-json FILE`) as one table.

pytest-benchmark gives times in seconds; the table has them in microseconds, as the log does. Files
that are not such JSON go to the rejected ones.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812  the name every Spark user knows
from pyspark.sql import types as t

from bench.analysis.inputs import DamagedFile, path_to_read

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["read_benchmarks"]

_CORRUPT = "_corrupt"
_TIMES = ("min", "max", "mean", "median", "stddev", "q1", "q3", "iqr")

_SCHEMA = t.StructType(
    [
        t.StructField("datetime", t.StringType()),
        t.StructField("version", t.StringType()),
        t.StructField(
            "benchmarks",
            t.ArrayType(
                t.StructType(
                    [
                        *(t.StructField(n, t.StringType()) for n in ("group", "name", "fullname")),
                        t.StructField("extra_info", t.MapType(t.StringType(), t.StringType())),
                        t.StructField(
                            "stats",
                            t.StructType(
                                [
                                    *(t.StructField(name, t.DoubleType()) for name in _TIMES),
                                    t.StructField("ops", t.DoubleType()),
                                    t.StructField("rounds", t.LongType()),
                                    t.StructField("iterations", t.LongType()),
                                ]
                            ),
                        ),
                    ]
                )
            ),
        ),
        t.StructField(_CORRUPT, t.StringType()),
    ]
)


def read_benchmarks(
    spark: SparkSession, paths: tuple[Path, ...]
) -> tuple[DataFrame, list[DamagedFile]]:
    """One row for each benchmark of each readable file, and the files that could not be read."""
    files = _read(spark, paths)
    good = files.where(F.col(_CORRUPT).isNull() & F.col("benchmarks").isNotNull())
    readable = {row["file"] for row in good.select("file").collect()}
    damaged = [
        DamagedFile(path, "unreadable: not a JSON file of pytest-benchmark")
        for path in paths
        if path.name not in readable
    ]
    one = F.col("benchmark")
    stats = one["stats"]
    table = (
        good.withColumn("benchmark", F.explode("benchmarks"))
        .select(
            "file",
            F.col("datetime").alias("at"),
            *(one[name].alias(name) for name in ("group", "name", "fullname")),
            one["extra_info"].alias("extra_info"),
            stats["rounds"].alias("rounds"),
            stats["iterations"].alias("iterations"),
            *((stats[name] * 1e6).alias(f"{name}_us") for name in _TIMES),
            stats["ops"].alias("per_s"),
        )
        .coalesce(1)
        .sortWithinPartitions("group", "fullname", "file")
    )
    return table, damaged


def _read(spark: SparkSession, paths: tuple[Path, ...]) -> DataFrame:
    if not paths:
        named = t.StructType([*_SCHEMA.fields, t.StructField("file", t.StringType())])
        return spark.createDataFrame([], named)
    reader = spark.read.schema(_SCHEMA).option("multiLine", True)
    reader = reader.option("mode", "PERMISSIVE").option("columnNameOfCorruptRecord", _CORRUPT)
    # Cached, because Spark refuses queries that ask a JSON file for its corrupt records alone.
    return (
        reader.json([path_to_read(path) for path in paths])
        .select("*", F.element_at(F.split("_metadata.file_name", "/"), -1).alias("file"))
        .cache()
    )
