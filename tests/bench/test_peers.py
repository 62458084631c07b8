"""Beside others: the figures, what wrk says, the programs, the processes."""

from __future__ import annotations

import io
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from bench import cas, wrk
from bench.peers import debian, main
from bench.peers.beside_etcd import LOADS, Plan
from bench.peers.children import Children, cpu_seconds
from bench.peers.figures import Comparison, Sample, Spread, lines
from bench.peers.report import plot, show


def sample(load: str, side: str, number: int, per_s: float, **more: Any) -> Sample:
    return Sample(load=load, in_flight=16, side=side, round=number, per_s=per_s, **more)


SAMPLES = [
    sample("put", "etcd", 0, 100.0, p99_ms=4.0),
    sample("put", "raftkv", 0, 200.0, p99_ms=2.0),
    sample("put", "raftkv", 1, 150.0, p99_ms=3.0),
    sample("put", "etcd", 1, 50.0, p99_ms=8.0),
    sample("put", "etcd", 2, 100.0),
    sample("put", "raftkv", 2, 400.0),
    sample("embedded", "raftkv", 0, 1000.0),
    sample("only etcd", "etcd", 0, 7.0),
]


def test_a_ratio_is_taken_within_its_round() -> None:
    put, embedded = lines(SAMPLES, "etcd", {"embedded": "put"})
    assert put.ratio == Spread(3.0, 2.0, 4.0)
    assert put.peer_per_s == Spread(100.0, 50.0, 100.0)
    assert put.raftkv_per_s == Spread(200.0, 150.0, 400.0)
    assert (put.peer_p99_ms, put.raftkv_p99_ms) == (6.0, 2.5)
    # Beside another load of the peer, in the rounds that both have.
    assert embedded.ratio == Spread(10.0, 10.0, 10.0)
    assert embedded.raftkv_p99_ms is None


def test_a_side_that_measured_nothing_makes_no_line() -> None:
    broken = [sample("put", "etcd", 0, 100.0), sample("put", "raftkv", 0, 0.0)]
    assert lines(broken, "etcd", {}) == []


def test_table_and_picture(tmp_path: Path) -> None:
    found = Comparison(
        peer="etcd", peer_version="3.4.23", conditions={"cores": 2},
        lines=lines(SAMPLES, "etcd", {"embedded": "put"}), samples=SAMPLES,
    )  # fmt: skip
    console = Console(width=130, record=True, file=io.StringIO())
    show(console, found)
    text = console.export_text()
    assert "3.00" in text
    assert "2.00 to 4.00" in text
    plot(found, tmp_path / "rates.png")
    assert (tmp_path / "rates.png").read_bytes().startswith(b"\x89PNG")


def test_the_plan_counts_what_it_will_measure() -> None:
    # Three words on two sides and one load inside a node, at four numbers each; two ways of CAS
    # over HTTP on two sides, and two inside a node.
    assert Plan(rounds=1).steps == 3 * 2 * 4 + 4 + 2 * 2 + 2
    assert Plan(rounds=2, loads=["put"], connections=(1,)).steps == 4
    assert len(LOADS) == 8


def fake(path: Path, script: str) -> debian.Program:
    path.write_text(f"#!{sys.executable}\n{script}", encoding="utf-8")
    path.chmod(0o755)
    return debian.Program(str(path))


LOAD = wrk.Load(word="put", connections=4, seconds=1)


def test_what_wrk_says_is_read(tmp_path: Path) -> None:
    program = fake(tmp_path / "wrk", "print('Running'); print('RESULT 500 250000 1.5 9.25 20 3 1')")
    run = wrk.run(program, "http://127.0.0.1:1", LOAD)
    assert run.per_s == pytest.approx(2000.0)
    assert (run.p50_ms, run.p99_ms, run.max_ms) == (1.5, 9.25, 20.0)
    assert (run.refused, run.failed) == (3, 1)


@pytest.mark.parametrize(
    ("script", "complaint"),
    [
        ("print('unable to connect')", "unable to connect"),
        ("print('RESULT 0 1000000 0 0 0 0 5')", "no answers"),
        ("", "said nothing"),
    ],
)
def test_a_load_that_did_not_work_is_an_error(tmp_path: Path, script: str, complaint: str) -> None:
    with pytest.raises(wrk.WrkFailed, match=complaint):
        wrk.run(fake(tmp_path / "wrk", script), "http://127.0.0.1:1", LOAD)


def test_wins_are_counted(tmp_path: Path) -> None:
    program = fake(tmp_path / "wrk", "print('RESULT 30 600 0 2000000')")
    assert cas.over_http(program, "http://127.0.0.1:1", "loop", 1) == cas.Cas(300.0, 15.0)
    refused = fake(tmp_path / "refused", "print('RESULT 30 600 2 2000000')")
    with pytest.raises(wrk.WrkFailed, match="2 transactions were refused"):
        cas.over_http(refused, "http://127.0.0.1:1", "loop", 1)


def test_a_program_that_is_installed_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = fake(tmp_path / "etcd", "print('etcd Version: 3.4.23')")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert debian.find("etcd", cache=tmp_path / "cache") == program


def test_an_unpacked_program_finds_its_libraries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    place = tmp_path / "wrk" / "usr" / "bin"
    place.mkdir(parents=True)
    fake(
        place / "wrk",
        "import os, sys\nsys.exit(0 if 'own' in os.environ['LD_LIBRARY_PATH'] else 9)",
    )
    (tmp_path / "wrk" / "usr" / "lib" / "own").mkdir(parents=True)
    (tmp_path / "wrk" / "usr" / "lib" / "own" / "libx.so.2").touch()
    found = debian.find("wrk", cache=tmp_path)
    assert found.path == str(place / "wrk")
    assert found.env["LD_LIBRARY_PATH"].startswith(str(tmp_path / "wrk" / "usr" / "lib" / "own"))


def test_an_unpacked_program_is_told_where_its_parts_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Erlang's emulator is at a path that holds its version, and knows only its package's place."""
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    place = tmp_path / "erl" / "usr" / "lib" / "erlang" / "erts-13.1.5" / "bin"
    place.mkdir(parents=True)
    fake(
        place / "erlexec",
        "import os, sys\nhere = os.environ['ROOTDIR'], os.environ['BINDIR']\n"
        f"sys.exit(0 if here == ({str(place.parents[1])!r}, {str(place)!r}) else 9)",
    )
    assert debian.find("erl", cache=tmp_path).path == str(place / "erlexec")


def test_a_program_whose_trial_fails_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """wrk ends with 1 after it has told its version; an Erlang without Mnesia ends with 3."""
    for name, code in (("wrk", 1), ("erl", 3), ("etcd", 1)):
        fake(tmp_path / name, f"import sys\nsys.exit({code})")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert debian.find("wrk", cache=tmp_path / "cache").path == str(tmp_path / "wrk")
    with pytest.raises(debian.Missing, match="apt-get install erlang-mnesia"):
        debian.find("erl", cache=tmp_path / "cache")
    with pytest.raises(debian.Missing, match="apt-get install etcd-server"):
        debian.find("etcd", cache=tmp_path / "cache")


def test_a_missing_program_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert debian.main(["etcd"]) == 1
    assert "apt-get install etcd-server" in capsys.readouterr().err
    assert main(["etcd", "--rounds", "1"]) == 2
    assert "wrk is not installed" in capsys.readouterr().err
    assert debian.main(["emacs"]) == 2


def test_a_download_that_fails_tells_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("apt-get", "dpkg"):
        fake(tmp_path / name, "import sys\nsys.exit('E: Unable to locate package')")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(debian.Missing, match="Unable to locate package"):
        debian.find("wrk", cache=tmp_path / "cache")


def test_children_are_ended_and_their_words_kept(tmp_path: Path) -> None:
    children = Children(tmp_path)
    busy = children.start(
        "busy", [sys.executable, "-c", "print('here', flush=True)\nwhile True: pass"]
    )
    until_s = time.monotonic() + 20
    while cpu_seconds(children.pids) < 0.1 and time.monotonic() < until_s:
        time.sleep(0.01)
    assert cpu_seconds(children.pids) >= 0.1
    assert children.last_words("busy") == "here"
    assert children.ended() is None
    children.stop()
    assert busy.returncode is not None
    assert children.pids == []
    assert cpu_seconds([busy.pid]) == 0.0


@pytest.mark.parametrize("stubborn", [False, True], ids=["ends by itself", "must be killed"])
def test_what_a_child_has_started_is_gone_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stubborn: bool
) -> None:
    """As Erlang does it: a helper in a session of its own that waits for its pipe to be closed."""
    monkeypatch.setattr("bench.peers.children.STOP_TIMEOUT_S", 0.2 if stubborn else 20.0)
    helper = f"import sys, time; sys.stdin.read(); time.sleep({1000 if stubborn else 0.3})"
    child = (
        "import subprocess, sys, time\n"
        f"helper = subprocess.Popen([sys.executable, '-c', {helper!r}], stdin=subprocess.PIPE,"
        " start_new_session=True)\n"
        "print(helper.pid, flush=True)\n"
        "if len(sys.argv) == 1: time.sleep(1000)\n"
        # Without the wait for the helper that Python would do.
        "import os; os._exit(1)\n"
    )
    children = Children(tmp_path)
    helpers = []
    for name, *more in (("running",), ("gone", "at once")):
        children.start(name, [sys.executable, "-c", child, *more])
        until_s = time.monotonic() + 20
        while not (words := children.last_words(name)).isdecimal():
            assert time.monotonic() < until_s
            time.sleep(0.01)
        helpers.append(int(words))
    children.stop()
    assert [pid for pid in helpers if _alive(pid)] == []


def test_children_die_with_a_killed_parent(tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path; from bench.peers.children import Children\n"
        "child = Children(Path(sys.argv[1])).start('c', ['sleep', '1000'])\n"
        "print(child.pid, flush=True); time.sleep(1000)"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    with parent.stdout:
        child = int(parent.stdout.readline())
        parent.kill()
        parent.wait()
    until_s = time.monotonic() + 20
    while _alive(child) and time.monotonic() < until_s:
        time.sleep(0.01)
    assert not _alive(child)


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in ("Z", "X")
