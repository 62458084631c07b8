"""Beside ZooKeeper: what is measured, and both clusters in earnest, for a moment."""

from __future__ import annotations

import asyncio
import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.peers import debian, main
from bench.peers.beside_zookeeper import BESIDE, LOADS, ZOOKEEPER, Plan, StoreClient
from bench.peers.figures import Comparison, Sample
from bench.peers.store_client import Answer, Asked, Setup, Word
from bench.peers.zookeeper import ZooKeeper, ZooKeeperFailed


def test_the_plan_counts_what_it_will_measure() -> None:
    assert Plan(rounds=1).steps == 2 + 4 * 4 * 2
    assert Plan(rounds=3, loads=["put"], in_flight=[8]).steps == 2 + 3 * 2


def test_every_load_stands_beside_one_of_zookeepers() -> None:
    assert LOADS.keys() == BESIDE.keys()


def test_it_is_said_how_near_the_clients_are_to_their_bound() -> None:
    def sample(side: str, cpu: float) -> Sample:
        return Sample(load="x", in_flight=1, side=side, round=0, per_s=1.0, client_cpu=cpu)

    samples = [sample("zookeeper", 0.5), sample("zookeeper", 0.9), sample("raftkv", 0.25)]
    found = Comparison(peer="zookeeper", peer_version="3", conditions={}, lines=[], samples=samples)
    assert ZOOKEEPER.notes(found)[1:] == [
        "Processors that kazoo used: 0.50 to 0.90.",
        "Processors that raftkv.Client used: 0.25 to 0.25.",
    ]


@pytest.fixture(scope="module")
def ensemble(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeper]:
    if importlib.util.find_spec("kazoo") is None:
        pytest.skip("kazoo is not installed: pip install '.[bench]'")
    try:
        made = ZooKeeper(tmp_path_factory.mktemp("zookeeper"))
    except debian.Missing as missing:
        pytest.skip(str(missing))
    with made:
        yield made


@pytest.mark.slow
def test_a_python_client_at_real_servers(ensemble: ZooKeeper, tmp_path: Path) -> None:
    words: list[Word] = ["put", "get", "get-local", "swap"]

    async def scenario() -> list[Answer]:
        setup = Setup("kazoo", ensemble.leader())
        client = StoreClient("client", "bench.peers.store_client", setup, Answer, tmp_path)
        try:
            await client.spawn()
            await client.answer()
            for _ in range(2):  # keys that are there already are no failure
                await client.ask(Asked("put", 10, 8, 0.0, 4, make=True))
            return [await client.ask(Asked(word, 10, 8, 0.2, 4)) for word in words]
        finally:
            await client.end()

    assert ensemble.version.startswith("3.")
    assert len(ensemble.pids) == 3
    for word, answer in zip(words, asyncio.run(scenario()), strict=True):
        assert answer.done >= 4, word
        assert answer.failed == 0, word
        assert 0 < answer.p50_ms <= answer.p99_ms


@pytest.mark.slow
def test_the_command(
    ensemble: ZooKeeper, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With servers of its own; the fixture tells whether there can be any."""
    picture = tmp_path / "rates.png"
    options = ["--load", "swap, own keys", "--in-flight", "4", "--seconds", "1", "--rounds", "1"]
    assert main(["zookeeper", *options, "--json", "--plot", str(picture)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["peer_version"] == ensemble.version
    (line,) = found["lines"]
    assert (line["load"], line["beside"]) == ("swap, own keys", "set if the version is")
    assert line["ratio"]["median"] > 0
    assert not any(sample["failed"] for sample in found["samples"])
    assert picture.stat().st_size > 0


@pytest.mark.slow
def test_servers_that_end_are_told_of(
    ensemble: ZooKeeper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.peers.zookeeper._SERVER", "no.such.Server")
    with pytest.raises(ZooKeeperFailed, match=r"z0 has ended: .*no\.such\.Server"):
        with ZooKeeper(tmp_path, members=1):
            pass


def test_without_java_it_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(debian.Missing, match="zookeeper needs java"):
        debian.find("zookeeper")
