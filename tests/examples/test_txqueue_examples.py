"""The examples of transactional queues run as they stand."""

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
def test_orders_become_invoices_once() -> None:
    assert said("txqueue_orders.py") == [
        "committed ['3 pears'] ['bill for 17 apples']",
        "the printer is out of paper -> rolled back ['bill for 17 apples']",
        "vote -> core3: 100 messages at once are too many",
        "b'3 pears' 1 []",
        "b'3 pears' 2",
        "[]",
    ]


@pytest.mark.slow
def test_goods_move_between_two_clusters() -> None:
    assert said("txqueue_transfer.py") == [
        "['pears', 'plums'] ['apples']",
        "here OK",
        "there OK",
        "['plums'] ['apples'] 1",
        "rolled back: (b'transfers/lost',) left: ()",
        "['pears', 'plums'] ['apples']",
    ]
