"""`python -m bench worst`: its callers against a cluster, and the report."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bench.worst import Report
from bench.worst_callers import Figures, Load, Role, fill, key_of, run
from raftkv import Client
from tests.client.doors import served

KEYS = 250


def test_every_role_gets_answers_from_a_cluster() -> None:
    async def story() -> dict[Role, Figures]:
        async with served(1) as doors:
            endpoints = doors.urls
            async with Client(endpoints) as client:
                await fill(client, KEYS)
                found = await client.kv.range(prefix=b"worst/", keys_only=True)
                assert [kv.key for kv in found.kvs] == [key_of(n) for n in range(KEYS)]
            roles: list[Role] = ["worst", "bystander", "transactions", "ranges"]
            loads = [
                Load(role=role, endpoints=endpoints, callers=2, seconds=0.5, keys=KEYS, seed=1)
                for role in roles
            ]
            return {each.role: each for each in [await run(given) for given in loads]}

    for role, figures in asyncio.run(story()).items():
        assert (figures.role, figures.errors) == (role, {})
        assert figures.done > 0
        assert 0 < figures.p50_ms <= figures.p99_ms <= figures.worst_ms
        assert figures.per_s == figures.done / figures.seconds


def report(elections: int, p99_ms: float) -> Report:
    figures: dict[str, Any] = {"seconds": 1.0, "p50_ms": 1.0, "worst_ms": p99_ms, "errors": {}}
    bystander = Figures(role="bystander", done=9, p99_ms=p99_ms, **figures)
    return Report(code="x", elections=elections, alone=[], together=[bystander], conditions={})


@pytest.mark.parametrize(
    ("elections", "p99_ms", "met"), [(0, 499.0, True), (1, 20.0, False), (0, 501.0, False)]
)
def test_the_aims(elections: int, p99_ms: float, met: bool) -> None:
    assert report(elections, p99_ms).aims_met is met


def test_a_bystander_without_an_answer_does_not_meet_the_aim() -> None:
    assert not report(0, 0.0).aims_met
