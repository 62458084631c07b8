"""A keyspace on the spot, for the tests of its API."""

from __future__ import annotations

from typing import cast

import pytest

from raftkv.kv import KVApi
from raftkv.plugin import Host
from tests.kv.fake_host import FakeHost


@pytest.fixture
def host() -> FakeHost:
    return FakeHost()


@pytest.fixture
def kv(host: FakeHost) -> KVApi:
    return KVApi(cast(Host, host))
