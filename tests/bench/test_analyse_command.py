"""The command `analyse` where no Spark is needed: bad input, Java, lazy imports, formats."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="pyarrow is in the extra `bench`")
pytest.importorskip("pyspark", reason="pyspark is in the extra `bench`")
pytest.importorskip("matplotlib", reason="matplotlib is in the extra `bench`")

import bench.__main__ as command
from bench import analyse
from bench.analysis import AnalysisError, formats
from bench.analysis.inputs import find_inputs
from bench.analysis.java import find_java, parse_version
from bench.schema import Row, RowWriter

ROOT = Path(__file__).resolve().parents[2]

ROW = Row(
    run="r1", layout="3", scenario="puts", phase="c1", registry="none", node="n1", role="leader",
    op="put", client="c1", attempt=1, start_us=1_790_000_000_000_000, duration_us=1, outcome="ok",
)  # fmt: skip


class TestWithoutSpark:
    def test_a_missing_directory(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert analyse.main([str(tmp_path / "nowhere")]) == 2
        assert "there is no directory" in last_line(capsys)

    def test_an_empty_log(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (tmp_path / "log").mkdir()
        assert analyse.main([str(tmp_path)]) == 2
        message = last_line(capsys)
        assert "there are no log files" in message
        assert "python -m bench run" in message

    def test_a_missing_java(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with RowWriter(tmp_path, "r1", "n1") as writer:
            writer.add(ROW)
        monkeypatch.delenv("JAVA_HOME", raising=False)
        monkeypatch.setenv("PATH", str(tmp_path))
        assert analyse.main([str(tmp_path)]) == 2
        message = last_line(capsys)
        assert "openjdk-17-jre-headless" in message
        assert "no `java` on PATH" in message

    def test_damaged_conditions_are_set_aside(self, tmp_path: Path) -> None:
        with RowWriter(tmp_path, "r1", "n1") as writer:
            writer.add(ROW)
        (tmp_path / "conditions.json").write_text("[]")
        inputs = find_inputs(tmp_path)
        assert inputs.conditions == {}
        assert [file.path.name for file in inputs.damaged] == ["conditions.json"]

    def test_nothing_heavy_is_imported_before_it_is_needed(self) -> None:
        check = (
            "import sys, bench.__main__, bench.analyse\n"
            "heavy = {'pyspark', 'pyarrow', 'matplotlib', 'raftkv', 'bench.run'}\n"
            "print(sorted(heavy & set(sys.modules)))"
        )
        done = subprocess.run(
            [sys.executable, "-c", check], capture_output=True, text=True, cwd=ROOT, check=True
        )
        assert done.stdout == "[]\n"

    def test_an_unknown_command(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert command.main(["fly"]) == 2
        assert "usage: python -m bench" in capsys.readouterr().err
        assert command.main(["--help"]) == 0

    def test_the_synthetic_log_keeps_the_rules(self, tmp_path: Path) -> None:
        path = Path(__file__).with_name("synthetic.py")
        spec = importlib.util.spec_from_file_location("synthetic", path)
        assert spec is not None
        assert spec.loader is not None
        synthetic = importlib.util.module_from_spec(spec)
        sys.modules["synthetic"] = synthetic
        spec.loader.exec_module(synthetic)
        synthetic.write(tmp_path, synthetic.Scale(seconds=1, connects_per_s=10, puts=16))
        inputs = find_inputs(tmp_path)
        assert (len(inputs.logs), inputs.damaged) == (1, ())


class TestJava:
    @pytest.mark.parametrize(
        ("text", "version"),
        [
            ('openjdk version "17.0.15" 2025-04-15', 17),
            ('java version "1.8.0_402"', 8),
            ('openjdk version "25" 2025-09-16', 25),
            ("command not found", None),
        ],
    )
    def test_versions(self, text: str, version: int | None) -> None:
        assert parse_version(text) == version

    def make_java(self, home: Path, script: str) -> Path:
        (home / "bin").mkdir(parents=True)
        java = home / "bin" / "java"
        java.write_text(f"#!/bin/sh\n{script}\n")
        java.chmod(0o755)
        return home

    def test_java_home_comes_first(self, tmp_path: Path) -> None:
        one = self.make_java(tmp_path / "one", "echo 'openjdk version \"21.0.1\"' >&2")
        two = self.make_java(tmp_path / "two", "echo 'openjdk version \"17.0.1\"' >&2")
        both = {"JAVA_HOME": str(one), "PATH": str(two / "bin")}
        assert find_java(both) == one
        assert find_java({"PATH": str(two / "bin")}) == two

    def test_an_old_java_home_gives_way_to_a_newer_java_on_path(self, tmp_path: Path) -> None:
        old = self.make_java(tmp_path / "old", "echo 'java version \"1.8.0_1\"' >&2")
        new = self.make_java(tmp_path / "new", "echo 'openjdk version \"17.0.1\"' >&2")
        assert find_java({"JAVA_HOME": str(old), "PATH": str(new / "bin")}) == new

    def test_every_unfit_java_is_named_with_its_fault(self, tmp_path: Path) -> None:
        old = self.make_java(tmp_path / "old", "echo 'java version \"11.0.2\"' >&2")
        cut = self.make_java(
            tmp_path / "cut",
            "echo 'openjdk version \"21.0.8\"' >&2\ncase $1 in --add-modules*) exit 1; esac",
        )
        with pytest.raises(AnalysisError) as caught:
            find_java({"JAVA_HOME": str(old), "PATH": str(cut / "bin")})
        message = str(caught.value)
        assert "is version 11" in message
        assert "without jdk.incubator.vector" in message
        assert "openjdk-17-jre-headless" in message


class TestFormats:
    @pytest.mark.parametrize(
        ("value", "text"),
        [(0.5823, "0.582"), (12.34, "12.3"), (34120.4, "34,120"), (0, "0"), (None, "\N{EN DASH}")],
    )
    def test_numbers(self, value: float | None, text: str) -> None:
        assert formats.number(value) == text

    def test_a_small_share_is_not_rounded_away(self) -> None:
        shares = (0.00001, 0.0, 0.0049, 0.5)
        shown = [formats.percent(share).replace("\N{NO-BREAK SPACE}", " ") for share in shares]
        assert shown == ["< 0.01 %", "0 %", "0.49 %", "50.0 %"]


def last_line(capsys: pytest.CaptureFixture[str]) -> str:
    """The message of the command: one line, and no traceback before it."""
    text = capsys.readouterr().err
    assert "Traceback" not in text
    (line,) = (one for one in text.splitlines() if one.startswith("bench analyse: "))
    return line
