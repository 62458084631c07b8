"""Several development clusters in one directory, on fake nodes."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from raftkv.cli import kit, layout
from raftkv.cli import main as cli
from raftkv.cli.devcluster import DevCluster
from raftkv.cli.localclusters import LocalClusters
from raftkv.config import load_config
from raftkv.errors import ConfigError, NodeFault
from tests.cli.conftest import FAKE, ROOT

UP_S = 30.0


@pytest.fixture
def clusters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalClusters]:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    made = LocalClusters(tmp_path / "all", command=FAKE)
    yield made
    if made.exists:
        made.down()


def told(own: str, endpoints: Mapping[str, Sequence[str]]) -> dict[str, dict[str, Any]]:
    """Options with all that a value can be."""
    others = {each: {"doors": list(doors)} for each, doors in endpoints.items() if each != own}
    return {"toy": {"own": own, "on": True, "s": 1.5, "others": others}}


def up(clusters: LocalClusters, *names: str, **more: Any) -> tuple[str, ...]:
    return clusters.up(names, told, cores=1, replicants=0, timeout_s=UP_S, **more)


def test_all_start_know_each_other_and_stop(clusters: LocalClusters) -> None:
    assert not clusters.exists
    steps: list[str] = []
    assert up(clusters, "a", "b", progress=steps.append) == ("a", "b")
    assert sorted(steps) == ["a: core1 started", "b: core1 started"]
    doors = {name: clusters.cluster(name).endpoints() for name in "ab"}
    for own, other in ("ab", "ba"):
        options = clusters.cluster(own).config("core1").options
        assert options == told(own, doors)
        assert options["toy"]["others"] == {other: {"doors": doors[other]}}
    found = clusters.statuses()
    assert [name for name, _ in found] == ["a", "b"]
    assert [node.running for _, status in found for node in status.nodes] == [True, True]
    assert clusters.down() == ["a/core1", "b/core1"]
    assert clusters.down() == []


def test_those_that_are_there_start_again(clusters: LocalClusters) -> None:
    up(clusters, "a", "b")
    doors = clusters.cluster("a").endpoints()
    clusters.cluster("a").down()
    again = LocalClusters(clusters.directory, command=FAKE)
    steps: list[str] = []
    assert again.up((), told, timeout_s=UP_S, progress=steps.append) == ("a", "b")
    assert sorted(steps) == ["a: core1 started", "b: core1 is running"]
    assert clusters.cluster("a").endpoints() == doors
    # The options stand in the file once, however often they were written.
    text = Path(clusters.cluster("a").config_path("core1")).read_text("utf-8")
    assert text.count("own = ") == text.count(layout.OPTIONS_MARK) == 1


def test_other_names_or_sizes_are_refused(clusters: LocalClusters) -> None:
    up(clusters, "a", "b")
    with pytest.raises(ConfigError, match="the clusters in .* are a, b: leave the names out"):
        up(clusters, "a", "c")
    with pytest.raises(ConfigError, match="has cores = 1, not 3"):
        clusters.up((), told, cores=3)


@pytest.mark.parametrize("names", [("a", "a"), (), ("../x",), ("lock",), ("x" * 33,)])
def test_bad_names_are_told(clusters: LocalClusters, names: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match=r"say 1 to 16 names|cannot be the name of a cluster"):
        up(clusters, *names)
    assert not clusters.exists


def test_a_cluster_that_does_not_start_is_named_and_the_others_go_on(
    clusters: LocalClusters,
) -> None:
    up(clusters, "a", "b")
    clusters.down()
    Path(clusters.cluster("b").config_path("core1")).with_name("fault").write_text("exit")
    with pytest.raises(NodeFault, match="the fake was told to exit"):
        up(clusters)
    assert [node.running for _, status in clusters.statuses() for node in status.nodes] == [
        True,
        False,
    ]


def test_without_clusters_it_is_said_so(clusters: LocalClusters, tmp_path: Path) -> None:
    for act in (clusters.down, clusters.statuses):
        with pytest.raises(ConfigError, match="there are no clusters in"):
            act()
    Path(tmp_path, "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be used as a directory"):
        LocalClusters(tmp_path / "file").up(("a",), told)


def test_options_are_replaced_and_bad_ones_change_nothing(clusters: LocalClusters) -> None:
    up(clusters, "a")
    node = clusters.cluster("a")
    path = node.config_path("core1")
    node.set_options({"toy": {"odd key\n": "\U0001f600 \"'\\", "deep": {"deeper": {"x": [1]}}}})
    assert load_config(path).options == {
        "toy": {"odd key\n": "\U0001f600 \"'\\", "deep": {"deeper": {"x": [1]}}}
    }
    before = Path(path).read_text("utf-8")
    with pytest.raises(ConfigError):
        node.set_options({"toy": {"x": None}})
    assert Path(path).read_text("utf-8") == before
    assert not Path(f"{path}.new").exists()
    node.set_options({})
    assert load_config(path).options == {}


def test_a_command_shows_them_all_and_leaves_them(
    clusters: LocalClusters, capsys: pytest.CaptureFixture[str]
) -> None:
    def start(progress: Any) -> list[str]:
        up(clusters, "a", "b", progress=progress)
        return ["both are up"]

    kit.bring_up(clusters, start, detach=True)
    said = capsys.readouterr()
    assert said.err.splitlines()[-1] == "both are up"
    lines = said.out.splitlines()
    assert [line for line in lines if line.endswith(":")] == ["a:", "b:"]
    assert len([line for line in lines if re.match(r"core1 .* yes$", line)]) == 2
    clusters.down()

    def fail(progress: Any) -> list[str]:
        up(clusters, progress=progress)
        raise NodeFault("it does not work")

    with pytest.raises(NodeFault):
        kit.bring_up(clusters, fail, detach=False)
    # In the foreground nothing is left behind.
    assert clusters.down() == []


def test_one_cluster_in_the_foreground_ends_with_its_last_node(
    clusters: LocalClusters, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(progress: Any) -> list[str]:
        up(clusters, "a", progress=progress)
        clusters.down()
        return []

    kit.bring_up(clusters, start, detach=False)
    assert capsys.readouterr().err.splitlines()[-1] == "no node is running any more"
    # `raftkv cluster status` speaks to one of them by its own directory.
    directory = clusters.cluster("a").directory
    with pytest.raises(ConfigError, match="several clusters in .*: name the directory of one"):
        _ = DevCluster(clusters.directory).shape
    monkeypatch.setattr(sys, "argv", ["raftkv", "cluster", "status", "--dir", directory, "--json"])
    with pytest.raises(SystemExit):
        cli.main()
    assert json.loads(capsys.readouterr().out)["nodes"][0]["running"] is False
