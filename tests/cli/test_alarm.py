"""`raftkv alarm list` over nodes with and without an alarm, and one that does not answer;
`raftkv alarm disarm`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from tests.cli.json_node import JsonHandler, served
from tests.cli.test_main import raftkv


@contextmanager
def node(status: dict[str, object]) -> Iterator[str]:
    """A node with this status; its endpoint."""

    class Node(JsonHandler):
        def do_GET(self) -> None:
            self.answer(status)

        def do_POST(self) -> None:
            asked = self.body()
            self.answer(status.get(f"{self.path} {asked['action']}", {}))

    with served(Node) as url:
        yield url


def test_each_node_lists_its_own_alarms() -> None:
    with ExitStack() as stack:
        urls = [
            stack.enter_context(node(status))
            for status in (
                {"name": "core1", "alarms": ["DISK"]},
                {"name": "core2", "alarms": []},
                {"name": "core3"},  # of an older release
            )
        ]
        done = raftkv("alarm", "list", "--endpoint", ",".join(urls))
        assert done.returncode == 0, done.stderr
        lines = done.stdout.decode().splitlines()
        assert [line.split()[:3] for line in lines[1:]] == [[urls[0], "core1", "DISK"]]
        urls.append("http://127.0.0.1:1")
        done = raftkv("alarm", "list", "--endpoint", ",".join(urls), "--json")
        assert done.returncode == 3
        found = json.loads(done.stdout)
        assert [each["alarms"] for each in found] == [["DISK"], [], [], None]
        assert [each["error"] is None for each in found] == [True, True, True, False]


def test_disarm_tells_whether_the_alarm_was_on() -> None:
    was_on = {"alarms": [{"memberID": "7", "alarm": "NOSPACE"}]}
    with ExitStack() as stack:
        word = "/v3/maintenance/alarm DEACTIVATE"
        on = stack.enter_context(node({word: was_on}))
        off = stack.enter_context(node({word: {}}))
        done = raftkv("alarm", "disarm", "--endpoint", f"http://127.0.0.1:1,{on}")
        assert (done.returncode, done.stdout) == (0, b"NOSPACE is disarmed\n"), done.stderr
        done = raftkv("alarm", "disarm", "--endpoint", off)
        assert (done.returncode, done.stdout) == (0, b"NOSPACE was not on\n"), done.stderr
        done = raftkv("alarm", "disarm", "--endpoint", on, "--json")
        assert json.loads(done.stdout) == {"disarmed": ["NOSPACE"]}
