"""Sessions behind the driver's protocol, what loads with them leave, and who counts messages."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from bench import sessions
from bench.facts import FACT_COLUMNS, Facts, write_facts
from bench.messages import MessageCount
from bench.registries import Answer
from bench.sessions import MESSAGE_BYTES, SessionRegistry
from raftkv.errors import NoLeader
from raftkv.raft.link import Link
from raftkv_lcr.commands import Channel, OldNodes


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "RETRY_S", 0.0)


def row(channel: str, version: int = 1, node: str = "r1") -> Channel:
    return Channel("c", channel, node, 1, version, version)


class FakeBroker:
    """Gives the answers it is told to give, and keeps sessions as a broker does."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.sessions: dict[tuple[str, str], Any] = {}
        self.calls: list[tuple[str, str]] = [("begin", "x")]
        self.published: list[tuple[str, Any]] = []
        self.left: list[tuple[str, str]] = []
        self.failing = 0

    async def connect(self, client_id: str, channel: str) -> Any:
        answer = self.answers.pop(0)
        if answer.outcome == "ok":
            content = ["kept"] if answer.content else []
            self.add(answer.channel, content)
        return answer

    def add(self, found: Channel, content: list[str]) -> None:
        session = SimpleNamespace(row=found, content=content, live=True)
        self.sessions[(found.client_id, found.channel)] = session

    async def disconnect(self, client_id: str, channel: str) -> None:
        self.left.append((client_id, channel))
        if self.failing:
            self.failing -= 1
            raise NoLeader("none")
        self.sessions.pop((client_id, channel))

    def publish(self, client_id: str, message: Any) -> bool:
        self.published.append((client_id, message))
        return True

    def is_alive(self, channel: Channel) -> bool:
        session = self.sessions.get((channel.client_id, channel.channel))
        return session is not None and session.live

    def channels(self) -> list[Channel]:
        return [session.row for session in self.sessions.values() if session.live]


def opened(outcome: str = "ok", *, content: bool = True, **changes: Any) -> Any:
    values: dict[str, Any] = {
        "outcome": outcome, "present": False, "channel": row("a"), "predecessor": None,
        "attempts": 1, "handover": "none", "failure": None, "content": content,
    }  # fmt: skip
    return SimpleNamespace(**{**values, **changes})


def registry(broker: FakeBroker) -> SessionRegistry:
    return SessionRegistry(broker, lambda name, data: (name, data), lambda client: [row("shown")])


def connect(broker: FakeBroker) -> tuple[Answer, SessionRegistry]:
    found = registry(broker)
    return asyncio.run(found.connect("c", "a")), found


def test_a_new_session_is_given_a_message() -> None:
    broker = FakeBroker(opened())
    answer, found = connect(broker)
    assert (answer.outcome, answer.present, answer.attempts) == ("ok", False, 1)
    assert answer.seat is not None
    assert (answer.seat.channel, answer.seat.node, answer.seat.version) == ("a", "r1", 1)
    assert broker.published == [("c", ("a", bytes(MESSAGE_BYTES)))]
    assert (found.hollow, found.lost.total()) == (0, 0)


def test_a_session_that_is_present_names_whom_it_came_from() -> None:
    answer, found = connect(
        FakeBroker(opened(present=True, predecessor=row("b"), handover="complete"))
    )
    assert answer.present is True
    assert answer.predecessor is not None
    assert answer.predecessor.channel == "b"
    assert found.hollow == 0


def test_a_session_without_its_message_is_hollow() -> None:
    _, found = connect(FakeBroker(opened(present=True, content=False)))
    assert found.hollow == 1


def test_a_session_that_could_not_be_had_is_counted_by_its_failure() -> None:
    answer, found = connect(
        FakeBroker(opened(predecessor=row("b"), handover="lost", failure="timeout"))
    )
    assert answer.present is False
    assert found.lost == {"timeout": 1}


@pytest.mark.parametrize(
    ("outcome", "logged"),
    [
        ("outdated_early", "outdated_early"),
        ("in_progress", "in_progress"),
        ("retries_exhausted", "retries_exhausted"),
        ("timeout", "timeout"),
        ("unheard_of", "error:unheard_of"),
    ],
)
def test_other_outcomes_have_the_words_of_the_log(outcome: str, logged: str) -> None:
    answer, _ = connect(FakeBroker(opened(outcome, attempts=3)))
    assert (answer.outcome, answer.attempts, answer.seat) == (logged, 3, None)


def test_a_broker_ends_by_itself_what_was_taken_over() -> None:
    broker = FakeBroker(opened())
    answer, found = connect(broker)
    assert answer.seat is not None
    assert not found.holds(answer.seat), "else the driver would remove its row"
    assert not found.discarded(answer.seat)
    broker.sessions["c", "a"].live = False
    assert found.discarded(answer.seat)


def test_audits_look_where_the_mode_reads() -> None:
    assert registry(FakeBroker()).registered("c") == ["shown"]


def test_hanging_up_ends_every_session_and_forgets_those_that_ended() -> None:
    broker = FakeBroker()
    for number in range(200):
        broker.add(row(f"a{number}"), [])
    broker.sessions["c", "a7"].live = False
    broker.failing = 1
    asyncio.run(registry(broker).hang_up())
    assert len(broker.left) == 199
    assert broker.sessions == {}
    assert broker.calls == []


def test_hanging_up_waits_for_rows_that_are_removed_later() -> None:
    broker, looks = FakeBroker(), [row("a"), row("a")]
    broker.add(row("a"), [])
    found = SessionRegistry(broker, Any, lambda client: [looks.pop()] if looks else [])
    asyncio.run(found.hang_up())
    assert looks == []


def test_a_switch_waits_for_nodes_that_have_just_started() -> None:
    asked: list[str] = []

    async def switch(mode: str, timeout_s: float) -> None:
        asked.append(mode)
        if len(asked) < 3:
            raise OldNodes("c1 has not announced itself yet")

    asyncio.run(sessions.switch_mode(SimpleNamespace(switch_mode=switch), "enabled", 10.0))
    assert asked == ["enabled"] * 3


# Messages and facts ------------------------------------------------------------------------------


def test_messages_are_counted_by_purpose_until_the_count_is_removed() -> None:
    before, count = vars(Link)["send_frame"], MessageCount()
    link: Any = SimpleNamespace(purpose="raft", _transport=None)
    count.install()
    try:
        Link.send_frame(link, b"12345")
        Link.send_frame(link, b"123")
        link.purpose = "rpc"
        Link.send_frame(link, b"1")
    finally:
        count.remove()
    Link.send_frame(link, b"not counted")
    assert count.messages == {"raft": 2, "rpc": 1}
    assert count.bytes == 9
    assert vars(Link)["send_frame"] is before


def test_facts_come_back_and_do_not_overwrite_each_other(tmp_path: Any) -> None:
    facts = Facts(
        run="r", layout="3+3", scenario="lagging", registry="session-on", clients=6, began_us=5,
        elapsed_s=1.5, switch_s=0.1, entries=7, commands=8, lagging="r1", lag_ms=500.0,
    )  # fmt: skip
    paths = [write_facts(tmp_path, facts) for _ in range(2)]
    assert [path.name for path in paths] == ["r-3+3-0.json", "r-3+3-1.json"]
    assert msgspec.json.decode(paths[1].read_bytes(), type=Facts) == facts
    assert [column.name for column in FACT_COLUMNS] == list(Facts.__struct_fields__)
