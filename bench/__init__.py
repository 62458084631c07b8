"""Benchmarks of raftkv: workloads on real clusters, their log, and the Spark job that reads it.

`python -m bench run` drives a cluster and logs each operation (`bench.schema`); `python -m bench
analyse` turns the log into tables, a summary and a report (`bench.analysis`); `python -m bench
check` judges recorded histories (`bench.history`). This package is part of the repository, not of
the installed library.
"""
