"""What a figure depends on: machine, disk, versions, arguments. Written beside every log.

The one thing that is measured here is the disk's sync, in the very directory that the nodes use,
before they start: a median of 0.1 ms and one of 10 ms make two different benchmarks.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["conditions", "measured_sync_us", "write_conditions"]

PACKAGES = ("raftkv", "pysyncobj", "msgspec", "sortedcontainers", "uvloop", "uvicorn", "httptools")

SYNCS = 200
SYNC_BYTES = 512


def conditions(
    directory: Path, *, fsync: bool, arguments: Mapping[str, Any], tls: bool = False
) -> dict[str, Any]:
    """The conditions of a run whose nodes keep their data below `directory`."""
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "cores": os.cpu_count() or 1,
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "cpu": _cpu(),
        "python": platform.python_version(),
        "kernel": f"{platform.system()} {platform.release()}",
        "fsync": fsync,
        "tls": tls,
        "fdatasync": measured_sync_us(directory),
        "versions": _versions(),
        "arguments": dict(arguments),
    }


def write_conditions(directory: Path, found: Mapping[str, Any]) -> Path:
    """Writes `conditions.json`, whole or not at all."""
    path = directory / "conditions.json"
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    os.replace(temporary, path)
    return path


def measured_sync_us(directory: Path) -> dict[str, float]:
    """Median and 99th percentile of appending 512 bytes and fdatasync, in microseconds."""
    path = directory / ".sync-probe"
    took_us = []
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
    try:
        for _ in range(SYNCS):
            os.write(descriptor, bytes(SYNC_BYTES))
            began = time.perf_counter_ns()
            os.fdatasync(descriptor)
            took_us.append((time.perf_counter_ns() - began) / 1000)
    finally:
        os.close(descriptor)
        path.unlink()
    return {
        "median_us": round(statistics.median(took_us), 1),
        "p99_us": round(sorted(took_us)[int(len(took_us) * 0.99)], 1),
    }


def _versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "from the checkout" if package == "raftkv" else "missing"
    return found


def _cpu() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass  # not Linux: the name is a convenience, the number of cores is what counts
    return platform.machine()
