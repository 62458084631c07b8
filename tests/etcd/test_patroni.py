"""Patroni's etcd3 client class, unmodified: the leader's lock, its lease, its watch."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from raftkv.cli.devcluster import DevCluster
from tests.etcd.conftest import host_and_port

if importlib.util.find_spec("patroni") is None or importlib.util.find_spec("etcd") is None:
    pytest.skip("patroni[etcd3] is not installed", allow_module_level=True)

pytestmark = pytest.mark.cluster

STORY = Path(__file__).with_name("patroni_story.py")


def test_patroni_does_its_work_while_a_core_is_killed(three: DevCluster, tmp_path: Path) -> None:
    hosts = ",".join("{}:{}".format(*host_and_port(each)) for each in three.endpoints())
    log = tmp_path / "patroni.log"
    with log.open("wb") as errors:
        story = subprocess.Popen(
            [sys.executable, str(STORY), hosts], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=errors, text=True,
        )  # fmt: skip
    try:
        assert story.stdin is not None
        assert story.stdout is not None
        said: list[Any] = []
        for line in story.stdout:
            if line == "READY\n":
                three.kill_node(three.leader())
                story.stdin.write("go on\n")
                story.stdin.flush()
            else:
                said.append(json.loads(line))
        assert story.wait(30) == 0, log.read_text()
    finally:
        story.kill()
        story.wait()
        assert story.stdin is not None
        assert story.stdout is not None
        story.stdin.close()
        story.stdout.close()
    (after_s,) = [found for what, found in said if what == "expired after s"]
    assert [each for each in said if each[0] != "expired after s"] == [
        ["initialize", [True, False]],
        ["touch alice", True],
        ["touch bob", True],
        ["acquire", [True, False]],
        ["seen", True],
        ["members", ["alice", "bob"]],
        ["update", True],
        ["config", [True, False]],
        ["update after the kill", True],
        ["status", True],
        ["give up", True],
        ["seen", True],
        ["acquire", True],
        ["seen", True],
        ["expired", True],
        ["delete", True],
    ], log.read_text()
    assert after_s > 1.0
