"""`python -m bench abuse`: its traffic against a node, and the report."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bench.abuse import MEMORY_MIB, Kind, Report, clients_bytes_max, requests_in_flight
from bench.abuse_traffic import KINDS, Made, Traffic, run
from bench.worst import WorstError
from bench.worst_callers import Figures
from raftkv import Client
from raftkv.config import HttpLimits
from tests.client.doors import served


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_kind_is_sent_and_the_node_goes_on(kind: str) -> None:
    async def story() -> Made:
        async with served(1) as doors, Client(doors.urls) as client:
            given = Traffic(kind=kind, endpoint=doors.urls[0], seconds=1.0, share=0.05)
            made = await run(given)
            await client.kv.put(b"k", b"v", timeout_s=30.0)
            return made

    made = asyncio.run(story())
    assert made.kind == kind
    assert made.requests > 0
    assert "500" not in made.statuses, made.statuses


def test_the_requests_under_way_are_read_from_the_page_of_metrics() -> None:
    page = "# TYPE raftkv_door_requests_in_flight gauge\nraftkv_door_requests_in_flight 1.2e+03\n"
    assert requests_in_flight(page) == 1200
    with pytest.raises(WorstError, match="lacks"):
        requests_in_flight("raftkv_door_requests 3\n")


def test_the_bound_of_memory_is_the_sum_of_its_limits() -> None:
    kib = 1024
    limits = HttpLimits(
        request_bytes_max=kib, answer_bytes_max=2 * kib, watch_bytes_max=4 * kib,
        head_bytes_max=kib, connections_max=3,
    )  # fmt: skip
    assert clients_bytes_max(limits, 2) == 7 * kib + 2 * 64 * kib
    assert clients_bytes_max(limits, 500) == 7 * kib + 3 * 64 * kib
    assert MEMORY_MIB == 1_120, "the figure in docs/http-api.md"


def kind(**changes: Any) -> Kind:
    figures: dict[str, Any] = {"done": 9, "seconds": 1.0, "p50_ms": 1.0, "worst_ms": 9.0}
    p99_ms = changes.pop("p99_ms", 20.0)
    bystander = Figures(role="bystander", p99_ms=p99_ms, errors={}, **figures)
    whole: dict[str, Any] = {"elections": 0, "leader_changed": False, "memory_mib": 100.0}
    return Kind(
        traffic=Made(kind="json", requests=1, statuses={}),
        bystander=bystander,
        transactions=bystander,
        **whole | changes,
    )


@pytest.mark.parametrize(
    ("changes", "met"),
    [
        ({}, True),
        ({"p99_ms": 499.0, "memory_mib": 200.0}, True),
        ({"elections": 1}, False),
        ({"leader_changed": True}, False),
        ({"p99_ms": 501.0}, False),
        ({"p99_ms": 0.0}, False),
        ({"memory_mib": 201.0}, False),
    ],
)
def test_the_aims(changes: dict[str, Any], met: bool) -> None:
    report = Report(kinds=[kind(), kind(**changes)], memory_mib_max=200.0, conditions={})
    assert report.aims_met is met
