"""Beside Mnesia: what is measured, how it is judged, and the cluster itself where Erlang is had."""

from __future__ import annotations

import asyncio
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
from bench.peers.beside_mnesia import AIMS, BESIDE, CONTESTED, LOADS, MNESIA, THEIRS, Plan
from bench.peers.callers import ReadCheckWrite, Took, Way, read_check_write
from bench.peers.figures import Aim, Comparison, Sample, lines
from bench.peers.mnesia import Answer, Asked, Mnesia, MnesiaFailed
from bench.peers.report import plot, show
from raftkv.testing.local_cluster import LocalCluster
from raftkv_lcr import LCR

UP_S = 60.0


# What is measured ---------------------------------------------------------------------------------


def test_the_plan_counts_what_it_will_measure() -> None:
    # Six loads of raftkv's and seven of Mnesia's, at two numbers and two places; two to warm up.
    assert Plan(rounds=1).steps == 2 + (6 + 7) * 2 * 2
    few = Plan(loads=["swap, hot key", "in the log, hot key"], in_flight=[8], places=["one node"])
    assert few.theirs == ["transaction, hot key"]
    assert few.steps == 2 + 3 * (2 + 1)


def test_every_load_stands_beside_some_of_mnesias_on_the_same_keys() -> None:
    for load in LOADS.values():
        keys = {THEIRS[other][1] for other in load.beside}
        assert keys == {"hot"} if load.hot else keys <= {"own", "many"}
    assert BESIDE["connect, one id, one node: wins"] == (
        "bag, hot key, one node",
        "lock, hot key, one node",
    )
    assert BESIDE["connect, clean start, one id, one node"] == ("bag, hot key, one node",)
    assert AIMS["in the log, hot key, three nodes"] == Aim(10.0, 20.0)
    assert AIMS["connect, clean start, one id, three nodes"] == Aim(10.0, 20.0)


def test_only_wins_are_held_against_the_aim() -> None:
    assert CONTESTED == ("connect, one id", "swap, hot key")
    assert "connect, one id, one node: wins" in AIMS
    assert not any(figure.endswith(": answers") for figure in AIMS)


# How it is judged ---------------------------------------------------------------------------------


def sample(load: str, side: str, per_s: float, **more: Any) -> Sample:
    return Sample(load=load, in_flight=64, side=side, round=0, per_s=per_s, **more)


SAMPLES = [
    sample("queue", "mnesia", 100.0, p99_ms=300.0, lost=3),
    sample("bag", "mnesia", 50.0, p99_ms=200.0),
    sample("log", "raftkv", 600.0, p99_ms=19.9, failed=2),
]


def judged(times: float, p99_ms: float | None) -> list[bool]:
    found = lines(SAMPLES, "mnesia", {"log": ("queue", "bag")}, {"log": Aim(times, p99_ms)})
    assert [(line.beside, line.ratio.median) for line in found] == [("queue", 6.0), ("bag", 12.0)]
    return [line.met for line in found]


def test_an_aim_is_a_ratio_and_a_p99() -> None:
    assert judged(10.0, 20.0) == [False, True]
    assert judged(6.0, 20.0) == [True, True]
    assert judged(6.0, 19.9) == [False, False]
    assert judged(6.0, None) == [True, True]


def test_a_p99_that_is_not_known_does_not_meet_an_aim() -> None:
    samples = [sample("a", "mnesia", 1.0), sample("a", "raftkv", 100.0)]
    (line,) = lines(samples, "mnesia", {}, {"a": Aim(2.0, 20.0)})
    assert not line.met


def test_table_notes_and_picture_tell_what_was_met_and_lost(tmp_path: Path) -> None:
    found = Comparison(
        peer="mnesia", peer_version="4.21.3, OTP 25", conditions={"cores": 2},
        lines=lines(SAMPLES, "mnesia", {"log": ("queue", "bag")}, {"log": Aim(10.0, 20.0)}),
        samples=SAMPLES,
    )  # fmt: skip
    console = Console(width=150, record=True, file=io.StringIO())
    show(console, found)
    text = console.export_text()
    assert "10, < 20 ms: missed" in text
    assert "10, < 20 ms: met" in text
    notes = MNESIA.notes(found)
    assert "Aims: 1 of 2 met." in notes
    assert "mnesia lost 3 confirmed writes: queue." in notes
    plot(found, tmp_path / "rates.svg")
    assert "beside bag" in (tmp_path / "rates.svg").read_text(encoding="utf-8")


@pytest.mark.parametrize(("counted", "lost"), [(5, 0), (2, 3), (None, 0)])
def test_writes_are_lost_that_the_hot_row_did_not_count(counted: int | None, lost: int) -> None:
    assert Answer([1, 2, 3, 4, 5], late=1, failed=0, counted=counted).lost == lost


# raftkv's callers ---------------------------------------------------------------------------------


def ask(way: Way, hot: bool) -> tuple[Took, int]:
    """What four callers in a single node took, and how often the hot key was written."""

    async def whole() -> tuple[Took, int]:
        async with LocalCluster(1, 0, plugins=[LCR()]) as cluster:
            (node,) = cluster.nodes
            took = await read_check_write(
                node, node.plugin(LCR), ReadCheckWrite(way, hot, callers=4, seconds=0.2, first=8)
            )
            found = await node.kv.get(b"hot")
            return took, 0 if found is None else found.version

    return asyncio.run(whole())


@pytest.mark.parametrize("way", ["connect", "clean", "swap", "in log"])
def test_everybody_wins_on_keys_of_their_own(way: Way) -> None:
    took, _ = ask(way, hot=False)
    assert took.answers == {"won": len(took.won_us)}
    assert len(took.won_us) >= 4
    assert (took.lost_us, took.failed) == ([], 0)
    assert took.won_late <= 4


def test_nobody_loses_a_hot_key_that_is_decided_in_the_log() -> None:
    took, version = ask("in log", hot=True)
    assert (took.lost_us, took.failed) == ([], 0)
    # The first version was there before.
    assert version == 1 + len(took.won_us)


def test_nobody_loses_one_client_id_to_a_clean_start() -> None:
    took, _ = ask("clean", hot=True)
    assert len(took.won_us) >= 4
    assert took.answers == {"won": len(took.won_us)}
    assert (took.lost_us, took.failed) == ([], 0)


def test_a_swap_counts_as_won_only_if_it_wrote() -> None:
    took, version = ask("swap", hot=True)
    assert version == 1 + len(took.won_us)
    assert took.lost_us
    assert took.answers == {"won": len(took.won_us), "changed": len(took.lost_us)}


def test_connects_of_one_client_are_told_apart_by_their_answer() -> None:
    took, _ = ask("connect", hot=True)
    assert took.won_us
    assert took.answers["won"] == len(took.won_us)
    assert sum(took.answers.values()) == len(took.won_us) + len(took.lost_us)
    assert took.failed == 0


# The cluster itself -------------------------------------------------------------------------------


@pytest.fixture
def erlang() -> None:
    try:
        debian.find("erl")
    except debian.Missing as error:
        pytest.skip(str(error))


@pytest.fixture
def cluster(erlang: None, tmp_path: Path) -> Iterator[Mnesia]:
    with Mnesia(tmp_path) as started:
        yield started


@pytest.mark.cluster
def test_mnesia_is_asked_in_every_way_and_ends_with_its_context(
    erlang: None, tmp_path: Path
) -> None:
    with Mnesia(tmp_path) as mnesia:
        assert "OTP" in mnesia.version
        assert len(processes_of(tmp_path)) >= 4
        for way, keys in THEIRS.values():
            for nodes in (1, 3):
                answer = mnesia.ask(Asked(way, keys, nodes, callers=5, seconds=0.1))
                assert len(answer.took_us) >= 5, (way, keys, nodes)
                assert answer.failed == 0
                assert answer.late <= 5
                assert (answer.counted is None) == (keys != "hot")
                if keys == "hot" and way != "lock":
                    assert answer.counted == len(answer.took_us)
    assert processes_of(tmp_path) == set()


@pytest.mark.cluster
def test_a_node_that_is_gone_is_an_error(cluster: Mnesia) -> None:
    cluster.ask(Asked("bag", "own", 3, callers=2, seconds=0.05))
    cluster._children._processes["m0"].kill()
    with pytest.raises(MnesiaFailed, match="mnesia: "):
        cluster.ask(Asked("bag", "own", 3, callers=2, seconds=0.05))


@pytest.mark.cluster
def test_a_cluster_that_cannot_start_says_why_and_leaves_nothing(
    erlang: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "mnesia_bench.erl"
    broken.write_text("-module(mnesia_bench).\nmain( -> ok.\n", encoding="utf-8")
    monkeypatch.setattr("bench.peers.mnesia.SOURCE", broken)
    with pytest.raises(MnesiaFailed, match="could not be compiled"), Mnesia(tmp_path):
        pass
    broken.write_text(
        '-module(mnesia_bench).\n-export([main/0]).\nmain() -> io:format("no luck~n"), halt(1).\n',
        encoding="utf-8",
    )
    with pytest.raises(MnesiaFailed, match="m0 has ended. It wrote: no luck"), Mnesia(tmp_path):
        pass
    assert processes_of(tmp_path) == set()


@pytest.mark.cluster
def test_the_command_measures_both_in_turns(
    erlang: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loads = ["--load", "connect, one id", "--load", "in the log, hot key"]
    few = ["--in-flight", "6", "--callers-in", "three nodes", "--seconds", "1", "--rounds", "1"]
    assert main(["mnesia", *loads, *few, "--json", "--dir", str(tmp_path)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["peer"] == "mnesia"
    assert [(line["load"], line["beside"]) for line in found["lines"]] == [
        ("connect, one id, three nodes: wins", "bag, hot key, three nodes"),
        ("connect, one id, three nodes: wins", "lock, hot key, three nodes"),
        ("connect, one id, three nodes: answers", "bag, hot key, three nodes"),
        ("connect, one id, three nodes: answers", "lock, hot key, three nodes"),
        ("in the log, hot key, three nodes", "transaction, hot key, three nodes"),
    ]
    for line in found["lines"]:
        assert line["in_flight"] == 6
        assert line["ratio"]["median"] > 0
        assert line["peer_p99_ms"] > 0
        assert line["raftkv_p99_ms"] > 0
    for each in found["samples"]:
        assert each["failed"] == 0
        assert each["lost"] == 0 or each["load"].startswith("lock")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.cluster
def test_ctrl_c_ends_and_removes_everything(erlang: None, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bench", "peers", "mnesia", "--seconds", "60"]
    with open(tmp_path / "said", "wb") as said:
        process = subprocess.Popen(
            [*command, "--dir", str(tmp_path)], stdout=said, stderr=said, start_new_session=True
        )
    until_s = time.monotonic() + UP_S
    # The port mapper, three Erlang nodes, three cores: then the warm-up begins.
    while len(processes_of(tmp_path) - {process.pid}) < 7:
        assert process.poll() is None, (tmp_path / "said").read_text()
        assert time.monotonic() < until_s
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    assert process.wait(UP_S) == 130
    assert processes_of(tmp_path) == set()
    assert [each.name for each in tmp_path.iterdir()] == ["said"]


def processes_of(directory: Path) -> set[int]:
    """Processes that name this directory in their command line or their environment."""
    name = str(directory).encode()
    found = set()
    for place in Path("/proc").iterdir():
        if place.name.isdecimal():
            try:
                words = (place / "cmdline").read_bytes() + (place / "environ").read_bytes()
            except OSError:
                continue
            if name in words:
                found.add(int(place.name))
    return found
