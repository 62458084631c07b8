"""The file of a node's configuration: nothing torn, nothing believed that is not so."""

from __future__ import annotations

import random

import pytest

from raftkv.testing.clock import run
from raftkv_conf.store import Store
from tests.plugins.raftkv_cluster_call.lone_host import Hosts


async def opened(hosts: Hosts) -> Store:
    store = Store(hosts["n1"])
    await store.load()
    return store


@pytest.mark.parametrize("seed", range(40))
def test_any_crash_leaves_what_was_acknowledged_or_what_was_being_written(seed: int) -> None:
    async def body() -> None:
        rng = random.Random(seed)
        hosts = Hosts("n1", seed=seed)
        store = await opened(hosts)
        assert (store.as_of, dict(store.values)) == (0, {})
        for _ in range(25):
            before = (store.as_of, dict(store.values))
            after = before
            disk = hosts["n1"].disk
            if rng.random() < 0.5:
                disk.changes_left = rng.randint(0, 7)
            try:
                for _ in range(rng.randint(1, 3)):
                    id = after[0] + rng.randint(1, 3)
                    if rng.random() < 0.5:
                        before, after = after, (id, after[1])
                        await store.passed(id)
                    else:
                        path = f"user.{rng.randrange(4)}"
                        value = b'"%s"' % (b"x" * rng.randrange(2000))
                        before, after = after, (id, {**after[1], path: value})
                        await store.write(after[1], id)
                before = after
            except OSError as error:
                assert "power is off" in str(error)  # noqa: PT017
            hosts.restart("n1")
            store = await opened(hosts)
            found = (store.as_of, dict(store.values))
            assert found in (before, after), f"seed {seed}"

    run(body())


def test_a_failed_write_changes_nothing_that_is_seen_and_the_next_is_whole() -> None:
    async def body() -> None:
        hosts = Hosts("n1")
        store = await opened(hosts)
        await store.write({"user.a": b"1"}, 1)
        hosts["n1"].disk.fail_writes = True
        with pytest.raises(OSError, match="no space"):
            await store.write({"user.a": b"2"}, 2)
        assert (store.as_of, dict(store.values)) == (1, {"user.a": b"1"})
        hosts["n1"].disk.fail_writes = False
        # Nobody knows which content the file has, so an id alone would not do.
        await store.passed(3)
        hosts.restart("n1")
        store = await opened(hosts)
        assert (store.as_of, dict(store.values)) == (3, {"user.a": b"1"})

    run(body())


def test_an_old_copy_of_the_values_is_not_taken_for_the_present_ones() -> None:
    """Somebody restored one file of the directory."""

    async def body() -> None:
        hosts = Hosts("n1")
        store = await opened(hosts)
        await store.write({"user.a": b"1"}, 1)
        old = store._file.read()
        assert old is not None
        await store.write({"user.a": b"2"}, 2)
        await store.passed(9)
        store = await opened(hosts)
        assert store.as_of == 9
        store._file.write(old)
        store = await opened(hosts)
        assert (store.as_of, dict(store.values)) == (1, {"user.a": b"1"})

    run(body())


def test_without_the_values_the_id_alone_says_nothing() -> None:
    async def body() -> None:
        hosts = Hosts("n1")
        store = await opened(hosts)
        await store.write({"user.a": b"1"}, 1)
        await store.passed(9)
        hosts["n1"].disk.flip_bit(store._file.path, 45)
        store = await opened(hosts)
        assert (store.as_of, dict(store.values)) == (0, {})

    run(body())


def test_an_id_that_has_passed_costs_a_small_file() -> None:
    async def body() -> None:
        hosts = Hosts("n1")
        store = await opened(hosts)
        await store.write({"user.a": b'"%s"' % (b"x" * 100_000)}, 5)
        await store.passed(6)
        store = await opened(hosts)
        assert store.as_of == 6
        assert hosts["n1"].disk.open(store._passed.path, "r").size() < 200
        # The log of calls has begun anew.
        await store.passed(0)
        store = await opened(hosts)
        assert (store.as_of, list(store.values)) == (0, ["user.a"])
        # A copy from another node may be as of less: it replaces everything.
        await store.write({}, 2)
        store = await opened(hosts)
        assert (store.as_of, dict(store.values)) == (2, {})

    run(body())
