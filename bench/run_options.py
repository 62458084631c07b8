"""The options of `python -m bench run`, and the plan that they make."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Literal, cast

from bench.arguments import not_negative, positive, positive_int
from bench.coordinator import CALLERS
from bench.plan import (
    BATCHES,
    CALLERS_AT_ONCE,
    DELAYS_MS,
    IN_FLIGHT,
    MESSAGE_RATES,
    PRODUCERS_AT_ONCE,
    PUT_EVERY,
    QUICK_CALLERS_AT_ONCE,
    QUICK_DELAYS_MS,
    QUICK_MESSAGE_RATES,
    QUICK_WRITERS_AT_ONCE,
    REGISTRY_SCENARIOS,
    SESSION_SCENARIOS,
    WRITERS_AT_ONCE,
    Plan,
)
from bench.schema import (
    CLUSTER_CALL_SCENARIOS,
    CONSISTENCIES,
    LAYOUTS,
    LIMBO_SCENARIO,
    SESSION_MODES,
    SUBSCRIPTION_SCENARIO,
    TXQUEUE_SCENARIO,
)
from raftkv.plugin import Consistency

__all__ = ["parser", "plan_of"]

GETS_MAX = 250_000
"""Enough for a percentile of any kind, and little enough to analyse forty such loads."""

BARE = ("lcr", "legacy")
REGISTRY_NAMES = {"both": BARE, "sessions": tuple(SESSION_MODES)}
"""What `--registry` knows besides the names of the log."""

QUICK_SESSION_SCENARIOS = ("reconnect",)
"""Of the performance test in a quick run of everything: three loads of fifteen, half a minute."""


def parser() -> argparse.ArgumentParser:
    """The command line of `bench run`."""
    made = argparse.ArgumentParser(
        prog="python -m bench run",
        description="Drive clusters of real processes on loopback and log every operation.",
    )
    _add_plan(made.add_argument)
    _add_calls(made.add_argument)
    _add_registry(made.add_argument)
    _add_subscriptions(made.add_argument)
    return made


def _add_plan(add: Callable[..., object]) -> None:
    """What is run, and under which conditions."""
    add("--out", required=True, metavar="DIR", help="where log and conditions go")
    add(
        "--layout",
        action="append",
        choices=LAYOUTS,
        dest="layouts",
        help="cores, or cores+replicants; may be repeated (default: 1 3 5 3+3; quick: 3 3+3)",
    )
    add(
        "--scenario",
        action="append",
        choices=(
            *("all", "registry", "sessions", "calls"),
            *SESSION_SCENARIOS,
            *PUT_EVERY,
            *CLUSTER_CALL_SCENARIOS,
            LIMBO_SCENARIO,
            TXQUEUE_SCENARIO,
            SUBSCRIPTION_SCENARIO,
        ),
        dest="scenarios",
        help="may be repeated; registry: the three of the registry; sessions: the five of the "
        "performance test; all: these, puts and gets; calls: the three of cluster calls; limbo: "
        "transactions that wait for a quorum; txqueue: transactions of queues; subscriptions: two "
        "regions, each of this layout (default: all)",
    )
    add(
        "--registry",
        action="append",
        choices=(*REGISTRY_NAMES, *BARE, *SESSION_MODES),
        dest="registries",
        help="may be repeated; both: bare calls of lcr and legacy; sessions: opened by brokers, "
        "with the registry on, off and both (default: what the scenario says)",
    )
    add("--clients", type=positive_int, help="clients for each driver (default: 64; quick: 32)")
    add(
        "--seconds",
        type=positive,
        help="of each scenario (default: 20, with sessions 12, of cluster calls, the limbo, the "
        "queues and subscriptions 3; quick: 3, of the latter 1; cluster calls three times that "
        "while a replicant lags, and long enough for the leader to be declared down)",
    )
    add("--fsync", choices=("on", "off"), default="on")
    add("--tls", action="store_true", help="mutual TLS between the nodes (default: plain streams)")
    add("--append", action="store_true", help="add to a log that is there already")
    add("--quick", action="store_true", help="short, for a first look; figures are not stable")


def _add_calls(add: Callable[..., object]) -> None:
    """Puts and gets."""
    add(
        "--put-seconds",
        type=positive,
        help="of each load of puts or gets (default: a third of --seconds)",
    )
    add(
        "--caller",
        action="append",
        choices=CALLERS,
        dest="callers",
        help="where callers of puts and gets sit; may be repeated (default: everywhere)",
    )
    add(
        "--in-flight",
        action="append",
        type=positive_int,
        metavar="N",
        help="puts, gets, cluster calls or transactions at once; may be repeated (default: 1 16 64 "
        "256; cluster calls 1 16 64, quick: 1 16; queues 1 16 64; quick limbo and queues: 1 64)",
    )
    add(
        "--batch",
        action="append",
        type=positive_int,
        dest="batches",
        metavar="N",
        help="messages of each TX of the queues; may be repeated (default: 1 10 100)",
    )
    add(
        "--consistency",
        action="append",
        choices=CONSISTENCIES,
        dest="consistencies",
        help="of gets; may be repeated (default: all; lease in the leader, with --lease-ms)",
    )
    add(
        "--gets-max",
        type=positive_int,
        default=GETS_MAX,
        metavar="N",
        help="a load of gets ends early after so many: each is a row for Spark (default: 250000)",
    )
    add(
        "--lease-ms",
        type=positive_int,
        default=0,
        help="raft.lease_ms of the nodes; without it no lease reads are measured (default: 0)",
    )
    add(
        "--value-bytes",
        type=positive_int,
        default=64,
        help="of a put or a transaction (default: 64)",
    )


def _add_subscriptions(add: Callable[..., object]) -> None:
    """The scenario of two regions."""
    add(
        "--message-rate",
        action="append",
        type=positive,
        dest="message_rates",
        metavar="PER_S",
        help="messages per second into a topic that is replicated; may be repeated (default: 1 100 "
        "5000; quick: 100)",
    )
    add(
        "--delay-ms",
        action="append",
        type=not_negative,
        dest="delays_ms",
        metavar="MS",
        help="injected between two regions, in each direction; may be repeated (default: 0 50 150; "
        "quick: 0 50)",
    )


def _add_registry(add: Callable[..., object]) -> None:
    """The scenarios of the registry."""
    add(
        "--lag-ms",
        type=not_negative,
        default=50.0,
        help="replication lag of both registries, injected into the replicants (default: 50)",
    )
    add(
        "--think-ms",
        type=not_negative,
        default=10.0,
        help="pause before a client of reconnect comes back (default: 10)",
    )
    add(
        "--rate",
        type=not_negative,
        default=0.0,
        metavar="PER_S",
        dest="rate_per_s",
        help="connects per second for each driver at most (default: no limit)",
    )
    add(
        "--audit-clients-max",
        type=positive_int,
        default=20_000,
        help="clients audited on every node, evenly chosen (default: 20000)",
    )
    add(
        "--session-lag-ms",
        type=not_negative,
        default=500.0,
        help="how late one replicant is in `lagging` and `cluster_calls_lagging`; nobody lags in "
        "the other scenarios with sessions, or of cluster calls (default: 500)",
    )


def plan_of(given: argparse.Namespace) -> Plan:
    """What the options ask for."""
    quick: bool = given.quick
    seconds = given.seconds or (3.0 if quick else 20.0)
    names = given.scenarios or ["all"]
    registries = [
        registry
        for name in given.registries or REGISTRY_NAMES
        for registry in REGISTRY_NAMES.get(name, (name,))
    ]
    return Plan(
        layouts=tuple(dict.fromkeys(given.layouts or (("3", "3+3") if quick else LAYOUTS))),
        scenarios=_scenarios(names, bare=any(name in registries for name in BARE)),
        registries=tuple(name for name in BARE if name in registries),
        clients=given.clients or (32 if quick else 64),
        seconds=seconds,
        warmup_s=min(2.0, seconds / 4),
        put_seconds=given.put_seconds or seconds / 3,
        callers=tuple(dict.fromkeys(given.callers or CALLERS)),
        in_flight=tuple(sorted(set(given.in_flight or IN_FLIGHT))),
        consistencies=cast(
            tuple[Consistency, ...], tuple(dict.fromkeys(given.consistencies or CONSISTENCIES))
        ),
        lag_ms=given.lag_ms,
        think_ms=given.think_ms,
        rate_per_s=given.rate_per_s,
        value_bytes=given.value_bytes,
        audit_clients_max=given.audit_clients_max,
        fsync=cast(Literal["on", "off"], given.fsync),
        tls=given.tls,
        gets_max=given.gets_max,
        lease_ms=given.lease_ms,
        quick=quick,
        session_scenarios=_session_scenarios(names, quick=quick, asked=bool(given.registries)),
        session_registries=tuple(name for name in SESSION_MODES if name in registries),
        session_seconds=given.seconds or (3.0 if quick else 12.0),
        session_lag_ms=given.session_lag_ms,
        cluster_call_scenarios=_cluster_call_scenarios(names),
        cluster_call_seconds=given.seconds or (1.0 if quick else 3.0),
        callers_at_once=tuple(
            sorted(set(given.in_flight or (QUICK_CALLERS_AT_ONCE if quick else CALLERS_AT_ONCE)))
        ),
        limbo=LIMBO_SCENARIO in names,
        limbo_seconds=given.seconds or (1.0 if quick else 3.0),
        writers_at_once=tuple(
            sorted(set(given.in_flight or (QUICK_WRITERS_AT_ONCE if quick else WRITERS_AT_ONCE)))
        ),
        txqueue=TXQUEUE_SCENARIO in names,
        producers_at_once=tuple(
            sorted(set(given.in_flight or (QUICK_WRITERS_AT_ONCE if quick else PRODUCERS_AT_ONCE)))
        ),
        batches=tuple(sorted(set(given.batches or BATCHES))),
        subscriptions=SUBSCRIPTION_SCENARIO in names,
        message_rates=tuple(
            sorted(set(given.message_rates or (QUICK_MESSAGE_RATES if quick else MESSAGE_RATES)))
        ),
        delays_ms=tuple(sorted(set(given.delays_ms or (QUICK_DELAYS_MS if quick else DELAYS_MS)))),
    )


def _scenarios(names: Sequence[str], *, bare: bool) -> tuple[str, ...]:
    """Those without sessions; of the registry only if there are `bare` calls of one."""
    found: list[str] = []
    for name in names:
        if name in ("all", "registry"):
            found += REGISTRY_SCENARIOS
        elif name in REGISTRY_SCENARIOS or name in PUT_EVERY:
            found.append(name)
        found += ["puts", "gets"] if name == "all" else []
    return tuple(name for name in dict.fromkeys(found) if bare or name not in REGISTRY_SCENARIOS)


def _session_scenarios(names: Sequence[str], *, quick: bool, asked: bool) -> tuple[str, ...]:
    """Those with sessions. What bare calls can play, too, only if registries were `asked` for."""
    found: list[str] = []
    for name in names:
        if name == "all":
            found += QUICK_SESSION_SCENARIOS if quick else SESSION_SCENARIOS
        elif name == "sessions":
            found += SESSION_SCENARIOS
        elif name == "registry" and asked:
            found += REGISTRY_SCENARIOS
        elif name in SESSION_SCENARIOS and (asked or name not in REGISTRY_SCENARIOS):
            found.append(name)
    return tuple(dict.fromkeys(found))


def _cluster_call_scenarios(names: Sequence[str]) -> tuple[str, ...]:
    """Those of cluster calls, if they were asked for by name."""
    whole = CLUSTER_CALL_SCENARIOS if "calls" in names else ()
    return tuple(name for name in CLUSTER_CALL_SCENARIOS if name in (*whole, *names))
