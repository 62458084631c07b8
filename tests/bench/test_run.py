"""`python -m bench run` on real processes: what it logs, and that it leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from bench.control import Function, State
from bench.coordinator import evenly, leader_of
from bench.layouts import ROOT, Layout, node_configs
from bench.plan import REGISTRY_SCENARIOS, SESSION_SCENARIOS, Plan
from bench.profile import by_module, module_of
from bench.run import main
from bench.run_options import parser
from bench.run_options import plan_of as planned
from bench.schema import LAYOUTS, SESSION_MODES
from bench.truth import Expectation

FINISH_S = 120.0


def rows_of(out: Path) -> list[dict[str, Any]]:
    return [
        row
        for path in (out / "log").glob("*.parquet")
        for row in parquet.read_table(path).to_pylist()
    ]


def is_wrong(row: dict[str, Any]) -> bool:
    if row["op"] == "audit":
        return bool(row["outcome"] != "ok")
    answered, expected = row["session_present"], row["expected_present"]
    return answered is not None and expected is not None and answered != expected


def start(out: Path, *options: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "bench", "run", "--out", str(out), *options]
    paths = os.pathsep.join([str(ROOT), str(ROOT / "plugins")])
    return subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": paths},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def workers_of(out: Path) -> dict[str, int]:
    """The running workers of a run: name and process id."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                words = (entry / "cmdline").read_bytes().decode().split("\0")
            except OSError:
                continue  # it ended meanwhile
            if "bench.worker" in words and str(out) in " ".join(words):
                found[Path(words[-2]).stem] = int(entry.name)
    return found


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + FINISH_S
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.02)


# Real processes ----------------------------------------------------------------------------------


@pytest.mark.cluster
@pytest.mark.slow
def test_a_run_convicts_the_legacy_registry_and_acquits_the_linear_one(tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = start(
        out, "--layout", "3+3", "--clients", "8", "--seconds", "1", "--put-seconds", "0.1",
        "--lag-ms", "150", "--in-flight", "1", "--in-flight", "64", "--lease-ms", "300",
        "--registry", "both",
    )  # fmt: skip
    printed, errors = process.communicate(timeout=FINISH_S)
    assert process.returncode == 0, errors.decode()
    assert f"python -m bench analyse {out}" in printed.decode()
    rows = rows_of(out)
    checked = {name: [r for r in rows if r["registry"] == name] for name in ("lcr", "legacy")}
    assert [row for row in checked["lcr"] if is_wrong(row)] == []
    assert [row for row in checked["legacy"] if is_wrong(row)]
    assert min(map(len, checked.values())) > 100
    scenarios = {(row["scenario"], row["registry"], row["role"]) for row in rows}
    for scenario in ("initial", "reconnect", "same_client"):
        for registry in ("lcr", "legacy"):
            assert (scenario, registry, "replicant") in scenarios
    gets = {(row["role"], row["phase"], row["consistency"]) for row in rows if row["op"] == "get"}
    doors = ("http", "http_follower", "http_replicant")
    phases = ("c1", "c64")
    everywhere = ("leader", "follower", "replicant", *doors)
    assert gets == {
        *((role, phase, "linearizable") for role in everywhere for phase in phases),
        *((role, "c1", "local") for role in ("leader", "follower", "replicant")),
        *((role, phase, "local") for role in doors for phase in phases),
        ("leader", "c1", "lease"),
    }
    assert {row["outcome"] for row in rows if row["op"] == "get"} == {"ok"}
    puts = {(row["role"], row["phase"]) for row in rows if row["op"] == "put"}
    roles = ("leader", "follower", "replicant", "http")
    assert puts == {(role, phase) for role in roles for phase in phases}
    assert {row["outcome"] for row in rows if row["op"] == "put"} == {"ok"}
    audited = {row["node"] for row in rows if row["op"] == "audit"}
    assert audited == {"c1", "c2", "c3", "r1", "r2", "r3"}
    conditions = json.loads((out / "conditions.json").read_text(encoding="utf-8"))
    assert conditions["fsync"] is True
    assert conditions["fdatasync"]["median_us"] > 0
    assert conditions["arguments"]["lag_ms"] == 150
    assert not workers_of(out)
    assert not list((out / "nodes" / "3+3").glob("*/"))


@pytest.mark.cluster
@pytest.mark.slow
def test_sessions_survive_a_lagging_replicant_and_the_leader_s_death(tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = start(
        out, "--layout", "3+3", "--clients", "4", "--seconds", "1.5", "--session-lag-ms", "200",
        "--scenario", "same_client", "--scenario", "lagging", "--scenario", "leader_dies",
        "--registry", "session-on", "--registry", "session-both", "--registry", "session-off",
    )  # fmt: skip
    _, errors = process.communicate(timeout=FINISH_S)
    assert process.returncode == 0, errors.decode()
    rows = rows_of(out)
    assert {row["registry"] for row in rows} == set(SESSION_MODES)
    linear = [row for row in rows if row["registry"] != "session-off"]
    assert [row for row in linear if is_wrong(row)] == []
    assert {row["node"] for row in linear if row["role"] == "lagging"} == {"r1"}
    facts = [json.loads(path.read_bytes()) for path in sorted((out / "loads").iterdir())]
    assert len(facts) == 9
    for one in facts:
        connects = sum(
            row["op"] == "connect" and row["outcome"] == "ok"
            for row in rows
            if (row["scenario"], row["registry"]) == (one["scenario"], one["registry"])
        )
        assert connects > 0, one
        assert one["handovers_lost"] == 0 or one["registry"] == "session-off"
        if one["registry"] == "session-off":
            # Nothing of it is in the log but what nodes write there by themselves.
            assert one["commands"] < connects
        else:
            assert one["commands"] >= connects
        killed = one["scenario"] == "leader_dies"
        assert (one["killed"] is not None) == killed
        assert (one["raft_messages"] is None) == killed
    assert not workers_of(out)


@dataclass
class Executed:
    """What the log says of one load of cluster calls."""

    facts: dict[str, Any]
    rows: list[dict[str, Any]]

    def of(self, *ops: str) -> list[dict[str, Any]]:
        return [row for row in self.rows if row["op"] in ops]

    def committed(self) -> list[int]:
        """The ids of the load, from what callers were told and from what replicas ran."""
        told = [row for row in self.of("call") if row["outcome"] in ("ok", "stopped_nodes")]
        return sorted({row["index"] for row in (*told, *self.of("replicate"))})

    def run_by(self, node: str) -> list[int]:
        """The ids that the node ran, in its order, each once for each life of its process."""
        runs = [row for row in self.of("initiate", "replicate") if row["node"] == node]
        assert {row["outcome"] for row in runs} == {"ok"}
        return [row["index"] for row in sorted(runs, key=lambda r: (r["life"], r["start_us"]))]


def executed_loads(out: Path) -> list[Executed]:
    rows = rows_of(out)
    found = [json.loads(path.read_bytes()) for path in sorted((out / "call-loads").iterdir())]
    return [Executed(one, [row for row in rows if row["load"] == one["load"]]) for one in found]


@pytest.mark.cluster
@pytest.mark.slow
def test_every_node_that_takes_part_executes_every_cluster_call_once(tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = start(
        out, "--layout", "3+3", "--in-flight", "3", "--seconds", "0.4", "--session-lag-ms", "100",
        "--scenario", "cluster_calls", "--scenario", "cluster_calls_lagging",
    )  # fmt: skip
    _, errors = process.communicate(timeout=FINISH_S)
    assert process.returncode == 0, errors.decode()
    loads = executed_loads(out)
    # Of cores and of all: three places without an effect, one with each, for one and for all.
    assert len(loads) == 2 * (2 * (3 + 1 + 1) + 2)
    for load in loads:
        ids = load.committed()
        assert ids, load.facts
        assert {row["outcome"] for row in load.of("call")} == {"ok"}
        nodes = load.facts["nodes"].split()
        assert len(nodes) == (3 if load.facts["participants"] == "cores" else 6)
        assert {row["node"] for row in load.of("initiate", "replicate")} == set(nodes)
        assert {node: load.run_by(node) for node in nodes} == dict.fromkeys(nodes, ids)
        effects = {row["client"]: row["index"] for row in load.of("effects")}
        made = load.facts["function"] == "keyspace"
        assert effects == (dict.fromkeys(nodes, len(ids)) if made else {})
        assert load.facts["commands"] >= len(ids)
        assert load.facts["raft_messages"] > 0
    lagging = [row for load in loads for row in load.rows if row["role"] == "lagging"]
    assert {row["node"] for row in lagging} == {"r1"}
    assert not workers_of(out)
    assert not list((out / "nodes").glob("*/*.executions"))


@pytest.mark.cluster
@pytest.mark.slow
def test_what_a_killed_node_executed_is_known(tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = start(
        out, "--layout", "3", "--seconds", "0.5", "--scenario", "cluster_calls_leader_dies"
    )
    _, errors = process.communicate(timeout=FINISH_S)
    assert process.returncode == 0, errors.decode()
    loads = executed_loads(out)
    assert [load.facts["required"] for load in loads] == ["1", "all"]
    for load in loads:
        killed = load.facts["killed"]
        assert killed in ("c1", "c2", "c3"), "the leadership moved within a second"
        assert {row["node"] for row in load.of("call")} == {"c1", "c2", "c3"} - {killed}
        assert {row["life"] for row in load.of("initiate", "replicate")} >= {0, 1}
        ids = load.committed()
        for node in ("c1", "c2", "c3"):
            once = list(dict.fromkeys(load.run_by(node)))
            # The one that it ran when it died, and had not told the log of, it may run again.
            assert len(load.run_by(node)) - len(once) <= (node == killed)
            assert [id_ for id_ in once if id_ in ids] == ids
    told = {row["outcome"] for row in loads[1].of("call")}
    assert "stopped_nodes" in told, "whoever waits for all is told who is down"
    assert not workers_of(out)


@pytest.mark.cluster
def test_ctrl_c_ends_every_process(tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = start(out, "--layout", "3", "--scenario", "initial", "--seconds", "60")
    wait_until(lambda: len(workers_of(out)) == 4)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=FINISH_S)
    assert process.returncode == 130
    assert b"Interrupted" in errors
    assert not workers_of(out)


@pytest.mark.cluster
def test_a_killed_coordinator_leaves_no_worker(tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = start(out, "--layout", "3", "--scenario", "initial", "--seconds", "60")
    wait_until(lambda: len(workers_of(out)) == 4)
    process.kill()
    process.communicate(timeout=FINISH_S)
    wait_until(lambda: not workers_of(out))


@pytest.mark.cluster
def test_a_worker_that_dies_ends_the_run_and_is_named(tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = start(out, "--layout", "3", "--scenario", "initial", "--seconds", "60")
    wait_until(lambda: "c2" in workers_of(out))
    os.kill(workers_of(out)["c2"], signal.SIGKILL)
    _, errors = process.communicate(timeout=FINISH_S)
    assert process.returncode == 1
    assert b"c2 ended" in errors
    assert not workers_of(out)


# Without processes -------------------------------------------------------------------------------


def test_a_log_that_is_there_is_not_mixed_with_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "a-b-0.parquet").touch()
    assert main(["--out", str(tmp_path)]) == 2
    assert "--append" in capsys.readouterr().err


@pytest.mark.parametrize(
    "options",
    [
        ["--layout", "2"],
        ["--seconds", "0"],
        ["--seconds", "nan"],
        ["--lag-ms", "-1"],
        ["--clients", "1.5"],
        ["--scenario", "chaos"],
        ["--caller", "nobody"],
        ["--in-flight", "0"],
        ["--consistency", "eventual"],
    ],
)
def test_bad_arguments_are_refused(
    tmp_path: Path, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["--out", str(tmp_path / "out"), *options])
    assert stopped.value.code == 2
    assert options[0] in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_layout_has_its_nodes(name: str, tmp_path: Path) -> None:
    layout = Layout.parse(name)
    configs = node_configs(layout, tmp_path, "on")
    assert list(configs) == layout.names
    assert sum(config.role == "core" for config in configs.values()) == layout.cores
    assert sum(config.role == "replicant" for config in configs.values()) == layout.replicants
    addresses = [config.peer_address for config in configs.values()]
    addresses += [config.http_address or "" for config in configs.values()]
    assert len(set(addresses)) == 2 * len(configs)
    expected = layout.replicant_names or layout.core_names
    assert layout.drivers == expected


def plan_of(*options: str) -> Plan:
    return planned(parser().parse_args(["--out", "x", *options]))


def test_callers_are_sent_only_where_the_layout_has_a_place() -> None:
    plan = plan_of("--scenario", "puts", "--scenario", "gets", "--in-flight", "4")
    places = {
        name: {(each.scenario, each.caller) for each in plan.calls(Layout.parse(name))}
        for name in LAYOUTS
    }
    assert places["1"] == {(s, c) for s in ("puts", "gets") for c in ("leader", "http")}
    assert places["3"] - places["1"] == {
        ("puts", "follower"), ("gets", "follower"), ("gets", "http_follower"),
    }  # fmt: skip
    assert places["3+3"] - places["3"] == {
        ("puts", "replicant"), ("gets", "replicant"), ("gets", "http_replicant"),
    }  # fmt: skip


def test_reads_that_do_not_wait_are_measured_with_one_caller() -> None:
    layout = Layout.parse("3")
    calls = plan_of("--scenario", "gets", "--lease-ms", "300").calls(layout)
    waiting = {each.in_flight for each in calls if each.consistency == "linearizable"}
    assert waiting == {1, 16, 64, 256}
    embedded = [each for each in calls if not each.caller.startswith("http")]
    assert {each.in_flight for each in embedded if each.consistency != "linearizable"} == {1}
    assert {each.caller for each in calls if each.consistency == "lease"} == {"leader"}
    assert {each.put_every for each in calls} == {0}
    promised = {each.consistency for each in plan_of("--scenario", "gets").calls(layout)}
    assert promised == {"linearizable", "local"}, "nodes that promise no lease have none"


def test_a_mix_is_linearizable_and_puts_once_in_ten() -> None:
    calls = plan_of("--scenario", "mixed", "--in-flight", "4").calls(Layout.parse("3"))
    assert {(each.consistency, each.put_every) for each in calls} == {("linearizable", 10)}


def test_everything_means_the_registry_puts_and_gets() -> None:
    assert plan_of().scenarios == (*REGISTRY_SCENARIOS, "puts", "gets")


def session_loads(*options: str, layout: str = "3+3") -> list[tuple[str, str]]:
    loads = plan_of(*options).session_loads(Layout.parse(layout))
    return [(load.scenario, load.registry) for load in loads]


def test_the_performance_test_is_five_scenarios_in_three_modes() -> None:
    whole = [(scenario, mode) for scenario in SESSION_SCENARIOS for mode in SESSION_MODES]
    assert session_loads("--scenario", "sessions") == whole
    assert session_loads() == whole
    assert not plan_of("--scenario", "sessions").loads()
    assert session_loads(layout="5") == [], "its clients sit in replicants"
    lagging = {
        load.lagging
        for load in plan_of().session_loads(Layout.parse("3+3"))
        if load.scenario == "lagging"
    }
    assert lagging == {"r1"}


def test_a_quick_run_of_everything_has_the_first_three_loads_of_sessions() -> None:
    assert session_loads("--quick") == [("reconnect", mode) for mode in SESSION_MODES]
    assert len(session_loads("--quick", "--scenario", "sessions")) == 15


def test_scenarios_that_both_can_play_are_bare_calls_unless_sessions_are_asked_for() -> None:
    assert session_loads("--scenario", "reconnect") == []
    assert session_loads("--scenario", "registry", "--registry", "both") == []
    asked = ("--scenario", "reconnect", "--registry", "session-off", "--registry", "lcr")
    assert session_loads(*asked) == [("reconnect", "session-off")]
    assert [load.registry for load in plan_of(*asked).loads()] == ["lcr"]
    assert session_loads("--scenario", "leader_dies", "--registry", "session-on") == [
        ("leader_dies", "session-on")
    ]


def test_a_run_without_any_load_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--out", str(tmp_path / "out"), "--layout", "3", "--scenario", "sessions"]
    assert main(options) == 2
    assert "3+3" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def state(role: str) -> State:
    return State(
        role=role, leader=None, commit_index=1, applied_index=1, endpoint=None, outcomes={},
        buckets={},
    )  # fmt: skip


def test_a_cluster_with_two_claimants_has_no_leader() -> None:
    assert leader_of({"a": state("leader"), "b": state("follower")}) == "a"
    assert leader_of({"a": state("leader"), "b": state("leader")}) is None
    assert leader_of({"a": state("follower")}) is None


def test_audits_are_thinned_out_evenly() -> None:
    many = [Expectation(str(number), None) for number in range(1000)]
    assert evenly(many, 1000) == many
    assert [each.client for each in evenly(many, 4)] == ["0", "250", "500", "750"]


def test_a_profile_is_summed_by_module() -> None:
    ours = str(ROOT / "raftkv" / "outbox.py")
    functions = [
        Function(ours, 1, "submit", 10, 0.5),
        Function("~", 0, "<built-in method len>", 100, 0.6),
        Function(ours, 9, "settle", 10, 0.4),
        Function(os.__file__, 1, "fspath", 1, 0.1),
    ]
    assert by_module(functions) == [
        ("raftkv/outbox.py", 0.9, 20),
        ("built in (C)", 0.6, 100),
        ("python: os.py", 0.1, 1),
    ]
    assert module_of(pytest.__file__) == "pytest/__init__.py"
