"""Compare-and-swap of one hot key by many callers at once, over HTTP (wrk) and inside a node.

Two ways to do it, the same for both sides:

    loop   every caller remembers the revision that it last saw and swaps if it still holds. Of the
           callers who are answered together one has won; the rest have learnt the new revision.
           So the wins are at most the rounds, whoever decides.
    log    the condition does not name what the caller saw, but what must hold when the command is
           applied (the key exists), and the answer holds what was there before. It is decided in
           the log, so nobody loses. (A counter, a ticket, a hand-over of a role.)
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final, Literal

import msgspec

from bench.peers.debian import Program
from bench.wrk import GRACE_S, WrkFailed

__all__ = ["CALLERS", "Cas", "Way", "over_http"]

SCRIPT: Final = Path(__file__).with_name("cas.lua")
CALLERS: Final = 64

Way = Literal["loop", "log"]


class Cas(msgspec.Struct, frozen=True):
    """Attempts that were answered, and those that won, a second."""

    tried_per_s: float
    won_per_s: float


def over_http(
    program: Program, endpoint: str, way: Way, seconds: int, callers: int = CALLERS
) -> Cas:
    """By wrk, with a thread and a connection for each caller. Raises `WrkFailed`.

    The key must exist: `hot`.
    """
    command = [
        program.path, f"-t{callers}", f"-c{callers}", f"-d{seconds}s", "-s", str(SCRIPT),
        endpoint, "--", way,
    ]  # fmt: skip
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env=program.env, timeout=seconds + GRACE_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise WrkFailed(f"wrk did not end {GRACE_S:.0f} s after its time") from None
    for line in done.stdout.splitlines():
        if line.startswith("RESULT "):
            won, tried, refused, micros = (int(word) for word in line.split()[1:])
            if refused or not tried:
                raise WrkFailed(f"{refused} transactions were refused, {tried} answered")
            return Cas(tried / micros * 1e6, won / micros * 1e6)
    words = done.stdout.strip().splitlines()
    raise WrkFailed(f"wrk got no answers: {words[-1] if words else 'it said nothing'}")
