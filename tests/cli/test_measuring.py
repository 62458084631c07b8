"""The verdicts of `check perf`."""

from __future__ import annotations

import pytest

from raftkv.cli.measuring import LOADS, Load, Measured, document, percentile, verdicts

LOAD = Load(100, 10)


def failed(measured: Measured) -> list[str]:
    return [verdict.name for verdict in verdicts(measured, LOAD) if not verdict.passed]


@pytest.mark.parametrize(
    ("measured", "wrong"),
    [
        (Measured([0.01] * 100, 0, 1.0), []),
        (Measured([0.01] * 90, 0, 1.0), []),
        (Measured([0.01] * 89, 0, 1.0), ["throughput"]),
        (Measured([0.01] * 999 + [0.5], 0, 10.0), []),
        (Measured([0.01] * 999 + [0.51], 0, 10.0), ["slowest"]),
        (Measured([0.01, 0.49] * 50, 0, 1.0), ["deviation"]),
        (Measured([0.01] * 100, 1, 1.0, "lost"), ["errors"]),
        (Measured([], 100, 1.0, "lost"), ["throughput"]),
    ],
)
def test_each_limit_decides_by_itself(measured: Measured, wrong: list[str]) -> None:
    assert failed(measured) == wrong
    found = document("s", LOAD, measured, verdicts(measured, LOAD))
    assert found["passed"] is (not wrong)


def test_the_lines_are_etcdctls() -> None:
    lines = [verdict.text for verdict in verdicts(Measured([0.25, 0.75], 0, 1.0), Load(2, 1))]
    assert lines == [
        "Throughput is 2 writes/s",
        "Slowest request too large: 0.750000s, at most 0.5s",
        "Stddev too large: 0.250000s, at most 0.1s",
    ]


def test_percentiles() -> None:
    values = [float(number) for number in range(100, 0, -1)]
    assert [percentile(values, part) for part in (0.0, 0.5, 0.99, 1.0)] == [1.0, 51.0, 100.0, 100.0]
    assert percentile([7.0], 0.99) == 7.0


def test_the_loads_grow() -> None:
    assert [load.rate for load in LOADS.values()] == sorted(load.rate for load in LOADS.values())
