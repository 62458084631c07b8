"""bench/setups.py: what a process is started with, for whatever revision runs it."""

from __future__ import annotations

import msgspec

from bench.embedded_node import Setup
from bench.setups import encoded
from raftkv.config import Limits, NodeConfig


def test_a_setup_without_its_defaults_reads_as_the_same_setup() -> None:
    node = NodeConfig(
        name="a",
        role="core",
        dir="/data/a",
        peer_address="127.0.0.1:1",
        cores={"a": "127.0.0.1:1"},
        limits=Limits(outbox_commands_max=7),
        host_whitelist=("*",),
    )
    setup = Setup(node, limbo=True)
    found = encoded(setup)
    assert msgspec.json.decode(found, type=Setup) == setup
    assert msgspec.json.decode(found)["node"]["limits"] == {"outbox_commands_max": 7}


def test_a_revision_without_a_newer_field_reads_the_defaults() -> None:
    node = NodeConfig(
        name="a", role="core", dir="/data/a", peer_address="127.0.0.1:1", cores={"a": "127.0.0.1:1"}
    )
    found = msgspec.json.decode(encoded(Setup(node)))["node"]
    assert set(found) == {"name", "dir", "peer_address", "cores"}
