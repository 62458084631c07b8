"""Beside Tarantool: what is measured, how it is judged, and the cluster itself where it is had."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from bench.peers import debian, main
from bench.peers.beside_tarantool import (
    AGAINST,
    ALL,
    MOST,
    TARANTOOL,
    Plan,
    aim_of,
    over_network,
)
from bench.peers.figures import Aim, Comparison, Loss, Sample, lines
from bench.peers.report import show
from bench.peers.tarantool import MASTER, WITHOUT_ANSWER, Tarantool, TarantoolFailed

UP_S = 60.0
# How long a writer waits for its quorum: one that is to be confirmed, however busy the machine is;
# and one beside which a test waits for the roll back.
NEVER_S = 60.0
TIMEOUT_S = 5.0


# What is measured, and how it is judged -----------------------------------------------------------


def test_the_plan_counts_what_it_will_measure() -> None:
    # Two quorums of two sides inside, one of Tarantool's and both of raftkv's outside, with four
    # numbers of writers; two to warm up, four losses.
    assert Plan(rounds=1).steps == 2 + (4 + 3) * 4 + 4
    assert Plan(rounds=3, writers=[16], network=False, loss=False).steps == 2 + 3 * 4


def test_rates_are_held_against_the_stable_quorum_and_waits_always() -> None:
    assert aim_of(MOST, ALL, 16) == Aim(1.0, longest_ms=1000.0)
    assert aim_of(ALL, ALL, 64) == Aim(1.2, longest_ms=1000.0)
    assert aim_of(MOST, ALL, 256) == Aim(0.0, longest_ms=1000.0)
    assert aim_of(MOST, MOST, 64) == Aim(0.0, longest_ms=1000.0)
    outside = over_network(ALL)
    assert aim_of(outside, outside, 64) == Aim(0.0, longest_ms=1000.0)


def sample(side: str, load: str, per_s: float, longest_ms: float, **more: Any) -> Sample:
    values = {"in_flight": 16, "round": 0, "p50_ms": 1.0, "p99_ms": 2.0, **more}
    return Sample(load=load, side=side, per_s=per_s, longest_ms=longest_ms, **values)


SAMPLES = [
    sample("tarantool", ALL, 100.0, 4.0, answers={"confirmed": 100}),
    sample("tarantool", MOST, 10.0, 2001.5, failed=7, answers={"confirmed": 10, "rolled back": 7}),
    sample("raftkv", MOST, 110.0, 5.0, answers={"confirmed": 110}),
    sample("raftkv", ALL, 90.0, 6.0, answers={"confirmed": 90}),
]
LOSS = Loss(
    side="raftkv", quorum=ALL, writers=16, timeout_ms=2000.0, answers={"still pending": 16},
    shortest_ms=2000.1, longest_ms=2004.0, seen_meanwhile=0, settled={"confirmed": 16},
    settled_ms=812.0, there={"c1": 16, "c2": 16, "c3": 15},
)  # fmt: skip


def judged(samples: list[Sample]) -> dict[tuple[str, str], bool]:
    found = lines(samples, "tarantool", AGAINST, aim_of)
    return {(line.load, line.beside): line.met for line in found}


def test_a_row_is_met_or_missed_by_its_rate_and_by_who_waits_longest() -> None:
    assert judged(SAMPLES) == {(MOST, ALL): True, (MOST, ""): True, (ALL, ""): False}
    hung = [*SAMPLES, sample("raftkv", MOST, 500.0, 1000.0, round=1)]
    hung += [sample("tarantool", each, 1.0, 1.0, round=1) for each in (ALL, MOST)]
    # Whoever hangs in one round has missed it, however fast the others were.
    assert judged(hung) == {(MOST, ALL): False, (MOST, ""): False, (ALL, ""): False}


def test_table_and_notes_tell_what_was_met_what_hung_and_what_was_lost() -> None:
    found = Comparison(
        peer="tarantool", peer_version="2.6.0", conditions={"cores": 2},
        lines=lines(SAMPLES, "tarantool", AGAINST, aim_of), samples=SAMPLES, losses=[LOSS],
    )  # fmt: skip
    console = Console(width=180, record=True, file=io.StringIO())
    show(console, found)
    text = console.export_text()
    assert "1.00, 2.00, 2,002" in text
    assert "1, < 1,000 ms: met" in text
    assert "1, < 1,000 ms: missed" in text
    assert "16 still pending" in text
    assert "0 of 16" in text
    assert "16 confirmed, 812 ms after its return" in text
    assert "16 16 15" in text
    notes = "\n".join(TARANTOOL.notes(found))
    assert "Aims: 2 of 3 met." in notes
    assert (
        "tarantool, quorum 2 of 3: a writer waited 1 s or longer in 1 of 1 loads (longest 2,001.5 "
        "ms); 10 confirmed; 7 rolled back."
    ) in notes
    assert "raftkv, quorum 3 of 3: a writer waited 1 s or longer in 0 of 1 loads" in notes


# The cluster itself -------------------------------------------------------------------------------


@pytest.fixture
def installed() -> None:
    try:
        debian.find("tarantool")
    except debian.Missing as error:
        pytest.skip(str(error))


@pytest.fixture
def cluster(installed: None, tmp_path: Path) -> Iterator[Tarantool]:
    with Tarantool(tmp_path, quorum=3, timeout_s=TIMEOUT_S) as started:
        yield started


@pytest.mark.cluster
def test_writers_are_confirmed_by_all_three_and_nothing_outlives_the_context(
    installed: None, tmp_path: Path
) -> None:
    with Tarantool(tmp_path, quorum=3, timeout_s=NEVER_S) as tarantool:
        assert tarantool.version.startswith("2.")
        assert len(processes_of(tmp_path)) == 3
        found = tarantool.load(writers=5, seconds=0.2, keys=4, value_bytes=8)
        assert len(found.took_us) >= 5
        assert (found.refused_us, found.problems) == ([], {})
        assert found.late <= 5
        tarantool.settle()
        outside = tarantool.load_over_network(writers=5, seconds=0.2, keys=4, value_bytes=8)
        assert len(outside.took_us) >= 5
        assert (outside.refused_us, outside.problems) == ([], {})
        tarantool.settle()
        there = [tarantool.seen(n, writers=20, first=0, value="v" * 8) for n in (1, 2, 3)]
        assert there[0] >= 5
        assert there == [there[0]] * 3
    assert processes_of(tmp_path) == set()


@pytest.mark.cluster
def test_without_its_quorum_everything_is_rolled_back_after_the_time_out(
    cluster: Tarantool,
) -> None:
    keys: dict[str, Any] = {"writers": 4, "first": 1000, "value": "new"}
    cluster.kill(3)
    told = cluster.once(**keys)
    assert (told.confirmed, sum(told.problems.values())) == (0, 4)
    assert min(told.waits_us) >= TIMEOUT_S * 1e6
    # Readers of the master see what is rolled back later.
    assert (told.answered, told.seen_meanwhile, told.seen_after) == (0, 4, 0)
    cluster.revive(3)
    cluster.settle()
    assert [cluster.seen(number, **keys) for number in (1, 2, 3)] == [0, 0, 0]
    again = cluster.once(**keys)
    assert (again.confirmed, again.problems) == (4, {})


@pytest.mark.cluster
def test_a_writer_that_is_never_answered_is_given_up(
    installed: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a time-out of an hour whoever waits for the quorum is as good as never answered."""
    monkeypatch.setattr("bench.peers.tarantool.PATIENCE_TIMES", 1 / 7200)
    with Tarantool(tmp_path, quorum=3, timeout_s=3600) as tarantool:
        tarantool.kill(3)
        found = tarantool.load(writers=3, seconds=0.1, keys=4, value_bytes=8)
        assert (found.took_us, found.problems) == ([], {WITHOUT_ANSWER: 3})
        assert min(found.refused_us) >= 0.5e6
        outside = tarantool.load_over_network(writers=2, seconds=0.1, keys=4, value_bytes=8)
        assert (outside.took_us, outside.problems) == ([], {WITHOUT_ANSWER: 2})


@pytest.mark.cluster
def test_an_instance_that_is_gone_and_an_unknown_request_are_errors(cluster: Tarantool) -> None:
    with pytest.raises(TarantoolFailed, match="unknown request dance"):
        cluster._ask(MASTER, {"ask": "dance"}, Loss, 5.0)
    cluster._children._processes["m1"].kill()
    with pytest.raises(TarantoolFailed, match="tarantool, instance 1: "):
        cluster.load(writers=1, seconds=0.05, keys=1, value_bytes=8)


@pytest.mark.cluster
def test_a_cluster_that_cannot_start_says_why_and_leaves_nothing(
    installed: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "tarantool_node.lua"
    broken.write_text("print('no luck') os.exit(1)\n", encoding="utf-8")
    monkeypatch.setattr("bench.peers.tarantool.SOURCE", broken)
    made = Tarantool(tmp_path, quorum=3, timeout_s=TIMEOUT_S)
    with pytest.raises(TarantoolFailed, match=r"m[123] has ended. It wrote: no luck"), made:
        pass
    assert processes_of(tmp_path) == set()


@pytest.mark.cluster
def test_the_command_measures_both_in_turns(
    installed: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few = ["--writers", "6", "--seconds", "1", "--rounds", "1", "--timeout-s", str(TIMEOUT_S)]
    assert main(["tarantool", *few, "--json", "--dir", str(tmp_path)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["peer"] == "tarantool"
    assert {(each["side"], each["load"]) for each in found["samples"]} == {
        ("tarantool", ALL), ("tarantool", MOST), ("tarantool", over_network(ALL)),
        ("raftkv", ALL), ("raftkv", MOST), ("raftkv", over_network(ALL)),
        ("raftkv", over_network(MOST)),
    }  # fmt: skip
    named = [(line["load"], line["beside"], line["in_flight"]) for line in found["lines"]]
    assert (MOST, ALL, 6) in named
    assert (ALL, "", 6) in named
    for each in found["samples"]:
        assert each["longest_ms"] > 0
        if (each["side"], each["load"]) != ("tarantool", MOST):
            assert each["per_s"] > 0, each
            assert each["failed"] + each["refused"] == 0, each
    losses = {(each["side"], each["quorum"]): each for each in found["losses"]}
    assert len(losses) == 4
    theirs, ours = losses["tarantool", ALL], losses["raftkv", ALL]
    assert theirs["settled"] == {"rolled back": 16}
    assert set(theirs["there"].values()) == {0}
    assert ours["answers"] == {"still pending": 16}
    assert ours["seen_meanwhile"] == 0
    assert (ours["settled"], set(ours["there"].values())) == ({"confirmed": 16}, {16})
    most = losses["raftkv", MOST]
    assert most["answers"] == {"confirmed": 16}
    assert most["longest_ms"] < TIMEOUT_S * 1000
    assert list(tmp_path.iterdir()) == []


@pytest.mark.cluster
def test_ctrl_c_ends_and_removes_everything(installed: None, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bench", "peers", "tarantool", "--seconds", "60"]
    with open(tmp_path / "said", "wb") as said:
        process = subprocess.Popen(
            [*command, "--dir", str(tmp_path)], stdout=said, stderr=said, start_new_session=True
        )
    until_s = time.monotonic() + UP_S
    # Three instances of Tarantool and three cores: then the warm-up begins.
    while len(processes_of(tmp_path) - {process.pid}) < 6:
        assert process.poll() is None, (tmp_path / "said").read_text()
        assert time.monotonic() < until_s
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    assert process.wait(UP_S) == 130
    assert processes_of(tmp_path) == set()
    assert [each.name for each in tmp_path.iterdir()] == ["said"]


def processes_of(directory: Path) -> set[int]:
    """Processes that name this directory in their command line, or work below it.

    Tarantool overwrites its command line and its environment with a title.
    """
    name = str(directory).encode()
    found = set()
    for place in Path("/proc").iterdir():
        if place.name.isdecimal():
            try:
                words = (place / "cmdline").read_bytes() + bytes((place / "cwd").readlink())
            except OSError:
                continue
            if name in words:
                found.add(int(place.name))
    return found
