"""A blocking node, and a blocking client of it: a test that asks for a `store` runs with both."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from raftkv import blocking
from tests.blocking.alone import config, open_door


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[blocking.Node]:
    with blocking.Node(config(tmp_path_factory.mktemp("node")), plugins=()) as node:
        yield node


@pytest.fixture(scope="module")
def endpoint(node: blocking.Node) -> Iterator[str]:
    """A door of the node."""
    door = node.run(open_door)
    yield door.endpoint
    node.run(lambda _: door.stop())


@pytest.fixture(params=["node", "client"])
def store(request: pytest.FixtureRequest, node: blocking.Node, endpoint: str) -> Iterator[Any]:
    if request.param == "node":
        node.kv.delete(prefix=b"")
        yield node
        return
    with blocking.Client(endpoint) as client:
        client.kv.delete(prefix=b"")
        yield client
