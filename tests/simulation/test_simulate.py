"""`python -m raftkv.testing.simulate`, and what seeds, replays and the harsh mode promise."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from raftkv.testing.marks import EXPECTED, EXPECTED_HARSH, Marks
from raftkv.testing.nemesis import OPERATIONS
from raftkv.testing.replay import Replay
from raftkv.testing.scenario import Result, draw, run_seed
from raftkv.testing.simulate import Totals, main
from raftkv.testing.simulated import SafetyViolation, SimulatedCluster

SHORT = ["--seconds", "3", "--jobs", "2"]


def test_clean_seeds_end_with_exit_code_0_and_a_summary(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "40:43", *SHORT]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("3 seeds, 0 violations, ")
    assert re.search(r"\d+ simulated s at [\d.]+ per real s and job", last)
    assert re.search(r"\(3 cores at 200 operations/s on their own: [\d.]+\)", last)
    assert "faults: " in last
    assert re.search(r"; marks, and in how many seeds: .*leader elected \d+ in \d", last)


def test_a_violation_is_told_with_the_way_to_replay_it(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "0:1", "--bug", "no-fsync", *SHORT]) == 1
    out, err = capfd.readouterr()
    assert out.splitlines()[-1].startswith("1 seed, 1 violation, ")
    assert "promise on disk" in err
    assert "again: tools/simulate --replay 0 --seconds 3 --bug no-fsync" in err


def test_a_replay_shows_a_line_per_event(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--replay", "3", *SHORT]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("seed 3: ")
    head = next(line for line in lines if line.split()[:2] == ["time", "s"])
    assert "core1" in head
    events = [line for line in lines if re.match(r" *\d+\.\d{6}  ", line)]
    assert any("leader in term 2" in line and "▲ 2" in line for line in events)
    assert lines[-1].startswith("1 seed, 0 violations")


def test_a_replay_takes_the_same_steps_as_the_run() -> None:
    shows: list[Replay] = []

    def prepare(cluster: SimulatedCluster) -> None:
        shows.append(Replay(cluster, lambda line: None).__enter__())

    plain = run_seed(3, seconds=3)
    shown = run_seed(3, seconds=3, deliveries=True, prepare=prepare)
    for show in shows:
        show.__exit__(None, None, None)
    assert plain.fingerprint
    assert plain.fingerprint == shown.fingerprint
    assert plain.marks == shown.marks


@pytest.mark.parametrize("seed", [1, 3])
def test_single_messages_may_be_lost_doubled_and_reordered(seed: int) -> None:
    result = run_seed(seed, seconds=6, messages=True, cores=3)
    assert not result.check, result.message
    assert min(result.faults[f"message {fate}"] for fate in ("lost", "doubled", "held")) > 5
    assert result.marks["harsh: consensus"] > 100


def test_a_full_harsh_run_names_the_kinds_of_messages_that_met_nothing() -> None:
    totals = Totals(harsh=True)
    for seed in range(500):
        hit = EXPECTED_HARSH if seed < 4 else EXPECTED_HARSH[1:] if seed == 4 else ()
        totals.add(Result(seed, marks=Counter(hit)))
        assert not totals.uncovered() or totals.seeds == 500
    assert totals.uncovered().endswith(f": {EXPECTED_HARSH[0]} 4")
    assert EXPECTED_HARSH[1] not in totals.summary().rpartition("never seen: ")[2]


def test_a_flipped_bit_stops_the_node_and_nothing_is_lost() -> None:
    with SimulatedCluster(seed=2, cores=3, rate_per_s=60, deliveries=False) as cluster:
        cluster.storm(10, {"flip_bit": 1.0, **OPERATIONS}, duration_s=(0.2, 0.6))
        assert cluster.nemesis is not None
        assert cluster.nemesis.counts["flip_bit"] > 1
        assert cluster.nemesis.counts["stop"] > 1
        assert cluster.marks.counts["damage noticed"] >= cluster.nemesis.counts["flip_bit"] - 1
        cluster.settle()
        assert len(cluster.acknowledged) > 200


def test_a_violation_keeps_its_first_name_even_if_the_code_under_test_swallows_it() -> None:
    with SimulatedCluster(seed=1, rate_per_s=20, deliveries=False) as cluster:
        with pytest.raises(SafetyViolation, match="a check: what was seen"):
            cluster.violated("a check", "what was seen")
        with pytest.raises(SafetyViolation) as again:
            cluster.run(1)
        assert again.value.check == "a check"


def test_a_stale_answer_is_seen_by_revision() -> None:
    with SimulatedCluster(seed=1, rate_per_s=20, deliveries=False) as cluster:
        cluster.run(0.5)
        load = cluster.load
        newest = load.done_revision
        with pytest.raises(SafetyViolation, match="a read showed revision"):
            load._read_ended(newest, b"shared/0", newest - 1, ())
        with pytest.raises(SafetyViolation, match="a write got revision"):
            load._write_ended(newest, newest)


def test_every_seed_draws_a_scenario_of_its_own() -> None:
    drawn = [draw(seed) for seed in range(200)]
    assert {scenario.cores for scenario in drawn} == {1, 3, 5}
    assert {scenario.replicants for scenario in drawn} == {0, 1, 2}
    assert {"flip_bit", "fail_syncs", "stop"} <= {f for s in drawn for f in s.faults}
    assert draw(7) == draw(7)
    assert len({str(scenario) for scenario in drawn}) > 50


def test_marks_that_were_never_hit_are_named() -> None:
    marks = Marks()
    marks.hit(EXPECTED[0])
    assert Marks.missing(marks.counts) == list(EXPECTED[1:])
    with pytest.raises(AssertionError, match="no mark"):
        marks.hit("something else")


def test_a_full_run_names_the_marks_that_too_few_of_its_seeds_hit() -> None:
    totals = Totals()
    for seed in range(2_000):
        marks = Counter(dict.fromkeys(EXPECTED, 7) if seed < 20 else {EXPECTED[1]: 1})
        if seed < 19:
            marks["log compacted"] = 500
        elif seed == 19:
            del marks["log compacted"]
        totals.add(Result(seed, marks=marks))
        assert not totals.uncovered() or totals.seeds == 2_000
    assert totals.uncovered().endswith(": log compacted 19")
    assert f"{EXPECTED[1]} 2120 in 2000" in totals.summary()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--seeds", "5"], "is no range"),
        (["--seeds", "5:5"], "is no range"),
        (["--seeds", "5:"], "needs --minutes"),
        (["--jobs", "0"], "at least 1"),
        (["--seconds", "0"], "greater than 0"),
        (["--bug", "unheard-of"], "invalid choice"),
    ],
)
def test_a_wrong_call_is_told_why(
    arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert reason in capsys.readouterr().err


def test_the_time_limit_ends_an_open_range(capsys: pytest.CaptureFixture[str]) -> None:
    # From a seed on behind which some are cheap: one that is begun is also ended.
    assert main(["--seeds", "4:", "--minutes", "0.01", "--seconds", "1"]) == 0
    assert int(capsys.readouterr().out.splitlines()[-1].split()[0]) >= 1
