"""A work budget so small that a few keys take several iterations of the event loop."""

from __future__ import annotations

import pytest

from raftkv.kv import KVApi


def bounded_work(kv: KVApi, monkeypatch: pytest.MonkeyPatch, units: int) -> None:
    """An iteration of the loop has room for so many units, also the current one."""
    monkeypatch.setattr("raftkv.kv.work_budget.WORK_MAX", units)
    kv.budget._left = units
