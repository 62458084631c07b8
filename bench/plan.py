"""What a run is made of: from the command's options to the loads on each layout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bench.cluster_call_play import ClusterCallRun
from bench.coordinator import CallRun
from bench.layouts import Layout
from bench.limbo_play import LimboRun
from bench.scenarios import Load
from bench.schema import (
    CLUSTER_CALL_FUNCTIONS,
    CLUSTER_CALL_PLACES,
    CLUSTER_CALL_SCENARIOS,
    LIMBO_QUORUMS,
    SUBSCRIPTION_MODES,
    TXQUEUE_WAYS,
)
from bench.subscriptions_play import SubscriptionsRun
from bench.txqueue_play import TxqueueRun
from raftkv.plugin import Consistency

__all__ = [
    "BATCHES",
    "CALLERS_AT_ONCE",
    "DELAYS_MS",
    "DTX_BATCH",
    "IN_FLIGHT",
    "MESSAGE_RATES",
    "PRODUCERS_AT_ONCE",
    "PUT_EVERY",
    "QUICK_CALLERS_AT_ONCE",
    "QUICK_DELAYS_MS",
    "QUICK_MESSAGE_RATES",
    "QUICK_WRITERS_AT_ONCE",
    "REGISTRY_SCENARIOS",
    "SESSION_SCENARIOS",
    "WRITERS_AT_ONCE",
    "Plan",
]

REGISTRY_SCENARIOS = ("initial", "reconnect", "same_client")
SESSION_SCENARIOS = (*REGISTRY_SCENARIOS, "lagging", "leader_dies")
"""The seed's performance test. The last two are played with sessions only."""

PUT_EVERY = {"puts": 1, "gets": 0, "mixed": 10}
"""Calls from one put to the next in the scenarios without a registry; the others are gets."""

ROWS_OF_PUTS_MAX = 1_000_000
"""Of one load: fourteen seconds of the highest rate measured so far."""

IN_FLIGHT = (1, 16, 64, 256)
QUICK_GETS_IN_FLIGHT = (1, 64)

CALLERS_AT_ONCE = (1, 16, 64)
QUICK_CALLERS_AT_ONCE = (1, 16)
"""Of cluster calls: they go one after the other, so more callers only wait for longer."""

WRITERS_AT_ONCE = (1, 16, 64, 256)
QUICK_WRITERS_AT_ONCE = (1, 64)
"""Of transactions of the limbo."""

PRODUCERS_AT_ONCE = (1, 16, 64)
"""Of transactions of the queues; quick: QUICK_WRITERS_AT_ONCE."""

BATCHES = (1, 10, 100)
"""Messages of each TX."""

DTX_BATCH = 10
"""Messages of each branch."""

MESSAGE_RATES = (1.0, 100.0, 5000.0)
QUICK_MESSAGE_RATES = (100.0,)
"""Messages per second into a replicated topic."""

DELAYS_MS = (0.0, 50.0, 150.0)
QUICK_DELAYS_MS = (0.0, 50.0)
"""Between two regions, in each direction."""

FEW_MESSAGES = 10
"""A load with subscriptions lasts until there are so many, at least."""

LAGGING_CALLERS = 6
"""One on each node of 3+3: every call of the one that lags takes a second of everybody's time."""

DYING_CALLERS = 16

LAGGING_SHARE = 3
"""A load in which one replicant lags is so many times as long: it has few calls."""

NODE_DOWN_S = 12.0
"""From a kill until the cluster has declared the node down, by default, and some more."""


@dataclass(frozen=True)
class Plan:
    """What to run; the fields are the command's options."""

    layouts: tuple[str, ...]
    scenarios: tuple[str, ...]
    registries: tuple[str, ...]
    clients: int
    seconds: float
    warmup_s: float
    put_seconds: float
    callers: tuple[str, ...]
    in_flight: tuple[int, ...]
    consistencies: tuple[Consistency, ...]
    gets_max: int
    lag_ms: float
    think_ms: float
    rate_per_s: float
    value_bytes: int
    audit_clients_max: int
    fsync: Literal["on", "off"]
    tls: bool
    lease_ms: int
    quick: bool
    session_scenarios: tuple[str, ...] = ()
    session_registries: tuple[str, ...] = ()
    session_seconds: float = 0.0
    session_lag_ms: float = 0.0
    cluster_call_scenarios: tuple[str, ...] = ()
    cluster_call_seconds: float = 0.0
    callers_at_once: tuple[int, ...] = CALLERS_AT_ONCE
    limbo: bool = False
    limbo_seconds: float = 0.0
    writers_at_once: tuple[int, ...] = WRITERS_AT_ONCE
    txqueue: bool = False
    producers_at_once: tuple[int, ...] = PRODUCERS_AT_ONCE
    batches: tuple[int, ...] = BATCHES
    subscriptions: bool = False
    message_rates: tuple[float, ...] = MESSAGE_RATES
    delays_ms: tuple[float, ...] = DELAYS_MS

    def loads(self) -> list[Load]:
        """Every scenario with bare calls of every registry."""
        return [
            Load(
                scenario=scenario,
                registry=registry,
                clients=self.clients,
                seconds=self.seconds,
                warmup_s=self.warmup_s,
                think_ms=self.think_ms,
                rate_per_s=self.rate_per_s,
            )
            for scenario in self.scenarios
            if scenario in REGISTRY_SCENARIOS
            for registry in self.registries
        ]

    def session_loads(self, layout: Layout) -> list[Load]:
        """The performance test: every scenario in every mode. Its clients sit in replicants."""
        if not layout.replicants:
            return []
        return [
            Load(
                scenario=scenario,
                registry=registry,
                clients=self.clients,
                seconds=self.session_seconds,
                warmup_s=min(1.5, self.session_seconds / 4),
                think_ms=self.think_ms,
                rate_per_s=self.rate_per_s,
                lagging=layout.drivers[0] if scenario == "lagging" else None,
            )
            for scenario in self.session_scenarios
            for registry in self.session_registries
        ]

    def calls(self, layout: Layout) -> list[CallRun]:
        """Puts and gets: every caller's place with every number of calls in flight."""
        return [
            CallRun(
                caller,
                in_flight,
                self.put_seconds,
                self.value_bytes,
                scenario,
                PUT_EVERY[scenario],
                consistency,
                self.gets_max if scenario == "gets" else ROWS_OF_PUTS_MAX,
            )
            for scenario in self.scenarios
            if scenario in PUT_EVERY
            for caller in self.callers
            if _is_there(caller, scenario, layout)
            for consistency in self._consistencies(scenario, caller)
            for in_flight in self._in_flight(scenario, caller, consistency)
        ]

    def cluster_calls(self, layout: Layout, participants: str) -> list[ClusterCallRun]:
        """The loads of cluster calls on the cluster of which these nodes execute them.

        A function without effect is called from everywhere the layout has, others from all nodes;
        without replicants there is nobody to lag, or to take part or not.
        """
        if participants == "all" and not layout.replicants:
            return []
        found = []
        for scenario in self.cluster_call_scenarios:
            if scenario == CLUSTER_CALL_SCENARIOS[0]:
                found += self._undisturbed(layout, participants)
            elif scenario == CLUSTER_CALL_SCENARIOS[2]:
                found += self._dying(participants)
            elif layout.replicants:
                found += self._lagging(participants)
        return found

    def limbo_loads(self, layout: Layout) -> list[LimboRun]:
        """The loads of the limbo: every quorum that the layout has, with every number of writers.

        Without replicants all members are the cores; of one core the majority is all.
        """
        if not self.limbo:
            return []
        quorums = [
            quorum
            for quorum in LIMBO_QUORUMS
            if (quorum != "members" or layout.replicants)
            and (quorum == "majority" or layout.cores > 1)
        ]
        return [
            LimboRun(quorum, writers, self.limbo_seconds, self.value_bytes)
            for quorum in quorums
            for writers in self.writers_at_once
        ]

    def txqueue_loads(self) -> list[TxqueueRun]:
        """The loads of the queues: TX of every size, branches of one, by numbers of producers."""
        if not self.txqueue:
            return []
        kinds = [("tx", batch) for batch in self.batches]
        kinds += [(way, DTX_BATCH) for way in TXQUEUE_WAYS if way != "tx"]
        return [
            TxqueueRun(way, batch, producers, self.limbo_seconds, self.value_bytes)
            for way, batch in kinds
            for producers in self.producers_at_once
        ]

    def subscription_loads(self) -> list[SubscriptionsRun]:
        """Every mode, rate and distance. What is not replicated is measured without a distance."""
        if not self.subscriptions:
            return []
        return [
            SubscriptionsRun(
                mode, rate, delay_ms, max(self.limbo_seconds, FEW_MESSAGES / rate), self.value_bytes
            )
            for mode in SUBSCRIPTION_MODES
            for delay_ms in (self.delays_ms if mode != "off" else (0.0,))
            for rate in self.message_rates
        ]

    def _undisturbed(self, layout: Layout, participants: str) -> list[ClusterCallRun]:
        return [
            ClusterCallRun(
                CLUSTER_CALL_SCENARIOS[0], function, required, place, callers, participants,
                self.cluster_call_seconds,
            )
            for function in CLUSTER_CALL_FUNCTIONS
            for place in _places_of_callers(function, layout)
            for callers in self.callers_at_once
            if _is_worth_it(function, place, callers)
            for required in ("1", "all")
        ]  # fmt: skip

    def _lagging(self, participants: str) -> list[ClusterCallRun]:
        return [
            ClusterCallRun(
                CLUSTER_CALL_SCENARIOS[1], "nothing", required, "everywhere", LAGGING_CALLERS,
                participants, self.cluster_call_seconds * LAGGING_SHARE,
            )
            for required in ("1", "all")
        ]  # fmt: skip

    def _dying(self, participants: str) -> list[ClusterCallRun]:
        """As long before the kill as other loads are, and as long when it is got over."""
        seconds = self.cluster_call_seconds
        return [
            ClusterCallRun(
                CLUSTER_CALL_SCENARIOS[2], "nothing", required, "everywhere", DYING_CALLERS,
                participants, 2 * seconds + NODE_DOWN_S, kill_after_s=seconds,
            )
            for required in ("1", "all")
        ]  # fmt: skip

    def _consistencies(self, scenario: str, caller: str) -> tuple[Consistency, ...]:
        if scenario != "gets":
            return ("linearizable",)
        # Only a leader has a lease, and only where followers promise one. Elsewhere it is another
        # word for linearizable, and etcd's words over HTTP have none for it.
        lease = caller == "leader" and self.lease_ms > 0
        return tuple(each for each in self.consistencies if each != "lease" or lease)

    def _in_flight(self, scenario: str, caller: str, consistency: Consistency) -> tuple[int, ...]:
        if consistency != "linearizable" and not caller.startswith("http"):
            return (1,)  # these reads do not wait, so there is never more than one
        if self.quick and scenario == "gets" and self.in_flight == IN_FLIGHT:
            return QUICK_GETS_IN_FLIGHT
        return self.in_flight


def _is_there(caller: str, scenario: str, layout: Layout) -> bool:
    """Whether the layout has such a place. Puts over HTTP go to the leader alone."""
    kind = caller.removeprefix("http_")
    if caller.startswith("http_") and scenario == "puts":
        return False
    return (kind != "follower" or layout.cores > 1) and (
        kind != "replicant" or layout.replicants > 0
    )


def _places_of_callers(function: str, layout: Layout) -> list[str]:
    """Where callers of a cluster call sit: for what its effect costs two places are enough."""
    places = [name for name in CLUSTER_CALL_PLACES if name != "replicant" or layout.replicants]
    return places if function == "nothing" else ["leader", "everywhere"]


def _is_worth_it(function: str, place: str, callers: int) -> bool:
    """A single caller cannot be spread, and many are crowded on one node with `nothing` only."""
    if callers == 1:
        return place != "everywhere"
    return function == "nothing" or place == "everywhere"
