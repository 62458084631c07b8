"""What one seed means: the cluster's shape, its limits, its load, its faults; and running it.

Everything is drawn from the seed, so that a seed alone replays a run. The draws favour what finds
defects: small clusters, tiny snapshots and segments in a third of the runs, faults that overlap.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from raftkv.config import Limits, RaftTimes
from raftkv.testing.nemesis import (
    DAMAGE_FAULTS,
    DISK_FAULTS,
    FAULTS,
    NETWORK_FAULTS,
    OPERATIONS,
)
from raftkv.testing.network import NetworkOptions
from raftkv.testing.planted import planted
from raftkv.testing.simulated import SafetyViolation, SimulatedCluster
from raftkv.testing.world import WorldOptions

__all__ = ["Result", "Scenario", "draw", "run_seed"]

KIB = 1024


@dataclass(frozen=True)
class Scenario:
    """One run, before it is run."""

    seed: int
    cores: int
    replicants: int
    rate_per_s: float
    limits: Limits
    raft: RaftTimes
    options: WorldOptions
    faults: dict[str, float]
    interval_s: tuple[float, float]
    duration_s: tuple[float, float]
    down_max: int
    messages: bool

    def __str__(self) -> str:
        tiny = "" if self.limits == Limits() else ", tiny limits"
        harsh = ", harsh" if self.messages else ""
        return (
            f"{self.cores}+{self.replicants} nodes, {self.rate_per_s:g} operations/s, faults "
            f"every {self.interval_s[0]:g} to {self.interval_s[1]:g} s, up to "
            f"{self.duration_s[1]:g} s long, at most {self.down_max} "
            f"nodes away{tiny}{harsh}"
        )


@dataclass
class Result:
    """What became of a seed. `check` and `message` are empty when nothing was violated."""

    seed: int
    check: str = ""
    message: str = ""
    simulated_s: float = 0.0
    real_s: float = 0.0
    operations: int = 0
    acknowledged: int = 0
    recovery_s: float = 0.0
    fingerprint: str = ""
    faults: Counter[str] = field(default_factory=Counter)
    marks: Counter[str] = field(default_factory=Counter)


def draw(seed: int, *, messages: bool = False, cores: int | None = None) -> Scenario:
    """The scenario of a seed. `cores` fixes the number of cores, `messages` asks for harsh.py."""
    rng = random.Random(f"{seed}/scenario")
    drawn = rng.choices((1, 3, 5), (1, 6, 3))[0]
    replicants = rng.choices((0, 1, 2), (5, 3, 2))[0]
    count = cores or drawn
    minority = (count - 1) // 2
    everything = count + replicants
    return Scenario(
        seed=seed,
        cores=count,
        replicants=replicants,
        rate_per_s=rng.choice((30.0, 60.0, 100.0, 200.0)),
        limits=_limits(rng) if rng.random() < 0.35 else Limits(),
        raft=RaftTimes(
            node_down_ms=rng.choice((2_000, 10_000)), lease_ms=rng.choice((0, 0, 300, 600))
        ),
        options=_options(rng),
        faults=_faults(rng, everything),
        interval_s=rng.choice(((0.2, 2.0), (0.1, 1.0), (0.5, 4.0))),
        # The longer ones outlast `node_down_ms`, so that sessions end.
        duration_s=rng.choice(((0.2, 3.0), (0.2, 3.0), (0.5, 8.0))),
        # Mostly a minority; safety must hold whoever is away.
        down_max=everything if count == 1 or rng.random() < 0.2 else minority,
        messages=messages,
    )


def _limits(rng: random.Random) -> Limits:
    return Limits(
        snapshot_log_entries=rng.choice((60, 150, 400)),
        log_tail_entries=rng.choice((5, 20, 100)),
        snapshot_chunk_bytes=rng.choice((1, 4, 32)) * KIB,
        segment_bytes_max=rng.choice((8, 32, 128)) * KIB,
        key_bytes_max=512,
        value_bytes_max=1 * KIB,
        command_bytes_max=2 * KIB,
        # Small, so that a lagging follower gets old entries and new ones in different messages.
        batch_bytes_max=rng.choice((2, 2, 16)) * KIB,
        frame_bytes_max=64 * KIB,
        inflight_bytes_max=rng.choice((16, 256)) * KIB,
        uncommitted_bytes_max=rng.choice((16, 256)) * KIB,
        outbox_commands_max=rng.choice((64, 1024)),
    )


def _options(rng: random.Random) -> WorldOptions:
    latency_s = rng.choice((0.0003, 0.0005, 0.002, 0.01))
    return WorldOptions(
        network=NetworkOptions(latency_mean_s=latency_s),
        # Two clocks then differ in speed by as much as `clock_drift_permille` allows.
        clock_drift_max=rng.choice((0.0005, RaftTimes().clock_drift_permille / 2000)),
        wall_skew_ms_max=rng.choice((200, 60_000)),
    )


def _faults(rng: random.Random, hosts: int) -> dict[str, float]:
    """Each kind with a weight of its own, some left out; the disk's in half of the runs."""
    kinds = {**FAULTS, **OPERATIONS}
    if rng.random() < 0.5:
        kinds |= DISK_FAULTS
    if rng.random() < 0.5:
        kinds |= DAMAGE_FAULTS
    faults = {
        name: weight * rng.uniform(0.3, 2.0)
        for name, weight in kinds.items()
        if (hosts > 1 or name not in NETWORK_FAULTS) and rng.random() < 0.85
    }
    return faults or {"kill": 1.0, "power_cut": 1.0}


def run_seed(
    seed: int,
    *,
    seconds: float = 30.0,
    messages: bool = False,
    cores: int | None = None,
    bug: str | None = None,
    deliveries: bool = False,
    prepare: Callable[[SimulatedCluster], Any] = lambda cluster: None,
) -> Result:
    """Run a seed's scenario: a storm of `seconds`, then healing and the final checks.

    Never raises for what the code under test does wrong: that is in the result. `bug` plants one
    of planted.py's. `prepare` is given the cluster before it starts.
    """
    scenario = draw(seed, messages=messages, cores=cores)
    result = Result(seed)
    begun = perf_counter()
    cluster = SimulatedCluster(
        seed,
        scenario.cores,
        scenario.replicants,
        rate_per_s=scenario.rate_per_s,
        limits=scenario.limits,
        raft=scenario.raft,
        options=scenario.options,
        deliveries=deliveries,
        messages=messages,
    )
    prepare(cluster)
    with ExitStack() as stack:
        if bug is not None:
            stack.enter_context(planted(bug))
        try:
            with cluster:
                cluster.storm(
                    seconds,
                    scenario.faults,
                    interval_s=scenario.interval_s,
                    duration_s=scenario.duration_s,
                    down_max=scenario.down_max,
                )
                cluster.settle()
                result.fingerprint = cluster.fingerprint()
        except SafetyViolation as violation:
            result.check, result.message = violation.check, str(violation)
        except Exception as error:
            result.check = "no exception escapes"
            result.message = f"seed {seed}: {type(error).__name__}: {error}"
    _count(cluster, result)
    result.real_s = perf_counter() - begun
    return result


def _count(cluster: SimulatedCluster, result: Result) -> None:
    result.simulated_s = cluster.world.loop.now
    result.operations = cluster.load.attempts
    result.acknowledged = len(cluster.acknowledged)
    result.recovery_s = cluster.recovery_s
    result.marks = cluster.marks.counts
    if cluster.nemesis is not None:
        result.faults = Counter(cluster.nemesis.counts)
    if cluster.harsh is not None:
        harsh = cluster.harsh
        result.faults += Counter(
            {
                "message lost": harsh.lost,
                "message doubled": harsh.doubled,
                "message held": harsh.held,
            }
        )
