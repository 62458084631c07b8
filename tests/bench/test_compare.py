"""`python -m bench compare`: whose code runs, in which order, and what is made of the figures."""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="pyarrow is in the extra `bench`")
pytest.importorskip("pyspark", reason="pyspark is in the extra `bench`")

from bench import compare, run_options
from bench.analysis import AnalysisError
from bench.analysis.java import find_java
from bench.analysis.rounds import KEYS, Spread, compared
from bench.sides import ROOT, CompareError, Side, check_imports, prepare

PUT = {
    "layout": "3", "scenario": "puts", "registry": "none", "op": "put", "consistency": "none",
    "role": "leader", "phase": "c16",
}  # fmt: skip


def figure(side: str, number: int, per_s: float | None, ms: float = 1.0, **changes: Any) -> Any:
    figures = {"throughput_per_s": per_s, "p50_ms": ms, "p99_ms": 2 * ms, "error": 0}
    return {**PUT, "side": side, "round": number, **figures, **changes}


# The figures -------------------------------------------------------------------------------------


def test_ratios_are_taken_within_a_round() -> None:
    """The machine became three times slower from round to round: the sides did not differ."""
    rows = [figure("base", n, 900 / 3**n, 3.0**n) for n in range(3)]
    rows += [figure("tree", n, 900 / 3**n, 2 * 3.0**n) for n in range(3)]
    (found,) = compared(rows, "base")
    assert found.throughput == Spread(1.0, 1.0, 1.0)
    assert found.p50 == Spread(2.0, 2.0, 2.0)
    assert (found.side, found.rounds, found.verdict) == ("tree", 3, "equal")
    assert (found.base_throughput_per_s, found.base_p50_ms) == (300, 3.0)


@pytest.mark.parametrize(
    ("per_s", "verdict"),
    [
        ((80, 85, 90), "slower"),
        ((80, 85, 99), "equal"),
        ((120, 110, 130), "faster"),
        ((120, 90, 130), "equal"),
    ],
)
def test_only_what_every_round_says_is_a_verdict(per_s: tuple[int, ...], verdict: str) -> None:
    rows = [figure("base", n, 100) for n in range(3)]
    rows += [figure("tree", n, each) for n, each in enumerate(per_s)]
    (found,) = compared(rows, "base")
    assert found.verdict == verdict
    assert (found.throughput.low, found.throughput.high) == (min(per_s) / 100, max(per_s) / 100)


def test_groups_stand_in_the_order_of_the_log_and_every_side_against_the_base() -> None:
    rows = [
        figure(side, 1, 100, phase=phase, role=role, error=side == "tree-tls")
        for side in ("tree", "tree-tls", "base")
        for role in ("http", "leader")
        for phase in ("c256", "c1", "c16")
    ]
    found = compared(rows, "base")
    assert [(one.group["role"], one.group["phase"]) for one in found if one.side == "tree"] == [
        (role, phase) for role in ("leader", "http") for phase in ("c1", "c16", "c256")
    ]
    assert {one.side for one in found} == {"tree", "tree-tls"}
    assert {one.errors for one in found if one.side == "tree-tls"} == {1}
    assert set(found[0].group) == set(KEYS)


def test_rounds_and_groups_that_one_side_lacks_are_left_out() -> None:
    rows = [figure("base", 1, 100), figure("base", 2, None), figure("tree", 1, 50)]
    rows += [figure("tree", 2, 50), figure("tree", 1, 10, scenario="gets")]
    (found,) = compared(rows, "base")
    assert (found.rounds, found.throughput.median) == (1, 0.5)


# The sides ---------------------------------------------------------------------------------------


def test_nobody_always_comes_first() -> None:
    sides = [Side(name, Path(name), Path(name)) for name in ("base", "tree", "tree-tls")]
    firsts = [[side.name for side in compare.order_of(sides, n)] for n in range(3)]
    assert firsts[0] == firsts[2] == ["base", "tree", "tree-tls"]
    assert firsts[1] == ["tree-tls", "tree", "base"]


def test_all_sides_run_with_options_that_bench_run_knows() -> None:
    given = compare._parser().parse_args(
        ["--against", "x", "--out", "y", "--layouts", "3+3", "--in-flight", "8", "--caller", "http"]
    )
    options = run_options.parser().parse_args(["--out", "y", *compare.run_arguments(given)])
    plan = run_options.plan_of(options)
    assert (plan.layouts, plan.in_flight, plan.callers) == (("3+3",), (8,), ("http",))
    assert plan.scenarios == ("puts", "gets")
    assert plan.consistencies == ("linearizable",)
    assert plan.put_seconds == given.seconds


def checkout(directory: Path) -> Path:
    """As much of a checkout as a side needs; its raftkv can be told from this one."""
    (directory / "raftkv").mkdir(parents=True)
    (directory / "raftkv" / "__init__.py").write_text("NAME = 'theirs'\n")
    (directory / "plugins" / "raftkv_lcr").mkdir(parents=True)
    (directory / "plugins" / "raftkv_lcr" / "__init__.py").touch()
    (directory / "bench").mkdir()
    (directory / "bench" / "__init__.py").write_text("NAME = 'theirs'\n")
    return directory


def test_a_side_is_the_code_of_the_other_and_the_benchmark_of_this_one(tmp_path: Path) -> None:
    theirs = checkout(tmp_path / "theirs")
    prepare(tmp_path / "side", str(theirs))
    side = tmp_path / "side"
    assert "theirs" in (side / "raftkv" / "__init__.py").read_text()
    ours = (ROOT / "bench" / "__init__.py").read_text()
    assert (side / "bench" / "__init__.py").read_text() == ours
    check_imports(Side("base", side, tmp_path / "out"))


def test_a_side_without_code_of_its_own_is_refused(tmp_path: Path) -> None:
    """It would find this checkout's packages, and the comparison would be of one with itself."""
    prepare(tmp_path / "side", str(checkout(tmp_path / "theirs")))
    shutil.rmtree(tmp_path / "side" / "plugins")
    with pytest.raises(CompareError, match=r"would run|cannot be imported"):
        check_imports(Side("base", tmp_path / "side", tmp_path / "out"))


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_a_revision_is_taken_from_git_and_leaves_nothing_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = checkout(tmp_path / "repository")

    def git(*words: str) -> str:
        who = ("-c", "user.name=t", "-c", "user.email=t@example.org")
        done = subprocess.run(
            ["git", *who, *words], cwd=repository, capture_output=True, text=True, check=True
        )
        return done.stdout

    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "one")
    (repository / "raftkv" / "__init__.py").write_text("NAME = 'later'\n")
    monkeypatch.setattr("bench.sides.ROOT", repository)
    prepare(tmp_path / "side", "HEAD")
    assert "theirs" in (tmp_path / "side" / "raftkv" / "__init__.py").read_text()
    assert git("worktree", "list").count("\n") == 1
    with pytest.raises(CompareError, match="nowhere"):
        prepare(tmp_path / "other", "nowhere")


def test_a_folder_with_something_in_it_is_not_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.txt").touch()
    assert compare.main(["--against", str(ROOT), "--out", str(tmp_path)]) == 2
    # Long paths are wrapped.
    assert "is not empty" in " ".join(capsys.readouterr().err.split())


def test_a_source_that_is_nothing_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compare.main(["--against", "no-such-thing", "--out", str(tmp_path / "out")]) == 2
    assert "no-such-thing" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


# Both together, on real processes ----------------------------------------------------------------


@pytest.fixture
def java() -> None:
    try:
        find_java()
    except AnalysisError as error:
        pytest.skip(str(error))


@pytest.mark.cluster
@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_tree_beside_itself(
    java: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    options = ["--layout", "1", "--rounds", "1", "--seconds", "0.1", "--in-flight", "2", "--json"]
    code = compare.main(["--against", str(ROOT), "--out", str(out), "--caller", "leader", *options])
    assert code == 0, capsys.readouterr().err
    summary: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert summary == json.loads((out / "comparison.json").read_text())
    found = [(one["group"]["op"], one["group"]["phase"]) for one in summary["comparisons"]]
    assert found == [("put", "c2"), ("get", "c2")]
    assert all(one["throughput"]["median"] > 0 for one in summary["comparisons"])
    assert all(one["side"] == "tree" and one["errors"] == 0 for one in summary["comparisons"])


def test_the_defaults_are_those_of_the_help() -> None:
    given: argparse.Namespace = compare._parser().parse_args(["--against", "x", "--out", "y"])
    text = compare._parser().format_help()
    assert f"default: {given.rounds}" in text
    assert f"default: {given.seconds}" in text
    assert " ".join(map(str, compare.IN_FLIGHT)) in " ".join(text.split())
    assert " ".join(compare.PLACES) in " ".join(text.split())
