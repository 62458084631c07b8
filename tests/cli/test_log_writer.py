"""A reader of the log that stops reading, or goes away, holds no node up."""

from __future__ import annotations

import contextlib
import fcntl
import http.client
import json
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from raftkv.cli.log_writer import LogWriter, QueuedLines, QueuedText
from raftkv.testing.local_cluster import free_ports
from tests.documents.snippets import snippets

F_SETPIPE_SZ = getattr(fcntl, "F_SETPIPE_SZ", 1031)


def report(dropped: int) -> str:
    return f"{dropped} were dropped"


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """A pipe that holds one page."""
    reading, writing = os.pipe()
    fcntl.fcntl(writing, F_SETPIPE_SZ, 4096)
    yield reading, writing
    for end in (reading, writing):
        with contextlib.suppress(OSError):  # a test has closed it
            os.close(end)


def read_all(reading: int, until: bytes) -> list[str]:
    data = b""
    while until not in data:
        data += os.read(reading, 65_536)
    return data.decode().splitlines()


def test_lines_come_in_order_and_whole(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    writer = LogWriter(writing, report)
    handler = QueuedLines(writer)
    for number in range(50):
        handler.handle(logging.makeLogRecord({"msg": f"line {number} \udcff"}))
    lines = read_all(reading, b"line 49 ")
    assert lines == [f"line {number} \\udcff" for number in range(50)]
    assert writer.flush()
    assert writer.dropped_total == 0


def test_beyond_the_bounds_lines_are_dropped_counted_and_reported(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    writer = LogWriter(writing, report, lines_max=100, bytes_max=100_000)
    for number in range(400):
        writer.put(f"{number:04d}" + "x" * 200)
    assert writer.dropped_total > 100
    assert not writer.flush(0.01), "nothing reads"
    lines = read_all(reading, b"were dropped\n")
    assert writer.flush()
    (said,) = [line for line in lines if "dropped" in line]
    assert said == report(writer.dropped_total)
    assert len(lines) - 1 == 400 - writer.dropped_total
    # The bytes are bounded, too, also those of one line.
    before = writer.dropped_total
    writer.put("y" * 100_001)
    assert writer.dropped_total == before + 1


def test_a_reader_that_has_gone_costs_lines_only(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    writer = LogWriter(writing, report)
    os.close(reading)
    writer.put("no process reads this")
    assert writer.flush()
    assert writer.dropped_total == 1
    writer.put("nor this")
    assert writer.flush()
    assert writer.dropped_total == 2


def test_a_pipe_that_does_not_block_loses_no_line(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    os.set_blocking(writing, False)  # another process that has it may set that
    writer = LogWriter(writing, report)
    for number in range(400):
        writer.put(f"{number:04d}" + "x" * 200)
    writer.put("end")
    lines = read_all(reading, b"end\n")
    assert [line[:4] for line in lines[:-1]] == [f"{number:04d}" for number in range(400)]
    assert writer.flush()
    assert writer.dropped_total == 0


def test_a_report_that_fails_ends_neither_the_thread_nor_the_count(pipe: tuple[int, int]) -> None:
    reading, writing = pipe

    def failing(dropped: int) -> str:
        raise ValueError("no standing")

    writer = LogWriter(writing, failing, bytes_max=100)
    writer.put("x" * 100)
    assert writer.dropped_total == 1
    writer.put("first")
    assert "1 lines were dropped" in read_all(reading, b"standing')\n")[1]
    writer.put("second")
    assert read_all(reading, b"second\n") == ["second"]


def test_what_no_report_said_stays_to_be_reported(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    reported: list[int] = []

    def noted(dropped: int) -> str:
        reported.append(dropped)
        return report(dropped)

    writer = LogWriter(writing, noted, bytes_max=100)
    os.close(reading)
    writer.put("x" * 100)
    for number in range(3):
        writer.put(f"no process reads {number}")
        assert writer.flush()
    assert reported == [1, 2, 3], "the report is lost with the lines"
    assert writer.dropped_total == 4


def test_text_without_line_ends_is_bounded(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    text = QueuedText(LogWriter(writing, report))
    for _ in range(3):
        text.write("x" * 30_000)
    text.write("\n")
    assert read_all(reading, b"x\n\n") == ["x" * 90_000, ""]


def test_a6_the_handler_of_the_page_holds_no_program_up(pipe: tuple[int, int]) -> None:
    """docs/logs.md: a program that embeds a node, and whose stderr is not read."""
    (page,) = snippets("docs/logs.md")
    program = page.text + (
        "log = logging.getLogger('raftkv')\n"
        "for _ in range(15_000): log.warning('x' * 100)\n"
        "import os\n"
        "print(log.handlers[0].dropped, flush=True)\n"
        "os._exit(0)\n"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=pipe[1], timeout=60, check=True)
    assert 4_000 < int(done.stdout) < 5_000


def test_text_for_stderr_goes_line_by_line(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    writer = LogWriter(writing, report)
    text = QueuedText(writer)
    print("one\ntwo", "words", file=text)
    text.write("begun ")
    text.write("and ended\n")
    assert read_all(reading, b"ended\n") == ["one", "two words", "begun and ended"]


@pytest.mark.cluster
@pytest.mark.parametrize("gone", [False, True])
def test_a_node_whose_log_is_not_read_goes_on_and_stops(
    gone: bool, pipe: tuple[int, int], tmp_path: Path
) -> None:
    reading, writing = pipe
    peer, port = free_ports(2)
    (tmp_path / "node.toml").write_text(
        f'name = "a"\ndir = "data"\npeer_address = "127.0.0.1:{peer}"\nplugins = []\n'
        f'http_address = "127.0.0.1:{port}"\n[cores]\na = "127.0.0.1:{peer}"\n'
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "raftkv", "serve", "--config", str(tmp_path / "node.toml")],
        stderr=writing,
        stdout=writing,
    )
    try:
        lines = read_all(reading, b"serving at")
        assert all(json.loads(line) for line in lines)
        if gone:
            os.close(reading)
            os.close(writing)
        process.send_signal(signal.SIGHUP)  # which ends no node
        # Each connection that is no node's is a line, up to a hundred; a page holds some twenty.
        for number in range(90):
            with socket.create_connection(("127.0.0.1", peer), timeout=10) as stranger:
                stranger.sendall(b"GET / HTTP/1.0\r\n\r\n" + bytes([number]))
                with contextlib.suppress(ConnectionError):
                    stranger.recv(10)
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        connection.request("POST", "/v3/kv/put", json.dumps({"key": "aw==", "value": "dg=="}))
        assert connection.getresponse().status == 200
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        connection.request("GET", "/metrics")
        assert b"raftkv_log_lines_dropped_total" in connection.getresponse().read()
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
