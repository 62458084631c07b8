"""Development clusters of fake nodes: real processes, real doors, no consensus."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from raftkv.cli.devcluster import DevCluster

ROOT = Path(__file__).resolve().parent.parent.parent
FAKE = [sys.executable, str(ROOT / "tests" / "cli" / "fake_raftkv.py")]


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DevCluster]:
    """A cluster that was not started yet; its processes end with the test."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    dev = DevCluster(tmp_path / "dev", command=FAKE)
    yield dev
    if dev.exists:
        dev.down(timeout_s=1.0)
