"""What the benchmark makes late: both registries, or neither."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from bench.registries import inject_lag


@pytest.mark.parametrize(("role", "late_s"), [("replicant", 0.05), ("core", 0.0)])
def test_both_registries_of_a_node_lag_by_as_much(role: str, late_s: float) -> None:
    lags = [0.0]
    legacy = SimpleNamespace(lag_s=0.0)
    node: Any = SimpleNamespace(config=SimpleNamespace(role=role), inject_lag=lags.append)
    inject_lag(node, legacy, 0.05)
    assert (lags[-1], legacy.lag_s) == (late_s, late_s)
    inject_lag(node, legacy, 0.0)
    assert (lags[-1], legacy.lag_s) == (0.0, 0.0)
