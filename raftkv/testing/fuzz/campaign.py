"""Batches of cases in several processes: the work behind `tools/fuzz`.

A batch is named by target, seed and number, and is a function of them: it does not matter which
process runs it, how many there are, or what other batches found. Every tenth batch of a target
with traced modules is guided (tracing.py): half of its inputs vary those that reached new lines.
"""

from __future__ import annotations

import gc
import logging
import math
import random
import resource
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Final

import msgspec

from raftkv.testing.fuzz.documents import ConfigTarget, IdentityTarget
from raftkv.testing.fuzz.frames import FrameTarget
from raftkv.testing.fuzz.guard import Guard, limit_memory
from raftkv.testing.fuzz.handlers import HandlerTarget
from raftkv.testing.fuzz.http import HttpTarget
from raftkv.testing.fuzz.shrink import shrink
from raftkv.testing.fuzz.snapshots import SnapshotTarget
from raftkv.testing.fuzz.target import Case, Finding, Target, kind_of
from raftkv.testing.fuzz.tracing import Arc, arcs_of, read_corpus
from raftkv.testing.fuzz.wal import WalTarget

__all__ = ["CORPUS", "PLANS", "TARGETS", "Batch", "Saved", "Totals", "run_batch", "run_plan"]

TARGETS: Final[dict[str, Callable[[], Target]]] = {
    target.name: target
    for target in (
        FrameTarget,
        HandlerTarget,
        WalTarget,
        SnapshotTarget,
        IdentityTarget,
        ConfigTarget,
        HttpTarget,
    )
}
# What a command runs: targets with their share of the count.
PLANS: Final[dict[str, tuple[tuple[str, float], ...]]] = {
    "frames": (("frames", 0.99), ("handlers", 0.01)),
    "handlers": (("handlers", 1.0),),
    "wal": (("wal", 1.0),),
    "snapshot": (("snapshot", 1.0),),
    "identity": (("identity", 0.9), ("config", 0.1)),
    "http": (("http", 1.0),),
}
CORPUS: Final = Path(__file__).resolve().parents[3] / "tests" / "fuzz_corpus"
GUIDED_EVERY: Final = 10
# Of a batch, how many of its cases a guided one runs: each costs ten times as much.
GUIDED_SHARE: Final = 0.2
# Units of one case, a little less than on average; so a plan's batches reach its count.
UNITS_PER_CASE: Final = {"frames": 13.8, "handlers": 150.0}
BATCH_TIMEOUT_S: Final = 300
# What a process may grow by after its first batch.
GROWTH_BYTES_MAX: Final = 256 << 20
FINDINGS_PER_BATCH_MAX: Final = 3


class Saved(msgspec.Struct, frozen=True):
    """A finding as it lies on the disk, to be replayed."""

    target: str
    seed: int
    batch: int
    kind: str
    text: str
    case: Case


class Batch(msgspec.Struct):
    """What came of one batch."""

    counts: Counter[str]
    findings: list[Saved]
    # Inputs that reached lines which the corpus does not; of guided batches only.
    reached: list[Case]


@dataclass
class Totals:
    """All batches of one call, by target."""

    counts: dict[str, Counter[str]] = field(default_factory=dict)
    findings: list[Saved] = field(default_factory=list)
    reached: dict[str, list[Case]] = field(default_factory=dict)

    def add(self, name: str, batch: Batch) -> None:
        self.counts.setdefault(name, Counter()).update(batch.counts)
        self.findings += batch.findings
        self.reached.setdefault(name, []).extend(batch.reached)

    def units(self, name: str) -> int:
        return sum(self.counts.get(name, Counter()).values())


@cache
def target_of(name: str) -> Target:
    """One per process: making the samples takes a while."""
    return TARGETS[name]()


@cache
def _known_arcs(name: str, corpus: Path) -> frozenset[Arc]:
    """Where the kept inputs of a target go."""
    target, known = target_of(name), set[Arc]()
    for case in read_corpus(corpus, name):
        known |= arcs_of(target, case)[0]
    return frozenset(known)


def run_batch(
    name: str,
    seed: int,
    number: int,
    cases: int | None = None,
    corpus: Path = CORPUS,
    *,
    until_found: bool = False,
) -> Batch:
    """Run a batch, or as much as it takes `until_found`; findings are shrunk."""
    target = target_of(name)
    rng = random.Random(f"{name}/{seed}/{number}")
    batch = Batch(Counter(), [], [])
    count = cases or target.batch
    guided = bool(target.traced) and number % GUIDED_EVERY == 0
    pool = read_corpus(corpus, name) if guided else []
    known = set(_known_arcs(name, corpus)) if guided else set()
    for _ in range(max(1, int(count * GUIDED_SHARE)) if guided else count):
        if pool and rng.random() < 0.5:
            case = target.vary(pool[int(rng.random() * len(pool))], rng)
        else:
            case = target.make(rng)
        try:
            with Guard():
                if guided:
                    arcs, counts = arcs_of(target, case)
                    if not arcs <= known:
                        known |= arcs
                        pool.append(case)
                        batch.reached.append(case)
                else:
                    counts = target.run(case)
            batch.counts.update(counts)
        except Exception as error:
            batch.counts["findings"] += 1
            if len(batch.findings) < FINDINGS_PER_BATCH_MAX:
                kind = kind_of(error)
                text = f"{type(error).__name__}: {error}"
                small = shrink(target, case, kind)
                batch.findings.append(Saved(name, seed, number, kind, text, small))
            if until_found:
                break
    return batch


# In worker processes ------------------------------------------------------------------------------

_resident_bytes = 0


def _start_worker() -> None:
    logging.disable(logging.CRITICAL)
    limit_memory()
    # Nothing here makes cycles by the million; a full collection takes longer than a batch.
    gc.freeze()

    def too_long(number: int, frame: FrameType | None) -> None:
        raise Finding(f"a batch takes longer than {BATCH_TIMEOUT_S} s")

    signal.signal(signal.SIGALRM, too_long)


def _work(name: str, seed: int, number: int) -> Batch:
    global _resident_bytes
    signal.alarm(BATCH_TIMEOUT_S)
    try:
        batch = run_batch(name, seed, number)
    finally:
        signal.alarm(0)
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    if _resident_bytes and resident > _resident_bytes + GROWTH_BYTES_MAX:
        grown = resident - _resident_bytes
        text = f"the process has grown by {grown >> 20} MiB"
        batch.findings.append(Saved(name, seed, number, "memory", text, Case({})))
    _resident_bytes = _resident_bytes or resident
    return batch


def batches(name: str, count: float) -> int:
    """How many batches of a target make so many units."""
    target = target_of(name)
    share = (GUIDED_EVERY - 1 + GUIDED_SHARE) / GUIDED_EVERY if target.traced else 1.0
    return math.ceil(count / (target.batch * UNITS_PER_CASE.get(name, 1.0) * share)) + 1


def _plan(plan: str, count: int) -> Iterator[tuple[str, int]]:
    """The batches of all targets of a plan, in turns, so that each gets its share at any time."""
    wanted = {name: batches(name, count * share) for name, share in PLANS[plan]}
    most = max(wanted.values())
    done = dict.fromkeys(wanted, 0)
    for turn in range(most):
        for name, total in wanted.items():
            while done[name] * most < (turn + 1) * total and done[name] < total:
                yield name, done[name]
                done[name] += 1


def run_plan(
    plan: str,
    *,
    count: int,
    seed: int,
    jobs: int,
    more: Callable[[], bool],
    each: Callable[[str, Batch], None],
) -> Totals:
    """Run a plan's batches in `jobs` processes while `more()`; `each` is told of every one."""
    totals = Totals()
    todo = _plan(plan, count)
    with ProcessPoolExecutor(jobs, initializer=_start_worker) as pool:
        running: dict[Future[Batch], str] = {}
        while True:
            while len(running) < 2 * jobs and more():
                following = next(todo, None)
                if following is None:
                    break
                name, number = following
                running[pool.submit(_work, name, seed, number)] = name
            if not running:
                return totals
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                name = running.pop(future)
                batch = future.result()
                totals.add(name, batch)
                each(name, batch)
