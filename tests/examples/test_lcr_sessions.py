"""The example of embedding runs as it stands."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
TIMEOUT_S = 90


@pytest.mark.slow
def test_a_session_follows_its_client() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "examples" / "lcr_sessions.py")],
        env={"PYTHONPATH": f"{ROOT}:{ROOT / 'plugins'}"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "ok True [Message(id='1', data=b'hello')]\n"
