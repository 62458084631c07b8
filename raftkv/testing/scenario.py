"""What one seed means: the cluster's shape, its limits, its load, its faults; and running it.

Everything is drawn from the seed, so that a seed alone replays a run. The draws favour what finds
defects: small clusters, tiny snapshots and segments in a third of the runs, faults that overlap.
"""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any, Literal

from msgspec import structs

from raftkv.config import Limits, RaftTimes
from raftkv.testing.bursts import Bursts
from raftkv.testing.corrupting import corrupt_one
from raftkv.testing.costly import Costly
from raftkv.testing.deadline_check import checked_deadlines
from raftkv.testing.death_check import checked_deaths
from raftkv.testing.death_drill import drill
from raftkv.testing.disaster import recover_by_force
from raftkv.testing.nemesis import (
    DAMAGE_FAULTS,
    DISK_FAULTS,
    FAULTS,
    NETWORK_FAULTS,
    OPERATIONS,
    SPACE_FAULTS,
)
from raftkv.testing.network import NetworkOptions
from raftkv.testing.outcome_check import small_outcomes
from raftkv.testing.own_errors import note
from raftkv.testing.past_readers import PastReaders, long_reads
from raftkv.testing.planted import planted
from raftkv.testing.poison import MASS_KEYS, Poison
from raftkv.testing.simulated import SafetyViolation, SimulatedCluster
from raftkv.testing.spender import Spender
from raftkv.testing.swallowing import swallow_one
from raftkv.testing.unconfirmed import Unconfirmed
from raftkv.testing.variations import Variations
from raftkv.testing.window_check import checked_answers, small_windows
from raftkv.testing.workload import Heavy
from raftkv.testing.world import WorldOptions

__all__ = ["Profile", "Result", "Scenario", "draw", "drawn", "heavy", "plain", "run_seed", "steady"]

Profile = Literal["mixed", "heavy", "steady"]

KIB = 1024
# In so many runs cores come and go; and faults begin before the cluster is founded.
MEMBERS_SHARE = 0.4
EARLY_SHARE = 0.25
# In so many a majority of the cores is lost for good in the end.
DISASTER_SHARE = 0.1
# In so many a program that is no member speaks the protocol to the nodes.
HOSTILE_SHARE = 0.2
# In so many disks are full for snapshots only, now and then.
SPACE_SHARE = 0.3
# In so many of those with members that come and go the state of one core is damaged.
CORRUPT_SHARE = 0.3
# In so many a client's transactions look at as much as they may, and more (costly.py).
COSTLY_SHARE = 0.2
# In so many a client uses up the quota of the keyspace (spender.py).
SPENDER_SHARE = 0.2
# In so many a client confirms no answer and asks again for old ones (unconfirmed.py).
UNCONFIRMED_SHARE = 0.2
# In so many work takes processor time; limits differ between nodes and change; nodes begin with the
# former software; one core of three gets an old image of its disk.
CHARGED_SHARE = 0.15
VARIETY_SHARE = 0.25
UPGRADE_SHARE = 0.12
ROLLBACK_SHARE = 0.5
# Of the runs that begin with faults, and of those with replicants.
DISAGREEING_SHARE = 0.5
NAMESAKE_SHARE = 0.25
# Of the runs in which the members stay and no disk is rolled back.
COPIED_SHARE = 0.25
# What a command needs beside the largest value: key, envelope, and a batch's head.
COMMAND_BYTES_LEFT = 200
# In so many clients read what was (past_readers.py).
PAST_SHARE = 0.15
# Where limits differ and are not tiny.
DIFFERING_BYTES_MAX = {
    "key_bytes_max": 512,
    "value_bytes_max": 8 * KIB,
    "command_bytes_max": 16 * KIB,
}
# In so many the storm is followed by a death, or by what only looks like one.
DRILL_SHARE = 0.25
# And a connection that swallows follows in so many.
SWALLOW_SHARE = 0.15
# How long faults then go on.
AFTERMATH_S = 5.0
# Of the heavy profiles, operations in a second: the load, and that between bursts of it.
HEAVY_PER_S = 10_000.0
ORDINARY_PER_S = 200.0
# In so many of their runs every core begins with a snapshot of the first keys (filling.py).
FILLED_SHARE = 0.75
# Of their single writes, those with values up to the limit. Such a value is as dear as fifty of the
# others; a run has some ten of them.
LARGEST_SHARE = 0.001


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
    members: bool
    early: bool
    # The storm ends with the loss of a majority, and one core is recovered by force.
    disaster: bool
    # A stranger troubles the nodes (hostile.py).
    hostile: bool = False
    # The state of one core is damaged after the storm (corrupting.py).
    corrupt: bool = False
    costly: bool = False
    # A client uses up the quota of the keyspace (spender.py).
    spender: bool = False
    # A client confirms no answer (unconfirmed.py).
    unconfirmed: bool = False
    # Clients read what was (past_readers.py).
    past: bool = False
    # Clients' single commands are much work (poison.py); only where work takes time.
    poison: bool = False
    heavy: Heavy | None = None
    # The rate is so many times as high in bursts (bursts.py); 1 is without any.
    burst_times: float = 1.0
    more: Variations = field(default_factory=Variations)
    # A drill follows the storm (death_drill.py).
    drill: bool = False
    # A connection between two cores swallows what is sent on it, after the storm (swallowing.py).
    swallow: bool = False

    def __str__(self) -> str:
        tiny = "" if self.limits == Limits() else ", tiny limits"
        harsh = ", harsh" if self.messages else ""
        members = ", members come and go" if self.members else ""
        early = ", faults from the start" if self.early else ""
        early += ", then a majority is lost" if self.disaster else ""
        early += ", a hostile stranger" if self.hostile else ""
        early += ", then a core is damaged" if self.corrupt else ""
        early += ", costly transactions" if self.costly else ""
        early += ", the quota is used up" if self.spender else ""
        early += ", answers are not confirmed" if self.unconfirmed else ""
        early += ", the past is read" if self.past else ""
        early += ", then a drill of deaths" if self.drill else ""
        early += ", then a connection swallows" if self.swallow else ""
        early += ", commands of much work" if self.poison else ""
        early += f", {self.heavy.keys} keys first, large values" if self.heavy is not None else ""
        early += f", {self.burst_times:g} times as many in bursts" if self.burst_times > 1 else ""
        early += str(self.more)
        return (
            f"{self.cores}+{self.replicants} nodes, {self.rate_per_s:g} operations/s, faults "
            f"every {self.interval_s[0]:g} to {self.interval_s[1]:g} s, up to "
            f"{self.duration_s[1]:g} s long, at most {self.down_max} "
            f"nodes away{tiny}{members}{early}{harsh}"
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

    def ended_by(self, error: Exception) -> None:
        """What the run has ended in. Other errors than a SafetyViolation are none of a check."""
        if isinstance(error, SafetyViolation):
            self.check, self.message = error.check, str(error)
            return
        note(error)
        self.check = "no exception escapes"
        self.message = f"seed {self.seed}: {type(error).__name__}: {error}"


def draw(
    seed: int,
    *,
    messages: bool = False,
    cores: int | None = None,
    members: bool | None = None,
) -> Scenario:
    """The scenario of a seed. `cores` fixes the number of cores, `messages` asks for harsh.py.

    `members` says whether cores come and go; None leaves it to the seed.
    """
    rng = random.Random(f"{seed}/scenario")
    drawn = rng.choices((1, 3, 5), (1, 6, 3))[0]
    replicants = rng.choices((0, 1, 2), (5, 3, 2))[0]
    count = cores or drawn
    minority = (count - 1) // 2
    everything = count + replicants
    drawn_scenario = Scenario(
        seed=seed,
        cores=count,
        replicants=replicants,
        rate_per_s=rng.choice((30.0, 60.0, 100.0, 200.0)),
        limits=_limits(rng) if rng.random() < 0.35 else Limits(),
        raft=RaftTimes(
            node_down_ms=rng.choice((2_000, 10_000)), lease_ms=rng.choice((0, 300, 600, 600))
        ),
        options=_options(rng),
        faults=_faults(rng, everything),
        interval_s=rng.choice(((0.2, 2.0), (0.1, 1.0), (0.5, 4.0))),
        # The longer ones outlast `node_down_ms`, so that sessions end.
        duration_s=rng.choice(((0.2, 3.0), (0.2, 3.0), (0.5, 8.0))),
        # Mostly a minority; safety must hold whoever is away.
        down_max=everything if count == 1 or rng.random() < 0.2 else minority,
        messages=messages,
        members=members is not False and (rng.random() < MEMBERS_SHARE or members is True),
        early=rng.random() < EARLY_SHARE,
        disaster=rng.random() < DISASTER_SHARE,
        # From a generator of its own, so that the other seeds stay what they were.
        hostile=random.Random(f"{seed}/is hostile").random() < HOSTILE_SHARE,
        costly=random.Random(f"{seed}/is costly").random() < COSTLY_SHARE,
        spender=random.Random(f"{seed}/is spender").random() < SPENDER_SHARE,
        unconfirmed=random.Random(f"{seed}/is unconfirmed").random() < UNCONFIRMED_SHARE,
        past=random.Random(f"{seed}/past").random() < PAST_SHARE,
        drill=random.Random(f"{seed}/has a drill").random() < DRILL_SHARE,
        swallow=random.Random(f"{seed}/swallows").random() < SWALLOW_SHARE and not messages,
    )
    if drawn_scenario.members and not drawn_scenario.disaster:
        corrupt = random.Random(f"{seed}/is corrupt").random() < CORRUPT_SHARE
        drawn_scenario = replace(drawn_scenario, corrupt=corrupt)
    return _with_more(_with_full_disks(drawn_scenario))


def _with_more(scenario: Scenario) -> Scenario:
    """What some runs have beside; each drawn by itself, so that the rest stays as it is."""
    seed = scenario.seed

    def happens(what: str, share: float) -> bool:
        return random.Random(f"{seed}/{what}").random() < share

    # Cores compare their states from the newest format on, so a damaged one belongs to such a run.
    upgraded = happens("upgraded", UPGRADE_SHARE) and not scenario.corrupt
    # A leader that has noticed a loss must last until its flag is committed, which needs the newest
    # core format; and a core's old image is put back into the cluster that it was taken from.
    rolled_back = (
        happens("rolled back", ROLLBACK_SHARE)
        and scenario.cores == 3
        and not (scenario.members or scenario.early or scenario.messages or upgraded)
    )
    charged = happens("charged", CHARGED_SHARE) and not scenario.early
    # Nodes of core format 1 compare no files, and cannot be told from each other.
    plain_names = not (scenario.members or upgraded or rolled_back)
    disagreeing = (
        happens("disagreeing", DISAGREEING_SHARE)
        and scenario.early
        and scenario.cores > 1
        and plain_names
    )
    namesake = happens("namesake", NAMESAKE_SHARE) and scenario.replicants > 0 and plain_names
    # Two processes of one core need a majority beside them that refuses one.
    copied = (
        happens("copied", COPIED_SHARE)
        and scenario.cores > 1
        and plain_names
        and not (scenario.early or scenario.messages)
    )
    laden = _laden(scenario.limits)
    differing = happens("variety", VARIETY_SHARE)
    if differing and not charged:
        scenario = _with_large_values(scenario)
    return replace(
        scenario,
        poison=charged and laden.keys > MASS_KEYS,
        heavy=laden if charged else scenario.heavy,
        more=Variations(
            charged,
            differing,
            upgraded,
            rolled_back,
            disagreeing,
            namesake,
            copied,
        ),
    )


def _laden(limits: Limits) -> Heavy:
    """Some keys to compare, and values of any size that a command may have."""
    tiny = limits.command_bytes_max < Limits().command_bytes_max
    keys = 1_000 if tiny else 10_000
    return Heavy(
        keys=keys,
        value_bytes_max=limits.command_bytes_max - COMMAND_BYTES_LEFT,
        large_share=0.05,
        compare_share=0.005,
        compared_keys=keys * 9 // 10,
        fill_keys=20 if tiny else 100,
    )


def _with_large_values(scenario: Scenario) -> Scenario:
    """Values around the limits that nodes may draw (varied.py), so that some nodes refuse them."""
    limits = scenario.limits
    if limits.command_bytes_max == Limits().command_bytes_max:
        # Smaller ones, so that large values are cheap.
        limits = structs.replace(limits, **DIFFERING_BYTES_MAX)
    heavy = Heavy(
        keys=0,
        value_bytes_min=limits.command_bytes_max // 3,
        value_bytes_max=2 * limits.command_bytes_max,
        large_share=0.1,
        compare_share=0.0,
        compared_keys=0,
    )
    return replace(scenario, limits=limits, heavy=heavy)


def _with_full_disks(scenario: Scenario) -> Scenario:
    """In some runs disks are full for snapshots only; drawn apart, so that the rest stays as it is.

    Snapshots are then due often, and half of these runs keep little of the log without one.
    """
    rng = random.Random(f"{scenario.seed}/space")
    if rng.random() >= SPACE_SHARE:
        return scenario
    limits = scenario.limits
    if limits == Limits():
        limits = structs.replace(limits, snapshot_log_entries=rng.choice((150, 400)))
    if rng.random() < 0.5:
        limits = structs.replace(
            limits,
            snapshot_log_bytes=rng.choice((16, 64)) * KIB,
            log_kept_bytes_max=rng.choice((32, 128)) * KIB,
        )
    return replace(scenario, limits=limits, faults={**scenario.faults, **SPACE_FAULTS})


def heavy(seed: int) -> Scenario:
    """As `steady`, but 10,000 operations/s come in bursts (bursts.py), between them 200."""
    return dataclasses.replace(
        steady(seed),
        rate_per_s=ORDINARY_PER_S,
        burst_times=HEAVY_PER_S / ORDINARY_PER_S,
    )


def steady(seed: int) -> Scenario:
    """Three cores, 10,000 operations/s on 100,000 keys with large values; work takes its time."""
    rng = random.Random(f"{seed}/heavy")
    return dataclasses.replace(
        plain(seed),
        rate_per_s=HEAVY_PER_S,
        replicants=rng.choice((0, 1)),
        raft=RaftTimes(lease_ms=rng.choice((0, 600))),
        faults=_faults(rng, 3),
        interval_s=(0.5, 2.0),
        heavy=Heavy(
            largest_share=LARGEST_SHARE,
            # The key that the value begins with needs some of it.
            largest_bytes=Limits().value_bytes_max - COMMAND_BYTES_LEFT,
            snapshots=random.Random(f"{seed}/filled").random() < FILLED_SHARE,
        ),
        more=Variations(charged=True),
    )


def drawn(
    seed: int,
    profile: Profile,
    *,
    messages: bool = False,
    cores: int | None = None,
    members: bool | None = None,
) -> Scenario:
    """The scenario of a seed in a profile. Harsh messages and members are of the mixed one."""
    if profile != "mixed":
        return heavy(seed) if profile == "heavy" else steady(seed)
    return draw(seed, messages=messages, cores=cores, members=members)


def plain(seed: int) -> Scenario:
    """Three cores at 200 operations/s with the usual faults: what the rate is measured with."""
    return Scenario(
        seed=seed,
        cores=3,
        replicants=0,
        rate_per_s=200.0,
        limits=Limits(),
        raft=RaftTimes(),
        options=WorldOptions(),
        faults=dict(FAULTS),
        interval_s=(0.2, 2.0),
        duration_s=(0.2, 3.0),
        down_max=1,
        messages=False,
        members=False,
        early=False,
        disaster=False,
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
    members: bool | None = None,
    bug: str | None = None,
    deliveries: bool = False,
    scenario: Scenario | None = None,
    profile: Profile = "mixed",
    prepare: Callable[[SimulatedCluster], Any] = lambda cluster: None,
) -> Result:
    """Run a seed's scenario: a storm of `seconds`, then healing and the final checks.

    Never raises for what the code under test does wrong: that is in the result. `bug` plants one
    of planted.py's; BugFailed if its own code fails. `prepare` is given the cluster before it
    starts. `scenario` is run instead of the one that the seed draws. `profile` "heavy" is that of
    `heavy`, "steady" that of `steady`; these draw less.
    """
    if scenario is None:
        scenario = drawn(seed, profile, messages=messages, cores=cores, members=members)
    result = Result(seed)
    begun = perf_counter()
    cluster = _cluster_of(scenario, seed, deliveries)
    prepare(cluster)
    with ExitStack() as stack:
        if bug is not None:
            stack.enter_context(planted(bug))
        stack.enter_context(small_windows())
        stack.enter_context(small_outcomes())
        stack.enter_context(checked_answers(cluster.violated))
        stack.enter_context(checked_deadlines(cluster.violated))
        if scenario.past:
            stack.enter_context(long_reads())
        deaths = stack.enter_context(checked_deaths(cluster))
        try:
            with cluster:
                storm = {
                    "interval_s": scenario.interval_s,
                    "duration_s": scenario.duration_s,
                    "down_max": scenario.down_max,
                }
                cluster.storm(seconds, scenario.faults, **storm)
                if scenario.drill:
                    cluster.settle_members()
                    drill(cluster, deaths, random.Random(f"{seed}/drill"))
                if scenario.swallow:
                    cluster.settle_members()
                    swallow_one(cluster, random.Random(f"{seed}/swallow"))
                if scenario.corrupt:
                    cluster.settle_members()
                    corrupt_one(cluster, random.Random(f"{seed}/corrupt"))
                if scenario.disaster:
                    cluster.settle_members()
                    recover_by_force(cluster, random.Random(f"{seed}/disaster"))
                    cluster.storm(AFTERMATH_S, _possible(scenario.faults, cluster), **storm)
                cluster.settle()
                result.fingerprint = cluster.fingerprint()
        except Exception as error:
            result.ended_by(error)
    _count(cluster, result)
    result.real_s = perf_counter() - begun
    return result


def _cluster_of(scenario: Scenario, seed: int, deliveries: bool) -> SimulatedCluster:
    cluster = SimulatedCluster(
        seed,
        scenario.cores,
        scenario.replicants,
        rate_per_s=scenario.rate_per_s,
        limits=scenario.limits,
        raft=scenario.raft,
        options=scenario.options,
        deliveries=deliveries,
        messages=scenario.messages,
        members=scenario.members,
        early=scenario.early,
        hostile=scenario.hostile,
        heavy=scenario.heavy,
        more=scenario.more,
    )
    if scenario.costly:
        cluster.costly = Costly(cluster, random.Random(f"{seed}/costly"))
    if scenario.spender:
        cluster.spender = Spender(cluster, random.Random(f"{seed}/spender"))
    if scenario.unconfirmed:
        cluster.unconfirmed = Unconfirmed(cluster, random.Random(f"{seed}/unconfirmed"))
    if scenario.past:
        cluster.past_readers = PastReaders(cluster, random.Random(f"{seed}/past readers"))
    if scenario.burst_times > 1:
        rng = random.Random(f"{seed}/bursts")
        cluster.bursts = Bursts(cluster, rng, scenario.burst_times)
    if scenario.poison and scenario.heavy is not None:
        cluster.poison = Poison(cluster, random.Random(f"{seed}/poison"), scenario.heavy)
    return cluster


def _possible(faults: dict[str, float], cluster: SimulatedCluster) -> dict[str, float]:
    """Without those of the network if only one node is left."""
    if len(cluster.names) > 1:
        return faults
    left = {name: weight for name, weight in faults.items() if name not in NETWORK_FAULTS}
    return left or {"kill": 1.0}


def _count(cluster: SimulatedCluster, result: Result) -> None:
    result.simulated_s = cluster.world.loop.now
    result.operations = cluster.load.attempts
    result.acknowledged = len(cluster.acknowledged)
    result.recovery_s = cluster.recovery_s
    result.marks = cluster.marks.counts
    if cluster.nemesis is not None:
        result.faults = Counter(cluster.nemesis.counts)
        cluster.marks.hit("sector lost at rest", result.faults["lose_sector"])
    refused = sum(host.disk.read_failures_total for host in cluster.world.hosts.values())
    cluster.marks.hit("read refused by the disk", refused)
    if cluster.operator is not None:
        result.faults += Counter(cluster.operator.counts)
    if cluster.harsh is not None:
        harsh = cluster.harsh
        for mark, count in harsh.met.items():
            cluster.marks.hit(mark, count)
        result.faults += Counter(
            {
                "message lost": harsh.lost,
                "message doubled": harsh.doubled,
                "message held": harsh.held,
            }
        )
