"""`raftkv quota list` and `set`, over a node that answers as the HTTP API does."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tests.cli.test_main import raftkv

ROWS = [
    {"plugin": "kv", "logical_bytes": 1234, "quota_bytes": 65536, "nospace": True},
    {"plugin": "lcr", "logical_bytes": 0, "quota_bytes": 2**31, "nospace": False},
]


@contextmanager
def node(rows: list[dict[str, object]], asked: list[tuple[str, object]]) -> Iterator[str]:
    """A node with these quotas; what is put to it goes into `asked`."""

    class Node(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert self.path == "/v1/quotas"
            self._answer({"quotas": rows})

        def do_PUT(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            asked.append((self.path, body))
            self._answer({"plugin": self.path.rpartition("/")[2], **body})

        def _answer(self, body: object) -> None:
            data = json.dumps(body).encode()
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
