"""`raftkv lease keep-alive` while nobody answers, and the ids of leases in the CLI."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from raftkv.cli import lease
from raftkv.cli.options import At
from raftkv.cli.requests import lease_id, lease_text
from raftkv.errors import ConfigError, NoLeader, ReadTimeout, Refused
from raftkv.kv import LeaseNotFound

TTL_S = 3


class Leases:
    """Answers as told, then as if the lease were gone."""

    def __init__(self, *answers: Exception | int) -> None:
        self.answers = list(answers)
        self.timeouts_s: list[float] = []

    async def keep_alive(self, number: int, *, timeout_s: float) -> int:
        self.timeouts_s.append(timeout_s)
        answer = self.answers.pop(0) if self.answers else LeaseNotFound("gone")
        if isinstance(answer, Exception):
            raise answer
        return answer


class FakeClient:
    def __init__(self, leases: Leases) -> None:
        self.leases = leases


def keep(leases: Leases, *, once: bool = False) -> None:
    client: Any = FakeClient(leases)
    asyncio.run(lease._keep(client, At(endpoints=()), 7, once=once))


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "KEEP_ALIVES_PER_TTL", 1000)
    monkeypatch.setattr(lease, "RETRY_S", 0.001)


def test_what_passes_by_itself_does_not_end_it(capsys: pytest.CaptureFixture[str]) -> None:
    leases = Leases(TTL_S, NoLeader("election"), ReadTimeout("nobody"), TTL_S)
    with pytest.raises(Refused, match="expired or revoked"):
        keep(leases)
    assert capsys.readouterr().out.count("keepalived with TTL(3)") == 2
    # One attempt that hangs leaves time for another.
    assert leases.timeouts_s[0] == At(endpoints=()).timeout_s
    assert all(0 < timeout_s <= TTL_S / 2 for timeout_s in leases.timeouts_s[1:])


def test_it_ends_when_the_time_to_live_has_passed() -> None:
    with pytest.raises(NoLeader):
        keep(Leases(0, NoLeader("election"), 5))


@pytest.mark.parametrize("once", [False, True])
def test_the_first_answer_is_not_waited_for(once: bool) -> None:
    with pytest.raises(NoLeader):
        keep(Leases(NoLeader("election"), TTL_S), once=once)


@pytest.mark.parametrize("number", [1, 2**63 - 1, -5, -(2**63)])
def test_every_id_that_is_shown_can_be_named(number: int) -> None:
    text = lease_text(number)
    assert len(text) == 16
    assert not text.startswith("-")
    assert lease_id(text) == number


@pytest.mark.parametrize("text", ["0", "", "x", "1" + 16 * "0", "-5"])
def test_others_are_none(text: str) -> None:
    with pytest.raises(ConfigError, match="is not the id of a lease"):
        lease_id(text)
