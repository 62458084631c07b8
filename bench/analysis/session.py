"""The Spark session: local by default, quiet, in UTC, and with small shuffles.

What is ugly here: the JVM writes warnings to standard error before any logging configuration is
read ("Using incubator modules"), and pyspark gives no way to redirect it. So file descriptor 2 is
pointed at a file while the JVM starts; it inherits that file and keeps it for its life. Python's
own standard error is restored at once. When Spark does not start, the file says why.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from bench.analysis import AnalysisError
from bench.analysis.java import find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["spark_session"]

ROOT = Path(__file__).resolve().parents[2]

DRIVER_MEMORY = "2g"
"""In local mode the driver does all the work. Exact percentiles keep one counter for each distinct
duration of a group; 2 GiB hold some ten million rows of log."""

SHUFFLE_PARTITIONS = 4
"""The grouped tables have tens of rows. Spark's default of 200 would cost 200 tasks for each."""

LOG4J = """\
rootLogger.level = error
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
"""


@contextmanager
def spark_session(master: str = "local[*]") -> Iterator[SparkSession]:
    """A Spark session (about ten seconds to start); its temporary files go when it ends.

    Raises AnalysisError when Java is missing, when Spark does not start, and when Spark fails
    inside the block; then the log that the message names is kept.
    """
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    os.environ["JAVA_HOME"] = str(find_java())
    # Workers of Spark (`bench check`) must not pick up another interpreter by chance.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    work = Path(tempfile.mkdtemp(prefix="raftkv-analysis-"))
    log = work / "spark.log"
    session = _start(master, work, log)
    try:
        yield session
    except (PySparkException, Py4JError) as error:
        session.stop()
        raise AnalysisError(
            f"Spark failed: {_first_line(error)}; details are in {log}. Check the free space for "
            "results and temporary files and that the master can read the directory"
        ) from error
    except BaseException:
        _stop(session, work)
        raise
    _stop(session, work)


def _start(master: str, work: Path, log: Path) -> SparkSession:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName("raftkv benchmark analysis").master(master)
    for key, value in _settings(master, work).items():
        builder = builder.config(key, value)
    try:
        with _standard_error_to(log):
            session = builder.getOrCreate()
            session.sparkContext.setLogLevel("ERROR")
    except Exception as error:  # py4j, pyspark and the JVM each bring their own kinds
        raise AnalysisError(
            f"Spark did not start with master {master} ({_first_line(error)}): see {log}; "
            "use --master local[*] if that master cannot be reached from here"
        ) from error
    return session


def _stop(session: SparkSession, work: Path) -> None:
    session.stop()
    shutil.rmtree(work, ignore_errors=True)


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:200] if lines else type(error).__name__


def _settings(master: str, work: Path) -> dict[str, str]:
    log4j = work / "log4j2.properties"
    log4j.write_text(LOG4J, encoding="utf-8")
    settings = {
        "spark.driver.memory": DRIVER_MEMORY,
        # Python functions of `bench check` import the checkout that they come from.
        "spark.executorEnv.PYTHONPATH": str(ROOT),
        "spark.driver.extraJavaOptions": (
            f"-Dlog4j2.configurationFile={log4j.resolve().as_uri()} -Duser.timezone=UTC "
            "-XX:+UseSerialGC"
        ),
        # Else each expression asks the JVM twice where in Python it was written.
        "spark.python.sql.dataFrameDebugging.enabled": "false",
        "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(SHUFFLE_PARTITIONS),
        "spark.sql.warehouse.dir": (work / "warehouse").resolve().as_uri(),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    if master.startswith("local"):
        settings["spark.driver.bindAddress"] = "127.0.0.1"
        settings["spark.driver.host"] = "127.0.0.1"
    return settings


@contextmanager
def _standard_error_to(path: Path) -> Iterator[None]:
    sys.stderr.flush()
    kept = os.dup(2)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        os.dup2(file, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(file)
