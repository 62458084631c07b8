"""What can be fuzzed: a way to make damaged inputs, a way to run one, and what may come of it.

Rules: `make` is a function of the generator it is given and of the target's fixed samples, so that
a seed and a number name an input for good. `run` is a function of the case alone, so that a saved
case can be replayed and shrunk. Whatever `run` raises is a finding.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import Protocol

import msgspec

__all__ = ["Case", "Finding", "Target", "kind_of"]


class Case(msgspec.Struct, frozen=True):
    """One input: named pieces of bytes. `sample` and `choice` are for the target's own use."""

    parts: dict[str, bytes]
    sample: int = 0
    choice: int = 0

    @property
    def size_bytes(self) -> int:
        return sum(len(name) + len(data) for name, data in self.parts.items())


class Finding(AssertionError):
    """An input had a result that its oracle does not allow."""


class Target(Protocol):
    """One thing to be fuzzed."""

    name: str
    # What one run counts for, in the plural: frames, files.
    unit: str
    # Module names whose lines tell inputs apart (tracing.py); none if their work is done in C.
    traced: Sequence[str]
    # Cases in one batch: some seconds of work at most.
    batch: int

    def make(self, rng: random.Random) -> Case:
        """The next input."""

    def vary(self, case: Case, rng: random.Random) -> Case:
        """An input that resembles `case`, which reached something new."""

    def run(self, case: Case) -> Counter[str]:
        """Feed the case. What came of it, counted per unit; anything raised is a finding."""


def kind_of(error: BaseException) -> str:
    """What two findings must share to be the same one.

    Of an oracle's finding the text without its numbers; of any other exception its type and the
    innermost line of raftkv that it passed.
    """
    if isinstance(error, Finding):
        return "".join(letter for letter in str(error).partition(":")[0] if not letter.isdigit())
    place = "?"
    trace = error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if "raftkv" in file:
            place = f"{file.rpartition('raftkv')[2].lstrip('/')}:{trace.tb_lineno}"
        trace = trace.tb_next
    return f"{type(error).__name__} at {place}"
