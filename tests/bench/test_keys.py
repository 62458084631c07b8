"""The benchmark of a large keyspace, with a small one."""

from __future__ import annotations

import json

import pytest

from bench.keys import Report, main
from bench.peers.figures import Spread

SMALL = ["--keys", "2000", "--watchers", "50", "--rounds", "1", "--seconds", "0.2"]
SMALL += ["--layout", "1", "--settle-s", "0"]


@pytest.mark.cluster
def test_it_measures_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["keys"] == 2000
    assert found["snapshot_bytes"] > 2000 * 100
    for name in ("load_s", "snapshot_s", "restart_one_s", "restart_all_s", "rss_bytes"):
        assert found[name] > 0, name
    assert found["puts_per_s"]["median"] > 0
    assert found["put_cpu_us"] > 0
    assert found["gets_ratio"]["lowest"] == found["gets_ratio"]["highest"]


def spread(value: float) -> Spread:
    return Spread(value, value, value)


def report(ratio: float, restart_s: float) -> Report:
    return Report(
        keys=1, value_bytes=1, watchers=1, load_s=1, loaded_per_s=1, bytes_per_key=1,
        bytes_per_watcher=1, rss_bytes=1, puts_few_per_s=spread(1), puts_per_s=spread(1),
        puts_ratio=spread(ratio), puts_ratio_in_all=1, puts_ratio_quiet=None,
        rounds_with_snapshot=0, put_few_cpu_us=1, put_cpu_us=1, put_p99_ms=spread(1),
        put_few_p99_ms=spread(1),
        gets_few_per_s=spread(1), gets_per_s=spread(1), gets_ratio=spread(1),
        get_p99_ms=spread(1), snapshot_s=1, snapshot_bytes=1, restart_one_s=restart_s,
        restart_all_s=1, conditions={},
    )  # fmt: skip


def test_aims_that_were_missed_are_named() -> None:
    assert report(0.91, 9.9).missed == []
    assert len(report(0.89, 10.1).missed) == 2
