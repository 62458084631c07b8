"""Beside RabbitMQ: what is measured, how it is shown, and the cluster itself where it is had."""

from __future__ import annotations

import asyncio
import importlib.util
import io
import json
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from bench.asked import AskedProcess
from bench.peers import debian, main
from bench.peers.beside_rabbitmq import (
    AGAINST,
    RABBITMQ,
    Plan,
    acks,
    commits,
    confirms,
    door,
    inside,
)
from bench.peers.erlang import emulator_environment
from bench.peers.figures import Comparison, Sample, lines
from bench.peers.rabbitmq import RabbitMq, RabbitMqFailed
from bench.peers.report import show

UP_S = 120.0


# What is measured, and how it is shown ------------------------------------------------------------


def test_the_plan_counts_what_it_will_measure() -> None:
    # Four ways for each batch and number of producers, three for those of consumers; the warm-ups.
    assert Plan(rounds=1).steps == 2 + 4 * 3 * 3 + 3 * 2 * 3
    assert Plan(rounds=3, producers=[16], batches=[10], consumers=[1]).steps == 2 + 3 * (4 + 3)


def test_a_tx_stands_beside_both_ways_of_rabbitmq() -> None:
    assert AGAINST([10]) == {
        "TX of 10, inside": ("tx.commit of 10", "confirms of 10"),
        "TX of 10, door": ("tx.commit of 10", "confirms of 10"),
        "consume, acks of 10, inside": ("consume, acks of 10",),
        "consume, acks of 10, door": ("consume, acks of 10",),
    }


def sample(side: str, load: str, per_s: float, **more: Any) -> Sample:
    values = {"in_flight": 16, "round": 0, "p50_ms": 1.0, "p99_ms": 2.0, **more}
    return Sample(load=load, side=side, per_s=per_s, **values)


SAMPLES = [
    sample("rabbitmq", confirms(10), 200.0, client_cpu=0.4),
    sample("rabbitmq", commits(10), 100.0, client_cpu=0.5),
    sample("raftkv", inside(10), 300.0),
    sample("raftkv", door(10), 150.0, client_cpu=0.25),
    sample("rabbitmq", acks(10), 1000.0, p50_ms=None, p99_ms=None),
    sample("raftkv", acks(10, "inside"), 1500.0, p50_ms=None, p99_ms=None),
]


def compared(samples: list[Sample]) -> Comparison:
    return Comparison(
        peer="rabbitmq", peer_version="3.10.8", conditions={"cores": 2},
        lines=lines(samples, "rabbitmq", AGAINST([10])), samples=samples,
    )  # fmt: skip


def test_table_and_notes_tell_the_ratios_and_what_was_lost() -> None:
    found = compared(SAMPLES)
    ratios = {(line.load, line.beside): line.ratio.median for line in found.lines}
    assert ratios == {
        (inside(10), commits(10)): 3.0, (inside(10), confirms(10)): 1.5,
        (door(10), commits(10)): 1.5, (door(10), confirms(10)): 0.75,
        (acks(10, "inside"), acks(10)): 1.5,
    }  # fmt: skip
    console = Console(width=180, record=True, file=io.StringIO())
    show(console, found)
    text = console.export_text()
    assert "0.75" in text
    assert ", ," not in text, "consumers have no latencies"
    notes = "\n".join(RABBITMQ.notes(found))
    assert "the queue held every message" in notes
    assert "rabbitmq's client used 0.50 of a processor at most." in notes
    assert "raftkv's at the door used 0.25 of a processor at most." in notes
    lost = "\n".join(RABBITMQ.notes(compared([*SAMPLES, sample("raftkv", door(10), 1.0, lost=3)])))
    assert "raftkv lost 3 messages of TX of 10, door." in lost
    assert "held every message" not in lost


def test_a_cluster_of_emulators_has_one_cookie_and_a_port_mapper_of_its_own(
    tmp_path: Path,
) -> None:
    first = emulator_environment({"PATH": "/bin"}, tmp_path, 4000)
    cookie = (tmp_path / ".erlang.cookie").read_text()
    assert len(cookie) == 32
    assert (tmp_path / ".erlang.cookie").stat().st_mode & 0o777 == 0o400
    assert emulator_environment({"PATH": "/bin"}, tmp_path, 4000) == first
    assert (tmp_path / ".erlang.cookie").read_text() == cookie
    assert (first["PATH"], first["HOME"]) == ("/bin", str(tmp_path))
    assert (first["ERL_EPMD_ADDRESS"], first["ERL_EPMD_PORT"]) == ("127.0.0.1", "4000")


# The cluster itself -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def installed() -> None:
    if importlib.util.find_spec("pika") is None:
        pytest.skip("pika is in the extra `bench`")
    try:
        debian.find("rabbitmq")
    except debian.Missing as error:
        pytest.skip(str(error))


@pytest.fixture(scope="class")
def rabbitmq(installed: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitMq]:
    """It takes half a minute to start. Nothing outlives it."""
    place = tmp_path_factory.mktemp("rabbitmq")
    with RabbitMq(place) as running:
        assert running.version.startswith("3.")
        assert len(running.pids) == 4  # with the port mapper
        yield running
    assert processes_of(place) == set()


def asked(port: int, place: Path, play: Callable[[Any], Awaitable[None]]) -> None:
    """Let a client process play."""
    from bench.peers.amqp_client import AmqpSetup, AmqpTold

    async def whole() -> None:
        client = AskedProcess("client", "bench.peers.amqp_client", AmqpSetup(port), AmqpTold, place)
        await client.spawn()
        try:
            await client.answer()
            await play(client)
        finally:
            await client.end()

    asyncio.run(whole())


@pytest.mark.cluster
@pytest.mark.slow
class TestRunning:
    def test_what_is_published_is_there(self, rabbitmq: RabbitMq, tmp_path: Path) -> None:
        from bench.layouts import WorkerFailed
        from bench.peers.amqp_client import Consume, Declare, Depth, Produce, Purge

        async def comes_to(client: Any, messages: int) -> None:
            """What goes back to the queue, and the count of it, comes after the answer."""
            while (await client.ask(Depth("q"))).messages != messages:
                await asyncio.sleep(0.1)

        async def play(client: Any) -> None:
            await client.ask(Declare("q", 3))
            for way in ("confirms", "tx"):
                found = await client.ask(Produce("q", way, 7, 3, 0.3, 16))
                assert found.failed == 0
                assert found.late <= 3
                assert found.messages == 7 * len(found.took_us) >= 21
                await comes_to(client, found.messages)
                few = await client.ask(Consume("q", 2, 3, 15, 4))
                assert (few.messages, few.seconds > 0) == (15, True)
                # What was sent too much comes back; what was acknowledged does not.
                await comes_to(client, found.messages - 15)
                assert (await client.ask(Purge("q"))).messages == found.messages - 15
            bounded = await client.ask(Produce("q", "confirms", 10, 2, 60.0, 16, 50))
            assert bounded.messages in (50, 60)
            with pytest.raises(WorkerFailed, match="NOT_FOUND"):
                await client.ask(Depth("another"))

        asked(rabbitmq.ports[0], tmp_path, play)

    def test_tx_commit_shows_a_part_to_those_who_look_meanwhile(
        self, rabbitmq: RabbitMq, tmp_path: Path
    ) -> None:
        """Why a TX is not held to be the same: the depth is not always a multiple of the batch."""
        from bench.peers.amqp_client import Declare, Depth, Produce

        async def play(client: Any) -> None:
            await client.ask(Declare("part", 3))
            told = asyncio.ensure_future(client.ask(Produce("part", "tx", 1000, 1, 4.0, 16)))
            depths = []

            async def look(looker: Any) -> None:
                while not told.done():
                    depths.append((await looker.ask(Depth("part"))).messages)

            from bench.peers.amqp_client import AmqpSetup, AmqpTold

            setup = AmqpSetup(rabbitmq.ports[0])
            looker = AskedProcess("looker", "bench.peers.amqp_client", setup, AmqpTold, tmp_path)
            await looker.spawn()
            await looker.answer()
            try:
                await look(looker)
            finally:
                await looker.end()
            assert (await told).failed == 0
            assert [depth for depth in depths if depth % 1000], depths

        asked(rabbitmq.ports[0], tmp_path, play)


@pytest.mark.cluster
def test_a_cluster_that_cannot_start_says_why_and_leaves_nothing(
    installed: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.peers.rabbitmq._EMULATOR", ["+W", "nonsense"])
    with pytest.raises(RabbitMqFailed, match=r"r[012] has ended. It wrote: "), RabbitMq(tmp_path):
        pass
    assert processes_of(tmp_path) == set()


@pytest.mark.cluster
@pytest.mark.slow
def test_the_command_measures_both_in_turns(
    installed: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few = ["--producers", "6", "--batches", "5", "--consumers", "2", "--messages", "500"]
    times = ["--seconds", "1", "--rounds", "1"]
    assert main(["rabbitmq", *few, *times, "--json", "--dir", str(tmp_path)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["peer"] == "rabbitmq"
    assert {(each["side"], each["load"]) for each in found["samples"]} == {
        ("rabbitmq", confirms(5)), ("rabbitmq", commits(5)), ("rabbitmq", acks(5)),
        ("raftkv", inside(5)), ("raftkv", door(5)), ("raftkv", acks(5, "inside")),
        ("raftkv", acks(5, "door")),
    }  # fmt: skip
    assert len(found["lines"]) == 6
    for each in found["samples"]:
        assert each["per_s"] > 0, each
        assert (each["failed"], each["lost"]) == (0, 0), each
    assert list(tmp_path.iterdir()) == []


@pytest.mark.cluster
@pytest.mark.slow
def test_ctrl_c_ends_and_removes_everything(installed: None, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bench", "peers", "rabbitmq", "--seconds", "60"]
    with open(tmp_path / "said", "wb") as said:
        process = subprocess.Popen(
            [*command, "--dir", str(tmp_path)], stdout=said, stderr=said, start_new_session=True
        )
    until_s = time.monotonic() + UP_S
    # Three nodes with their port mapper, three cores, two clients: then the warm-up begins.
    while len(processes_of(tmp_path) - {process.pid}) < 9:
        assert process.poll() is None, (tmp_path / "said").read_text()
        assert time.monotonic() < until_s
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    assert process.wait(UP_S) == 130
    assert processes_of(tmp_path) == set()
    assert [each.name for each in tmp_path.iterdir()] == ["said"]


def processes_of(directory: Path) -> set[int]:
    """Processes that name this directory in their command line or in their environment."""
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
