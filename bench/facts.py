"""What is known of a load beside its rows: a file for each, `DIR/loads/<run>-<layout>-<n>.json`.

Loads of cluster calls (`bench.cluster_calls`) have theirs below `DIR/call-loads`, and those of the
limbo (`bench.limbo`) below `DIR/limbo-loads`, of the queues (`bench.txqueue`) below
`DIR/txqueue-loads`, of subscriptions (`bench.subscriptions`) below `DIR/subscription-loads`.

Rows say what each operation was told. How many entries and messages all of them cost together, when
the leader was killed and how long a switch of the mode took belong to no operation, so they stand
here, once for each load of the performance test (`bench.performance`). As with the log, both sides
derive their columns from the annotations, a file is there whole or not at all, and nothing is in it
that can be worked out from rows: what an entry is divided by is for the Spark job to count.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import msgspec

from bench.schema import Column, columns_of

__all__ = [
    "CALL_FACT_COLUMNS",
    "FACT_COLUMNS",
    "LIMBO_FACT_COLUMNS",
    "PURPOSES",
    "SUBSCRIPTION_FACT_COLUMNS",
    "TXQUEUE_FACT_COLUMNS",
    "AnyFacts",
    "CallFacts",
    "Facts",
    "LimboFacts",
    "SubscriptionFacts",
    "TxqueueFacts",
    "write_call_facts",
    "write_facts",
    "write_limbo_facts",
    "write_subscription_facts",
    "write_txqueue_facts",
]

PURPOSES = {"raft_messages": "raft", "feed_messages": "follow", "call_messages": "rpc"}
"""Counts of messages and the purposes of their streams, as `bench.messages` counts them."""


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """One load. Counts cover all of it: from the first client until everybody was at rest."""

    run: Annotated[str, "string", "names the run, as in the log"]
    layout: Annotated[str, "string", "processes of the cluster: one of LAYOUTS"]
    scenario: Annotated[str, "string", "what the clients did: one of SCENARIOS"]
    registry: Annotated[str, "string", "the mode in force: one of SESSION_MODES"]
    clients: Annotated[int, "int64", "clients of all drivers"]
    began_us: Annotated[int, "int64", "when the clients were sent off, microseconds since 1970"]
    elapsed_s: Annotated[float, "double", "what the counts cover"]
    switch_s: Annotated[float, "double", "the switch to this mode, until all nodes had adopted it"]
    entries: Annotated[int, "int64", "entries committed to the log; one holds many commands"]
    commands: Annotated[int, "int64", "commands applied"]
    raft_messages: Annotated[int | None, "int64", "sent between cores, heartbeats included"] = None
    feed_messages: Annotated[int | None, "int64", "sent between replicants and their cores"] = None
    call_messages: Annotated[int | None, "int64", "of calls between nodes; a call has two"] = None
    sent_bytes: Annotated[int | None, "int64", "of all messages, before TLS"] = None
    idle_messages_per_s: Annotated[float | None, "double", "of all nodes, without a load"] = None
    handovers_lost: Annotated[int, "int64", "sessions whose content could not be had"] = 0
    hollow: Annotated[int | None, "int64", "sessions present without their message"] = None
    lagging: Annotated[str | None, "string", "the replicant that lagged"] = None
    lag_ms: Annotated[float | None, "double", "by how much"] = None
    killed: Annotated[str | None, "string", "the leader that was killed"] = None
    killed_us: Annotated[int | None, "int64", "when, microseconds since the epoch"] = None


class CallFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One load of cluster calls. Counts are from the first caller until all nodes had executed."""

    run: Annotated[str, "string", "names the run, as in the log"]
    layout: Annotated[str, "string", "processes of the cluster: one of LAYOUTS"]
    load: Annotated[str, "string", "names the load in its rows, once in a run and layout"]
    scenario: Annotated[str, "string", "one of CLUSTER_CALL_SCENARIOS"]
    function: Annotated[str, "string", "what was called: one of CLUSTER_CALL_FUNCTIONS"]
    required: Annotated[str, "string", "for whom a call waited: 1 (its initiator), or all"]
    place: Annotated[str, "string", "where the callers sat: one of CLUSTER_CALL_PLACES"]
    callers: Annotated[int, "int64", "all of them, each with one call outstanding"]
    participants: Annotated[str, "string", "one of CLUSTER_CALL_PARTICIPANTS"]
    nodes: Annotated[str, "string", "who executes, names in order with blanks between"]
    began_us: Annotated[int, "int64", "when the callers were sent off, microseconds since 1970"]
    elapsed_s: Annotated[float, "double", "what the counts cover"]
    entries: Annotated[int, "int64", "entries committed to the log; one holds many commands"]
    commands: Annotated[int, "int64", "commands applied"]
    raft_messages: Annotated[int | None, "int64", "sent between cores, heartbeats included"] = None
    feed_messages: Annotated[int | None, "int64", "sent between replicants and their cores"] = None
    call_messages: Annotated[int | None, "int64", "of RPC between nodes; each has two"] = None
    sent_bytes: Annotated[int | None, "int64", "of all messages, before TLS"] = None
    idle_messages_per_s: Annotated[float | None, "double", "of all nodes, without a load"] = None
    lagging: Annotated[str | None, "string", "the replicant that lagged"] = None
    lag_ms: Annotated[float | None, "double", "by how much"] = None
    killed: Annotated[str | None, "string", "the leader that was killed"] = None
    killed_us: Annotated[int | None, "int64", "when, microseconds since the epoch"] = None


class LimboFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One load of the limbo. Counts are from the first writer until all nodes had applied all."""

    run: Annotated[str, "string", "names the run, as in the log"]
    layout: Annotated[str, "string", "processes of the cluster: one of LAYOUTS"]
    load: Annotated[str, "string", "names the load in its rows, once in a run and layout"]
    scenario: Annotated[str, "string", "LIMBO_SCENARIO"]
    quorum: Annotated[str, "string", "who must hold a transaction: one of LIMBO_QUORUMS"]
    writers: Annotated[int, "int64", "all of them in the owner, one transaction outstanding each"]
    owner: Annotated[str, "string", "the node that owned the limbo: Raft's leader"]
    nodes: Annotated[str, "string", "nodes that were looked at, in order with blanks between"]
    began_us: Annotated[int, "int64", "when the writers were sent off, microseconds since 1970"]
    elapsed_s: Annotated[float, "double", "what the counts cover"]
    entries: Annotated[int, "int64", "entries committed to the log; one holds many commands"]
    commands: Annotated[int, "int64", "commands applied; one submits many transactions"]
    acks: Annotated[int, "int64", "acknowledgements that all nodes wrote into the log"]
    raft_messages: Annotated[int | None, "int64", "sent between cores, heartbeats included"] = None
    feed_messages: Annotated[int | None, "int64", "sent between replicants and their cores"] = None
    call_messages: Annotated[int | None, "int64", "of RPC between nodes; each has two"] = None
    sent_bytes: Annotated[int | None, "int64", "of all messages, before TLS"] = None
    idle_messages_per_s: Annotated[float | None, "double", "of all nodes, without a load"] = None


class TxqueueFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One load of the queues. Counts are from the first producer until all nodes applied all."""

    run: Annotated[str, "string", "names the run, as in the log"]
    layout: Annotated[str, "string", "processes of the cluster: one of LAYOUTS"]
    load: Annotated[str, "string", "names the load in its rows, once in a run and layout"]
    scenario: Annotated[str, "string", "TXQUEUE_SCENARIO"]
    way: Annotated[str, "string", "how a producer committed: one of TXQUEUE_WAYS"]
    batch: Annotated[int, "int64", "messages of each transaction"]
    producers: Annotated[int, "int64", "all of them in one node, one transaction outstanding each"]
    node: Annotated[str, "string", "the node of the producers: Raft's leader"]
    nodes: Annotated[str, "string", "nodes that were looked at, in order with blanks between"]
    began_us: Annotated[int, "int64", "when the producers were sent off, microseconds since 1970"]
    elapsed_s: Annotated[float, "double", "what the counts cover"]
    entries: Annotated[int, "int64", "entries committed to the log; one holds many commands"]
    commands: Annotated[int, "int64", "commands applied"]
    raft_messages: Annotated[int | None, "int64", "sent between cores, heartbeats included"] = None
    feed_messages: Annotated[int | None, "int64", "sent between replicants and their cores"] = None
    call_messages: Annotated[int | None, "int64", "of RPC between nodes; each has two"] = None
    sent_bytes: Annotated[int | None, "int64", "of all messages, before TLS"] = None
    idle_messages_per_s: Annotated[float | None, "double", "of all nodes, without a load"] = None


class SubscriptionFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One load of subscriptions in two regions. Counts are from the first message until the first
    region's consumer left; `far` ones are those of the other region."""

    run: Annotated[str, "string", "names the run, as in the log"]
    layout: Annotated[str, "string", "processes of each region: one of LAYOUTS"]
    load: Annotated[str, "string", "names the load in its rows, once in a run and layout"]
    scenario: Annotated[str, "string", "SUBSCRIPTION_SCENARIO"]
    mode: Annotated[str, "string", "how state is replicated: one of SUBSCRIPTION_MODES"]
    rate_per_s: Annotated[float, "double", "messages per second that were asked for"]
    delay_ms: Annotated[float, "double", "injected on the way, in each direction"]
    period_ms: Annotated[int, "int64", "between two snapshots, in snapshot mode"]
    began_us: Annotated[int, "int64", "when the load began, microseconds since 1970"]
    elapsed_s: Annotated[float, "double", "what the counts cover"]
    published: Annotated[int, "int64", "messages published in the first region by then"]
    acked: Annotated[int, "int64", "messages acknowledged there by its consumer"]
    entries: Annotated[int, "int64", "entries committed to the log of the first region"]
    far_entries: Annotated[int, "int64", "entries committed to the log of the other region"]
    commands: Annotated[int, "int64", "commands applied in the first region"]
    far_commands: Annotated[int, "int64", "commands applied in the other region"]
    link_bytes: Annotated[int, "int64", "between the regions, in both directions, HTTP included"]
    cpu_s: Annotated[float, "double", "processor time of all nodes of both regions"]
    far_cpu_s: Annotated[float, "double", "of it, that of the other region"]
    errors: Annotated[int, "int64", "calls in the first region that failed"] = 0


AnyFacts = Facts | CallFacts | LimboFacts | TxqueueFacts | SubscriptionFacts


FACT_COLUMNS: tuple[Column, ...] = columns_of(Facts)
CALL_FACT_COLUMNS: tuple[Column, ...] = columns_of(CallFacts)
LIMBO_FACT_COLUMNS: tuple[Column, ...] = columns_of(LimboFacts)
TXQUEUE_FACT_COLUMNS: tuple[Column, ...] = columns_of(TxqueueFacts)
SUBSCRIPTION_FACT_COLUMNS: tuple[Column, ...] = columns_of(SubscriptionFacts)


def write_facts(directory: Path, facts: Facts) -> Path:
    """Writes the file of one load below `directory`. Raises OSError."""
    return _write(directory / "loads", facts)


def write_call_facts(directory: Path, facts: CallFacts) -> Path:
    """Writes the file of one load of cluster calls below `directory`. Raises OSError."""
    return _write(directory / "call-loads", facts)


def write_limbo_facts(directory: Path, facts: LimboFacts) -> Path:
    """Writes the file of one load of the limbo below `directory`. Raises OSError."""
    return _write(directory / "limbo-loads", facts)


def write_txqueue_facts(directory: Path, facts: TxqueueFacts) -> Path:
    """Writes the file of one load of the queues below `directory`. Raises OSError."""
    return _write(directory / "txqueue-loads", facts)


def write_subscription_facts(directory: Path, facts: SubscriptionFacts) -> Path:
    """Writes the file of one load of subscriptions below `directory`. Raises OSError."""
    return _write(directory / "subscription-loads", facts)


def _write(folder: Path, facts: AnyFacts) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    number = 0
    while (path := folder / f"{facts.run}-{facts.layout}-{number}.json").exists():
        number += 1
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_bytes(msgspec.json.format(msgspec.json.encode(facts)) + b"\n")
    os.replace(temporary, path)
    return path
