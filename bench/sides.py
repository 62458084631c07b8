"""The sides of a comparison: which code runs, and one round of the benchmark on it.

A side is a directory with the packages `raftkv` and `plugins` of one revision and with the `bench`
of this checkout, because only the same loop and the same clock make two figures comparable. All
sides are copies, the working tree too: whoever edits it meanwhile must not change what is measured.
So the benchmark must run on older revisions: it imports inner names through runner/product.py, and
what they may lack only where it is asked for.

What is ugly: that a side really runs its own code is not evident, since a development install puts
this checkout's packages where every interpreter finds them. `check_imports` asks each side.
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["ROOT", "CompareError", "Side", "check_imports", "play_round", "prepare"]

ROOT = Path(__file__).resolve().parent.parent
CODE = ("raftkv", "plugins")
LAST_WORDS_CHARS = 1500


class CompareError(Exception):
    """The comparison cannot be made. The message says what to do."""


@dataclass(frozen=True)
class Side:
    """A name for the table, the code's directory, where its log goes, and options of its own."""

    name: str
    code: Path
    out: Path
    options: tuple[str, ...] = ()

    def environment(self) -> dict[str, str]:
        """For its processes: its own packages before everything else."""
        paths = os.pathsep.join([str(self.code), str(self.code / "plugins")])
        return {**os.environ, "PYTHONPATH": paths, "PYTHONSAFEPATH": "1"}


def prepare(target: Path, source: str) -> None:
    """Put the packages of a directory or a git revision into `target`, and this `bench`.

    Raises CompareError for a source that is neither.
    """
    target.mkdir(parents=True)
    directory = Path(source)
    if (directory / "raftkv").is_dir():
        for name in CODE:
            if (directory / name).is_dir():
                _copy(directory / name, target / name)
    else:
        _extract(source, target)
    _copy(ROOT / "bench", target / "bench")


def _copy(source: Path, target: Path) -> None:
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))


def _extract(revision: str, target: Path) -> None:
    # An archive and no worktree: nothing is written into the repository, nothing can stay behind.
    command = ["git", "-C", str(ROOT), "archive", "--format=tar", f"{revision}^{{tree}}", *CODE]
    try:
        done = subprocess.run(command, capture_output=True, check=False)
    except FileNotFoundError:
        raise CompareError("git is not installed: give a directory as --against") from None
    if done.returncode != 0:
        reason = done.stderr.decode(errors="replace").strip().splitlines()
        raise CompareError(
            f"{revision!r} is neither a directory with the package raftkv nor a revision of the "
            f"checkout {ROOT} ({reason[0] if reason else 'git said nothing'})"
        )
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        # Python 3.11.0 to 3.11.3 have no filters; the archive is git's own of this checkout.
        if hasattr(tarfile, "data_filter"):
            archive.extractall(target, filter="data")
        else:
            archive.extractall(target)


def check_imports(side: Side) -> None:
    """Raises CompareError if the side would run anybody else's code."""
    script = "import raftkv, raftkv_lcr, bench\nfor m in (raftkv, raftkv_lcr, bench):"
    command = [sys.executable, "-c", f"{script} print(m.__file__)"]
    done = subprocess.run(
        command, cwd=side.code, env=side.environment(), capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise CompareError(f"{side.name} cannot be imported: {done.stderr.strip()[-500:]}")
    strangers = [
        line for line in done.stdout.splitlines() if not Path(line).is_relative_to(side.code)
    ]
    if strangers:
        raise CompareError(
            f"{side.name} would run {strangers[0]} instead of its own code: use an interpreter "
            f"in which raftkv is not installed"
        )


def play_round(side: Side, arguments: Sequence[str]) -> None:
    """One `bench run` on the side, added to its log. Raises CompareError with its last words."""
    side.out.mkdir(parents=True, exist_ok=True)
    command = [
        *(sys.executable, "-m", "bench", "run", "--out", str(side.out), "--append"),
        *arguments,
        *side.options,
    ]
    log = side.out / "run.log"
    with log.open("ab") as stream:
        done = subprocess.run(
            command, cwd=side.code, env=side.environment(), stdout=stream, stderr=stream,
            check=False,
        )  # fmt: skip
    if done.returncode != 0:
        words = log.read_text(encoding="utf-8", errors="replace").strip()[-LAST_WORDS_CHARS:]
        raise CompareError(
            f"the benchmark failed on {side.name} (exit code {done.returncode}). Its last words, "
            f"from {log}:\n{words}"
        )
