"""What one seed of a storm of regions means: shapes, wires, mode, settings, faults, programs.

Everything is drawn from the seed. The draws favour what finds defects: few rows and small bounds,
marks and caches that are reached at once, wires that are slower than what they carry, regions of
one node (whose outage is one crash) beside regions of three.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from raftkv.plugin import Setting
from raftkv.testing.nemesis import DISK_FAULTS, FAULTS, OPERATIONS
from raftkv.testing.several import Limits, RaftTimes
from raftkv_subscriptions.settings import SETTINGS

__all__ = ["MODES", "TOPICS", "Plan", "TopicPlan", "draw"]

KIB = 1024
Shape = Literal["mesh", "ring", "chain"]
MODES = ("vector", "snapshot", "changing")


@dataclass(frozen=True)
class TopicPlan:
    """As it is declared."""

    name: str
    replicated: bool = True
    compacted: bool = False
    retention_s: float = 0.0
    retention_bytes: int = 0
    backlog_bytes_max: int = 0


#: The kinds of topics of every run: plain; with retention; compacted; narrow; of one region.
TOPICS = ("plain", "short", "keys", "narrow", "local")


@dataclass(frozen=True)
class Plan:
    """One run, before it is run."""

    seed: int
    seconds: float
    #: region -> cores and replicants.
    regions: dict[str, tuple[int, int]]
    links: Shape
    mode: str
    settings: dict[str, Any]
    topics: tuple[TopicPlan, ...]
    delays_s: tuple[float, float]
    raft: RaftTimes
    limits: Limits
    faults: Mapping[str, float]
    interval_s: tuple[float, float]
    duration_s: tuple[float, float]
    link_interval_s: tuple[float, float]
    outage_every_s: float
    #: Mean times between two acts of one program.
    pause_s: float
    producers: int
    consumers: int
    movers: int
    operators: int
    sweep_rows: int
    #: In place of the plugin's constants BLOCK, and ROWS_MAX of what moves marks; 0: as they are.
    block: int
    mark_rows: int
    state_ms: int
    report_s: float
    #: A node that gets an empty disk in the middle of the storm, "" none.
    wiped: str
    #: After the storm all regions are in vector mode, whatever they were in.
    ends_in_vector: bool

    def __str__(self) -> str:
        shapes = ", ".join(f"{name} {c}+{r}" for name, (c, r) in self.regions.items())
        more = "".join(
            (
                f", {self.wiped} loses its disk" if self.wiped else "",
                f", outages every {self.outage_every_s:g} s" if self.outage_every_s else "",
            )
        )
        return (
            f"{self.links} of {shapes}; mode {self.mode}; delays {self.delays_s[0] * 1000:g} to "
            f"{self.delays_s[1] * 1000:g} ms; {self.producers} producers, {self.consumers} "
            f"consumers, {self.movers} movers, {self.operators} operators, pause {self.pause_s:g} "
            f"s; settings {self.settings}{more}"
        )

    def plugin_settings(self) -> tuple[Setting, ...]:
        """Those of the plugin, with this run's defaults."""
        return tuple(
            msgspec.structs.replace(each, default=self.settings[each.key], check=None)
            if each.key in self.settings
            else each
            for each in SETTINGS
        )

    def wants(self, target: str) -> dict[str, str]:
        """source -> "own" or "all": from whom a region fetches."""
        names = list(self.regions)
        if self.links == "mesh" or len(names) == 2:
            return {name: "own" for name in names if name != target}
        place = names.index(target)
        if self.links == "ring":
            return {names[place - 1]: "all"}
        # A chain goes both ways: everybody fetches from its neighbours.
        near = [names[each] for each in (place - 1, place + 1) if 0 <= each < len(names)]
        return dict.fromkeys(near, "all")

    def known(self, region: str) -> dict[str, bool]:
        """The other regions that one has to do with, and whether they fetch from it."""
        names = [name for name in self.regions if name != region]
        fetching = {name: region in self.wants(name) for name in names}
        return {
            name: fetching[name] for name in names if fetching[name] or name in self.wants(region)
        }


def draw(seed: int, seconds: float) -> Plan:
    """The plan of a seed."""
    rng = random.Random(f"{seed}/regions")
    names = ("a", "b", "c")[: rng.choices((2, 3), (35, 65))[0]]
    regions = {
        name: (rng.choices((1, 3), (45, 55))[0], rng.choices((0, 1), (75, 25))[0]) for name in names
    }
    links: Any = rng.choices(("mesh", "ring", "chain"), (70, 15, 15))[0]
    if len(names) < 3:
        links = "mesh"
    mode = rng.choices(MODES, (45, 40, 15))[0] if links == "mesh" else "vector"
    cores = [name for name in names if regions[name][0] == 3]
    wiped = ""
    if rng.random() < 0.3:
        choices = [f"{name}-core{rng.randint(1, 3)}" for name in cores]
        choices += [f"{name}-rep1" for name in names if regions[name][1]]
        wiped = rng.choice(choices) if choices else ""
    slowest = rng.choice((0.001, 0.005, 0.05, 0.15))
    return Plan(
        seed=seed,
        seconds=seconds,
        regions=regions,
        links=links,
        mode=mode,
        settings=_settings(rng, mode),
        topics=_topics(rng),
        delays_s=(0.0005, slowest),
        raft=RaftTimes(node_down_ms=rng.choice((1_000, 2_000, 10_000))),
        limits=_limits(rng),
        faults=_faults(rng),
        interval_s=rng.choice(((0.2, 2.0), (0.5, 4.0), (1.0, 6.0))),
        duration_s=rng.choice(((0.2, 1.5), (0.2, 3.0))),
        link_interval_s=rng.choice(((0.1, 1.0), (0.3, 2.0), (2.0, 6.0))),
        outage_every_s=rng.choice((0.0, 2.0, 4.0)),
        pause_s=rng.choice((0.03, 0.06, 0.12)),
        producers=rng.randint(1, 2),
        consumers=rng.randint(2, 5),
        movers=rng.randint(1, 2),
        operators=rng.choices((0, 1, 2), (30, 50, 20))[0],
        sweep_rows=rng.choice((0, 0, 1, 3, 20)),
        block=rng.choice((0, 0, 2, 5, 16)),
        mark_rows=rng.choice((0, 0, 1, 4)),
        state_ms=rng.choice((1, 20, 100)),
        report_s=rng.choice((0.05, 0.2, 1.0)),
        wiped=wiped,
        ends_in_vector=rng.random() < 0.5,
    )


def _settings(rng: random.Random, mode: str) -> dict[str, Any]:
    return {
        "mode": "snapshot" if mode == "snapshot" else "vector",
        "period_ms": rng.choice((50, 100, 300)),
        "timeout_ms": rng.choice((300, 1_000, 5_000)),
        "cached_max": rng.choice((3, 4, 30)),
        "snapshots_kept": rng.choice((3, 10, 1_000)),
        "unacked_max": rng.choice((2, 5, 10_000)),
        "ranges_max": rng.choice((10, 10_000, 10_000)),
        "keys_max": rng.choice((4, 100_000)),
    }


def _topics(rng: random.Random) -> tuple[TopicPlan, ...]:
    short = TopicPlan(
        "short",
        retention_s=rng.choice((0.0, 0.2, 1.0)),
        retention_bytes=rng.choice((0, 300, 2_000)),
    )
    keys = TopicPlan("keys", compacted=True, retention_s=rng.choice((0.0, 0.3)))
    limit = rng.choice((500, 5_000))
    # The smaller backlog is limited alone: what is acknowledged stays, and is sought back to.
    narrow = TopicPlan(
        "narrow", backlog_bytes_max=limit, retention_bytes=0 if limit == 500 else 200
    )
    local = TopicPlan("local", replicated=False, retention_s=rng.choice((0.0, 0.3)))
    return TopicPlan("plain"), short, keys, narrow, local


def _limits(rng: random.Random) -> Limits:
    if rng.random() < 0.5:
        return Limits()
    return Limits(
        snapshot_log_entries=rng.choice((60, 150, 400)),
        log_tail_entries=rng.choice((5, 20, 100)),
        snapshot_chunk_bytes=rng.choice((4, 32)) * KIB,
        segment_bytes_max=rng.choice((32, 128)) * KIB,
    )


def _faults(rng: random.Random) -> dict[str, float]:
    kinds = {**FAULTS, **OPERATIONS}
    if rng.random() < 0.3:
        kinds |= DISK_FAULTS
    return {name: weight * rng.uniform(0.3, 2.0) for name, weight in kinds.items()}
