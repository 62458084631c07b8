"""Which lines an input has reached, so that inputs that reach new ones are kept and varied.

An *arc* is a step from one line to the next inside one function of the traced modules. It costs
ten times the run itself, so only a share of the batches is traced; their inputs start from the
corpus (tests/fuzz_corpus), which is the same for everybody: a batch stays a function of its seed.
"""

from __future__ import annotations

import importlib
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec

from raftkv.testing.fuzz.target import Case, Target

__all__ = ["Arc", "arcs_of", "read_corpus", "write_corpus"]

Arc = tuple[str, int, int]


def arcs_of(target: Target, case: Case) -> tuple[set[Arc], Counter[str]]:
    """Run the case and say where it went. What the run raises passes through."""
    files = {importlib.import_module(name).__file__: name for name in target.traced}
    arcs: set[Arc] = set()

    def enter(frame: FrameType, event: str, argument: Any) -> Any:
        name = files.get(frame.f_code.co_filename)
        if name is None:
            return None
        where = f"{name}.{frame.f_code.co_qualname}"
        last = 0

        def step(frame: FrameType, event: str, argument: Any) -> Any:
            nonlocal last
            if event == "line":
                arcs.add((where, last, frame.f_lineno))
                last = frame.f_lineno
            return step

        return step

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        counts = target.run(case)
    finally:
        sys.settrace(before)
    return arcs, counts


def read_corpus(folder: Path, name: str) -> list[Case]:
    """The kept inputs of a target, in the order of their file names; none if there is no folder."""
    files = sorted((folder / name).glob("*.case"))
    return [msgspec.msgpack.decode(file.read_bytes(), type=Case) for file in files]


def write_corpus(folder: Path, name: str, cases: Sequence[Case]) -> int:
    """Add cases to the kept ones; how many were new."""
    (folder / name).mkdir(parents=True, exist_ok=True)
    kept = read_corpus(folder, name)
    new = [case for case in cases if case not in kept]
    for number, case in enumerate(new, len(kept)):
        (folder / name / f"{number:04d}.case").write_bytes(msgspec.msgpack.encode(case))
    return len(new)
