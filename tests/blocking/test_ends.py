"""How a blocking node or client ends: by the interpreter's exit, dropped, by signals."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import pytest

from raftkv import blocking
from raftkv.blocking.portal import Portal
from raftkv.errors import DiskFailed, RaftkvError, Stopped
from tests.blocking.alone import config
from tests.blocking.programs import PROGRAMS

ROOT = Path(__file__).resolve().parent.parent.parent
ITEMS = {"exit_in_run": "d5", "exit_in_callback": "d5", "forked_child": "d5"}


@pytest.mark.parametrize("name", [f"{ITEMS.get(name, 'd2')}_{name}" for name in PROGRAMS])
def test_a_program_ends(name: str, tmp_path: Path) -> None:
    """Far within the time-out: the exit waited for ever for a thread that does not run."""
    program = name.partition("_")[2]
    done = subprocess.run(
        [sys.executable, "-m", "tests.blocking.programs", program, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT}/plugins"},
        check=False,
    )
    assert done.returncode == 0, done
    assert "end" in done.stdout
    assert "Traceback" not in done.stderr
    assert "never awaited" not in done.stderr
    if program == "call_in_del":
        assert "stopped" in done.stdout
    if program == "handler_stops":
        assert "the call ended:" in done.stdout


def test_d2_a_call_that_meets_the_end_of_the_loop_ends() -> None:
    """Whatever the two threads do first: the call is carried out, or refused."""
    for _ in range(50):
        portal = Portal("ends")
        ended: list[object] = []
        go = threading.Barrier(2)

        def call(
            portal: Portal = portal, ended: list[object] = ended, go: threading.Barrier = go
        ) -> None:
            go.wait()
            for _ in range(20):
                try:
                    ended.append(portal.run(lambda: 1))
                except Stopped as error:
                    ended.append(error)

        thread = threading.Thread(target=call)
        thread.start()
        go.wait()
        portal.close()
        thread.join(20)
        assert not thread.is_alive()
        assert len(ended) == 20


def test_d2_close_from_two_threads() -> None:
    client = blocking.Client("http://127.0.0.1:9")
    threads = [threading.Thread(target=client.close) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()


@pytest.mark.parametrize("fsync", ["on", "off"])
@pytest.mark.parametrize("idle", [False, True])
@pytest.mark.parametrize("replaced", [False, True])
def test_d5_a_removed_directory_is_a_fault(
    tmp_path: Path, fsync: str, *, idle: bool, replaced: bool
) -> None:
    settings = msgspec.structs.replace(config(tmp_path), fsync=fsync)
    with blocking.Node(settings, plugins=()) as node:
        node.kv.put(b"k", b"v")
        shutil.rmtree(settings.dir)
        if replaced:
            os.makedirs(settings.dir)
        if not idle:
            with pytest.raises(RaftkvError):
                node.kv.put(b"k", b"w")
        fault = node.run(lambda inner: asyncio.wait_for(inner.fault, 30))
        assert isinstance(fault, DiskFailed)
        assert "start the node with an empty directory as a new node" in str(fault)
        assert "disk" not in str(fault), "it is as good as before"
        with pytest.raises(DiskFailed, match="removed"):
            node.kv.put(b"k", b"w")
