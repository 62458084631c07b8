"""What one seed of a storm of queues means: cluster, faults, programs, operators, settings.

The cluster and its faults are those that the seed draws for every simulation
(`raftkv/testing/scenario.py`), with one to five cores and up to two replicants, with little load
besides and without the loss of a majority: what is then given up by force includes transactions
that were committed, and nothing of what is checked here is promised of them.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from raftkv.plugin import Setting
from raftkv.testing.nemesis import NETWORK_FAULTS
from raftkv.testing.scenario import Scenario
from raftkv.testing.scenario import draw as draw_scenario
from raftkv_txqueue.settings import SETTINGS

__all__ = ["AGING", "EXPECTED", "MAIN", "QUEUES", "SIDE", "TIMED", "Plan", "draw"]

# Operations on keys per second, over all nodes: something for the log to do besides.
LOAD_PER_S = 3.0

# Queues that there are from the start. "side" is also deleted and purged by operators.
QUEUES: Mapping[str, Mapping[str, Any]] = {
    "q1": {},
    "q2": {},
    "retry": {"deliveries_max": 2, "dead_letter": "dead"},
    "full": {"depth_max": 8},
    "drop": {"depth_max": 6, "overflow": "drop_oldest"},
    "dead": {},
    "side": {"bytes_max": 2_000},
}
MAIN = ("q1", "q2", "retry", "full", "drop")
SIDE = "side"
TIMED = ("q2", "retry")
# (Not "q2": that a waiting consumer gets what is published there is a check of its own.)
AGING = ("full", "dead")

# What some of many seeds must hit.
EXPECTED = (
    "published",
    "refused QueueFull",
    "dropped by overflow",
    "dead letter",
    "acquired",
    "redelivered",
    "returned by a session's end",
    "accepted",
    "released",
    "rejected",
    "returned to the back",
    "came when its delay was over",
    "expired",
    "expired by its queue",
    "tx committed in one entry",
    "tx committed after staging",
    "tx committed by votes",
    "tx rolled back",
    "tx rolled back for session",
    "tx rolled back for timeout",
    "tx rolled back for vote",
    "tx rolled back for participant",
    "tx rolled back for late",
    "tx rolled back for txqueue_queue_full",
    "committed as a span",
    "rolled back in batches",
    "branch prepared",
    "branch prepared by votes",
    "branch committed",
    "branch committed in one phase",
    "branch rolled back",
    "branch failed",
    "branch expired",
    "branch read only",
    "branch heuristically committed",
    "branch heuristically rolled back",
    "branch joined",
    "branch suspended",
    "branch resumed",
    "xid used again",
    "prepared when its node's life ended",
    "recovered and decided",
    "answered published",
    "answered committed",
    "answered aborted",
    "answered unknown",
    "answered refused",
    "asked: committed",
    "asked: rolled back",
    "told HEURCOM",
    "told HEURRB",
    "commit repeated",
    "commit proposed again",
    "told to wait for the branch's sessions",
    "committed by a block",
    "observer heard commit",
    "observer heard rollback",
    "observer refused",
    "observer missed",
    "queue deleted",
    "refused QueueInUse",
    "refused DeadLetterInUse",
    "purged",
    "session ended with its node",
    "session closed in a transaction",
    "session ended by an operator",
    "session timed out",
)


@dataclass(frozen=True)
class Plan:
    """One run, before it is run."""

    seed: int
    scenario: Scenario
    producers: int
    consumers: int
    forwarders: int
    coordinators: int
    # Mean time between two acts of one program.
    pause_s: float
    # Messages of one transaction at most.
    rows: int
    timeouts_s: tuple[float, ...]
    # Rows of a transaction that one entry decides by itself; 0: as many as ever.
    entry_rows: int
    # Rows of one Sweep; 0: as many as ever.
    sweep_rows: int
    # Operations that a node gathers before it stages them.
    stage_operations: int
    # Of the nodes, so many observe; of prepares, so many are slow, fail, do not end in time.
    observe_share: float
    slow_share: float
    fail_share: float
    hang_share: float
    # Of prepared branches, so many are left to whoever recovers them.
    abandon_share: float
    operate_every_s: float
    verbs: Mapping[str, float]
    settings: Mapping[str, Any]
    # How long a session may hold messages of `TIMED`; 0: as long as it likes.
    ack_timeout_ms: int = 0
    # Delayed messages that one entry passes over; 0: as many as ever.
    gaps_max: int = 0
    # Of messages, so many have a time to live, and so many a delay.
    timed_share: float = 0.1
    # How long messages of `AGING` live; 0: as their producers say.
    ttl_ms: int = 0

    def of_queue(self, name: str) -> dict[str, int]:
        """What is declared of the queue at format 2 of the plugin alone."""
        return {
            "ack_timeout_ms": self.ack_timeout_ms if name in TIMED else 0,
            "ttl_ms": self.ttl_ms if name in AGING else 0,
        }

    def __str__(self) -> str:
        settings = " ".join(f"{key}={value}" for key, value in self.settings.items())
        return (
            f"{self.scenario}; {self.producers} producers, {self.consumers} consumers, "
            f"{self.forwarders} forwarders, {self.coordinators} coordinators every "
            f"{self.pause_s:g} s, up to {self.rows} rows, entries of {self.entry_rows or 'all'}, "
            f"sweeps of {self.sweep_rows or 'all'}, staged by {self.stage_operations}, "
            f"{min(self.timeouts_s):g} to {max(self.timeouts_s):g} s, observed by "
            f"{self.observe_share:g}, operators: {' '.join(self.verbs) or 'none'}, "
            f"settings {settings or 'default'}, time-out of held ones {self.ack_timeout_ms} ms, "
            f"past {self.gaps_max or 'all'} delayed ones at once, timed {self.timed_share:g}, "
            f"time to live {self.ttl_ms} ms"
        )

    def plugin_settings(self) -> tuple[Setting, ...]:
        """The plugin's settings, with this run's values as their defaults.

        A run lasts seconds, so some stay below what an operator may set.
        """
        return tuple(
            msgspec.structs.replace(each, default=self.settings[each.key], check=None)
            if each.key in self.settings
            else each
            for each in SETTINGS
        )


def draw(seed: int, seconds: float) -> Plan:
    """The plan of a seed whose storm lasts so long."""
    rng = random.Random(f"{seed}/txqueue plan")
    observes = rng.random() < 0.55
    gaps_max = 1 if seed % 8 == 7 else 0
    return Plan(
        seed=seed,
        scenario=_scenario(seed, rng),
        producers=rng.choice((1, 2, 3)),
        consumers=rng.choice((1, 2, 3)),
        forwarders=rng.choice((1, 2, 3)),
        coordinators=rng.choice((1, 2, 3)),
        pause_s=rng.choice((0.1, 0.2, 0.4)),
        rows=rng.choice((1, 3, 8, 14)),
        timeouts_s=rng.choice(((4.0,), (0.3, 1.0, 4.0), (0.05, 0.5), (2.0,))),
        entry_rows=rng.choice((0, 0, 1, 2, 5)),
        sweep_rows=rng.choice((0, 0, 1, 3)),
        stage_operations=rng.choice((1, 2, 4, 128)),
        observe_share=rng.choice((0.3, 0.7, 1.0)) if observes else 0.0,
        slow_share=rng.choice((0.0, 0.2, 0.5)),
        fail_share=rng.choice((0.0, 0.05, 0.2)),
        hang_share=rng.choice((0.0, 0.0, 0.1)),
        abandon_share=rng.choice((0.1, 0.4)),
        operate_every_s=rng.choice((0.15, 0.4)),
        verbs=_verbs(rng, observes),
        settings=_settings(rng),
        ack_timeout_ms=rng.choice((0, 0, 300, 1_000)),
        gaps_max=gaps_max,
        timed_share=0.6 if gaps_max else 0.1,
        ttl_ms=rng.choice((0, 0, 150, 800)),
    )


def _scenario(seed: int, rng: random.Random) -> Scenario:
    """What the seed draws, mostly on three cores, with lives that end within a short storm."""
    drawn = draw_scenario(seed)
    cores = rng.choices((1, 3, 4, 5), (1, 7, 1, 1))[0]
    replicants = rng.choices((0, 1, 2), (5, 3, 2))[0]
    faults = drawn.faults
    if cores + replicants == 1:
        faults = {name: each for name, each in faults.items() if name not in NETWORK_FAULTS}
    minority = (cores - 1) // 2
    # One core in the draw means that everybody may be away.
    everything = drawn.down_max > (drawn.cores - 1) // 2
    return replace(
        drawn,
        cores=cores,
        replicants=replicants,
        rate_per_s=LOAD_PER_S,
        faults=faults or {"kill": 1.0},
        raft=msgspec.structs.replace(drawn.raft, node_down_ms=rng.choice((600, 1_000, 2_000))),
        down_max=cores + replicants if everything or cores == 1 else minority,
        disaster=False,
    )


def _verbs(rng: random.Random, observes: bool) -> dict[str, float]:
    """What operators do; nothing in a quarter of the runs."""
    if rng.random() < 0.25:
        return {}
    verbs = {
        "declare": 1.5,
        "delete": 2.0,
        "purge": 1.0,
        "heuristic": 3.0,
        "raw": 6.0,
        "look": 2.0,
        "observe": 1.0 if observes else 0.0,
        "time-outs": 1.0,
        "end a session": 1.0,
    }
    return {name: weight for name, weight in verbs.items() if weight and rng.random() < 0.8}


def _settings(rng: random.Random) -> dict[str, Any]:
    """Small figures, so that what usually takes long, or many transactions, happens in a run."""
    settings: dict[str, Any] = {
        "prepare_timeout_ms": rng.choice((300, 1_000, 4_000)),
        "outcome_retention_ms": rng.choice((20_000, 20_000, 3_600_000)),
    }
    if rng.random() < 0.4:
        settings["transaction_timeout_ms"] = rng.choice((200, 600, 2_000))
    if rng.random() < 0.4:
        settings["dtx_timeout_ms"] = rng.choice((200, 600, 2_000))
    if rng.random() < 0.2:
        settings["transaction_rows_max"] = rng.choice((4, 8))
    if rng.random() < 0.2:
        settings["acquired_max"] = rng.choice((2, 5))
    if rng.random() < 0.15:
        settings["staged_bytes_max"] = rng.choice((400, 1_000))
    if rng.random() < 0.15:
        settings["transactions_max"] = rng.choice((2, 5))
    if rng.random() < 0.15:
        settings["sessions_max"] = rng.choice((5, 10))
    if rng.random() < 0.15:
        settings["rollbacks_kept"] = rng.choice((1, 3))
    if rng.random() < 0.15:
        settings["sessions_kept"] = rng.choice((0, 3))
    if rng.random() < 0.15:
        settings["decisions_kept"] = rng.choice((1, 5))
    return settings
