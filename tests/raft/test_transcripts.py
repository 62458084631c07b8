"""The transcripts in tests/raft/transcripts: each command leads to just what stands there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.raft.transcript import replay

FILES = sorted((Path(__file__).parent / "transcripts").glob("*.txt"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_transcript(path: Path, request: pytest.FixtureRequest) -> None:
    text = path.read_text()
    real = replay(text)
    if request.config.getoption("--rewrite", default=False):
        path.write_text(real)
    else:
        assert real == text, "if it is meant, run this file with --rewrite and read the diff"


def test_there_are_transcripts() -> None:
    assert len(FILES) >= 12
