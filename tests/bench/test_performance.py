"""The performance test on a cluster that only notes what it is asked, and what it makes of counts.

The loads take no time but their own tenth of a second: nothing here waits for a process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bench import coordinator, performance
from bench.control import Audit, Collect, Done, HangUp, Lag, Play, State, SwitchMode
from bench.facts import Facts
from bench.layouts import Layout
from bench.performance import SessionTest, play_sessions, spent_between
from bench.scenarios import Collected, Load
from bench.truth import Expectation

LAYOUT = Layout.parse("3+3")


def state(index: int = 1, role: str = "follower", **changes: Any) -> State:
    values: dict[str, Any] = {
        "role": role, "leader": "c1", "commit_index": index, "applied_index": index,
        "endpoint": None, "outcomes": {"ok": 3}, "buckets": {},
    }  # fmt: skip
    return State(**{**values, **changes})


class FakeCluster:
    """Every look finds ten entries, twenty commands and six messages more in each node."""

    def __init__(self) -> None:
        self.layout = LAYOUT
        self.run = "run"
        self.killed: set[str] = set()
        self.leader = "c1"
        self.events: list[tuple[str, Any]] = []
        self.looks = 0

    async def ask(self, name: str, request: Any, kind: Any, timeout_s: float = 0.0) -> Any:
        assert name not in self.killed, f"{name} was killed and cannot answer {request}"
        self.events.append((name, request))
        if isinstance(request, Collect):
            expectations = (Expectation(f"client of {name}", None),) if request.final else ()
            return Collected(0, 0, 0, expectations)
        return Done()

    async def ask_all(self, names: Any, request: Any, kind: Any, timeout_s: float = 0.0) -> Any:
        return {name: await self.ask(name, request, kind) for name in names}

    async def states(self, timeout_s: float = 0.0) -> dict[str, State]:
        self.looks += 1
        return {
            name: state(
                10 * self.looks,
                "leader" if name == self.leader else "follower",
                commands_applied=20 * self.looks,
                messages={"raft": 3 * self.looks, "rpc": 3 * self.looks},
                sent_bytes=100 * self.looks,
            )
            for name in LAYOUT.names
            if name not in self.killed
        }

    async def kill(self, name: str) -> None:
        self.events.append((name, "kill"))
        self.killed.add(name)
        self.leader = "c2"

    async def revive(self, name: str) -> None:
        self.events.append((name, "revive"))
        self.killed.discard(name)

    def asked(self, kind: type) -> list[tuple[str, Any]]:
        return [(name, one) for name, one in self.events if isinstance(one, kind)]


@pytest.fixture(autouse=True)
def without_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(performance, "IDLE_S", 0.0)
    monkeypatch.setattr(coordinator, "LEGACY_REST_S", 0.0)


def played(
    tmp_path: Path, scenario: str, registry: str = "session-on", **changes: Any
) -> tuple[FakeCluster, Facts]:
    cluster: Any = FakeCluster()
    show: Callable[[str], None] = lambda text: None  # noqa: E731
    load = Load(scenario=scenario, registry=registry, clients=2, seconds=0.06, **changes)
    result = asyncio.run(play_sessions(cluster, load, SessionTest(tmp_path, 1.0, 100, show)))
    assert (result.clients, result.registry, result.tally.ok) == (6, registry, 9)
    (path,) = (tmp_path / "loads").iterdir()
    return cluster, msgspec.json.decode(path.read_bytes(), type=Facts)


def test_a_load_is_switched_to_played_audited_and_hung_up(tmp_path: Path) -> None:
    cluster, facts = played(tmp_path, "reconnect", "session-both")
    kinds = [type(one).__name__ for _, one in cluster.events]
    order = ["SwitchMode", "Load", "Play", "Collect", "Audit", "HangUp", "Flush"]
    assert list(dict.fromkeys(kinds)) == order
    assert cluster.asked(SwitchMode) == [("c1", SwitchMode("dual"))]
    assert [name for name, _ in cluster.asked(Play)] == LAYOUT.drivers
    audits = cluster.asked(Audit)
    assert [name for name, _ in audits] == LAYOUT.names
    clients = {each.client for each in audits[0][1].expectations}
    assert clients == {"client of r1", "client of r2", "client of r3"}
    assert [name for name, _ in cluster.asked(HangUp)] == LAYOUT.names
    assert (facts.scenario, facts.registry, facts.clients) == ("reconnect", "session-both", 6)
    assert (facts.killed, facts.lagging, facts.lag_ms) == (None, None, None)


def test_what_a_load_cost_is_written_down(tmp_path: Path) -> None:
    _, facts = played(tmp_path, "initial")
    looks = facts.entries // 10
    assert looks > 1
    assert facts.commands == 20 * looks
    assert (facts.raft_messages, facts.call_messages) == (18 * looks, 18 * looks)
    assert facts.feed_messages == 0
    assert facts.sent_bytes == 600 * looks
    assert facts.elapsed_s >= 0.06


def test_one_replicant_lags_for_the_time_of_its_load(tmp_path: Path) -> None:
    cluster, facts = played(tmp_path, "lagging", lagging="r1")
    lags = cluster.asked(Lag)
    assert lags == [("r1", Lag(0.001)), ("r1", Lag(0.0))]
    names = [one if isinstance(one, str) else type(one).__name__ for _, one in cluster.events]
    assert names.index("Lag") < names.index("Play")
    assert (facts.lagging, facts.lag_ms) == ("r1", 1.0)


def test_the_leader_is_killed_in_the_middle_and_is_back_for_the_audit(tmp_path: Path) -> None:
    cluster, facts = played(tmp_path, "leader_dies")
    steps = [(name, one) for name, one in cluster.events if isinstance(one, str)]
    assert steps == [("c1", "kill"), ("c1", "revive")]
    order = [one if isinstance(one, str) else type(one).__name__ for _, one in cluster.events]
    assert order.index("Play") < order.index("kill") < order.index("revive") < order.index("Audit")
    assert "c1" in [name for name, _ in cluster.asked(Audit)]
    assert facts.killed == "c1"
    assert facts.killed_us is not None
    assert facts.killed_us > facts.began_us
    # Its process took its count along.
    assert (facts.raft_messages, facts.sent_bytes) == (None, None)


def test_races_say_nothing_of_hollow_sessions(tmp_path: Path) -> None:
    _, facts = played(tmp_path, "same_client")
    assert facts.hollow is None


def test_a_process_that_began_anew_is_not_counted() -> None:
    before = {
        "c1": state(10, commands_applied=100, messages={"raft": 50}, handovers_lost=1),
        "r1": state(10, commands_applied=100, messages={"follow": 9}, handovers_lost=2, hollow=1),
    }
    after = {
        "c1": state(40, commands_applied=3, messages={"raft": 2}),
        "r1": state(38, commands_applied=160, messages={"follow": 30}, handovers_lost=5, hollow=1),
    }
    spent = spent_between(before, after, "c1")
    assert (spent.entries, spent.commands, spent.messages, spent.sent_bytes) == (30, 60, None, None)
    assert (spent.handovers_lost, spent.hollow) == (3, 0)
