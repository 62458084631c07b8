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

from raftkv.testing.planted import BUGS, Bug
from raftkv.testing.scenario import run_seed

__all__ = ["Found", "hunt", "write_table"]

HEAD: Final = """\
# Injected bugs

`tools/simulate --planted` injects each of these bugs into the real code for a run
(`raftkv/testing/planted.py`), must find it, and writes this page: seeds from 0 upwards, 30
simulated seconds each. "Seeds" counts up to the first that sees something; the command fails
beyond "limit".

| bug | what is wrong | seen by | seeds | limit | mode |
| --- | --- | --- | --- | --- | --- |
"""


class Found(msgspec.Struct, frozen=True):
    """How a bug was found. `check` is empty when it was not."""

    bug: str
    check: str
    seeds: int
    message: str


def hunt(bug: str) -> Found:
    """Run seeds with the bug planted until one is violated."""
    logging.disable(logging.CRITICAL)
    known = BUGS[bug]
    for seed in range(known.seeds_max):
        result = run_seed(seed, messages=known.harsh, members=known.members or None, bug=bug)
        if result.check:
            return Found(bug, result.check, seed + 1, result.message)
    return Found(bug, "", known.seeds_max, "not found")


def _mode(bug: Bug) -> str:
    options = [f"`--{name}`" for name in ("harsh", "members") if getattr(bug, name)]
    return " ".join(options) or "streams"


def _page(found: Iterable[Found]) -> str:
    lines = [
        f"| `{each.bug}` | {BUGS[each.bug].what} | {each.check or '**not found**'} | "
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
        bar = progress.add_task("planted bugs", total=len(names))
        for each in pool.map(hunt, names):
            found.append(each)
            progress.advance(bar)
            progress.console.print(
                f"{each.bug}: {each.check or 'NOT FOUND'}, {each.seeds} seeds",
                markup=False,
                soft_wrap=True,
            )
    missed = [each.bug for each in found if not each.check]
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(_page(found), encoding="utf-8")
    print(
        f"{len(found)} planted bugs, {len(found) - len(missed)} found"
        + (f", not found: {', '.join(missed)}" if missed else "")
        + f"; the table is in {path}"
    )
    return 1 if missed else 0
