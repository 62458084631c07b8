"""The programs in README.md run as they stand there, and the commands it names exist.

Only their port is changed to a free one.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from raftkv.cli.ports import free_ports

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PROGRAMS = re.findall(r"^```python\n(.*?)^```", README, re.M | re.S)
FIRST_PROGRAM_LINES_MAX = 12


def run_program(source: str, folder: Path) -> str:
    (port,) = free_ports(1)
    done = subprocess.run(
        [sys.executable, "-c", source.replace("7401", str(port))],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'plugins'}"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_first_program_is_short() -> None:
    lines = [line for line in PROGRAMS[0].splitlines() if line.strip()]
    assert len(lines) <= FIRST_PROGRAM_LINES_MAX


@pytest.mark.cluster
@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_the_program_runs(number: int, tmp_path: Path) -> None:
    assert "hello" in run_program(PROGRAMS[number], tmp_path)


def commands() -> list[str]:
    indented = re.findall(r"^    ((?:raftkv|tools/\w+) .*?)(?:  +#.*)?$", README, re.M)
    return sorted({command.partition(" --")[0].strip() for command in indented})


def test_the_readme_shows_the_two_commands_and_the_command_line() -> None:
    found = commands()
    assert {"tools/demo", "tools/test"} <= set(found)
    assert any(command.startswith("raftkv cluster up") for command in found)


@pytest.mark.parametrize("command", commands())
def test_every_command_the_readme_shows_exists(command: str) -> None:
    words = command.split()
    if words[0].startswith("tools/"):
        arguments = ["bash", str(ROOT / words[0]), "--help"]
    else:
        known = [word for word in words[1:] if re.fullmatch(r"[a-z]+", word)]
        depth = 2 if known[0] == "cluster" else 1
        arguments = [sys.executable, "-m", "raftkv", *known[:depth], "--help"]
    done = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
