"""Runs of the benchmark: processes, load and the log."""
