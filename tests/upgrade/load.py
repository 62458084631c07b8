"""Numbered writes against a cluster whose nodes come and go, and what they must leave behind."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import threading
import time
from collections.abc import Iterator

from tests.upgrade.nodes import MixedCluster, NodeProcess, Unanswered

WRITERS = 3
# A pace, so that the load stays the same share of a slow machine and of a fast one.
PAUSE_S = 0.02
# One write may wait for an election, and for the answer of a node that is being stopped.
WRITE_S = 60.0
PREFIX = "load/"
RANGE_LIMIT = 500


def base64_of(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def text_of(encoded: str) -> str:
    return base64.b64decode(encoded).decode()


@dataclasses.dataclass(frozen=True)
class Acknowledged:
    """A write that was answered: its revision, and whether it was sent once only."""

    value: str
    revision: int
    once: bool


class Load:
    """Writers that put numbered keys, each with one write under way, through all nodes in turn."""

    def __init__(self, cluster: MixedCluster) -> None:
        self.acknowledged: dict[str, Acknowledged] = {}
        self._nodes = list(cluster.nodes.values())
        self._failures: list[str] = []
        self._stopped = threading.Event()
        self._going = threading.Event()
        self._going.set()
        self._busy = [threading.Lock() for _ in range(WRITERS)]
        self._threads = [
            threading.Thread(target=self._write, args=(n,), name=f"writer {n}")
            for n in range(WRITERS)
        ]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._going.set()
        for thread in self._threads:
            thread.join()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """No write is under way inside of this context."""
        self._going.clear()
        with contextlib.ExitStack() as stack:
            for lock in self._busy:
                stack.enter_context(lock)
            yield
        self._going.set()

    def check_progress(self, since: int) -> int:
        """Fail if a write failed, or none was acknowledged since there were `since` of them."""
        assert not self._failures, self._failures
        count = len(self.acknowledged)
        assert count > since, f"no write was acknowledged beyond the first {since}"
        return count

    def _write(self, writer: int) -> None:
        number = 0
        while not self._stopped.wait(PAUSE_S) and not self._failures:
            self._going.wait()
            with self._busy[writer]:
                if not self._going.is_set():
                    continue
                number += 1
                self._put(f"{PREFIX}{writer}/{number:06d}", f"{writer}.{number}", writer + number)

    def _put(self, key: str, value: str, first: int) -> None:
        """Put until it is acknowledged, at one node after the other."""
        body = {"key": base64_of(key), "value": base64_of(value)}
        until, attempts, last = time.monotonic() + WRITE_S, 0, ""
        while time.monotonic() < until:
            node = self._nodes[(first + attempts) % len(self._nodes)]
            attempts += 1
            try:
                status, answer = node.request("POST", "/v3/kv/put", body)
            except Unanswered as error:
                last = str(error)
                self._stopped.wait(PAUSE_S)
                continue
            if status != 200:
                self._failures.append(f"{node.name}: put {key}: {status} {answer}")
                return
            revision = int(answer["header"]["revision"])
            self.acknowledged[key] = Acknowledged(value, revision, attempts == 1)
            return
        self._failures.append(f"put {key} was not acknowledged in {WRITE_S} s: {last}")

    def check(self, node: NodeProcess) -> None:
        """Every acknowledged write is in this node's own keys, at the revision of its answer.

        A write that was sent more than once may have been applied more than once, so that only the
        value counts. Two acknowledged writes never have one revision: two leaders would have.
        """
        stored = dict(local_keys(node))
        lost = [key for key, each in self.acknowledged.items() if key not in stored]
        assert not lost, f"{node.name} has lost {len(lost)} acknowledged writes: {lost[:10]}"
        for key, each in self.acknowledged.items():
            value, revision = stored[key]
            assert value == each.value, f"{node.name}: {key}: {value}, not {each.value}"
            if each.once:
                assert revision == each.revision, f"{node.name}: {key}: {revision}, {each}"
        revisions = [each.revision for each in self.acknowledged.values()]
        assert len(set(revisions)) == len(revisions), "one revision was acknowledged twice"


def local_keys(node: NodeProcess) -> Iterator[tuple[str, tuple[str, int]]]:
    """The keys of the load that this node holds itself: (key, (value, revision))."""
    start, end = PREFIX, PREFIX[:-1] + chr(ord(PREFIX[-1]) + 1)
    while True:
        body = {"key": base64_of(start), "range_end": base64_of(end)}
        answer = node.ask(
            "POST", "/v3/kv/range", {**body, "limit": RANGE_LIMIT, "serializable": True}
        )
        rows = answer.get("kvs", [])
        for row in rows:
            yield text_of(row["key"]), (text_of(row["value"]), int(row["mod_revision"]))
        if not answer.get("more"):
            return
        start = text_of(rows[-1]["key"]) + "\0"
