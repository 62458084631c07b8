"""Plants every known bug in turn and writes down how it was found."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Final

import msgspec
from rich.console import Console
from rich.progress import Progress

from raftkv.testing.own_errors import BugFailed
from raftkv.testing.planted import BUGS, Bug
from raftkv.testing.scenario import run_seed

__all__ = ["Found", "hunt", "write_table"]

HEAD: Final = """\
# Injected bugs

`tools/simulate --planted` injects each of these bugs into the real code for a run
(`raftkv/testing/planted.py`), must find it, and writes this page: seeds from 0 upwards, 30
simulated seconds each. "Seeds" counts up to the first that sees something; the command fails
beyond "limit", and if the code of a bug fails itself (`raftkv/testing/own_errors.py`).

| bug | what is wrong | seen by | seeds | limit | mode |
| --- | --- | --- | --- | --- | --- |
"""


class Found(msgspec.Struct, frozen=True):
    """How a bug was found. `check` is empty when it was not; `failed`: its own code failed."""

    bug: str
    check: str
    seeds: int
    message: str
    failed: bool = False

    @property
    def seen_by(self) -> str:
        """As the table has it."""
        return self.check or (
            "**the injected bug itself failed**" if self.failed else "**not found**"
        )

    def __str__(self) -> str:
        told = self.message if self.failed else self.check or "NOT FOUND"
        return f"{self.bug}: {told}, {self.seeds} seeds"


def hunt(bug: str) -> Found:
    """Run seeds with the bug planted until one is violated."""
    logging.disable(logging.CRITICAL)
    known = BUGS[bug]
    for seed in range(known.seeds_max):
        try:
            result = run_seed(seed, messages=known.harsh, members=known.members or None, bug=bug)
        except BugFailed as failure:
            return Found(bug, "", seed + 1, str(failure), failed=True)
        if result.check:
            return Found(bug, result.check, seed + 1, result.message)
    return Found(bug, "", known.seeds_max, "not found")


def _mode(bug: Bug) -> str:
    options = [f"`--{name}`" for name in ("harsh", "members") if getattr(bug, name)]
    return " ".join(options) or "streams"


def _page(found: Iterable[Found]) -> str:
    lines = [
        f"| `{each.bug}` | {BUGS[each.bug].what} | {each.seen_by} | "
        f"{each.seeds} | {BUGS[each.bug].seeds_max} | "
        f"{_mode(BUGS[each.bug])} |"
        for each in found
    ]
    return HEAD + "\n".join(lines) + "\n"


def write_table(path: str, jobs: int, console: Console) -> int:
    """Write the page; returns the exit code: 0 if every bug was found."""
    names = sorted(BUGS)
    found: list[Found] = []
    with Progress(console=console) as progress, ProcessPoolExecutor(jobs) as pool:
        bar = progress.add_task("injected bugs", total=len(names))
        for each in pool.map(hunt, names):
            found.append(each)
            progress.advance(bar)
            progress.console.print(str(each), markup=False, soft_wrap=True)
    missed = [each.bug for each in found if not each.check and not each.failed]
    failed = [each.message for each in found if each.failed]
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(_page(found), encoding="utf-8")
    print(
        f"{len(found)} injected bugs, {len(found) - len(missed) - len(failed)} found"
        + (f", not found: {', '.join(missed)}" if missed else "")
        + "".join(f"; {each}" for each in failed)
        + f"; the table is in {path}"
    )
    return 1 if missed or failed else 0
