"""A short run of `tools/chaos` with a fixed seed: real processes, links and disks, all checks."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from bench.chaos.cluster import Layout
from bench.chaos.command import Plan, run
from bench.history import find_histories

pytestmark = pytest.mark.cluster


def test_kills_stops_partitions_and_failing_disks_break_no_promise(tmp_path: Path) -> None:
    kinds = ("kill", "stop", "partition", "fsync")
    plan = Plan(
        out=tmp_path,
        layout=Layout(3, 2),
        kinds=kinds,
        seed=3,
        seconds=8.0,
        hold_s=1.0,
        slice_s=4.0,
        # Whether it is fast is no matter of a test; that it goes on is.
        throughput_min=1.0,
    )
    report = run(plan, Console(file=io.StringIO()))
    assert report.passed, report.findings
    assert {one.kind for one in report.kinds if one.struck} == set(kinds)
    assert report.keys_checked >= 12
    assert report.operations_checked > 200
    assert report.ledger_keys > 50
    # What `--replay-check` would read.
    assert len(find_histories(tmp_path)) >= 2


def test_quick_rounds_of_kills_and_power_cuts_lose_nothing(tmp_path: Path) -> None:
    plan = Plan(
        out=tmp_path,
        layout=Layout(3),
        kinds=("kill", "power"),
        seed=5,
        seconds=0.0,
        rounds=4,
    )
    report = run(plan, Console(file=io.StringIO()))
    assert report.passed, report.findings
    assert sum(one.struck for one in report.kinds) == 4
    assert report.ledger_keys > 50
