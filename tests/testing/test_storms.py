"""The command of the storms, without a storm: what it refuses, and what its summary says.

Each plugin's test_storm.py runs it with real ones.
"""

from __future__ import annotations

from typing import Any

import pytest

from raftkv.testing.storms import Storm, Totals, main


def nothing(*given: Any, **named: Any) -> Any:
    raise AssertionError("no storm was asked for")


STORM = Storm("tools/x", "Toys.", "toys", nothing, nothing, ("first", "second", "third"), {}, 1)


@pytest.mark.parametrize(
    "wrong",
    [
        ["--seeds", "5"], ["--seeds", "5:5"], ["--seeds", "-1:2"], ["--jobs", "0"],
        ["--bug", "unknown"], ["--seconds", "0"],
    ],
)  # fmt: skip
def test_bad_arguments_are_told(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(STORM, wrong)
    assert ended.value.code == 2
    assert capsys.readouterr().err


def test_marks_that_were_never_hit_are_named() -> None:
    totals = Totals(STORM)
    totals.marks["second"] = 1
    totals.operations = 7
    summary = totals.summary()
    assert "7 toys; " in summary
    assert summary.endswith("never seen: first, third")
    totals.marks.update({"first": 1, "third": 1})
    assert totals.summary().endswith("never seen: nothing")
