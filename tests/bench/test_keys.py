"""The benchmark of a large keyspace, with a small one."""

from __future__ import annotations

import json

import pytest

from bench import keys
from bench.keys import main
from bench.keys_report import Report, Round, Turn, level_of, median_between
from bench.peers import debian

SMALL = ["--keys", "2000", "--watchers", "50", "--rounds", "1", "--seconds", "0.2"]
SMALL += ["--layout", "1", "--settle-s", "0", "--warm-s", "0.2", "--in-flight", "4", "16"]


@pytest.mark.cluster
def test_it_measures_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "--through", "inside", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["keys"] == 2000
    assert found["snapshot_bytes"] > 2000 * 100
    for name in ("load_s", "snapshot_s", "restart_one_s", "restart_all_s", "rss_bytes"):
        assert found[name] > 0, name
    assert [level["in_flight"] for level in found["levels"]] == [4, 16]
    for level in found["levels"]:
        assert level["puts_per_s"]["median"] > 0
        assert level["put_cpu_us"] > 0
        assert level["gets_ratio"]["lowest"] == level["gets_ratio"]["highest"]


@pytest.mark.cluster
def test_callers_at_the_door(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        debian.find("wrk")
    except debian.Missing as missing:
        pytest.skip(str(missing))
    assert main([*SMALL, "--through", "door", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(level["in_flight"], level["through"]) for level in found["levels"]] == [
        (4, "door"),
        (16, "door"),
    ]
    for level in found["levels"]:
        assert level["puts_per_s"]["median"] > 0
        assert level["put_cpu_us"] > 0
        assert level["put_p99_ms"]["median"] > 0
        assert level["client_cpu"] > 0


def test_without_wrk_the_door_is_left_out_and_that_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(name: str) -> debian.Program:
        raise debian.Missing(f"there is no {name} here")

    monkeypatch.setattr(keys.debian, "find", missing)
    assert keys._given([])[0].through == ["inside"]
    assert "the door are left out: there is no wrk here" in capsys.readouterr().err
    assert keys._given(["--order", "zipf"])[0].through == ["inside"]
    assert capsys.readouterr().err == ""
    with pytest.raises(SystemExit):
        keys._given(["--order", "zipf", "--through", "door"])
    assert "in the order uniform, not zipf" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        keys._given(["--through", "inside", "door"])
    assert "nobody can call at the door: there is no wrk here" in capsys.readouterr().err
    assert keys._given(["--through", "inside", "inside"])[0].through == ["inside"]


def turn(done: int, seconds: float = 1.0, snapshots: int = 0) -> Turn:
    return Turn(done=done, seconds=seconds, p99_ms=1, snapshots=snapshots, cpu_s=0.5)


def test_what_the_rounds_say_together() -> None:
    puts = [
        Round(turn(100), turn(90)),
        Round(turn(200), turn(160)),
        # A snapshot took three seconds, in which the small cluster would have put 300.
        Round(turn(100), turn(150, seconds=3.0, snapshots=1)),
    ]
    level = level_of(16, "inside", puts, puts[:1])
    assert level.puts_ratio.median == pytest.approx(0.8)
    assert level.puts_ratio_quiet is not None
    assert level.puts_ratio_quiet.median == pytest.approx(0.85)
    assert level.puts_ratio_in_all == pytest.approx((90 + 160 + 150) / (100 + 200 + 300))
    assert level.rounds_with_snapshot == 1
    assert level.put_cpu_us == pytest.approx(1.5 / 400 * 1e6)
    assert level.gets_ratio.median == pytest.approx(0.9)


def test_where_the_true_median_lies() -> None:
    assert median_between([3.0, 1.0, 2.0]) == (1.0, 3.0)
    # Of 25 tossed coins 8 to 17 fall on one side, but for 4 times in 100.
    assert median_between([float(n) for n in range(25)]) == (7.0, 17.0)
    assert median_between([1.0]) == (1.0, 1.0)


def report(ratio: float, restart_s: float) -> Report:
    each = Round(turn(1000), turn(int(1000 * ratio)))
    return Report(
        keys=1, value_bytes=1, watchers=1, load_s=1, loaded_per_s=1, bytes_per_key=1,
        bytes_per_watcher=1, rss_bytes=1, levels=[level_of(16, "door", [each], [each])],
        snapshot_s=1, snapshot_bytes=1, restart_one_s=restart_s, restart_all_s=1, conditions={},
    )  # fmt: skip


def test_aims_that_were_missed_are_named() -> None:
    assert report(0.91, 9.9).missed == []
    assert len(report(0.89, 10.1).missed) == 2
