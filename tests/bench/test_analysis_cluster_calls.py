"""The analysis of cluster calls on a small log, against figures worked out by hand.

There is nothing else in this log: a run of cluster calls alone must give a report, too. All tests
share one run of Spark.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="pyarrow is in the extra `bench`")
pytest.importorskip("pyspark", reason="pyspark is in the extra `bench`")
pytest.importorskip("matplotlib", reason="matplotlib is in the extra `bench`")

from pyarrow import parquet

import bench.__main__ as command
from bench.analysis import AnalysisError
from bench.analysis.figures import Figures
from bench.analysis.java import find_java
from bench.analysis.words_cluster_calls import death_findings, verdict
from bench.facts import CallFacts, write_call_facts
from bench.schema import Row, RowWriter

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

T0 = 1_790_000_000_000_000
KILLED_US = T0 + 20_000_000


def facts(load: str, **changes: Any) -> CallFacts:
    values: dict[str, Any] = {
        "run": "r1", "layout": "3", "load": load, "scenario": "cluster_calls",
        "function": "nothing", "required": "all", "place": "leader", "callers": 1,
        "participants": "cores", "nodes": "c1 c2", "began_us": T0, "elapsed_s": 2.0,
        "entries": 12, "commands": 20, "raft_messages": 30, "feed_messages": 0,
        "call_messages": 6, "sent_bytes": 600, "idle_messages_per_s": 3.0,
    }  # fmt: skip
    return CallFacts(**{**values, **changes})


def row(load: str | None, op: str, at_us: int, duration_us: int, **changes: Any) -> Row:
    values: dict[str, Any] = {
        "run": "r1", "layout": "3", "scenario": "cluster_calls", "phase": "load",
        "registry": "none", "node": "c1", "role": "leader", "op": op, "client": "k0",
        "attempt": 1, "start_us": T0 + at_us, "duration_us": duration_us, "outcome": "ok",
        "load": load, "life": None if op in ("call", "effects") else 0,
    }  # fmt: skip
    return Row(**{**values, **changes})


def everywhere(
    load: str, *ids: int, at_us: int = 0, skip: tuple[str, int] = ("", 0)
) -> Iterator[Row]:
    """Every one of these ids on c1, which initiates, and on c2."""
    for place, id_ in enumerate(ids):
        for node, op in (("c1", "initiate"), ("c2", "replicate")):
            if (node, id_) != skip:
                yield row(load, op, at_us + place * 1_000, 10, node=node, client=node, index=id_)


def good() -> Iterator[Row]:
    """Ids 1 to 5: three calls in 1 s (2, 4, 6 ms) after one of the warm-up; id 4 aborted."""
    yield row("good", "call", 0, 1_000, phase="warmup", index=1)
    yield row("good", "call", 1_000_000, 2_000, index=2)
    yield row("good", "call", 1_300_000, 4_000, index=3, outcome="peers_lagging")
    yield row("good", "call", 1_500_000, 9_000, index=4, outcome="init_failure")
    yield row("good", "call", 1_600_000, 9_000, outcome="no_leader")
    yield row("good", "call", 1_994_000, 6_000, index=5)
    yield from everywhere("good", 1, 2, 3)
    yield row("good", "initiate", 4_000, 10, index=4, outcome="error:failed")
    # A retry that failed first, and a run again in the next life of the process: both are allowed.
    yield row("good", "initiate", 5_000, 10, index=5)
    yield row("good", "replicate", 5_000, 10, node="c2", index=5, outcome="error:failed")
    yield row("good", "replicate", 6_000, 10, node="c2", index=5, attempt=2)
    yield row("good", "replicate", 7_000, 10, node="c2", index=5, life=1)


def bad() -> Iterator[Row]:
    """Each kind of wrong answer once, or twice."""
    for id_ in (11, 12, 13, 13):
        yield row("bad", "call", id_ * 1_000, 1_000, index=id_)
    yield row("bad", "call", 14_000, 1_000, index=14, outcome="init_failure")
    yield from everywhere("bad", 11, 12, 13, at_us=10_000, skip=("c2", 12))
    # c1 runs 11 again, behind 13: repeated and out of order. c2 runs what was aborted, and since
    # that makes 14 look committed, c1 has a hole at 14 and c2 one at 12.
    yield row("bad", "initiate", 20_000, 10, index=11)
    yield row("bad", "replicate", 21_000, 10, node="c2", index=14)
    # Committed are 11, 12, 13 and 14.
    for node, made in (("c1", 4), ("c2", 5)):
        yield row("bad", "effects", 30_000, 10, client=node, phase="audit", index=made)


def lagging() -> Iterator[Row]:
    lag = {"scenario": "cluster_calls_lagging", "layout": "3+3"}
    yield row("lag", "call", 0, 700_000, **lag, role="lagging", node="r1", index=1)
    yield row("lag", "call", 10_000, 3_000, **lag, role="follower", node="c2", index=2)


def dying() -> Iterator[Row]:
    """Two before the kill, one over it, two after it without the dead node; one failed."""
    for at_us, duration_us, outcome, id_ in (
        (19_000_000, 10_000, "ok", 1),
        (19_989_000, 10_000, "ok", 2),
        (19_995_000, 60_000, "ok", 3),
        (20_010_000, 190_000, "stopped_nodes", 4),
        (20_020_000, 300_000, "no_leader", None),
        (21_500_000, 10_000, "stopped_nodes", 5),
        (21_600_000, 10_000, "stopped_nodes", 6),
    ):
        yield row(
            "dying", "call", at_us, duration_us, outcome=outcome, index=id_,
            scenario="cluster_calls_leader_dies", role="follower",
        )  # fmt: skip


FACTS = (
    facts("good"),
    facts("bad", function="keyspace", place="everywhere", callers=16, required="1"),
    facts("lag", scenario="cluster_calls_lagging", layout="3+3", nodes="c1 c2 r1", lagging="r1"),
    facts(
        "dying", scenario="cluster_calls_leader_dies", place="everywhere", killed="c1",
        killed_us=KILLED_US, raft_messages=None, feed_messages=None, call_messages=None,
        sent_bytes=None,
    ),
)  # fmt: skip


@pytest.fixture(scope="module")
def analysed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        find_java()
    except AnalysisError as error:
        pytest.skip(str(error))
    directory = tmp_path_factory.mktemp("calls")
    with RowWriter(directory, "r1", "n1") as writer:
        for one in (*good(), *bad(), *lagging(), *dying()):
            writer.add(one)
        writer.add(row("a load without facts", "call", 0, 1_000, index=1))
        writer.add(row(None, "call", 0, 1_000))
        writer.add(row("good", "replicate", 0, 1_000, index=1, life=None))
        writer.add(row("good", "call", 0, 1_000, outcome="restart"))
    for one_load in FACTS:
        write_call_facts(directory, one_load)
    conditions = {"cores": 2, "fsync": True, "arguments": {"cluster_call_seconds": 3.0}}
    (directory / "conditions.json").write_text(json.dumps(conditions))
    assert command.main(["analyse", str(directory)]) == 0
    return directory


def table(directory: Path, name: str, **where: object) -> list[dict[str, Any]]:
    rows = parquet.read_table(directory / "tables" / name).to_pylist()
    return [one for one in rows if all(one[key] == value for key, value in where.items())]


def only(directory: Path, name: str, **where: object) -> dict[str, Any]:
    (found,) = table(directory, name, **where)
    return found


def test_speed_is_that_of_the_load_without_its_warm_up(analysed: Path) -> None:
    found = only(analysed, "cluster_calls", function="nothing", scenario="cluster_calls")
    classes = ("count", "ok", "partial", "failed", "error")
    assert [found[name] for name in classes] == [5, 2, 1, 1, 1]
    # From 1.0 to 2.0 s; 2, 4 and 6 ms, for what is committed has its time.
    assert found["throughput_per_s"] == pytest.approx(2)
    assert found["committed_per_s"] == pytest.approx(3)
    assert (found["p50_ms"], found["max_ms"]) == (pytest.approx(4), pytest.approx(6))
    assert found["p99_ms"] == pytest.approx(5.96)


def test_costs_are_divided_by_every_committed_call(analysed: Path) -> None:
    found = only(analysed, "cluster_calls", function="nothing", scenario="cluster_calls")
    # Four of them, with the one of the warm-up.
    figures = ("entries", "commands", "messages", "raft", "feed", "call", "idle", "bytes")
    assert [found[f"{name}_per_call"] for name in figures] == [
        pytest.approx(value) for value in (3, 5, 9, 7.5, 0, 1.5, 1.5, 150)
    ]
    dying = only(analysed, "cluster_calls", scenario="cluster_calls_leader_dies")
    assert (dying["entries_per_call"], dying["messages_per_call"]) == (pytest.approx(2), None)


def test_what_is_allowed_is_not_held_against_a_node(analysed: Path) -> None:
    found = only(analysed, "cluster_calls", function="nothing", scenario="cluster_calls")
    assert (found["wrong"], found["runs_checked"]) == (0, 11)


def test_every_kind_of_wrong_answer_is_found(analysed: Path) -> None:
    found = only(analysed, "cluster_calls", function="keyspace")
    kinds = ("repeated", "out_of_order", "holes", "aborted_runs", "double_ids", "effects_wrong")
    assert {name: found[name] for name in kinds} == {
        "repeated": 1, "out_of_order": 1, "holes": 2, "aborted_runs": 1, "double_ids": 1,
        "effects_wrong": 1,
    }  # fmt: skip
    assert found["wrong"] == 7
    # No node of the loads with a lag and a death has noted any run: all their ids are holes.
    holes = {one["scenario"]: one["holes"] for one in table(analysed, "cluster_calls")}
    assert (holes["cluster_calls_lagging"], holes["cluster_calls_leader_dies"]) == (6, 12)
    total = only(analysed, "cluster_call_verdicts", layout="all", scenario="all")
    assert (total["loads"], total["wrong"], total["holes"]) == (4, 25, 20)


def test_the_lag_by_the_callers_place(analysed: Path) -> None:
    rows = table(analysed, "cluster_call_roles", scenario="cluster_calls_lagging")
    assert {one["role"]: one["p50_ms"] for one in rows} == {"lagging": 700.0, "follower": 3.0}


def test_the_outage_as_callers_saw_it(analysed: Path) -> None:
    found = only(analysed, "cluster_call_outages")
    # Ends of committed calls: 19.01, 19.999 | 20.055 (under way at the kill), 20.2, 21.51, 21.61.
    assert found["gap_ms"] == pytest.approx(1310)
    assert found["first_ms"] == pytest.approx(200)
    assert found["slowest_ms"] == pytest.approx(190)
    assert (found["partial"], found["failed"], found["errors"]) == (3, 0, 1)
    assert found["before_per_s"] == pytest.approx(2 / 1.0)
    assert found["after_per_s"] == pytest.approx(2 / 0.61)


def test_tenths_of_a_second_around_the_kill(analysed: Path) -> None:
    rows = table(analysed, "cluster_call_death")
    # Up to the last one in which callers were at work from beginning to end.
    assert [one["at_ms"] for one in rows] == list(range(-1000, 1500, 100))
    assert {one["at_ms"]: one["ok"] for one in rows if one["ok"]} == {-1000: 1, -100: 1, 0: 1}
    assert {one["at_ms"]: one["partial"] for one in rows if one["partial"]} == {200: 1}
    assert {one["at_ms"] for one in rows if one["error"]} == {300}


def test_rows_that_break_the_rules_are_set_aside(analysed: Path) -> None:
    rows = table(analysed, "rejected", scope="row")
    assert sorted(one["reason"] for one in rows) == [
        "a cluster call without load",
        "a run without id or life",
        "unknown outcome",
    ]
    outcomes = table(analysed, "cluster_call_outcomes", scenario="cluster_calls_leader_dies")
    assert {one["outcome"]: one["count"] for one in outcomes} == {
        "ok": 3, "stopped_nodes": 3, "no_leader": 1,
    }  # fmt: skip


def test_the_report_says_what_came_out(analysed: Path) -> None:
    text = (analysed / "report" / "index.html").read_text(encoding="utf-8")
    assert "<h1>Cluster calls on raftkv" in text
    words = " ".join(text.replace("\N{NO-BREAK SPACE}", " ").split())
    sentences = """
        25 things were wrong: 1 run that repeats one of the same process, 1 run out of order, 20
        committed calls that a node never ran, 1 run of an aborted call on a replica, 1 id that was
        given twice and 1 wrong count of effects. There must be none

        3 cores: a call of one caller in the leader took 4.00 ms waiting for all nodes (99th
        percentile 5.96 ms, 3.00/s, 3.00 entries of the log and 9.00 messages for each, 20.0 %
        without an answer).

        3 cores, waiting for all nodes: c1 was killed. No call was committed for 1.31 s; the first
        one that began afterwards had its answer 200 ms after the kill, the slowest took 190 ms.
        2.00/s before, 3.28/s from a second after it on. Of the calls after the kill 3 were
        committed without the node that was down and 1 got no answer.

        in the replicant that lags 700 ms (700 ms)

        2 CPU cores shared by all nodes and clients, fsync before acknowledging, 3 s for each load.
    """
    for sentence in sentences.split("\n\n"):
        assert " ".join(sentence.split()) in words
    for picture in ("callers", "functions", "calldeath"):
        assert f'id="{picture}-' in text


def test_a_flawless_run_is_said_to_be_one() -> None:
    row = {
        "layout": "all", "scenario": "all", "loads": 1, "runs_checked": 6, "wrong": 0,
    }  # fmt: skip
    found = verdict(Figures({}, {}, {"cluster_call_verdicts": [row]}))
    assert found is not None
    assert (found.tone, "6 runs of functions in 1 load" in found.text) == ("good", True)


def test_a_leader_that_was_not_killed_is_not_passed_over_in_silence() -> None:
    spared = {
        "scenario": "cluster_calls_leader_dies", "killed": None, "layout": "3",
        "participants": "cores", "required": "1",
    }  # fmt: skip
    tables = {"cluster_call_outages": [], "cluster_calls": [spared]}
    (finding,) = death_findings(Figures({}, {}, tables))
    assert "nobody was killed" in finding.text
