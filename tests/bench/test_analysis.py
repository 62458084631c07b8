"""The whole analysis on a small log, against figures worked out by hand.

The log is built so that each figure can be checked with pencil and paper: the comments say how. The
command runs as a user would run it, and the Parquet tables that it wrote are read back. All tests
share one run of Spark.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="pyarrow is in the extra `bench`")
pytest.importorskip("pyspark", reason="pyspark is in the extra `bench`")
pytest.importorskip("matplotlib", reason="matplotlib is in the extra `bench`")

import pyarrow as pa
from pyarrow import parquet

import bench.__main__ as command
from bench import analyse
from bench.analysis import AnalysisError
from bench.analysis.java import find_java
from bench.facts import Facts, write_facts
from bench.schema import Row, RowWriter, arrow_schema

# The first test waits for the JVM and the whole analysis: half a minute, more on a busy machine.
pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

T0 = 1_790_000_000_000_000
LCR = {"layout": "3", "scenario": "reconnect", "phase": "load", "registry": "lcr"}
LEGACY = {**LCR, "registry": "legacy"}
CONNECT = {"op": "connect", "role": "all"}


def row(at_us: int, duration_us: int, outcome: str = "ok", **changes: Any) -> Row:
    values: dict[str, Any] = {
        **LCR, "run": "r1", "node": "n1", "role": "leader", "op": "connect", "client": "c1",
        "attempt": 1, "start_us": T0 + at_us, "duration_us": duration_us, "outcome": outcome,
    }  # fmt: skip
    return Row(**{**values, **changes})


def lcr_connects() -> Iterator[Row]:
    """Four ok, one refused, one timeout in 4 s; answered in 1, 2, 3, 4 and 10 ms."""
    right: dict[str, Any] = {"session_present": True, "expected_present": True}
    yield row(0, 1_000, **right)
    yield row(500_000, 2_000, session_present=False, expected_present=False)
    yield row(1_000_000, 3_000, attempt=2, **right)
    yield row(1_500_000, 4_000, "outdated_early")
    follower = {"node": "n2", "role": "follower"}
    yield row(2_000_000, 1_000_000, "timeout", attempt=3, **follower)
    yield row(3_990_000, 10_000, **follower, **right)


def legacy_connects() -> Iterator[Row]:
    """Four ok in 2 s, in 2, 4, 6 and 8 ms; one of three checked flags is wrong."""
    for at_us, duration_us, present, expected in (
        (10_000_000, 2_000, True, True),
        (10_500_000, 4_000, False, True),
        (11_000_000, 6_000, False, False),
        (11_992_000, 8_000, True, None),
    ):
        flags: dict[str, Any] = {"session_present": present, "expected_present": expected}
        yield row(at_us, duration_us, registry="legacy", **flags)


def audits() -> Iterator[Row]:
    found = {"lcr": ["ok", "ok"]}
    found["legacy"] = ["ok", "duplicate_session", "wrong_owner", "error:stopped"]
    for registry, outcomes in found.items():
        for n, outcome in enumerate(outcomes):
            yield row(20_000_000 + n, 90, outcome, op="audit", phase="audit", registry=registry)


def puts() -> Iterator[Row]:
    """1 core: 2 in 1 s. 3 cores: 2 in 2 s; with 16 in flight two runs, 2 in 1 s and 2 in 3 s."""
    put = {"op": "put", "scenario": "puts", "registry": "none", "phase": "c1"}
    yield row(0, 500, **{**put, "layout": "1"})
    yield row(998_500, 1_500, **{**put, "layout": "1"})
    yield row(0, 2_000, **put)
    yield row(1_998_000, 2_000, **put)
    for run, window_us in (("r1", 1_000_000), ("r2", 3_000_000)):
        far = 0 if run == "r1" else 86_400_000_000
        yield row(far, 4_000, **{**put, "run": run, "phase": "c16"})
        yield row(far + window_us - 4_000, 4_000, **{**put, "run": run, "phase": "c16"})


def gets() -> Iterator[Row]:
    """Linearizable: 2 in 2 s, in 1 and 3 ms. Local: 3 in 1 s. Mixed: 2 gets in 1 s, 1 put."""
    get = {"op": "get", "scenario": "gets", "registry": "none", "phase": "c1", "role": "replicant"}
    linearizable = {**get, "consistency": "linearizable"}
    yield row(0, 1_000, **linearizable)
    yield row(1_997_000, 3_000, **linearizable)
    for at_us in (0, 500_000, 999_000):
        yield row(at_us, 1_000, **get, consistency="local")
    mixed: dict[str, Any] = {**linearizable, "scenario": "mixed", "role": "http_follower"}
    yield row(0, 1_000, **mixed)
    yield row(999_000, 1_000, **mixed)
    yield row(0, 4_000, **{**mixed, "op": "put", "consistency": None})


ON: dict[str, Any] = {"layout": "3+3", "registry": "session-on", "role": "replicant"}
KILLED_US = 40_000_000


def sessions() -> Iterator[Row]:
    """Reconnections: 5 answered, one of them refused, one in the warm-up. One audit."""
    right: dict[str, Any] = {**ON, "session_present": True, "expected_present": True}
    yield row(30_000_000, 1_000, **{**right, "phase": "warmup"})
    yield row(31_000_000, 2_000, **right)
    yield row(31_500_000, 4_000, **right)
    yield row(31_998_000, 2_000, **right)
    yield row(31_600_000, 3_000, "outdated_late", **ON)
    yield row(33_000_000, 90, **{**ON, "op": "audit", "phase": "audit"})


def lagging() -> Iterator[Row]:
    """The registry off: 500 ms in the replicant that lags, 2 ms in another."""
    off = {"layout": "3+3", "registry": "session-off", "scenario": "lagging"}
    yield row(35_000_000, 500_000, **off, role="lagging", node="r1")
    yield row(35_100_000, 2_000, **off, role="replicant", node="r2")


def leader_dies() -> Iterator[Row]:
    """Two ok before the kill, one over it, two after it; one failed. Ends: see the durations."""
    dying = {**ON, "scenario": "leader_dies"}
    for at_us, duration_us, outcome in (
        (39_000_000, 10_000, "ok"),
        (39_989_000, 10_000, "ok"),
        (39_995_000, 60_000, "ok"),
        (40_010_000, 190_000, "ok"),
        (40_020_000, 300_000, "no_leader"),
        (41_500_000, 10_000, "ok"),
    ):
        yield row(at_us, duration_us, outcome, **dying)


def facts(**changes: Any) -> Facts:
    values: dict[str, Any] = {
        "run": "r1", "layout": "3+3", "scenario": "reconnect", "registry": "session-on",
        "clients": 3, "began_us": T0 + 30_000_000, "elapsed_s": 2.0, "switch_s": 0.25,
        "entries": 10, "commands": 20, "raft_messages": 30, "feed_messages": 15,
        "call_messages": 5, "sent_bytes": 500, "idle_messages_per_s": 5.0, "hollow": 0,
    }  # fmt: skip
    return Facts(**{**values, **changes})


FACTS = (
    facts(),
    facts(
        scenario="leader_dies", killed="c1", killed_us=T0 + KILLED_US, raft_messages=None,
        feed_messages=None, call_messages=None, sent_bytes=None, handovers_lost=2,
    ),
    facts(run="a run whose rows were lost"),
)  # fmt: skip

OLD_PUTS = [row(0, 2_000, op="put", scenario="puts", registry="none", phase="c64", layout="5")]
"""In a file of the time before gets, which has no column `consistency`."""

GOOD_ROWS = [
    *(*lcr_connects(), *legacy_connects(), *audits(), *puts(), *gets()),
    *(*sessions(), *lagging(), *leader_dies()),
]

BAD_ROWS: dict[str, dict[str, Any]] = {
    "run is missing": {"run": None},
    "duration_us is negative": {"duration_us": -1},
    "unknown layout": {"layout": "7"},
    "unknown phase": {"phase": "c0"},
    "unknown outcome": {"outcome": "error:"},
    "attempt is below 1; unknown role": {"attempt": 0, "role": "observer"},
    "unknown consistency": {"op": "get", "consistency": "eventual"},
    "a get without consistency": {"op": "get"},
}


def write_bad_rows(path: Path) -> None:
    good = {name: getattr(row(0, 1), name) for name in arrow_schema().names}
    nullable = pa.schema([pa.field(f.name, f.type) for f in arrow_schema()])
    rows = [{**good, **changes} for changes in BAD_ROWS.values()]
    parquet.write_table(pa.Table.from_pylist(rows, schema=nullable), path)


def write_old_file(path: Path) -> None:
    schema = pa.schema([field for field in arrow_schema() if field.name != "consistency"])
    rows = [{name: getattr(one, name) for name in schema.names} for one in OLD_PUTS]
    parquet.write_table(pa.Table.from_pylist(rows, schema=schema), path)


def write_damaged_files(log: Path, sound: Path) -> None:
    (log / "garbage.parquet").write_bytes(b"this is no Parquet file")
    data = sound.read_bytes()
    (log / "short.parquet").write_bytes(data[: len(data) // 2])
    flipped = bytearray(data)
    flipped[100] ^= 0xFF  # inside the first column's pages: the footer still reads well
    (log / "flipped.parquet").write_bytes(flipped)
    less = parquet.read_table(sound).drop_columns(["outcome"])
    parquet.write_table(less, log / "columns.parquet")


def benchmark_json() -> dict[str, Any]:
    times = ("min", "max", "mean", "median", "stddev", "q1", "q3", "iqr")
    stats = {**dict.fromkeys(times, 0.00025), "ops": 4000.0, "rounds": 9, "iterations": 2}
    one = {
        "group": "wal", "name": "test_append", "fullname": "bench/test_wal.py::test_append",
        "extra_info": {"entries": 10}, "stats": stats, "params": None,
    }  # fmt: skip
    return {"machine_info": {}, "datetime": "2026-11-21T10:00:00", "benchmarks": [one]}


@pytest.fixture(scope="session")
def java() -> None:
    try:
        find_java()
    except AnalysisError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def analysed(java: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("a run [1], with blanks*")
    with RowWriter(directory, "r1", "n1") as writer:
        for one in GOOD_ROWS:
            writer.add(one)
    write_old_file(directory / "log" / "old.parquet")
    write_damaged_files(directory / "log", directory / "log" / "r1-n1-0.parquet")
    write_bad_rows(directory / "log" / "bad-rows.parquet")
    for one_load in FACTS:
        write_facts(directory, one_load)
    (directory / "loads" / "broken-load.json").write_text('{"run": "r1"}')
    (directory / "benchmark").mkdir()
    (directory / "benchmark" / "parts.json").write_text(json.dumps(benchmark_json()))
    (directory / "benchmark" / "broken.json").write_text('{"benchmarks": [')
    conditions = {"cores": 2, "fsync": True, "arguments": {"clients": 5, "note": "<script>"}}
    (directory / "conditions.json").write_text(json.dumps(conditions))
    assert command.main(["analyse", str(directory)]) == 0
    return directory


def table(directory: Path, name: str, **where: object) -> list[dict[str, Any]]:
    rows = parquet.read_table(directory / "tables" / name).to_pylist()
    return [one for one in rows if all(one[key] == value for key, value in where.items())]


def only(directory: Path, name: str, **where: object) -> dict[str, Any]:
    (found,) = table(directory, name, **where)
    return found


class TestFigures:
    def test_counts_and_throughput(self, analysed: Path) -> None:
        found = only(analysed, "operations", **LCR, **CONNECT)
        counts = ("count", "ok", "refused", "error", "wrong", "retried", "attempt_max", "nodes")
        assert [found[key] for key in counts] == [6, 4, 1, 1, 0, 2, 3, 2]
        assert found["window_s"] == pytest.approx(4.0)
        assert found["throughput_per_s"] == pytest.approx(4 / 4.0)
        assert found["answered_per_s"] == pytest.approx(5 / 4.0)
        assert found["refused_share"] == pytest.approx(1 / 6)

    def test_exact_percentiles_of_answered_operations(self, analysed: Path) -> None:
        # 1, 2, 3, 4, 10 ms: rank 0.95 * 4 = 3.8 lies between 4 and 10; the timeout is not in it.
        found = only(analysed, "operations", **LCR, **CONNECT)
        assert found["p50_ms"] == pytest.approx(3.0)
        assert found["p95_ms"] == pytest.approx(4 + 0.8 * 6)
        assert found["p99_ms"] == pytest.approx(4 + 0.96 * 6)
        assert found["max_ms"] == pytest.approx(10.0)

    def test_each_role_by_itself(self, analysed: Path) -> None:
        leader = only(analysed, "operations", **LCR, op="connect", role="leader")
        assert (leader["count"], leader["ok"], leader["error"]) == (4, 3, 0)
        assert leader["throughput_per_s"] == pytest.approx(3 / 1.504)
        follower = only(analysed, "operations", **LCR, op="connect", role="follower")
        assert (follower["count"], follower["ok"], follower["error"]) == (2, 1, 1)

    def test_errors_by_kind(self, analysed: Path) -> None:
        kinds = {
            (one["class"], one["outcome"]): one["count"]
            for one in table(analysed, "outcomes", **LCR, **CONNECT)
        }
        assert kinds == {
            ("ok", "ok"): 4,
            ("refused", "outdated_early"): 1,
            ("error", "timeout"): 1,
        }
        assert {one["outcome"]: one["count"] for one in table(analysed, "error_totals")} == {
            "error:stopped": 1,
            "no_leader": 1,
            "timeout": 1,
        }

    def test_throughput_over_time_with_its_gap_filled(self, analysed: Path) -> None:
        # Ends: 0.001 0.502 | 1.003 1.504 (refused) | nothing | 3.0 (timeout) | 4.0, a second
        # that the phase only touches.
        found = [
            (one["second"], one["count"], one["ok"], one["error"], one["whole"])
            for one in table(analysed, "over_time", **LCR, **CONNECT)
        ]
        assert found == [
            (0, 2, 2, 0, True),
            (1, 2, 1, 0, True),
            (2, 0, 0, 0, True),
            (3, 1, 0, 1, True),
            (4, 1, 1, 0, False),
        ]

    def test_longest_gap(self, analysed: Path) -> None:
        # From the third ok connect (1.003 s) to the fourth (4.0 s).
        found = only(analysed, "gaps", **LCR, **CONNECT)
        assert found["gap_max_ms"] == pytest.approx(2997.0)

    def test_anomalies_and_what_was_checked(self, analysed: Path) -> None:
        flags = {"kind": "wrong_session_present", "role": "all"}
        legacy = only(analysed, "anomalies", **LEGACY, **flags)
        assert (legacy["anomalies"], legacy["checked"]) == (1, 3)
        right = only(analysed, "anomalies", **LCR, **flags)
        assert (right["anomalies"], right["checked"]) == (0, 4)
        audit = {**LEGACY, "phase": "audit", "role": "all"}
        kinds = {
            one["kind"]: (one["anomalies"], one["checked"])
            for one in table(analysed, "anomalies", **audit)
        }
        assert kinds == {
            "duplicate_session": (1, 3),
            "lost_registration": (0, 3),
            "wrong_owner": (1, 3),
            "leaked_registration": (0, 3),
        }

    def test_verdicts(self, analysed: Path) -> None:
        whole = {"layout": "all", "scenario": "all"}
        lcr = only(analysed, "verdicts", registry="lcr", **whole)
        keys = ("anomalies", "connects_checked", "audits_checked")
        assert [lcr[key] for key in keys] == [0, 4, 2]
        legacy = only(analysed, "verdicts", registry="legacy", **whole)
        assert [legacy[key] for key in keys] == [3, 3, 3]
        assert legacy["audits_wrong"] == 2
        assert legacy["connects_wrong_share"] == pytest.approx(1 / 3)
        assert legacy["audits_wrong_share"] == pytest.approx(2 / 3)

    def test_registry_on_against_off(self, analysed: Path) -> None:
        group = {key: value for key, value in LCR.items() if key != "registry"}
        found = only(analysed, "registry_ratios", **group, **CONNECT)
        assert found["throughput_ratio"] == pytest.approx(1.0 / 2.0)
        assert found["p50_ratio"] == pytest.approx(3.0 / 5.0)
        assert found["p99_ratio"] == pytest.approx((4 + 0.96 * 6) / (6 + 0.97 * 2))

    def test_layouts_against_each_other(self, analysed: Path) -> None:
        found = only(analysed, "layout_ratios", op="put", phase="c1")
        assert (found["layout"], found["base"]) == ("3", "1")
        assert found["throughput_ratio"] == pytest.approx(1.0 / 2.0)
        assert found["p50_ratio"] == pytest.approx(2.0 / 1.0)

    def test_puts_by_caller_and_concurrency_over_two_runs(self, analysed: Path) -> None:
        found = {
            (one["layout"], one["role"], one["in_flight"]): one["throughput_per_s"]
            for one in table(analysed, "puts")
        }
        # Windows of 1 s and 3 s are added; the day between the runs is not.
        assert found == {
            ("1", "leader", 1): pytest.approx(2.0),
            ("3", "leader", 1): pytest.approx(1.0),
            ("3", "leader", 16): pytest.approx(4 / 4.0),
            ("5", "leader", 64): pytest.approx(1 / 0.002),
        }

    def test_gets_by_consistency_and_caller(self, analysed: Path) -> None:
        found = {one["consistency"]: one for one in table(analysed, "gets")}
        assert {one["role"] for one in found.values()} == {"replicant"}
        assert found["linearizable"]["throughput_per_s"] == pytest.approx(2 / 2.0)
        assert found["linearizable"]["p50_ms"] == pytest.approx(2.0)
        assert found["local"]["throughput_per_s"] == pytest.approx(3 / 1.0)

    def test_a_mix_by_operation(self, analysed: Path) -> None:
        found = {(one["role"], one["op"]): one for one in table(analysed, "mixed")}
        assert set(found) == {("http_follower", "get"), ("http_follower", "put")}
        assert found["http_follower", "get"]["throughput_per_s"] == pytest.approx(2 / 1.0)
        assert found["http_follower", "put"]["p50_ms"] == pytest.approx(4.0)

    def test_files_of_pytest_benchmark(self, analysed: Path) -> None:
        found = only(analysed, "benchmarks")
        assert (found["group"], found["name"], found["rounds"]) == ("wal", "test_append", 9)
        assert found["median_us"] == pytest.approx(250.0)
        assert dict(found["extra_info"]) == {"entries": "10"}


RECONNECT = {"layout": "3+3", "scenario": "reconnect", "registry": "session-on"}


class TestSessions:
    def test_costs_are_divided_by_every_answered_connect(self, analysed: Path) -> None:
        found = only(analysed, "costs", **RECONNECT)
        # Five answered connects: the one that was refused cost entries, too.
        assert found["connects"] == 5
        figures = ("entries", "commands", "messages", "raft", "feed", "call", "idle", "bytes")
        assert [found[f"{name}_per_connect"] for name in figures] == [
            pytest.approx(value) for value in (2, 4, 10, 6, 3, 1, 2, 100)
        ]

    def test_messages_that_nobody_counted_have_no_figure(self, analysed: Path) -> None:
        found = only(analysed, "costs", scenario="leader_dies")
        assert found["entries_per_connect"] == pytest.approx(10 / 5)
        assert (found["messages_per_connect"], found["idle_per_connect"]) == (None, None)
        assert found["handovers_lost"] == 2

    def test_a_mode_in_one_line(self, analysed: Path) -> None:
        found = only(analysed, "sessions", **RECONNECT)
        # Under load from 31.0 to 32.0 s; 2, 2, 3 and 4 ms.
        assert (found["count"], found["ok"], found["refused"]) == (4, 3, 1)
        assert found["throughput_per_s"] == pytest.approx(3 / 1.0)
        assert found["p50_ms"] == pytest.approx(2.5)
        assert (found["anomalies"], found["connects_checked"], found["audits_checked"]) == (0, 4, 1)
        assert found["messages_per_connect"] == pytest.approx(10)
        lagging = only(analysed, "sessions", scenario="lagging")
        assert (lagging["throughput_per_s"], lagging["entries_per_connect"]) == (
            pytest.approx(2 / 0.5),
            None,
        )

    def test_the_outage_as_clients_saw_it(self, analysed: Path) -> None:
        found = only(analysed, "outages")
        assert (found["registry"], found["killed"]) == ("session-on", "c1")
        # Ends of ok connects: 39.01, 39.999 | 40.055 (under way at the kill), 40.2, 41.51.
        assert found["gap_ms"] == pytest.approx(1310)
        assert found["first_ms"] == pytest.approx(200)
        assert found["slowest_ms"] == pytest.approx(190)
        assert (found["errors"], found["wrong_flags"]) == (1, 0)
        assert found["before_per_s"] == pytest.approx(2 / 1.0)
        assert found["after_per_s"] == pytest.approx(1 / 0.51)

    def test_tenths_of_a_second_around_the_kill(self, analysed: Path) -> None:
        rows = table(analysed, "around_death")
        assert [one["at_ms"] for one in rows] == list(range(-1000, 1500, 100))
        assert {one["at_ms"]: one["ok"] for one in rows if one["ok"]} == {
            -1000: 1, -100: 1, 0: 1, 200: 1,
        }  # fmt: skip
        assert {one["at_ms"] for one in rows if one["error"]} == {300}


class TestSetAside:
    def test_rows_with_every_reason(self, analysed: Path) -> None:
        rows = table(analysed, "rejected", scope="row")
        assert sorted(one["reason"] for one in rows) == sorted(BAD_ROWS)
        assert {one["file"] for one in rows} == {"bad-rows.parquet"}
        (negative,) = (one for one in rows if one["reason"] == "duration_us is negative")
        assert (negative["duration_us"], negative["node"]) == (-1, "n1")

    def test_files_with_their_reasons(self, analysed: Path) -> None:
        files = {
            one["file"]: one["reason"].split(":")[0]
            for one in table(analysed, "rejected", scope="file")
        }
        assert files == {
            "garbage.parquet": "unreadable",
            "short.parquet": "unreadable",
            "flipped.parquet": "unreadable",
            "columns.parquet": "wrong schema",
            "broken.json": "unreadable",
            "broken-load.json": "unreadable",
        }

    def test_they_are_counted(self, analysed: Path) -> None:
        counts = json.loads((analysed / "summary.json").read_text())["input"]
        accepted = len(GOOD_ROWS) + len(OLD_PUTS)
        assert counts["rows"] == accepted + len(BAD_ROWS)
        assert counts["rows_accepted"] == accepted
        assert counts["rows_rejected"] == len(BAD_ROWS)
        assert (counts["files"], counts["files_damaged"]) == (13, 6)
        assert counts["runs"] == ["r1", "r2"]


class TestSummary:
    def test_its_keys(self, analysed: Path) -> None:
        summary = json.loads((analysed / "summary.json").read_text())
        assert list(summary) == [
            "format", "conditions", "input", "operations", "outcomes", "error_totals", "gaps",
            "anomalies", "verdicts", "registry_ratios", "layout_ratios", "puts", "gets", "mixed",
            "costs", "outages", "around_death", "sessions", "cluster_calls", "cluster_call_roles",
            "cluster_call_outcomes", "cluster_call_verdicts", "cluster_call_outages",
            "cluster_call_death", "limbo", "limbo_outcomes", "limbo_verdicts", "txqueue",
            "txqueue_outcomes", "txqueue_verdicts", "subscriptions", "subscription_verdicts",
            "benchmarks", "tables",
        ]  # fmt: skip
        assert summary["format"] == 1
        assert summary["conditions"]["cores"] == 2
        for path in summary["tables"].values():
            assert list((analysed / path).glob("*.parquet")), path

    def test_it_holds_the_tables(self, analysed: Path) -> None:
        summary = json.loads((analysed / "summary.json").read_text())
        for name in ("operations", "verdicts", "puts", "gets", "mixed", "sessions", "outages"):
            assert summary[name] == table(analysed, name), name


class Page(HTMLParser):
    """Collects what a browser would load, and the text that a reader would see."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.tags: set[str] = set()
        self.ids: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            if name.split(":")[-1] in {"src", "href", "srcset", "data", "action", "poster"}:
                self.loads.append(value or "")
            if name == "id" and value is not None:
                self.ids.append(value)

    def handle_data(self, data: str) -> None:
        self.words.append(data)


@pytest.fixture(scope="module")
def text(analysed: Path) -> str:
    return (analysed / "report" / "index.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page(text: str) -> Page:
    return Page(text)


class TestReport:
    def test_it_loads_nothing(self, text: str, page: Page) -> None:
        assert [load for load in page.loads if not load.startswith("#")] == []
        assert not page.tags & {"script", "link", "iframe", "object", "embed", "img", "base"}
        assert re.findall(r"@import|url\((?!#)|//[a-z]", text) == []

    def test_references_inside_the_page_are_unique_and_lead_somewhere(self, page: Page) -> None:
        assert len(page.ids) == len(set(page.ids))
        assert {load[1:] for load in page.loads} <= set(page.ids)

    def test_it_has_its_pictures(self, page: Page) -> None:
        assert "svg" in page.tags
        prefixes = {name.split("-")[0] for name in page.ids}
        assert prefixes == {
            *("anomalies", "throughput", "latency", "time", "puts", "gets"),
            *("sessions", "costs", "death"),
        }

    def test_it_says_in_words_what_came_out(self, page: Page) -> None:
        words = " ".join("".join(page.words).split())
        sentences = """
            With the registry on (LCR) there was no wrong answer in 4 checked connects and 2
            audited client ids.

            With the legacy registry 3 answers were wrong in 3 checked connects and 3 audited
            client ids: 1 wrong session-present flag, 1 duplicate session and 1 wrong owner
            (33.3 % of the connects and 66.7 % of the client ids).

            On 3 cores LCR settled 0.500 times as many reconnections per second as legacy (1.00/s
            against 2.00/s, median 3.00 ms against 5.00 ms, 16.7 % of the connects refused by LCR
            as lost races).

            Operations without an answer: 1 error:stopped, 1 no_leader and 1 timeout.

            8 rows and 6 files were set aside

            With sessions and the registry on there was no wrong answer in 4 checked connects and 1
            audited client ids.

            Reconnections: on 3.00/s (median 2.50 ms, 99th percentile 3.97 ms; for each connect
            2.00 entries of the log with 4.00 commands, 10.0 messages; 25.0 % refused as lost
            races).

            Off: in the replicant that lags a connect took 500 ms (median; 99th percentile
            500 ms), in the others 2.00 ms (2.00 ms).

            On: c1 was killed. No connect was answered ok for 1.31 s; the first one that began
            afterwards had its answer 200 ms after the kill, the slowest took 190 ms. 1 connect
            failed (in the whole load 1 no_leader). 2.00/s before, 1.96/s from a second after it on.

            This run left out: initial connections and all clients with the same client id.

            2 CPU cores shared by all nodes and clients, fsync before acknowledging, 5 clients for
            each driver.
        """
        for sentence in sentences.split("\n\n"):
            assert " ".join(sentence.split()) in words

    def test_what_comes_from_data_is_escaped(self, text: str) -> None:
        assert "&lt;script&gt;" in text


def test_a_wrong_answer_of_lcr_is_called_a_fault(analysed: Path) -> None:
    from bench.analysis.figures import Figures
    from bench.analysis.words import lead

    rows = table(analysed, "verdicts", registry="legacy", layout="all", scenario="all")
    (finding,) = lead(Figures({}, {}, {"verdicts": [{**rows[0], "registry": "lcr"}]}))
    assert finding.tone == "bad"
    assert "There must be none" in finding.text


def test_a_log_without_one_good_row(
    java: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "log").mkdir()
    write_bad_rows(tmp_path / "log" / "bad-rows.parquet")
    (tmp_path / "log" / "garbage.parquet").write_bytes(b"this is no Parquet file")
    assert analyse.main([str(tmp_path)]) == 2
    message = last_line(capsys)
    assert "1 damaged files and 8 rows were set aside" in message
    assert len(table(tmp_path, "rejected")) == 9
    assert not (tmp_path / "summary.json").exists()


def last_line(capsys: pytest.CaptureFixture[str]) -> str:
    """The message of the command: one line, and no traceback before it."""
    text = capsys.readouterr().err
    assert "Traceback" not in text
    (line,) = (one for one in text.splitlines() if one.startswith("bench analyse: "))
    return line
