"""How often one address may do something, by a clock that the test moves."""

from __future__ import annotations

import pytest

from raftkv.hostnames import source_of
from raftkv.server.peer_rate import BURST_S, PEERS_MAX, PeerRate


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


def test_a_burst_and_then_the_rate() -> None:
    clock = Clock()
    rate = PeerRate(2, clock)
    taken = [rate.take("10.0.0.1") for _ in range(2 * BURST_S + 5)]
    assert taken == [True] * 2 * BURST_S + [False] * 5
    assert rate.take("10.0.0.2"), "another address has its own"
    clock.now += 1.0
    assert [rate.take("10.0.0.1") for _ in range(3)] == [True, True, False]
    clock.now += 1_000.0
    assert sum(rate.take("10.0.0.1") for _ in range(100)) == 2 * BURST_S
    assert rate.refused == 5 + 1 + 80


def test_addresses_are_not_remembered_without_end() -> None:
    rate = PeerRate(1, Clock())
    for number in range(PEERS_MAX + 10):
        assert rate.take(f"10.1.{number >> 8}.{number & 255}")
    assert len(rate._left) == PEERS_MAX


@pytest.mark.parametrize(
    ("host", "source"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8::1", "2001:db8::/64"),
        ("2001:db8::ffff:1%eth0", "2001:db8::/64"),
        ("", ""),
    ],
)
def test_what_an_address_counts_as(host: str, source: str) -> None:
    assert source_of(host) == source
