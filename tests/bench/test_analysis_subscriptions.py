"""The analysis of subscriptions on a small log, against figures worked out by hand.

There is nothing else in this log: a run of subscriptions alone must give a report, too. All tests
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
from bench.analysis.words_subscriptions import duplicate_findings, move_findings, verdict
from bench.facts import SubscriptionFacts, write_subscription_facts
from bench.schema import Row, RowWriter

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

T0 = 1_790_000_000_000_000


def facts(load: str, **changes: Any) -> SubscriptionFacts:
    values: dict[str, Any] = {
        "run": "r1", "layout": "1", "load": load, "scenario": "subscriptions", "mode": "vector",
        "rate_per_s": 100.0, "delay_ms": 0.0, "period_ms": 1000, "began_us": T0, "elapsed_s": 4.0,
        "published": 400, "acked": 380, "entries": 600, "far_entries": 200, "commands": 700,
        "far_commands": 300, "link_bytes": 80_000, "cpu_s": 0.4, "far_cpu_s": 0.1,
    }  # fmt: skip
    return SubscriptionFacts(**{**values, **changes})


def row(load: str | None, op: str, duration_us: int, **changes: Any) -> Row:
    values: dict[str, Any] = {
        "run": "r1", "layout": "1", "scenario": "subscriptions", "phase": "load",
        "registry": "none", "node": "c1", "role": "leader", "op": op, "client": "b", "attempt": 1,
        "start_us": T0, "duration_us": duration_us, "outcome": "ok", "load": load, "index": 1,
    }  # fmt: skip
    return Row(**{**values, **changes})


def counted(load: str, **counts: int) -> Iterator[Row]:
    for op, index in counts.items():
        yield row(load, op, 0, index=index, phase="audit")


def rows() -> Iterator[Row]:
    for took_ms in (2, 4, 6, 1_500):
        yield row("vector", "moved", took_ms * 1_000)
    yield from counted("vector", received=120, again=7, again_quiesced=0, skipped=0)
    yield row("snapshot", "moved", 900_000)
    yield row("snapshot", "moved", 0, outcome="never_moved")
    yield from counted("snapshot", received=200, again=90, again_quiesced=11, skipped=2)


FACTS = (
    facts("off", mode="off", entries=500, far_entries=140, link_bytes=64_000, cpu_s=0.32),
    facts("vector"),
    facts("snapshot", mode="snapshot", delay_ms=50.0),
)


@pytest.fixture(scope="module")
def analysed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        find_java()
    except AnalysisError as error:
        pytest.skip(str(error))
    directory = tmp_path_factory.mktemp("subscriptions")
    with RowWriter(directory, "r1", "n1") as writer:
        for one in rows():
            writer.add(one)
        writer.add(row("a load without facts", "moved", 1_000))
        writer.add(row(None, "moved", 1_000))
        writer.add(row("vector", "moved", 1_000, outcome="timeout"))
    for one_load in FACTS:
        write_subscription_facts(directory, one_load)
    arguments = {"limbo_seconds": 3.0, "value_bytes": 64}
    conditions = {"cores": 2, "fsync": True, "arguments": arguments}
    (directory / "conditions.json").write_text(json.dumps(conditions))
    assert command.main(["analyse", str(directory)]) == 0
    return directory


def table(directory: Path, name: str, **where: object) -> list[dict[str, Any]]:
    found = parquet.read_table(directory / "tables" / name).to_pylist()
    return [one for one in found if all(one[key] == value for key, value in where.items())]


def only(directory: Path, name: str, **where: object) -> dict[str, Any]:
    (found,) = table(directory, name, **where)
    return found


def test_moves_are_measured_and_those_that_never_came_are_counted(analysed: Path) -> None:
    found = only(analysed, "subscriptions", mode="vector")
    assert (found["acks"], found["never_moved"]) == (4, 0)
    assert found["p50_ms"] == pytest.approx(5)
    assert found["longest_ms"] == pytest.approx(1_500)
    assert found["within_a_second_share"] == pytest.approx(0.75)
    other = only(analysed, "subscriptions", mode="snapshot")
    assert (other["acks"], other["never_moved"], other["p50_ms"]) == (2, 1, pytest.approx(900))
    assert other["within_a_second_share"] == pytest.approx(0.5)


def test_costs_are_for_each_message_and_beside_those_without_replication(analysed: Path) -> None:
    found = only(analysed, "subscriptions", mode="vector")
    names = ("entries", "commands", "link_bytes", "cpu_us")
    assert [found[f"{name}_per_message"] for name in names] == [
        pytest.approx(value) for value in (2, 2.5, 200, 1_000)
    ]
    assert [found[f"{name}_ratio"] for name in names] == [
        pytest.approx(value) for value in (800 / 640, 1, 1.25, 1.25)
    ]
    assert found["messages_per_s"] == pytest.approx(100)
    off = only(analysed, "subscriptions", mode="off")
    assert (off["acks"], off["again"], off["entries_ratio"]) == (None, None, 1)


def test_duplicates_are_told_and_only_what_must_not_be_is_wrong(analysed: Path) -> None:
    found = only(analysed, "subscriptions", mode="snapshot")
    kinds = ("received", "again", "again_quiesced", "skipped")
    assert [found[name] for name in kinds] == [200, 90, 11, 2]
    assert (found["again_most"], found["rest_most"], found["errors"]) == (90, 11, 0)
    total = only(analysed, "subscription_verdicts", layout="all")
    # What came again at rest is a fault in vector mode alone, where there was none.
    names = ("loads", "received", "skipped", "again_at_rest", "wrong")
    assert [total[name] for name in names] == [2, 320, 2, 0, 2]


def test_rows_that_break_the_rules_are_set_aside(analysed: Path) -> None:
    found = table(analysed, "rejected", scope="row")
    assert sorted(one["reason"] for one in found) == [
        "a row of subscriptions without load",
        "unknown outcome",
    ]


def test_the_report_says_what_came_out(analysed: Path) -> None:
    text = (analysed / "report" / "index.html").read_text(encoding="utf-8")
    assert "<h1>Replicated subscriptions on raftkv" in text
    words = " ".join(text.replace("\N{NO-BREAK SPACE}", " ").split())
    sentences = """
        In 2 loads a consumer moved to the other region and back and got 320 messages there, but 2
        that nobody had acknowledged were skipped. This is a fault of ours.

        Regions of 1 core, vector mode: the other region&#x27;s cursor followed an acknowledgement
        without a distance after 5.00 ms in the median (at most 1.50 s); 75.0 % of all
        within a second.

        Regions of 1 core, snapshot mode: of messages acknowledged in the first region, at most 90
        came again after a move while messages came (100 per second, with 50.0 ms each way), and 11
        after a move at rest.

        Regions of 1 core, vector mode, 100 messages per second: 2.00 entries in both logs for each
        message (1.25 times those without replication)
    """
    for sentence in sentences.split("\n\n"):
        assert " ".join(sentence.split()) in words
    for picture in ("submoves", "subagain"):
        assert f'id="{picture}-' in text


def test_nothing_wrong_is_said_as_well() -> None:
    values = {"layout": "all", "loads": 1, "received": 5, "wrong": 0}
    found = verdict(Figures({}, {}, {"subscription_verdicts": [values]}))
    assert found is not None
    assert found.tone == "good"
    assert "In 1 load a consumer moved" in found.text


def test_nothing_is_said_of_what_was_not_measured() -> None:
    assert verdict(Figures({}, {}, {"subscription_verdicts": []})) is None


def test_a_percentile_is_told_of_many_moves_and_duplicates_of_one_move() -> None:
    """Of ten moves a 99th percentile says nothing; of two runs a sum is no move's."""
    one = {
        "layout": "1", "mode": "vector", "delay_ms": 0.0, "rate_per_s": 1.0, "acks": 10,
        "within_a_second_share": 1.0, "p50_ms": 5.0, "p99_ms": 6.5, "longest_ms": 7.0,
        "again": 8, "again_most": 5, "again_quiesced": 2, "rest_most": 1,
    }  # fmt: skip
    few = Figures({}, {}, {"subscriptions": [one]})
    assert "(at most 7.00 ms)" in spaced(move_findings(few)[0].text)
    many = Figures({}, {}, {"subscriptions": [{**one, "acks": 100}]})
    assert "(99th percentile at most 6.50 ms)" in spaced(move_findings(many)[0].text)
    text = spaced(duplicate_findings(few)[0].text)
    assert "at most 5 came again" in text
    assert "and 1 after a move at rest" in text
    none = Figures({}, {}, {"subscriptions": [{**one, "again_most": 0, "rest_most": 0}]})
    assert duplicate_findings(none)[0].text.endswith(
        "none came again after a move while messages came, and none after a move at rest."
    )


def spaced(text: str) -> str:
    return text.replace("\N{NO-BREAK SPACE}", " ")
