"""switching.py: threads beside a busy event loop."""

from __future__ import annotations

import sys

import pytest

import raftkv
from raftkv.switching import SWITCH_S


def test_the_interval_is_shortened_and_given_back() -> None:
    before = sys.getswitchinterval()
    undo = raftkv.tune_threads()
    try:
        assert sys.getswitchinterval() == pytest.approx(SWITCH_S)
        # A second call has nothing to undo.
        raftkv.tune_threads()()
        assert sys.getswitchinterval() == pytest.approx(SWITCH_S)
    finally:
        undo()
    assert sys.getswitchinterval() == before


def test_a_shorter_one_is_left() -> None:
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_S / 10)
    try:
        raftkv.tune_threads()()
        assert sys.getswitchinterval() == pytest.approx(SWITCH_S / 10)
    finally:
        sys.setswitchinterval(before)
