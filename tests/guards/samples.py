"""Sources that are made up, for tests of the guards."""

from __future__ import annotations

from textwrap import dedent

from tests.guards.measure import Guard, Measure, measure
from tests.guards.sources import Source

# Texts by path.
Files = dict[str, str]


def measured(guard: Guard, files: Files) -> dict[str, Measure]:
    """What a guard measures if these are the files of the repository."""
    return measure((Source(path, dedent(text)) for path, text in files.items()), [guard])


def counts(guard: Guard, files: Files) -> dict[str, int]:
    return {name: each.count for name, each in measured(guard, files).items()}
