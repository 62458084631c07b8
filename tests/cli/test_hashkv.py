"""`raftkv endpoint hashkv` over nodes that differ, or do not all answer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from tests.cli.json_node import JsonHandler, served
from tests.cli.test_main import raftkv


@contextmanager
def node(revision: int, digest: str, *, later: int = 0, asks: int = 0) -> Iterator[str]:
    """A node that has come as far as `revision`, with this digest at any; its endpoint.

    It stands at `later` once its status was asked for more than `asks` times.
    """
    asked_times = 0

    class Node(JsonHandler):
        def do_POST(self) -> None:
            nonlocal asked_times
            asked = self.body()
            asked_times += not self.path.endswith("hashkv")
            stands_at = later if later and asked_times > asks else revision
            answer: dict[str, object] = {"header": {"revision": str(stands_at)}}
            if self.path.endswith("hashkv") and int(asked["revision"]) > stands_at:
                self.answer({"error": "etcdserver: mvcc: required revision is a future one"}, 400)
                return
            if self.path.endswith("hashkv"):
                answer |= {"hash": int(digest, 16), "hash_revision": asked["revision"]}
                answer |= {"keys": "4", "digest": digest}
            self.answer(answer)

    with served(Node) as url:
        yield url


@pytest.fixture
def nodes() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def test_nodes_that_differ_are_code_3(nodes: ExitStack) -> None:
    urls = [nodes.enter_context(node(*each)) for each in ((9, "aa"), (9, "aa"), (9, "ab"))]
    done = raftkv("endpoint", "hashkv", "--endpoint", ",".join(urls))
    assert done.returncode == 3
    assert b"the nodes differ at revision 9: see docs/operations.md" in done.stderr
    assert [line.split()[1:3] for line in done.stdout.decode().splitlines()[1:]] == [
        ["170", "9"], ["170", "9"], ["171", "9"],
    ]  # fmt: skip
    found = json.loads(raftkv("endpoint", "hashkv", "--endpoint", ",".join(urls), "--json").stdout)
    assert found["same"] is False
    assert [each["digest"] for each in found["nodes"]] == ["aa", "aa", "ab"]


def test_a_node_that_does_not_answer_is_not_the_same(nodes: ExitStack) -> None:
    urls = [nodes.enter_context(node(9, "aa")), "http://127.0.0.1:1"]
    done = raftkv("endpoint", "hashkv", "--endpoint", ",".join(urls), "--rev", "5", "--json")
    assert done.returncode == 3
    found = json.loads(done.stdout)
    assert (found["revision"], found["same"]) == (5, False)
    assert [each["error"] is None for each in found["nodes"]] == [True, False]
    assert found["nodes"][1]["digest"] is None
    assert "differ" not in done.stderr.decode()


def test_a_node_that_lags_is_waited_for(nodes: ExitStack) -> None:
    urls = [
        nodes.enter_context(node(9, "aa")),
        nodes.enter_context(node(7, "aa", later=9, asks=2)),
    ]
    done = raftkv("endpoint", "hashkv", "--endpoint", ",".join(urls), "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["revision"], found["same"]) == (9, True)


def test_a_node_that_holds_nothing_is_named_as_not_compared(nodes: ExitStack) -> None:
    """A core on an old copy of its directory has nothing: at revision 1 all are equal."""
    healthy = [nodes.enter_context(node(9, "aa")) for _ in range(2)]
    lagging = nodes.enter_context(node(1, "aa"))
    at = ("--endpoint", ",".join([*healthy, lagging]), "--timeout", "1")
    done = raftkv("endpoint", "hashkv", *at, "--json")
    assert done.returncode == 3
    found = json.loads(done.stdout)
    assert (found["revision"], found["same"]) == (9, False)
    assert [each["digest"] for each in found["nodes"]] == ["aa", "aa", None]
    assert "is at revision 1, not at 9" in found["nodes"][2]["error"]
    assert "differ" not in done.stderr.decode()
    assert raftkv("endpoint", "hashkv", *at, "--rev", "1").returncode == 0
