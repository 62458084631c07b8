"""The analysis of the queues on a small log, against figures worked out by hand.

There is nothing else in this log: a run of the queues alone must give a report, too. All tests
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
from bench.analysis.words_txqueue import verdict
from bench.facts import TxqueueFacts, write_txqueue_facts
from bench.schema import Row, RowWriter

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

T0 = 1_790_000_000_000_000


def facts(load: str, **changes: Any) -> TxqueueFacts:
    values: dict[str, Any] = {
        "run": "r1", "layout": "3", "load": load, "scenario": "txqueue", "way": "tx", "batch": 10,
        "producers": 1, "node": "c1", "nodes": "c1 c2", "began_us": T0, "elapsed_s": 2.0,
        "entries": 12, "commands": 20, "raft_messages": 30, "feed_messages": 0,
        "call_messages": 6, "sent_bytes": 600, "idle_messages_per_s": 3.0,
    }  # fmt: skip
    return TxqueueFacts(**{**values, **changes})


def row(load: str | None, op: str, at_us: int, duration_us: int, **changes: Any) -> Row:
    values: dict[str, Any] = {
        "run": "r1", "layout": "3", "scenario": "txqueue", "phase": "load", "registry": "none",
        "node": "c1", "role": "leader", "op": op, "client": "p0", "attempt": 1,
        "start_us": T0 + at_us, "duration_us": duration_us, "outcome": "ok", "load": load,
    }  # fmt: skip
    return Row(**{**values, **changes})


def looked(
    load: str, node: str, found: int, surplus: int = 0, torn: int = 0, displaced: int = 0,
    **changes: Any,
) -> Iterator[Row]:  # fmt: skip
    counts = {"messages": found, "surplus": surplus, "torn": torn, "displaced": displaced}
    for op, count in counts.items():
        yield row(
            load, op, 9_000_000, 10, node=node, client=node, index=count, phase="audit", **changes
        )


def good() -> Iterator[Row]:
    """Three committed in 1 s (2, 4, 6 ms) after one of the warm-up; one aborted, one unknown.

    The unknown one may have been committed: ten messages of nobody are accounted for.
    """
    yield row("good", "commit", 0, 1_000, phase="warmup", index=1)
    yield row("good", "commit", 1_000_000, 2_000, index=2)
    yield row("good", "commit", 1_300_000, 4_000, index=3)
    yield row("good", "commit", 1_500_000, 9_000, outcome="transaction_aborted")
    yield row("good", "commit", 1_600_000, 90_000, outcome="transaction_unknown")
    yield row("good", "commit", 1_700_000, 1_000, outcome="error:txqueue_queue_full")
    yield row("good", "commit", 1_994_000, 6_000, index=6)
    yield from looked("good", "c1", 40, surplus=10)
    yield from looked("good", "c2", 40)


def bad() -> Iterator[Row]:
    """Each kind of wrong answer once, or more often."""
    lasting = {"layout": "3+3"}
    yield row("bad", "commit", 0, 1_000, **lasting)
    yield row("bad", "commit", 1_000, 1_000, **lasting)
    yield row("bad", "commit", 0, 1_000, client="p1", outcome="rolled_back", **lasting)
    yield from looked("bad", "c1", 20, displaced=3, **lasting)
    yield from looked("bad", "c2", 17, surplus=2, torn=1, **lasting)
    # r1 was never looked at: all twenty are missing there.


FACTS = (
    facts("good"),
    facts("bad", layout="3+3", way="dtx2", producers=2, nodes="c1 c2 r1", feed_messages=None),
)


@pytest.fixture(scope="module")
def analysed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        find_java()
    except AnalysisError as error:
        pytest.skip(str(error))
    directory = tmp_path_factory.mktemp("txqueue")
    with RowWriter(directory, "r1", "n1") as writer:
        for one in (*good(), *bad()):
            writer.add(one)
        writer.add(row("a load without facts", "commit", 0, 1_000))
        writer.add(row(None, "commit", 0, 1_000))
        writer.add(row("good", "commit", 0, 1_000, outcome="restart"))
    for one_load in FACTS:
        write_txqueue_facts(directory, one_load)
    arguments = {"limbo_seconds": 3.0, "value_bytes": 64}
    conditions = {"cores": 2, "fsync": True, "arguments": arguments}
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
    found = only(analysed, "txqueue", layout="3")
    classes = ("count", "ok", "rolled_back", "unknown", "error")
    assert [found[name] for name in classes] == [6, 3, 1, 1, 1]
    # From 1.0 to 2.0 s; 2, 4 and 6 ms are committed; the longest wait is anybody's.
    assert found["committed_per_s"] == pytest.approx(3)
    assert found["messages_per_s"] == pytest.approx(30)
    assert found["p50_ms"] == pytest.approx(4)
    assert found["p99_ms"] == pytest.approx(5.96)
    assert found["longest_ms"] == pytest.approx(90)


def test_costs_are_divided_by_every_committed_transaction(analysed: Path) -> None:
    found = only(analysed, "txqueue", layout="3")
    # Four of them, with the one of the warm-up.
    names = ("entries", "commands", "sent", "raft", "feed", "call", "idle", "bytes")
    assert [found[f"{name}_per_transaction"] for name in names] == [
        pytest.approx(value) for value in (3, 5, 9, 7.5, 0, 1.5, 1.5, 150)
    ]
    assert found["transactions_per_entry"] == pytest.approx(1 / 3)
    other = only(analysed, "txqueue", layout="3+3")
    assert (other["sent_per_transaction"], other["entries_per_transaction"]) == (None, 6)


def test_what_is_allowed_is_not_held_against_a_node(analysed: Path) -> None:
    found = only(analysed, "txqueue", layout="3")
    assert (found["wrong"], found["checked"]) == (0, 80)


def test_every_kind_of_wrong_answer_is_found(analysed: Path) -> None:
    found = only(analysed, "txqueue", layout="3+3")
    kinds = ("missing", "strays", "torn", "displaced")
    assert [found[name] for name in kinds] == [23, 2, 1, 3]
    assert (found["wrong"], found["checked"]) == (29, 60)
    total = only(analysed, "txqueue_verdicts", layout="all")
    assert (total["loads"], total["committed"], total["checked"], total["wrong"]) == (2, 6, 140, 29)


def test_rows_that_break_the_rules_are_set_aside(analysed: Path) -> None:
    rows = table(analysed, "rejected", scope="row")
    assert sorted(one["reason"] for one in rows) == [
        "a transaction of the queues without load",
        "unknown outcome",
    ]
    outcomes = {one["outcome"]: one["count"] for one in table(analysed, "txqueue_outcomes")}
    assert outcomes["error:txqueue_queue_full"] == 1


def test_the_report_says_what_came_out(analysed: Path) -> None:
    text = (analysed / "report" / "index.html").read_text(encoding="utf-8")
    assert "<h1>Transactional queues on raftkv" in text
    words = " ".join(text.replace("\N{NO-BREAK SPACE}", " ").split())
    sentences = """
        Of 6 committed transactions in 2 loads of the queues, with 140 messages to be found on all
        nodes together, 29 things were wrong: 23 committed messages that a node does not have once,
        2 messages that nobody was told of, 1 transaction of which a node has a part and 3 messages
        out of order. There must be none

        3 cores, TX of 10 messages: one of a single producer took 4.00 ms (99th percentile 5.96 ms,
        30.0 messages per second); most were 30.0 messages per second with one producer, at a median
        of 4.00 ms (99th percentile 5.96 ms); nobody waited longer than 90.0 ms; 50.0 % of all were
        not committed.

        3 cores, TX of 10 messages, a transaction: one producer 3.00 entries of the log, 9.00
        messages between nodes.
    """
    for sentence in sentences.split("\n\n"):
        assert " ".join(sentence.split()) in words
    for picture in ("txqueueproducers", "txqueuecosts"):
        assert f'id="{picture}-' in text


def test_nothing_wrong_is_said_as_well() -> None:
    row = {"layout": "all", "loads": 1, "committed": 6, "checked": 180, "wrong": 0}
    found = verdict(Figures({}, {}, {"txqueue_verdicts": [row]}))
    assert found is not None
    assert found.tone == "good"
    assert "Of 6 committed transactions in 1 load of the queues" in found.text


def test_nothing_is_said_of_what_was_not_measured() -> None:
    assert verdict(Figures({}, {}, {"txqueue_verdicts": []})) is None
