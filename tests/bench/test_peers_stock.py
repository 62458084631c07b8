"""Beside stock PySyncObj: what is measured, and both clusters in earnest, for a moment."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from bench.peers import main
from bench.peers.beside_stock import STOCK, Plan
from bench.peers.figures import Comparison, Sample, lines
from bench.peers.stock import Stock, version
from bench.peers.stock_node import WAYS, Sets


def test_the_plan_counts_what_it_will_measure() -> None:
    # Five ways and raftkv, at four numbers; one to warm up.
    assert Plan(rounds=1).steps == 1 + (5 + 1) * 4
    assert Plan(rounds=2, ways=["each at once"], in_flight=[8]).steps == 1 + 2 * 2


def test_it_is_said_where_a_confirmed_write_is() -> None:
    samples = [
        Sample(load="as it comes", in_flight=1, side="pysyncobj", round=0, per_s=10.0),
        Sample(load="put", in_flight=1, side="raftkv", round=0, per_s=20.0),
    ]
    found = Comparison(
        peer="pysyncobj", peer_version="1", conditions={}, samples=samples,
        lines=lines(samples, "pysyncobj", {"put": tuple(WAYS)}),
    )  # fmt: skip
    assert [(line.beside, line.ratio.median) for line in found.lines] == [("as it comes", 2.0)]
    (note,) = STOCK.notes(found)
    assert note.endswith("as it comes: memory.")


@pytest.mark.parametrize("way", ["each at once", "each at once, journal flushed"])
def test_a_stock_cluster_takes_writes_and_leaves_nothing(tmp_path: Path, way: str) -> None:
    async def scenario() -> None:
        async with Stock(tmp_path, way) as stock:
            assert len(stock.pids) == 3
            leader = await stock.leader()
            told = await leader.ask(Sets(10, 8, 0.2, 4))
            assert told.done >= 4
            assert told.failed == 0
            assert 0 < told.p50_ms <= told.p99_ms
        assert stock.pids == []

    asyncio.run(scenario())
    journals = list(tmp_path.glob("*.journal"))
    assert len(journals) == (3 if "journal" in way else 0)


def test_callers_that_get_no_answer_are_told_of(tmp_path: Path) -> None:
    """Without a majority nothing is confirmed: two members are killed."""

    async def scenario() -> None:
        async with Stock(tmp_path, "each at once") as stock:
            leader = await stock.leader()
            for member in stock.members:
                if member is not leader:
                    await member.kill()
            told = await leader.ask(Sets(10, 8, 0.1, 3, grace_s=0.1))
            assert (told.done, told.failed) == (0, 3)

    asyncio.run(scenario())


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "rates.png"
    options = ["--way", "each at once", "--in-flight", "4", "--seconds", "1", "--rounds", "1"]
    assert main(["pysyncobj", *options, "--json", "--plot", str(picture)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["peer_version"] == version()
    (line,) = found["lines"]
    assert (line["load"], line["beside"]) == ("put", "each at once")
    assert line["ratio"]["median"] > 0
    assert picture.stat().st_size > 0
