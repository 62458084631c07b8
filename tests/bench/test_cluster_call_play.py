"""Loads of cluster calls on a cluster that only notes what it is asked."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from bench import cluster_call_play as play
from bench.cluster_call_play import ClusterCallRun, ClusterCallTest, placed, play_cluster_calls
from bench.cluster_calls import ClusterCallLoad
from bench.control import AwaitCallers, Done, Effects, Flush, Lag, Ran, State, TakePart
from bench.facts import CallFacts
from bench.layouts import Layout, WorkerFailed
from bench.plan import Plan
from bench.run_options import parser, plan_of
from bench.schema import CLUSTER_CALL_SCENARIOS

LAYOUT = Layout.parse("3+3")
CORES = ("c1", "c2", "c3")


class FakeCluster:
    """Every look finds ten entries and six messages more in each node; all calls are executed."""

    def __init__(self, participants: tuple[str, ...] = CORES) -> None:
        self.layout, self.run, self.leader = LAYOUT, "run", "c1"
        self.killed: set[str] = set()
        self.events: list[tuple[str, Any]] = []
        self.cursors = dict.fromkeys(participants, 0)
        self.looks = 0
        self.behind = 0

    async def ask(self, name: str, request: Any, kind: Any, timeout_s: float = 0.0) -> Any:
        assert name not in self.killed, f"{name} was killed and cannot answer {request}"
        self.events.append((name, request))
        if isinstance(request, AwaitCallers):
            return Ran(outcomes={"ok": 2}, elapsed_s=0.0, buckets={})
        return Done()

    async def ask_all(self, names: Any, request: Any, kind: Any, timeout_s: float = 0.0) -> Any:
        return {name: await self.ask(name, request, kind) for name in names}

    async def states(self, timeout_s: float = 0.0) -> dict[str, State]:
        self.looks += 1
        last = 5 * self.looks
        cursors = dict.fromkeys(self.cursors, last)
        cursors["c3"] -= self.behind
        self.behind = max(0, self.behind - 1)
        return {
            name: State(
                role="leader" if name == self.leader else "follower", leader=self.leader,
                commit_index=10 * self.looks, applied_index=10 * self.looks, endpoint=None,
                outcomes={"ok": 3}, buckets={}, commands_applied=20 * self.looks,
                messages={"raft": 4 * self.looks, "rpc": 2 * self.looks}, last_call=last,
                cursors=cursors,
            )
            for name in LAYOUT.names
            if name not in self.killed
        }  # fmt: skip

    async def kill(self, name: str) -> None:
        self.events.append((name, "kill"))
        self.killed.add(name)
        self.leader = "c2"

    async def revive(self, name: str) -> None:
        self.events.append((name, "revive"))
        self.killed.discard(name)

    def asked(self, kind: type) -> list[tuple[str, Any]]:
        return [(name, one) for name, one in self.events if isinstance(one, kind)]


def run_of(**changes: Any) -> ClusterCallRun:
    values: dict[str, Any] = {
        "scenario": "cluster_calls", "function": "nothing", "required": "all", "place": "leader",
        "callers": 4, "participants": "cores", "seconds": 0.06,
    }  # fmt: skip
    return ClusterCallRun(**{**values, **changes})


@pytest.fixture(autouse=True)
def without_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(play, "IDLE_S", 0.0)


def played(
    tmp_path: Path, run: ClusterCallRun, cluster: FakeCluster | None = None
) -> tuple[FakeCluster, CallFacts]:
    fake: Any = cluster or FakeCluster()
    show: Callable[[str], None] = lambda text: None  # noqa: E731
    test = ClusterCallTest(tmp_path, 1.0, show)
    result = asyncio.run(play_cluster_calls(fake, run, test))
    places = len(fake.asked(AwaitCallers))
    assert (result.clients, result.tally.ok) == (run.callers, 2 * places)
    assert test.loads == {1: (f"{run.participants}-1", run.scenario)}
    (path,) = (tmp_path / "call-loads").iterdir()
    return fake, msgspec.json.decode(path.read_bytes(), type=CallFacts)


def test_a_load_is_called_executed_and_written_down(tmp_path: Path) -> None:
    cluster, facts = played(tmp_path, run_of())
    kinds = [type(one).__name__ for _, one in cluster.events]
    assert list(dict.fromkeys(kinds)) == ["ClusterCallLoad", "AwaitCallers", "Flush"]
    ((name, load),) = cluster.asked(ClusterCallLoad)
    assert (name, load.callers, load.number, load.load) == ("c1", 4, 1, "cores-1")
    assert len(cluster.asked(Flush)) == 6
    assert (facts.load, facts.callers, facts.nodes) == ("cores-1", 4, "c1 c2 c3")
    looks = facts.entries // 10
    assert looks > 1
    assert (facts.commands, facts.raft_messages) == (20 * looks, 24 * looks)
    assert (facts.call_messages, facts.feed_messages) == (12 * looks, 0)
    assert (facts.killed, facts.lagging, facts.lag_ms) == (None, None, None)


def test_effects_on_the_keyspace_are_counted_for_everybody_who_takes_part(tmp_path: Path) -> None:
    everybody = tuple(LAYOUT.names)
    run = run_of(function="keyspace", participants="all")
    cluster, facts = played(tmp_path, run, FakeCluster(everybody))
    ((name, effects),) = cluster.asked(Effects)
    assert (name, effects.nodes) == ("c1", everybody)
    assert facts.nodes == "c1 c2 c3 r1 r2 r3"


def test_a_load_is_over_when_every_node_has_executed_it(tmp_path: Path) -> None:
    cluster = FakeCluster()
    cluster.behind = 3
    played(tmp_path, run_of(), cluster)
    assert cluster.behind == 0


def test_who_does_not_execute_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(play, "REST_TIMEOUT_S", 0.0)
    cluster: Any = FakeCluster()
    cluster.behind = 10**9
    with pytest.raises(WorkerFailed, match=r"did not execute all calls.*'c3': -"):
        asyncio.run(play.begin(cluster, "cores"))


def test_who_takes_part_is_set_and_waited_for() -> None:
    cluster: Any = FakeCluster(tuple(LAYOUT.names))
    asyncio.run(play.begin(cluster, "all"))
    assert cluster.asked(TakePart) == [("c1", TakePart(True))]


def test_one_replicant_lags_for_the_time_of_its_load(tmp_path: Path) -> None:
    run = run_of(scenario="cluster_calls_lagging", place="everywhere", callers=6)
    cluster, facts = played(tmp_path, run)
    assert cluster.asked(Lag) == [("r1", Lag(0.001)), ("r1", Lag(0.0))]
    assert (facts.lagging, facts.lag_ms) == ("r1", 1.0)


def test_the_leader_is_killed_where_nobody_calls_and_comes_back(tmp_path: Path) -> None:
    dies = {"scenario": "cluster_calls_leader_dies", "kill_after_s": 0.02}
    run = run_of(**dies, place="everywhere", callers=10)
    cluster, facts = played(tmp_path, run)
    assert [one for one in cluster.events if isinstance(one[1], str)] == [
        ("c1", "kill"),
        ("c1", "revive"),
    ]
    callers = {name: load.callers for name, load in cluster.asked(ClusterCallLoad)}
    assert callers == dict.fromkeys(("c2", "c3", "r1", "r2", "r3"), 2)
    assert facts.killed == "c1"
    assert facts.killed_us is not None
    assert facts.killed_us > facts.began_us
    assert (facts.raft_messages, facts.sent_bytes) == (None, None)


def test_the_leader_is_killed_however_late_the_coordinator_comes_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that was busy until after the end of the load: it is killed all the same."""
    hours = itertools.count(0.0, 3600.0)
    monkeypatch.setattr(play, "time", SimpleNamespace(monotonic=lambda: next(hours)))
    dies = {"scenario": "cluster_calls_leader_dies", "kill_after_s": 0.02}
    cluster, facts = played(tmp_path, run_of(**dies, place="everywhere", callers=5))
    assert ("c1", "kill") in cluster.events
    assert facts.killed == "c1"


def test_a_leader_with_callers_is_spared(tmp_path: Path) -> None:
    class Moving(FakeCluster):
        async def states(self, timeout_s: float = 0.0) -> dict[str, State]:
            states = await super().states(timeout_s)
            self.leader = "c2"  # as soon as the callers were placed
            return states

    dies = {"scenario": "cluster_calls_leader_dies", "kill_after_s": 0.02}
    run = run_of(**dies, place="everywhere", callers=5)
    cluster, facts = played(tmp_path, run, Moving())
    assert not [one for one in cluster.events if isinstance(one[1], str)]
    assert (facts.killed, facts.killed_us) == (None, None)
    assert facts.raft_messages is not None


@pytest.mark.parametrize(
    ("place", "callers", "expected"),
    [
        ("leader", 16, {"c2": 16}),
        ("replicant", 1, {"r1": 1}),
        ("everywhere", 8, {"c1": 2, "c2": 2, "c3": 1, "r1": 1, "r2": 1, "r3": 1}),
        ("everywhere", 2, {"c1": 1, "c2": 1}),
    ],
)
def test_callers_sit_where_they_are_to(place: str, callers: int, expected: dict[str, int]) -> None:
    assert placed(LAYOUT, run_of(place=place, callers=callers), "c2") == expected


# What a run is made of ---------------------------------------------------------------------------


def plan(*options: str) -> Plan:
    return plan_of(parser().parse_args(["--out", "x", *options]))


def loads(name: str, *options: str, participants: str = "cores") -> list[ClusterCallRun]:
    return plan("--scenario", "calls", *options).cluster_calls(Layout.parse(name), participants)


def test_the_whole_test_is_every_function_with_every_number_of_callers() -> None:
    runs = loads("3")
    alone = [run for run in runs if run.scenario == "cluster_calls"]
    assert {(run.function, run.callers, run.required) for run in alone} == {
        (function, callers, required)
        for function in ("nothing", "keyspace", "outside")
        for callers in (1, 16, 64)
        for required in ("1", "all")
    }
    assert {run.place for run in alone} == {"leader", "everywhere"}
    assert {run.place for run in alone if run.callers == 1} == {"leader"}
    assert {run.place for run in loads("3+3") if run.function == "nothing"} == {
        *("leader", "replicant", "everywhere")
    }
    assert [run.scenario for run in runs if run.scenario != "cluster_calls"] == [
        "cluster_calls_leader_dies"
    ] * 2


def test_replicants_take_part_or_not_on_clusters_of_their_own() -> None:
    assert loads("3", participants="all") == []
    with_replicants = loads("3+3", participants="all")
    assert {run.participants for run in with_replicants} == {"all"}
    assert {run.scenario for run in with_replicants} == set(CLUSTER_CALL_SCENARIOS)
    times = {run.scenario: (run.seconds, run.kill_after_s) for run in with_replicants}
    assert times["cluster_calls"] == (3.0, None)
    assert times["cluster_calls_lagging"] == (9.0, None)
    # Long enough to be declared down, ten seconds after the kill, and for a while after that.
    assert times["cluster_calls_leader_dies"] == (18.0, 3.0)


def test_cluster_calls_are_measured_when_they_are_asked_for() -> None:
    for scenario in ("all", "sessions", "puts"):
        asked = plan("--scenario", scenario)
        assert asked.cluster_calls(LAYOUT, "cores") == []
    only = plan("--scenario", "cluster_calls_lagging", "--in-flight", "2", "--quick")
    assert {run.scenario for run in only.cluster_calls(LAYOUT, "all")} == {"cluster_calls_lagging"}
    assert only.calls(LAYOUT) == []
    assert {run.callers for run in loads("3", "--in-flight", "4") if run.seconds == 3.0} == {4}
    quick = {run.callers for run in loads("3", "--quick") if run.scenario == "cluster_calls"}
    assert quick == {1, 16}
