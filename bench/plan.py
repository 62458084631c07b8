"""What a run is made of: from the command's options to the loads on each layout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bench.coordinator import CallRun
from bench.layouts import Layout
from bench.scenarios import Load
from raftkv.plugin import Consistency

__all__ = ["IN_FLIGHT", "PUT_EVERY", "REGISTRY_SCENARIOS", "SESSION_SCENARIOS", "Plan"]

REGISTRY_SCENARIOS = ("initial", "reconnect", "same_client")
SESSION_SCENARIOS = (*REGISTRY_SCENARIOS, "lagging", "leader_dies")
"""The seed's performance test. The last two are played with sessions only."""

PUT_EVERY = {"puts": 1, "gets": 0, "mixed": 10}
"""Calls from one put to the next in the scenarios without a registry; the others are gets."""

ROWS_OF_PUTS_MAX = 1_000_000
"""Of one load: fourteen seconds of the highest rate measured so far."""

IN_FLIGHT = (1, 16, 64, 256)
QUICK_GETS_IN_FLIGHT = (1, 64)


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
