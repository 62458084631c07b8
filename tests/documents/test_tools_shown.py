"""The tools and benchmarks that a page shows exist, with the options that it shows.

Those of `raftkv` itself are looked at in tests/test_documents.py.
"""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tests.documents.snippets import ROOT
from tests.documents.test_snippets import pages

pytestmark = pytest.mark.slow


class Shown(NamedTuple):
    """A command of this repository on a page."""

    page: str
    program: str
    options: tuple[str, ...]


def shown() -> Iterator[Shown]:
    """All of them, in blocks and in the midst of text; an entry of the changelog may be history."""
    programs = r"tools/[\w-]+|python -m bench (?:peers )?\w+|python -m raftkv\.testing[\w.]*"
    pattern = rf"({programs})((?: [^`\n#]*)?)"
    more = [str(path.relative_to(ROOT)) for path in ROOT.glob("*.md")]
    for page in sorted({*pages(), *more} - {"CHANGELOG.md"}):
        text = (ROOT / page).read_text(encoding="utf-8").replace("\\\n", " ")
        for program, words in re.findall(pattern, text):
            words = re.split(r"  |; |, then| > |[|)]|\.\s", words + " ")[0]
            yield Shown(page, program, tuple(re.findall(r"(?<=\s)--[a-z][a-z-]*", words)))


@functools.cache
def help_of(program: str) -> str:
    words = program.split()
    start = ["bash", words[0]] if program.startswith("tools/") else [sys.executable, *words[1:]]
    path = os.pathsep.join((str(ROOT), str(ROOT / "plugins"), str(ROOT / "tools")))
    done = subprocess.run(
        [*start, "--help"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, f"{program} --help: {done.stderr}"
    return done.stdout


def test_every_tool_and_option_that_a_page_shows_exists() -> None:
    wrong, looked_at = [], 0
    for each in shown():
        looked_at += 1
        known = help_of(each.program)
        wrong += [
            f"{each.page}: {each.program} has no {option}"
            for option in each.options
            if not re.search(rf"{option}\b(?!-)", known)
        ]
    assert not wrong, "\n" + "\n".join(sorted(set(wrong)))
    assert looked_at > 60
