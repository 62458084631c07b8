"""The load of `raftkv check perf`, and the verdict on it.

A number of clients put keys at a fixed rate for a while. The check passes if nine tenths of the
rate was reached, the slowest put took at most half a second and the standard deviation is at most a
tenth of a second: etcdctl's three verdicts, and no put may have failed.

The clock of a put starts when it is sent, not when its turn was: a cluster that cannot keep the
rate fails by the throughput, not by waiting times that grow with the length of the check.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from raftkv.errors import RaftkvError, Refused

if TYPE_CHECKING:
    from raftkv.client import Client

__all__ = ["LOADS", "Load", "Measured", "Verdict", "document", "measure", "percentile", "verdicts"]

KEY_BYTES: Final = 256
VALUE_BYTES: Final = 1024
SLOWEST_S_MAX: Final = 0.5
DEVIATION_S_MAX: Final = 0.1
# The part of the wanted rate that must be reached.
REACHED_MIN: Final = 0.9
SHOW_S: Final = 0.2
CLEAN_UP_KEYS: Final = 5_000


class Load(NamedTuple):
    """A load by name: puts per second, clients."""

    rate: int
    clients: int


# etcdctl's own figures.
LOADS: Final = {
    "s": Load(150, 50),
    "m": Load(1_000, 200),
    "l": Load(8_000, 500),
    "xl": Load(15_000, 1_000),
}


class Measured(NamedTuple):
    """The seconds that each put took, how many failed, and how long it all was."""

    took_s: list[float]
    failed: int
    elapsed_s: float
    first_error: str | None = None


class Verdict(NamedTuple):
    """One line of the result."""

    name: str
    passed: bool
    text: str


async def measure(
    client: Client, load: Load, duration_s: float, prefix: bytes, show: Callable[[float], None]
) -> Measured:
    """Put the load. `show` hears from time to time how many seconds it has run.

    The keys are deleted in the end, also when this is cancelled. Raises `Refused` if there are keys
    below `prefix` before.
    """
    there = await client.kv.range(prefix=prefix, limit=1, keys_only=True)
    if there.count:
        raise Refused(
            f"there are {there.count} keys below {prefix.decode(errors='replace')}: choose "
            f"another --prefix, or delete them"
        )
    took_s: list[float] = []
    errors: list[str] = []
    began = time.monotonic()
    total = max(1, round(load.rate * duration_s))
    numbers = iter(range(total))

    async def caller(name: int) -> None:
        value = secrets.token_bytes(VALUE_BYTES)
        for number in numbers:
            now = time.monotonic() - began
            if now > duration_s:
                return
            await asyncio.sleep(max(0.0, number / load.rate - now))
            key = (prefix + f"{name}-{number}-".encode()).ljust(KEY_BYTES, b".")
            sent = time.monotonic()
            try:
                await client.kv.put(key, value)
            except RaftkvError as error:
                errors.append(str(error))
            else:
                took_s.append(time.monotonic() - sent)

    showing = asyncio.create_task(_show(show, began))
    try:
        async with asyncio.TaskGroup() as callers:
            for name in range(min(load.clients, total)):
                callers.create_task(caller(name))
        elapsed_s = time.monotonic() - began
    finally:
        showing.cancel()
        await _clean_up(client, prefix)
    first = errors[0] if errors else None
    return Measured(took_s, len(errors), elapsed_s, first)


async def _clean_up(client: Client, prefix: bytes) -> None:
    """Delete the keys, some at a time: nodes are not to stand still for all of them at once."""
    while True:
        found = await client.kv.range(prefix=prefix, limit=CLEAN_UP_KEYS, keys_only=True)
        if not found.kvs:
            return
        await client.kv.delete(found.kvs[0].key, found.kvs[-1].key + b"\0")


async def _show(show: Callable[[float], None], began: float) -> None:
    while True:
        show(time.monotonic() - began)
        await asyncio.sleep(SHOW_S)


def verdicts(measured: Measured, load: Load) -> list[Verdict]:
    """The lines of the result, in etcdctl's order."""
    if not measured.took_s:
        return [Verdict("throughput", False, "no put succeeded")]
    rate = len(measured.took_s) / measured.elapsed_s
    slowest_s = max(measured.took_s)
    deviation_s = _deviation(measured.took_s)
    enough = rate >= REACHED_MIN * load.rate
    found = [
        Verdict(
            "throughput",
            enough,
            f"Throughput is {rate:.0f} writes/s"
            if enough
            else f"Throughput too low: {rate:.0f} writes/s of {load.rate}",
        ),
        _limited("slowest", "Slowest request", slowest_s, SLOWEST_S_MAX),
        _limited("deviation", "Stddev", deviation_s, DEVIATION_S_MAX),
    ]
    if measured.failed:
        found.append(Verdict("errors", False, f"{measured.failed} writes failed"))
    return found


def _limited(name: str, what: str, seconds: float, most_s: float) -> Verdict:
    verb = "took" if name == "slowest" else "is"
    if seconds <= most_s:
        return Verdict(name, True, f"{what} {verb} {seconds:.6f}s")
    return Verdict(name, False, f"{what} too large: {seconds:.6f}s, at most {most_s}s")


def _deviation(values: list[float]) -> float:
    mean = sum(values) / len(values)
    return float((sum((value - mean) ** 2 for value in values) / len(values)) ** 0.5)


def percentile(values: list[float], part: float) -> float:
    """The value below which `part` of them lie. There must be one."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def document(name: str, load: Load, measured: Measured, found: list[Verdict]) -> dict[str, Any]:
    """What `--json` prints."""
    took_s = measured.took_s
    return {
        "load": name,
        "wanted_per_s": load.rate,
        "clients": load.clients,
        "elapsed_s": measured.elapsed_s,
        "writes": len(took_s),
        "failed": measured.failed,
        "throughput_per_s": len(took_s) / measured.elapsed_s,
        "slowest_s": max(took_s) if took_s else None,
        "deviation_s": _deviation(took_s) if took_s else None,
        "p50_s": percentile(took_s, 0.5) if took_s else None,
        "p99_s": percentile(took_s, 0.99) if took_s else None,
        "first_error": measured.first_error,
        "verdicts": {verdict.name: verdict.passed for verdict in found},
        "passed": all(verdict.passed for verdict in found),
    }
