"""An HTTP server in the place of a node, for tests of commands: it answers JSON."""

from __future__ import annotations

import contextlib
import http.server
import json
import threading
from collections.abc import Iterator
from typing import Any

__all__ = ["JsonHandler", "served"]


class JsonHandler(http.server.BaseHTTPRequestHandler):
    """Subclasses have `do_GET`, `do_POST`, ..., which call `answer`."""

    def body(self) -> Any:
        """What the request holds, decoded."""
        return json.loads(self.rfile.read(int(self.headers["content-length"])))

    def answer(self, body: object, status: int = 200) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Quiet."""


@contextlib.contextmanager
def served(handler: type[JsonHandler]) -> Iterator[str]:
    """The URL of a server that answers with this handler while the context is entered."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
