"""The example of the limbo runs as it stands."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
TIMEOUT_S = 90


@pytest.mark.slow
def test_transfers_are_confirmed_vetoed_and_wait() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "examples" / "limbo_accounts.py")],
        env={"PYTHONPATH": f"{ROOT}:{ROOT / 'plugins'}"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "owner: core1 term: 1",
        "1 confirmed",
        "2 30",
        "3 rolled back: True",
        "70 30",
        "4 pending 30",
        "4 confirmed 40",
    ]
