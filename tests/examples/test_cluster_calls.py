"""The example of cluster calls runs as it stands."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
TIMEOUT_S = 90


@pytest.mark.slow
def test_a_call_gets_stuck_and_is_passed() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "examples" / "cluster_calls.py")],
        env={"PYTHONPATH": f"{ROOT}:{ROOT / 'plugins'}"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    keys = [f"loaded/core{number}/rules" for number in (1, 2, 3)]
    assert done.stdout.splitlines() == [
        "1 ok 1 [['auth'], ['auth'], ['auth']]",
        "init_failure auth is loaded already",
        "3 peers_lagging ('core2',)",
        "core2 3 [(3, 'OSError')]",
        f"4 ok {[(key, '4') for key in keys]}",
    ]
