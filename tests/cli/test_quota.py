"""`raftkv quota list` and `set`, over a node that answers as the HTTP API does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

from tests.cli.json_node import JsonHandler, served
from tests.cli.test_main import raftkv

ROWS = [
    {"plugin": "kv", "logical_bytes": 1234, "quota_bytes": 65536, "nospace": True},
    {"plugin": "lcr", "logical_bytes": 0, "quota_bytes": 2**31, "nospace": False},
]


@contextmanager
def node(rows: list[dict[str, object]], asked: list[tuple[str, object]]) -> Iterator[str]:
    """A node with these quotas; what is put to it goes into `asked`."""

    class Node(JsonHandler):
        def do_GET(self) -> None:
            assert self.path == "/v1/quotas"
            self.answer({"quotas": rows})

        def do_PUT(self) -> None:
            body = self.body()
            asked.append((self.path, body))
            self.answer({"plugin": self.path.rpartition("/")[2], **body})

    with served(Node) as url:
        yield url


def test_the_quotas_are_listed() -> None:
    with node(ROWS, []) as url:
        done = raftkv("quota", "list", "--endpoint", url)
        assert done.returncode == 0, done.stderr
        lines = [line.split() for line in done.stdout.decode().splitlines()[1:]]
        assert lines == [["kv", "1234", "65536", "NOSPACE"], ["lcr", "0", str(2**31)]]
        done = raftkv("quota", "list", "--endpoint", url, "--json")
        assert json.loads(done.stdout) == ROWS
    with node([], []) as url:
        done = raftkv("quota", "list", "--endpoint", url)
        assert b"core format 1" in done.stderr


def test_a_quota_is_set_or_goes_back_to_its_default() -> None:
    asked: list[tuple[str, object]] = []
    with node(ROWS, asked) as url:
        done = raftkv("quota", "set", "kv", "8589934592", "--endpoint", url)
        assert (done.returncode, done.stdout) == (0, b"the quota of kv is 8589934592\n")
        done = raftkv("quota", "set", "kv", "default", "--endpoint", url, "--json")
        assert json.loads(done.stdout) == {"plugin": "kv", "quota_bytes": None}
        for wrong in ("8GiB", "-1", ""):
            done = raftkv("quota", "set", "--endpoint", url, "--", "kv", wrong)
            assert done.returncode == 2, wrong
            assert b"number of bytes or default" in done.stderr
    assert asked == [
        ("/v1/quotas/kv", {"quota_bytes": 8589934592}),
        ("/v1/quotas/kv", {"quota_bytes": None}),
    ]


def test_a10_changes_that_nobody_answered_say_that_they_may_still_take_effect() -> None:
    class Node(JsonHandler):
        def do_PUT(self) -> None:
            self.answer({"error": "the time was up"}, status=504)

        def do_POST(self) -> None:
            self.do_PUT()

    with served(Node) as url:
        for words in (("quota", "set", "kv", "9"), ("alarm", "disarm"), ("format", "raise")):
            done = raftkv(*words, "--timeout", "1", "--endpoint", url)
            assert done.returncode == 3, words
            assert b"it may still take effect: " in done.stderr, words
