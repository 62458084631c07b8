"""The examples of replicated subscriptions run as they stand."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
TIMEOUT_S = 90


def said(name: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "examples" / name)],
        env={"PYTHONPATH": f"{ROOT}:{ROOT / 'plugins'}"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
def test_a_consumer_moves_and_goes_on() -> None:
    assert said("subscriptions_move.py") == [
        "done in eu: ['eu order 2', 'eu order 3']",
        "known in us: (('eu', 2, 3),) to go: 3",
        "goes on in us: ['eu order 1', 'us order 1', 'us order 2']",
        "and: us order 3",
    ]


@pytest.mark.slow
def test_a_table_of_prices_is_read_by_key() -> None:
    everything = (
        "[('apples', b'3'), ('pears', b'4'), ('apples', b'5'), ('plums', b'2'), ('pears', b''), "
        "('apples', b'6')]"
    )
    assert said("subscriptions_prices.py") == [
        "{'apples': b'5', 'plums': b'2'}",
        "apples b'6' at position 6",
        everything,
    ]
