"""`tools/differential`: its summary, its exit codes."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.differential import command, main
from bench.differential.example import Pair
from bench.differential.words import Step

pytestmark = pytest.mark.cluster


@pytest.fixture
def served(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> Pair:
    """The command gets the pair that runs already."""

    @contextlib.contextmanager
    def both() -> Iterator[Pair]:
        yield pair

    monkeypatch.setattr(command, "both", both)
    return pair


def test_agreement_is_code_0(served: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--examples", "3", "--seed", "5", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["mismatch"] == ""
    assert found["requests"] > 0
    assert found["seed"] == 5
    assert main(["--examples", "2"]) == 0
    assert "all agree" in capsys.readouterr().out


def test_a_difference_is_code_1_and_shown_small(
    served: Pair, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """raftkv never gets the value that etcd gets."""
    honest = served.raftkv.send

    def wrong(step: Step) -> None:
        changed = step.body
        if step.path == "/v3/kv/put" and isinstance(changed, dict):
            changed = {**changed, "value": b"another"}
        honest(Step(step.path, changed, step.method))

    monkeypatch.setattr(served.raftkv, "send", wrong)
    assert main(["--examples", "100"]) == 1
    said = capsys.readouterr().out
    assert "differs" in said
    assert "they differ" in said


def test_without_etcd_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert main(["--examples", "1"]) == 2
    assert "etcd is not installed" in capsys.readouterr().err
