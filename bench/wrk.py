"""Load on a door by `wrk`: puts and gets in the words of etcd's JSON gateway, so that etcd's own
gateway and raftkv's door get the very same requests; and transactions of the limbo.

The load is a closed loop: every connection has one request outstanding. wrk has one thread here,
which on two cores is what it can have without taking the servers' place; its share of a core is
measured, because a generator that is busy all the time measures itself.
"""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

import msgspec

from bench.peers.children import cpu_seconds
from bench.peers.debian import Program

__all__ = ["Load", "Run", "WrkFailed", "run"]

SCRIPT: Final = Path(__file__).with_name("wrk.lua")
# Beyond the time of the load: to connect, to write its figures.
GRACE_S: Final = 30.0

Word = Literal["put", "get", "get-serializable", "limbo"]


class WrkFailed(Exception):
    """wrk did not run to its end; the message has what it said."""


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """What to ask for. Puts go round `keys`, so all of them exist after a while.

    With a `seed` each key is as likely as any other instead.
    """

    word: Word
    connections: int
    seconds: int
    keys: int = 1000
    value_bytes: int = 64
    seed: int | None = None


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it. `refused` counts answers that were not 200, `failed` those that never came.

    `client_cpu` and `server_cpu` are cores used on average, by wrk and by all servers.
    """

    word: str
    connections: int
    per_s: float
    p50_ms: float
    p99_ms: float
    max_ms: float
    refused: int
    failed: int
    client_cpu: float
    server_cpu: float


def run(program: Program, endpoint: str, load: Load, servers: Sequence[int] = ()) -> Run:
    """Run the load against `endpoint` (http://host:port). Raises `WrkFailed`."""
    command = [
        program.path, "-t1", f"-c{load.connections}", f"-d{load.seconds}s", "-s", str(SCRIPT),
        endpoint, "--", load.word, str(load.keys), str(load.value_bytes),
        *([] if load.seed is None else [str(load.seed)]),
    ]  # fmt: skip
    began_s, before_s = time.monotonic(), cpu_seconds(servers)
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=program.env
    )
    try:
        # Just before the end: of a process that has ended nothing can be read.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(load.seconds * 0.9)
        elapsed_s = time.monotonic() - began_s
        client_s, server_s = cpu_seconds([process.pid]), cpu_seconds(servers) - before_s
        said, _ = process.communicate(timeout=load.seconds + GRACE_S)
    except subprocess.TimeoutExpired:
        raise WrkFailed(f"wrk did not end {GRACE_S:.0f} s after its time") from None
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    return _parsed(said, load, client_s / elapsed_s, server_s / elapsed_s)


def _parsed(said: str, load: Load, client_cpu: float, server_cpu: float) -> Run:
    for line in said.splitlines():
        if line.startswith("RESULT "):
            requests, micros, p50, p99, most, refused, failed = line.split()[1:]
            if int(requests) == 0:
                break
            return Run(
                word=load.word,
                connections=load.connections,
                per_s=int(requests) / int(micros) * 1e6,
                p50_ms=float(p50),
                p99_ms=float(p99),
                max_ms=float(most),
                refused=int(refused),
                failed=int(failed),
                client_cpu=round(client_cpu, 2),
                server_cpu=round(server_cpu, 2),
            )
    words = said.strip().splitlines()
    raise WrkFailed(f"wrk got no answers: {words[-1] if words else 'it said nothing'}")
