"""tools/: the shell helpers with fake programs on the path, and what a wrong call gets to read."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from bench.run_options import parser, plan_of
from demo_install import Installation

ROOT = Path(__file__).resolve().parent.parent


def shell(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `script` in bash with tools/lib.sh loaded."""
    return subprocess.run(
        ["bash", "-c", f". tools/lib.sh\n{script}"],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )


def program(path: Path, body: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def test_what_the_tools_start_keeps_its_compiled_modules() -> None:
    said = shell('echo "${PYTHONDONTWRITEBYTECODE-may write}"', PYTHONDONTWRITEBYTECODE="1")
    assert said.stdout == "may write\n"


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', "17"),
        ('openjdk version "21" 2023-09-19', "21"),
        ('java version "1.8.0_392"', "8"),
        ("command not understood", ""),
    ],
)
def test_the_version_of_java_is_read(said: str, version: str, tmp_path: Path) -> None:
    java = program(tmp_path / "java", f"echo '{said}' >&2")
    assert shell(f"java_version {java}").stdout.strip() == version


def fake_home(folder: Path, version: str, *, vector: bool = True) -> Path:
    """A Java home whose `java` knows its version and, if asked, the module Spark needs."""
    refuse = "" if vector else 'case "$1" in --add-modules*) exit 1 ;; esac; '
    program(folder / "bin" / "java", f"{refuse}echo 'openjdk version \"{version}\"' >&2")
    (folder / "lib").mkdir()
    return folder


def test_java_home_is_taken_when_it_is_new_enough(tmp_path: Path) -> None:
    home = fake_home(tmp_path / "jdk", "21.0.2")
    found = shell('find_java && echo "$JAVA_HOME"', JAVA_HOME=str(home))
    assert found.stdout.strip() == str(home)


@pytest.mark.parametrize(("version", "vector"), [("11.0.2", True), ("21.0.2", False)])
def test_an_old_or_cut_down_java_is_passed_over(version: str, vector: bool, tmp_path: Path) -> None:
    home = fake_home(tmp_path / "jdk", version, vector=vector)
    # Another one may be installed on this machine, and be found; this one never is.
    found = shell('if find_java; then echo "$JAVA_HOME"; fi', JAVA_HOME=str(home))
    assert found.stdout.strip() != str(home)


def test_a_missing_java_gets_one_line_that_says_what_to_install() -> None:
    said = shell("find_java() { return 1; }; id() { echo 1000; }; ensure_java")
    assert said.returncode != 0
    assert len(said.stderr.strip().splitlines()) == 1
    assert "openjdk-17-jre-headless" in said.stderr


def test_a_missing_python_gets_one_line_that_says_what_to_do(tmp_path: Path) -> None:
    old = program(tmp_path / "python3.6", "exit 1")
    said = shell("find_python", PYTHON=str(old))
    assert said.returncode != 0
    assert len(said.stderr.strip().splitlines()) == 1
    assert "PYTHON=" in said.stderr


def test_a_new_enough_python_is_found() -> None:
    assert shell("find_python", PYTHON=sys.executable).stdout.strip() == sys.executable


def test_an_installation_is_tried_three_times(tmp_path: Path) -> None:
    tries = tmp_path / "tries"
    program(tmp_path / "bin" / "python", f"echo try >> {tries}; exit 1")
    said = shell("sleep() { :; }; pip_install anything", RAFTKV_VENV=str(tmp_path))
    assert said.returncode != 0
    assert tries.read_text().count("try") == 3
    assert "anything" in said.stderr


def test_a_small_disk_is_noticed_before_the_download(tmp_path: Path) -> None:
    program(tmp_path / "bin" / "python", f'exec {sys.executable} "$@"')
    fake_df = 'df() { printf "header\\nfs 100 90 10 90%% /\\n"; }'
    said = shell(f"{fake_df}; install_extra bench", RAFTKV_VENV=str(tmp_path))
    assert said.returncode != 0
    assert "only 10 MiB are free" in said.stderr


def test_what_is_installed_already_is_not_installed_again(tmp_path: Path) -> None:
    program(tmp_path / "bin" / "python", f'exec {sys.executable} "$@"')
    script = "pip_install() { echo called; }; install_extra dev; install_extra dev"
    said = shell(script, RAFTKV_VENV=str(tmp_path))
    assert said.stdout.split() == ["called"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [(["--out"], "needs a folder"), (["--nonsense"], "unknown argument")],
)
def test_the_demo_refuses_what_it_does_not_understand(arguments: list[str], complaint: str) -> None:
    command = ["bash", str(ROOT / "tools" / "demo"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert complaint in done.stderr


def test_the_demo_does_not_write_among_other_files(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    command = ["bash", str(ROOT / "tools" / "demo"), "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "is not empty" in done.stderr


# All tests on a busy machine ---------------------------------------------------------------------


def on_a_busy_machine(
    tmp_path: Path, fake: str, *arguments: str
) -> subprocess.CompletedProcess[str]:
    fake_test = program(tmp_path / "test", fake)
    return subprocess.run(
        ["bash", str(ROOT / "tools" / "test-busy"), *arguments],
        env={**os.environ, "TEST": str(fake_test)},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_the_busy_machine_s_loops_run_beside_every_run_and_end(tmp_path: Path) -> None:
    children = tmp_path / "children"
    fake = f'echo $(cat /proc/$PPID/task/$PPID/children) >> {children}; echo "== 3 passed, $* ==="'
    done = on_a_busy_machine(tmp_path, fake, "--times", "2", "--loops", "3", "-k", "wal")
    assert done.returncode == 0
    assert done.stdout.splitlines()[-2:] == [
        f"run {number}: == 3 passed, -k wal ===, exit code 0" for number in (1, 2)
    ]
    runs = [set(line.split()) for line in children.read_text().splitlines()]
    loops = set.intersection(*runs)
    assert len(loops) == 3
    assert [pid for pid in loops if Path("/proc", pid).exists()] == []


def test_the_first_run_that_fails_on_the_busy_machine_is_the_last(tmp_path: Path) -> None:
    fake = (
        'echo x >> "$0.runs"; [ "$(wc -l < "$0.runs")" = 1 ] || { echo "== 1 failed =="; exit 1; }'
    )
    done = on_a_busy_machine(tmp_path, fake, "--times", "4", "--loops", "0")
    assert done.returncode == 1
    assert done.stdout.splitlines()[-2:] == [
        "run 1: no summary, exit code 0",
        "run 2: == 1 failed ==, exit code 1",
    ]


@pytest.mark.parametrize("arguments", [["--times"], ["--loops", "two"]])
def test_a_busy_machine_wants_numbers(tmp_path: Path, arguments: list[str]) -> None:
    done = on_a_busy_machine(tmp_path, "exit 9", *arguments)
    assert done.returncode == 2
    assert f"{arguments[0]} needs a number" in done.stderr


# The figures of every plugin ----------------------------------------------------------------------


def measured(
    tmp_path: Path, *arguments: str, fake: str = ""
) -> tuple[subprocess.CompletedProcess[str], Path]:
    """A run with a benchmark that only notes what it is asked, and leaves two files."""
    usual = f"""echo "$@" >> {tmp_path}/asked
case "$1" in run) shift; while [ "$1" != --out ]; do shift; done; mkdir -p "$2"
echo c > "$2/conditions.json" ;; analyse) echo s > "$2/summary.json" ;; esac"""
    done = subprocess.run(
        ["bash", str(ROOT / "tools" / "measure"), *arguments, "--out", str(tmp_path / "results")],
        env={**os.environ, "BENCH": str(program(tmp_path / "bench", fake or usual))},
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done, tmp_path / "results"


def test_every_plugin_s_figures_get_their_conditions_beside_them(tmp_path: Path) -> None:
    done, results = measured(tmp_path, "--quick")
    assert done.returncode == 0, done.stderr
    whats = ["calls", "keyspace", "lcr", "limbo", "registry", "subscriptions", "txqueue"]
    assert sorted(each.name for each in results.iterdir()) == whats
    for each in results.iterdir():
        assert sorted(file.name for file in each.iterdir()) == ["conditions.json", "summary.json"]
    runs = [line for line in (tmp_path / "asked").read_text().splitlines() if "run" in line[:4]]
    for line in runs:
        plan_of(parser().parse_args(line.split()[1:]))  # as the benchmark itself understands it


def test_a_benchmark_that_fails_leaves_no_figures(tmp_path: Path) -> None:
    done, results = measured(tmp_path, "limbo", fake='[ "$1" = run ]')
    assert done.returncode == 1
    assert not results.exists()
    done, _ = measured(tmp_path, "nonsense")
    assert (done.returncode, "unknown: nonsense" in done.stderr) == (2, True)


# The installation beside the show ----------------------------------------------------------------


def finished(script: str) -> Installation:
    installation = Installation(Console(file=io.StringIO()), script)
    installation.wait()
    return installation


def test_the_home_of_java_comes_back_from_the_installer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "before")
    installation = finished("echo 'Progress 1 of 2'; echo 'JAVA_HOME somewhere'")
    assert installation.packages_ready
    assert installation.error is None
    assert os.environ["JAVA_HOME"] == "somewhere"


def test_without_java_the_packages_are_ready_and_the_reason_is_known() -> None:
    installation = finished("echo 'error: Spark needs Java 17'; exit 3")
    assert installation.packages_ready
    assert installation.error == "error: Spark needs Java 17"


def test_a_failed_installation_says_why() -> None:
    installation = finished("echo one; echo 'ERROR: no such package'; exit 1")
    assert not installation.packages_ready
    assert installation.error == "ERROR: no such package"
