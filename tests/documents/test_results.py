"""Figures have their conditions beside them, for programs too."""

from __future__ import annotations

import json
from pathlib import Path

from tests.documents.snippets import ROOT

RESULTS = ROOT / "docs" / "results"
# Measured before the figures were kept; their conditions are in the text of the page.
IN_WORDS_ONLY = {"2026-11-25/consensus.md"}


def figures_of(page: Path) -> Path:
    """The folder with the figures of a page: that of its name, or for a README.md its own."""
    return page.parent if page.name == "README.md" else page.with_suffix("")


def test_every_page_of_results_has_its_figures_and_their_conditions_beside_it() -> None:
    pages = {str(page.relative_to(RESULTS)): page for page in RESULTS.glob("*/*.md")}
    lacking = []
    for name, page in pages.items():
        files = [figures_of(page) / each for each in ("summary.json", "conditions.json")]
        if not all(file.is_file() for file in files):
            lacking.append(name)
    assert sorted(set(lacking) - IN_WORDS_ONLY) == [], "see tools/measure"
    assert sorted(IN_WORDS_ONLY - set(lacking)) == [], "these have them now"


def test_figures_and_conditions_are_of_one_run() -> None:
    found = sorted(RESULTS.rglob("summary.json"))
    assert found
    for summary in found:
        conditions = json.loads(summary.with_name("conditions.json").read_text("utf-8"))
        assert json.loads(summary.read_text("utf-8"))["conditions"] == conditions
        assert {"date", "cores", "cpu", "fsync", "versions", "arguments"} <= set(conditions)
