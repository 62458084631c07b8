"""From the benchmark log to tables, `summary.json` and the report.

    inputs      which files there are, and which of them are damaged      (no Spark)
    java        a Java that Spark can run on, or an error that says what to install
    session     the Spark session
    checks      which rows violate the log's own rules                    (Spark)
    tables      every figure of the analysis, each computed here and nowhere else
    tables_sessions  those of the performance test
    benchmarks  the JSON files of pytest-benchmark as a table
    pipeline    the order of all this; writes tables and summary
    figures     the computed tables as plain rows               (no Spark from here on)
    formats     numbers as people read them
    conditions  under which conditions the figures hold
    words       sentences made from the tables (words_sessions: of the performance test)
    plots       pictures made from the tables (plots_sessions)
    markup      pieces of HTML (page_style: the style sheet)
    page        the report: sentences, pictures, tables, on one page (page_calls, page_sessions)
    progress    what is being done now, on standard error

Two rules: nothing is dropped silently (what cannot be read or violates the schema goes to
`tables/rejected` with the reason), and the report computes nothing: it only shows what the tables
say, so that no figure can exist in two versions.
"""

from __future__ import annotations

__all__ = ["AnalysisError"]


class AnalysisError(Exception):
    """The analysis cannot go on. The message is one line for the user and says what to do."""
