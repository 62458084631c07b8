"""A made-up benchmark log, for looking at the report without running a cluster.

    python tests/bench/synthetic.py DIR && python -m bench analyse DIR

The figures are invented: they have the shape that a real run has (longer tails under load, a legacy
registry that answers wrongly while replication lags), and nothing else may be read from them.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.facts import (
    CallFacts,
    Facts,
    LimboFacts,
    SubscriptionFacts,
    TxqueueFacts,
    write_call_facts,
    write_facts,
    write_limbo_facts,
    write_subscription_facts,
    write_txqueue_facts,
)
from bench.schema import Row, RowWriter

BEGAN_US = 1_790_000_000_000_000
COST_MS = {"1": 0.5, "3": 0.9, "5": 1.2, "3+3": 1.5}
NODES = {"1": ("n1",), "3": ("n1", "n2", "n3"), "3+3": ("r1", "r2", "r3")}


@dataclass(frozen=True)
class Scale:
    """How much to invent."""

    seconds: int = 6
    connects_per_s: int = 300
    puts: int = 400


def _answer(
    chance: random.Random, registry: str, scenario: str, expected: bool
) -> tuple[str, bool | None, int]:
    """Outcome, session_present and attempts of one connect."""
    draw = chance.random()
    if draw < 0.002:
        return "timeout", None, 3
    if registry == "lcr" and scenario == "same_client" and draw < 0.22:
        return chance.choice(["outdated_early", "outdated_late"]), None, 2
    wrong = registry == "legacy" and draw < (0.18 if scenario == "same_client" else 0.05)
    return "ok", expected != wrong, 1 + (draw > 0.97)


def _connects(
    chance: random.Random, layout: str, scenario: str, registry: str, scale: Scale
) -> Iterator[Row]:
    cost_ms = COST_MS[layout] * (1.0 if registry == "lcr" else 1.7)
    if registry == "legacy" and scenario == "same_client":
        cost_ms *= 6
    for second in range(scale.seconds):
        if second == scale.seconds // 2 and layout == "3+3" and scenario == "reconnect":
            continue  # a leader was killed: nothing is answered for a second
        for n in range(int(scale.connects_per_s / cost_ms)):
            node = chance.choice(NODES[layout])
            role = "replicant" if node.startswith("r") else ("follower", "leader")[node == "n1"]
            expected = scenario != "initial" and chance.random() < 0.9
            outcome, present, attempt = _answer(chance, registry, scenario, expected)
            yield Row(
                run="demo", layout=layout, scenario=scenario, phase="load", registry=registry,
                node=node, role=role, op="connect", client=f"c{n % 200}", attempt=attempt,
                start_us=BEGAN_US + second * 1_000_000 + chance.randrange(990_000),
                duration_us=int(chance.lognormvariate(0, 0.5) * cost_ms * 1000),
                outcome=outcome, session_present=present,
                expected_present=expected if outcome == "ok" else None, index=n,
            )  # fmt: skip


SESSION_COST_MS = {"session-on": 9.0, "session-both": 10.0, "session-off": 14.0}
KILLED_AT_S = 2.4


def _sessions(chance: random.Random, scenario: str, registry: str, scale: Scale) -> Iterator[Row]:
    cost_ms = SESSION_COST_MS[registry] * (4 if scenario == "same_client" else 1)
    bare = "legacy" if registry == "session-off" else "lcr"
    for n in range(int(scale.seconds * scale.connects_per_s / cost_ms * 9)):
        at_us = chance.randrange(scale.seconds * 1_000_000)
        if scenario == "leader_dies" and 0 <= at_us / 1e6 - KILLED_AT_S < 0.4:
            continue
        node = chance.choice(NODES["3+3"])
        role = "lagging" if scenario == "lagging" and node == "r1" else "replicant"
        duration_us = int(chance.lognormvariate(0, 0.4) * cost_ms * 1000)
        duration_us += 500_000 if role == "lagging" and bare == "lcr" else 0
        outcome, present, attempt = _answer(chance, bare, scenario, expected=scenario != "initial")
        yield Row(
            run="demo", layout="3+3", scenario=scenario, phase="load", registry=registry,
            node=node, role=role, op="connect", client=f"c{n % 200}", attempt=attempt,
            start_us=BEGAN_US + at_us, duration_us=duration_us, outcome=outcome,
            session_present=present,
            expected_present=scenario != "initial" if outcome == "ok" else None,
        )  # fmt: skip


def _facts(scenario: str, registry: str, scale: Scale) -> Facts:
    linear, dies = registry != "session-off", scenario == "leader_dies"
    return Facts(
        run="demo", layout="3+3", scenario=scenario, registry=registry, clients=192,
        began_us=BEGAN_US, elapsed_s=float(scale.seconds), switch_s=0.2,
        entries=900 if linear else 12, commands=3_500 if linear else 14,
        raft_messages=None if dies else 9_000, feed_messages=None if dies else 4_000,
        call_messages=None if dies else 7_000, sent_bytes=None if dies else 3_000_000,
        idle_messages_per_s=70.0, hollow=0, handovers_lost=0 if linear else 3,
        killed="c2" if dies else None,
        killed_us=BEGAN_US + int(KILLED_AT_S * 1e6) if dies else None,
    )  # fmt: skip


def _audits(chance: random.Random, layout: str, scenario: str, registry: str) -> Iterator[Row]:
    kinds = ["ok"] * 16 + ["duplicate_session"] * 3 + ["lost_registration"]
    for n in range(200):
        yield Row(
            run="demo", layout=layout, scenario=scenario, phase="audit", registry=registry,
            node=NODES[layout][0], role="replicant" if layout == "3+3" else "leader", op="audit",
            client=f"c{n}", attempt=1, start_us=BEGAN_US + 9_000_000 + n * 100, duration_us=90,
            outcome=chance.choice(kinds) if registry in ("legacy", "session-off") else "ok",
        )  # fmt: skip


def _puts(chance: random.Random, layout: str, scale: Scale) -> Iterator[Row]:
    roles = {"leader": 1.0, "follower": 1.6, "http": 3.0}
    if layout == "3+3":
        roles["replicant"] = 2.1
    for place, (role, factor) in enumerate(roles.items()):
        for in_flight in (1, 16, 64, 256):
            cost_us = 580 * factor * (1 + in_flight / 24)
            began = BEGAN_US + place * 60_000_000 + in_flight * 100_000
            for n in range(scale.puts):
                yield Row(
                    run="demo", layout=layout, scenario="puts", phase=f"c{in_flight}",
                    registry="none", node="n1", role=role, op="put", client=f"p{n % in_flight}",
                    attempt=1, start_us=began + int(n // in_flight * cost_us),
                    duration_us=int(chance.lognormvariate(0, 0.25) * cost_us), outcome="ok",
                    index=n,
                )  # fmt: skip


def _gets(chance: random.Random, layout: str, scale: Scale) -> Iterator[Row]:
    roles = {"leader": 1.0, "follower": 1.3, "http": 2.5, "http_follower": 2.7}
    if layout == "3+3":
        roles |= {"replicant": 1.5, "http_replicant": 3.0}
    for place, (role, factor) in enumerate(roles.items()):
        for consistency, in_flights in (("linearizable", (1, 16, 64, 256)), ("local", (1,))):
            for in_flight in in_flights:
                cost_us = (160 if consistency == "linearizable" else 4) * factor
                cost_us *= 1 + in_flight / 40
                began = BEGAN_US + 900_000_000 + place * 60_000_000 + in_flight * 100_000
                for n in range(scale.puts):
                    yield Row(
                        run="demo", layout=layout, scenario="gets", phase=f"c{in_flight}",
                        registry="none", node="n1", role=role, op="get", client=f"p{n % in_flight}",
                        attempt=1, start_us=began + int(n // in_flight * cost_us),
                        duration_us=int(chance.lognormvariate(0, 0.25) * cost_us), outcome="ok",
                        consistency=consistency,
                    )  # fmt: skip


CORES = ("c1", "c2", "c3")
ALL_SIX = (*CORES, "r1", "r2", "r3")
CALL_PLACES = {"leader": ("c1",), "replicant": ("r1",), "everywhere": CORES}


def _call_loads() -> Iterator[CallFacts]:
    number = 0
    for layout, participants in (("3", "cores"), ("3+3", "cores"), ("3+3", "all")):
        nodes = ALL_SIX if participants == "all" else CORES
        for scenario, function, place, callers, required in (
            *(
                ("cluster_calls", "nothing", place, callers, required)
                for place in CALL_PLACES
                for callers in (1, 16, 64)
                for required in ("1", "all")
                if (layout, place) != ("3", "replicant") and (place, callers) != ("everywhere", 1)
            ),
            *(
                ("cluster_calls", function, "everywhere", 64, required)
                for function in ("keyspace", "outside")
                for required in ("1", "all")
            ),
            *(
                (scenario, "nothing", "everywhere", 16, required)
                for scenario in ("cluster_calls_lagging", "cluster_calls_leader_dies")
                for required in ("1", "all")
                if "+" in layout or scenario.endswith("dies")
            ),
        ):
            number += 1
            dies, lags = scenario.endswith("dies"), scenario.endswith("lagging")
            yield CallFacts(
                run="demo", layout=layout, load=f"{participants}-{number}", scenario=scenario,
                function=function, required=required, place=place, callers=callers,
                participants=participants, nodes=" ".join(nodes), began_us=BEGAN_US,
                elapsed_s=4.0, entries=900, commands=1_200,
                raft_messages=None if dies else 4_000, feed_messages=None if dies else 900,
                call_messages=None if dies else 300, sent_bytes=None if dies else 900_000,
                idle_messages_per_s=60.0, lagging="r1" if lags else None,
                lag_ms=500.0 if lags else None, killed="c1" if dies else None,
                killed_us=BEGAN_US + 3_000_000 if dies else None,
            )  # fmt: skip


def _cluster_calls(chance: random.Random, load: CallFacts, scale: Scale) -> Iterator[Row]:
    """Calls one after the other, whoever makes them; around a death none for ten seconds."""
    each_us = {"nothing": 2_000, "keyspace": 2_200, "outside": 3_300}[load.function]
    each_us += 800 * (load.required == "all") + 900 * (load.participants == "all")
    names = ("r1", "c2") if load.lagging else CALL_PLACES[load.place]
    at_us = 0
    for id_ in range(1, scale.seconds * 100):
        at_us += round(chance.lognormvariate(0, 0.3) * each_us * 3)
        if load.killed and at_us > 3_000_000:
            at_us += 10_200_000 if at_us < 13_000_000 else 0
        node = chance.choice(names)
        role = "lagging" if node == load.lagging else "follower"
        late = load.killed is not None and at_us > 3_000_000 and load.required == "all"
        duration_us = each_us * load.callers + 500_000 * (role == "lagging")
        values = {
            "run": "demo", "layout": load.layout, "scenario": load.scenario, "phase": "load",
            "registry": "none", "attempt": 1, "index": id_, "load": load.load,
        }  # fmt: skip
        yield Row(
            **values, node=node, role=role, op="call", client="k0",
            start_us=BEGAN_US + max(1, at_us - duration_us), duration_us=duration_us,
            outcome="stopped_nodes" if late else "ok",
        )  # fmt: skip
        for place, executor in enumerate(load.nodes.split()):
            yield Row(
                **values, node=executor, role="follower", client=executor, life=0, outcome="ok",
                op="initiate" if place == 0 else "replicate",
                start_us=BEGAN_US + at_us + place, duration_us=20,
            )  # fmt: skip


LIMBO_ACKS = {"majority": 0, "cores": 3, "members": 6}


def _limbo_loads() -> Iterator[LimboFacts]:
    number = 0
    for layout, quorums in (("3", ("majority", "cores")), ("3+3", tuple(LIMBO_ACKS))):
        for quorum in quorums:
            for writers in (1, 16, 64, 256):
                number += 1
                nodes = CORES if layout == "3" else ALL_SIX
                yield LimboFacts(
                    run="demo", layout=layout, load=f"limbo-{number}", scenario="limbo",
                    quorum=quorum, writers=writers, owner="c1", nodes=" ".join(nodes),
                    began_us=BEGAN_US, elapsed_s=4.0, entries=600 + 200 * LIMBO_ACKS[quorum],
                    commands=600 + 300 * LIMBO_ACKS[quorum], acks=300 * LIMBO_ACKS[quorum],
                    raft_messages=2_500, feed_messages=600 if layout == "3+3" else 0,
                    call_messages=300 * LIMBO_ACKS[quorum], sent_bytes=900_000,
                    idle_messages_per_s=60.0,
                )  # fmt: skip


def _limbo(chance: random.Random, load: LimboFacts, scale: Scale) -> Iterator[Row]:
    """One writer after the other, each with one outstanding; all nodes have what is confirmed."""
    each_us = 900 + 500 * LIMBO_ACKS[load.quorum] + 12 * load.writers
    values = {
        "run": "demo", "layout": load.layout, "scenario": "limbo", "registry": "none",
        "attempt": 1, "load": load.load, "outcome": "ok", "role": "leader",
    }  # fmt: skip
    position = 0
    ends_us = [0] * load.writers
    for number in range(scale.seconds * 100):
        writer = number % load.writers
        duration_us = round(chance.lognormvariate(0, 0.2) * each_us)
        position += 1
        yield Row(
            **values, phase="load", node="c1", op="submit", client=f"w{writer}", index=position,
            start_us=BEGAN_US + ends_us[writer], duration_us=duration_us,
        )  # fmt: skip
        ends_us[writer] += duration_us
    for node in load.nodes.split():
        for op, index in (("rows", position), ("strays", 0)):
            yield Row(
                **values, phase="audit", node=node, op=op, client=node, index=index,
                start_us=BEGAN_US + 9_000_000, duration_us=4_000,
            )  # fmt: skip


TXQUEUE_MS = {"tx": 1.2, "dtx1": 3.0, "dtx2": 3.8}


def _txqueue_loads() -> Iterator[TxqueueFacts]:
    number = 0
    kinds = [("tx", 1), ("tx", 10), ("tx", 100), ("dtx1", 10), ("dtx2", 10)]
    for layout, nodes in (("3", CORES), ("3+3", ALL_SIX)):
        for way, batch in kinds:
            for producers in (1, 16, 64):
                number += 1
                yield TxqueueFacts(
                    run="demo", layout=layout, load=f"txqueue-{number}", scenario="txqueue",
                    way=way, batch=batch, producers=producers, node="c1", nodes=" ".join(nodes),
                    began_us=BEGAN_US, elapsed_s=4.0, entries=1_200 // producers, commands=1_800,
                    raft_messages=2_500, feed_messages=600 if layout == "3+3" else 0,
                    call_messages=0, sent_bytes=90_000 * batch, idle_messages_per_s=60.0,
                )  # fmt: skip


def _txqueue(chance: random.Random, load: TxqueueFacts, scale: Scale) -> Iterator[Row]:
    """One producer after the other, each with one outstanding; all nodes have what is committed."""
    each_us = 1_000 * TXQUEUE_MS[load.way] + 12 * load.producers * (1 + load.batch / 10)
    values = {
        "run": "demo", "layout": load.layout, "scenario": "txqueue", "registry": "none",
        "attempt": 1, "load": load.load, "outcome": "ok", "role": "leader",
    }  # fmt: skip
    ends_us = [0] * load.producers
    count = scale.seconds * 100
    for number in range(count):
        producer = number % load.producers
        duration_us = round(chance.lognormvariate(0, 0.2) * each_us)
        yield Row(
            **values, phase="load", node="c1", op="commit", client=f"p{producer}",
            start_us=BEGAN_US + ends_us[producer], duration_us=duration_us,
        )  # fmt: skip
        ends_us[producer] += duration_us
    counts = {"messages": count * load.batch, "surplus": 0, "torn": 0, "displaced": 0}
    for node in load.nodes.split():
        for op, index in counts.items():
            yield Row(
                **values, phase="audit", node=node, op=op, client=node, index=index,
                start_us=BEGAN_US + 9_000_000, duration_us=4_000,
            )  # fmt: skip


def _subscription_loads() -> Iterator[SubscriptionFacts]:
    number = 0
    for layout in ("1", "3"):
        for mode in ("off", "vector", "snapshot"):
            for delay_ms in (0.0, 50.0, 150.0) if mode != "off" else (0.0,):
                for rate in (1.0, 100.0, 5_000.0):
                    number += 1
                    published = round(rate * 8)
                    yield SubscriptionFacts(
                        run="demo", layout=layout, load=f"subscriptions-{number}",
                        scenario="subscriptions", mode=mode, rate_per_s=rate, delay_ms=delay_ms,
                        period_ms=1_000, began_us=BEGAN_US, elapsed_s=8.0, published=published,
                        acked=published, entries=min(published, 800) * 2,
                        far_entries=min(published, 400) * (1 if mode == "off" else 2),
                        commands=min(published, 800) * 2, far_commands=min(published, 800) * 2,
                        link_bytes=published * (180 if mode == "off" else 200),
                        cpu_s=published * 80e-6, far_cpu_s=published * 30e-6,
                    )  # fmt: skip


def _subscription_rows(
    chance: random.Random, load: SubscriptionFacts, scale: Scale
) -> Iterator[Row]:
    """A move takes one delay in vector mode, and on the average half a period besides."""
    if load.mode == "off":
        return
    values = {
        "run": "demo", "layout": load.layout, "scenario": "subscriptions", "registry": "none",
        "attempt": 1, "load": load.load, "role": "leader", "node": "c1", "client": "b",
    }  # fmt: skip
    waits_ms = 1_000.0 if load.mode == "snapshot" else 8.0
    for number in range(min(load.acked, scale.seconds * 50)):
        duration_ms = load.delay_ms + 5 + waits_ms * chance.random()
        yield Row(
            **values, phase="load", op="moved", outcome="ok", index=number + 1,
            start_us=BEGAN_US + number * 20_000, duration_us=round(duration_ms * 1_000),
        )  # fmt: skip
    late_s = (load.delay_ms + (500 if load.mode == "snapshot" else 5)) / 1_000
    counts = {
        "received": round(load.rate_per_s * (0.5 + late_s)),
        "again": round(load.rate_per_s * late_s),
        "again_quiesced": 12 if load.mode == "snapshot" else 0,
        "skipped": 0,
    }
    for op, index in counts.items():
        yield Row(
            **values, phase="audit", op=op, outcome="ok", index=index,
            start_us=BEGAN_US + 9_000_000, duration_us=0,
        )  # fmt: skip


def write(directory: Path, scale: Scale = Scale()) -> None:
    """Writes log, conditions and a benchmark file below `directory`."""
    chance = random.Random(7)
    with RowWriter(directory, "demo", "made-up") as writer:
        for layout in NODES:
            for scenario in ("initial", "reconnect", "same_client"):
                for registry in ("lcr", "legacy"):
                    for row in _connects(chance, layout, scenario, registry, scale):
                        writer.add(row)
                    for row in _audits(chance, layout, scenario, registry):
                        writer.add(row)
        for scenario in ("initial", "reconnect", "same_client", "lagging", "leader_dies"):
            for registry in SESSION_COST_MS:
                write_facts(directory, _facts(scenario, registry, scale))
                for row in _sessions(chance, scenario, registry, scale):
                    writer.add(row)
                for row in _audits(chance, "3+3", scenario, registry):
                    writer.add(row)
        for load in _call_loads():
            write_call_facts(directory, load)
            for row in _cluster_calls(chance, load, scale):
                writer.add(row)
        for limbo_load in _limbo_loads():
            write_limbo_facts(directory, limbo_load)
            for row in _limbo(chance, limbo_load, scale):
                writer.add(row)
        for txqueue_load in _txqueue_loads():
            write_txqueue_facts(directory, txqueue_load)
            for row in _txqueue(chance, txqueue_load, scale):
                writer.add(row)
        for subscription_load in _subscription_loads():
            write_subscription_facts(directory, subscription_load)
            for row in _subscription_rows(chance, subscription_load, scale):
                writer.add(row)
        for layout in NODES:
            for row in (*_puts(chance, layout, scale), *_gets(chance, layout, scale)):
                writer.add(row)
    conditions = {
        "date": "2026-11-21T10:00:00Z", "cores": 2, "memory_bytes": 24 * 2**30,
        "python": "3.11.7", "kernel": "Linux 6.1", "fsync": True,
        "versions": {"raftkv": "0.1.0", "pysyncobj": "0.3.17"},
        "fdatasync": {"median_us": 577.0, "p99_us": 940.0},
        "arguments": {
            "clients": 200, "seconds": scale.seconds, "lag_ms": 50.0, "put_seconds": 2.0,
            "value_bytes": 64, "quick": True, "session_seconds": 6.0, "session_lag_ms": 500.0,
            "think_ms": 10.0, "cluster_call_seconds": 3.0, "limbo_seconds": 3.0,
        },
    }  # fmt: skip
    (directory / "conditions.json").write_text(json.dumps(conditions), encoding="utf-8")
    benchmark = {
        "datetime": "2026-11-21T10:00:00", "version": "5.3.1",
        "benchmarks": [
            {
                "group": "wal", "name": f"test_append_sync[{n}]",
                "fullname": f"bench/test_wal.py::test_append_sync[{n}]",
                "extra_info": {"entries": n},
                "stats": {
                    "min": 2e-4, "max": 9e-4, "mean": 3e-4, "median": 2.5e-4 + n * 1e-6,
                    "stddev": 1e-5, "q1": 2.4e-4, "q3": 3e-4, "iqr": 6e-5, "ops": 3333.3,
                    "rounds": 100, "iterations": 1,
                },
            }
            for n in (1, 10, 100)
        ],
    }  # fmt: skip
    (directory / "benchmark").mkdir(exist_ok=True)
    (directory / "benchmark" / "parts.json").write_text(json.dumps(benchmark), encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
