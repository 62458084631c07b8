"""The option of test_transcripts.py; it counts when tests/raft or a file in it is named."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite", action="store_true", help="write the outputs in tests/raft/transcripts anew"
    )
