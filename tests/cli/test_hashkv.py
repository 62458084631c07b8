"""`raftkv endpoint hashkv` over nodes that differ, or do not all answer."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from tests.cli.test_main import raftkv


@contextmanager
def node(revision: int, digest: str) -> Iterator[str]:
    """A node that has come as far as `revision`, with this digest at any; its endpoint."""

    class Node(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
            answer = {"header": {"revision": str(revision)}}
            if self.path.endswith("hashkv"):
                answer |= {"hash": int(digest, 16), "hash_revision": asked["revision"]}
                answer |= {"keys": "4", "digest": digest}
            data = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            """Quiet."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Node)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def nodes() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def test_nodes_that_differ_are_code_3(nodes: ExitStack) -> None:
    urls = [nodes.enter_context(node(*each)) for each in ((9, "aa"), (7, "aa"), (8, "ab"))]
    done = raftkv("endpoint", "hashkv", "--endpoint", ",".join(urls))
    assert done.returncode == 3
    assert b"the nodes differ at revision 7: see docs/operations.md" in done.stderr
    # The newest revision that all have reached.
    assert [line.split()[1:3] for line in done.stdout.decode().splitlines()[1:]] == [
        ["170", "7"], ["170", "7"], ["171", "7"],
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
