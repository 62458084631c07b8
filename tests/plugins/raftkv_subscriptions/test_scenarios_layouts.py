"""Which regions fetch from which, and who may: rings, meshes, replicants, exclusion, TLS, names.

Every story ends with what every region has: each message once, those of one origin in order, which
is judged by audit.py for all of them.
"""

from __future__ import annotations

import datetime
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from raftkv.config import HttpTls
from raftkv.security.authority import issue, new_authority, to_pem
from raftkv.security.identity import CertificateIdentity
from tests.plugins.raftkv_subscriptions.region import Tls
from tests.plugins.raftkv_subscriptions.regions import Regions, link, play, says, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

RING = {"a": "c", "b": "a", "c": "b"}


# --- rings ----------------------------------------------------------------------------------------


def test_a_ring() -> None:
    """a fetches from c, c from b, b from a, each all that the other has: nothing comes twice.

    Acknowledgements go round as well, wherever they are given.
    """

    async def body(world: Regions) -> None:
        for target, source in RING.items():
            # Who fetches from here is not who is fetched from.
            await world.api(source).add_region(target)
            await world.api(target).add_region(source, fetches=False)
        await world.topic("t")
        await world.subscribe("a", "t", "s", kind="shared")
        for number in range(10):
            for name in "abc":
                await world.publish(name, "t", 1 + number % 3)
        await world.same("t")
        for name in "abc":
            assert len(world.log(name, "t")) == len(world.sent("t"))
            # Nobody was even offered what it had published.
            meta = world.meta(name)
            assert meta.delivered == len(world.sent("t", "abc".replace(name, "")))
            assert meta.doubles == 0
        await until(lambda: world.sub("c", "t", "s") is not None, "c knows the subscription")
        done: set[str] = set()
        for name in "cab":
            done |= set(await world.consume(name, "t", "s", 7))
            await world.agree("t", "s")
        assert len(done) == 21
        done |= set(await world.drain("b", "t", "s"))
        assert done == world.sent("t")
        await world.agree("t", "s")
        for name in "abc":
            await world.marked(name, "t", "s", len(done))
        await world.settled()

    play(body, "abc", pulls=RING, want="all")


def test_a_mesh_where_everybody_passes_everything_on() -> None:
    """Each message comes to each region by two ways: one of the two is a double, and skipped."""

    async def body(world: Regions) -> None:
        await world.topic("t")
        for number in range(20):
            await world.publish("abc"[number % 3], "t", 5)
        await world.same("t")
        await world.settled()
        for name in "abc":
            assert len(world.log(name, "t")) == 100
        # A way is missing: the messages come by the other one.
        world.way("a", "b").cut()
        await world.publish("b", "t", 5)
        await world.same("t")
        world.way("a", "b").heal()
        await world.publish("b", "t", 5)
        await world.same("t")

    play(body, "abc", want="all")


# --- excluded regions -----------------------------------------------------------------------------


def test_excluded_and_included() -> None:
    """It is not heard, not answered and not waited for; when it returns it has missed nothing."""

    async def body(world: Regions) -> None:
        await world.topic("t")
        await world.subscribe("a", "t", "s")
        await world.publish("b", "t", 2)
        await world.same("t")
        assert await world.consume("a", "t", "s", 2) == ["b1", "b2"]
        await world.marked("b", "t", "s", 2)
        await world.api("a").exclude_region("b")
        await world.publish("b", "t", 3)
        await world.publish("a", "t", 3)
        row = await says(world, "b", "a", "exclude")
        assert row.state != "connected"
        await world.settled()
        assert set(world.log("a", "t")) & {"b3", "b4", "b5"} == set()
        assert set(world.log("b", "t")) & {"a1", "a2", "a3"} == set()
        await world.api("a").include_region("b")
        await until(lambda: {"b3", "b4", "b5"} <= set(world.log("a", "t")), "a has b's")
        await until(lambda: {"a1", "a2", "a3"} <= set(world.log("b", "t")), "b has a's")
        got = await world.drain("a", "t", "s")
        assert sorted(got) == ["a1", "a2", "a3", "b3", "b4", "b5"]
        await world.agree("t", "s")

    play(body)


def test_retention_waits_for_whoever_is_not_excluded() -> None:
    """What an active region has not fetched stays; for an excluded one nothing does: it gets holes,
    which are no acknowledgements."""

    async def body(world: Regions) -> None:
        await world.topic("t", retention_s=0.05)
        for pair in ("ba", "ca"):
            world.way(*pair).cut()
        await world.publish("a", "t", 10)
        await world.settled()
        assert len(world.log("a", "t")) == 10
        world.way("b", "a").heal()
        await until(lambda: len(world.log("b", "t")) == 10, "b has them")
        await world.settled()
        assert len(world.log("a", "t")) == 10
        await world.api("a").exclude_region("c")
        await until(lambda: world.log("a", "t") == [], lambda: world.log("a", "t"))
        await world.publish("a", "t", 3)
        await world.api("a").include_region("c")
        world.way("c", "a").heal()
        await until(lambda: world.log("c", "t")[-3:] == ["a11", "a12", "a13"], "c has the rest")
        holes = {key[1:]: last for key, last in world["c"].table("holes").items()}
        assert holes == {("a", 1): 10}
        assert (await world.api("c").topic("t")).holes

    play(body, "abc")


# --- nodes and names ------------------------------------------------------------------------------


def test_replicants_serve_links() -> None:
    """b reaches only a replicant of a, then only a's core: any node of a region will do.

    The replicant falls silent, and nobody is told: its connections stay, and nothing comes.
    """

    async def body(world: Regions) -> None:
        way = world.way("b", "a")
        way.hops["core1"].cut()
        await world.topic("t")
        await world.subscribe("a", "t", "s")
        await world.publish("a", "t", 10)
        await world.same("t")
        row = await link(world, "b", "a")
        assert row is not None
        assert row.endpoint == way.endpoints[1]
        assert len(await world.consume("a", "t", "s", 4)) == 4
        await world.marked("b", "t", "s", 4)
        way.hops["core1"].heal()
        way.hops["replicant1"].mute()
        await world.publish("a", "t", 10)
        await world.same("t")
        row = await link(world, "b", "a")
        assert row is not None
        assert row.endpoint == way.endpoints[0]
        assert len(await world.drain("b", "t", "s")) == 16
        await world.marked("a", "t", "s", 20)

    play(body, replicants=1)


def test_a_region_that_was_rebuilt_under_its_old_name() -> None:
    """b has lost its disk, and gives its numbers a second time: nobody takes them, both say why.

    Under a new name it gets everything, what it had published in its former life included.
    """

    async def rebuild(world: Regions) -> None:
        await world["b"].down()
        for config in world["b"].configs.values():
            shutil.rmtree(config.dir)

    async def body(world: Regions) -> None:
        await world.topic("t")
        await world.publish("b", "t", 3)
        await world.publish("a", "t", 2)
        await world.same("t")
        before = world.log("a", "t")
        await rebuild(world)
        await world["b"].up()
        await world.api("b").declare("t")
        await world.api("b").publish("t", b"another b1")
        for pair in ("ab", "ba"):
            row = await says(world, *pair, "rebuilt")
            assert row.state == "stopped"
        await world.publish("a", "t", 1)
        await world.settled()
        assert world.log("a", "t") == [*before, "a3"]
        assert world.log("b", "t") == ["another b1"]
        # A new name, for which a has options.
        await rebuild(world)
        world["b"].give({**world.options("b"), "region": "c"})
        links = world.options("a")["links"]
        world["a"].give({**world.options("a"), "links": {"c": links["b"]}})
        await world.api("a").exclude_region("b")
        await world["a"].restart("core1")
        await world["b"].up()
        await until(
            lambda: "t" in world["b"].table("topics") and len(world.log("b", "t")) == 6,
            "it has all",
        )
        assert sorted(world.log("b", "t")) == sorted(world.log("a", "t"))
        await world.api("b").publish("t", b"c1")
        await until(lambda: world.log("a", "t")[-1] == "c1", "a has what it publishes now")

    play(body)


# --- modes ----------------------------------------------------------------------------------------


def test_regions_of_different_modes() -> None:
    """No snapshot is built with a region that does not answer, and both say so; then it is."""

    async def body(world: Regions) -> None:
        await world.configure("b", mode="vector")
        await world.topic("t")
        # A region hears of the other one's mode within a second.
        for pair in ("ab", "ba"):
            await says(world, *pair, "mode")
        await world.subscribe("a", "t", "s")
        await world.publish("a", "t", 3)
        await world.same("t")
        await world.settled()
        assert world.meta("a").snapshots == 0
        assert world.pending("a", "t") is None
        await world.configure("b", mode="snapshot")
        assert await world.snapped("a", "t") == 3
        assert await world.consume("a", "t", "s", 3) == ["a1", "a2", "a3"]
        await world.marked("b", "t", "s", 3)
        for pair in ("ab", "ba"):
            row = await link(world, *pair)
            assert row is not None
            assert (row.state, row.last_error) == ("connected", "")

    play(body, mode="snapshot")


def test_the_mode_is_changed() -> None:
    """From vectors to snapshots and back, with a subscription in use: it is where it was."""

    async def body(world: Regions) -> None:
        await world.topic("t")
        await world.subscribe("a", "t", "s")
        sent = await world.publish("a", "t", 4)
        await world.same("t")
        assert await world.consume("a", "t", "s", 2) == sent[:2]
        await world.marked("b", "t", "s", 2)
        await world.configure(mode="snapshot")
        sent += await world.publish("b", "t", 2)
        await world.same("t")
        assert await world.snapped("a", "t") == 6
        assert await world.consume("a", "t", "s", 4) == sent[2:]
        await world.marked("b", "t", "s", 6)
        await world.configure(mode="vector")
        sent += await world.publish("a", "t", 2)
        await world.same("t")
        assert await world.consume("a", "t", "s", 1) == sent[6:7]
        await world.marked("b", "t", "s", 7)
        assert await world.drain("b", "t", "s") == sent[7:]
        await world.marked("a", "t", "s", 8)
        await world.agree("t", "s")

    play(body)


# --- TLS ------------------------------------------------------------------------------------------


class Pki:
    """An authority in a folder, and what it signs."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._name = name
        self._now = datetime.datetime.now(datetime.UTC)
        self._authority = new_authority(name, now=self._now, days=30)
        self.ca = self._write("ca", self._authority)[0]

    def _write(self, name: str, made: Any) -> tuple[str, str]:
        paths = []
        for suffix, part in (("pem", made.certificate), ("key", made.key)):
            path = self._folder / f"{self._name}-{name}.{suffix}"
            path.write_bytes(to_pem(part))
            paths.append(str(path))
        return paths[0], paths[1]

    def issue(self, name: str) -> tuple[str, str]:
        identity = CertificateIdentity(self._name, name, False)
        made = issue(self._authority, identity, ["127.0.0.1"], now=self._now, days=30)
        return self._write(name, made)


def certificates(folder: Path, names: str, strangers: str = "") -> Mapping[str, Tls]:
    """Doors that ask for certificates of one authority, and regions that have them.

    The regions of `strangers` have one of another authority.
    """
    doors, clients = Pki(folder, "doors"), Pki(folder, "clients")
    others = Pki(folder, "others")
    found: dict[str, Tls] = {}
    for name in names:
        certificate, key = doors.issue(name)
        mine = (others if name in strangers else clients).issue(name)
        found[name] = Tls(HttpTls(certificate=certificate, key=key, ca=clients.ca), doors.ca, *mine)
    return found


def test_links_under_tls(tmp_path: Path) -> None:
    """Doors that ask for a certificate: the regions show theirs; ways break, and are made anew."""

    async def body(world: Regions) -> None:
        await world.topic("t")
        await world.subscribe("a", "t", "s")
        await world.publish("a", "t", 20)
        await world.publish("b", "t", 20)
        await world.same("t")
        world.way("b", "a").cut()
        await world.publish("a", "t", 20)
        world.way("b", "a").heal()
        await world.same("t")
        assert len(await world.drain("a", "t", "s")) == 60
        await world.marked("b", "t", "s", 60)

    play(body, tls=certificates(tmp_path, "ab"))


def test_a_stranger_gets_nothing(tmp_path: Path) -> None:
    """b's certificate is of an authority that a does not know: a's door does not let it in."""

    async def body(world: Regions) -> None:
        await world.api("a").declare("t")
        await world.publish("a", "t", 5)
        row = await says(world, "b", "a", "")
        assert row.state != "connected"
        assert world["b"].table("topics") == {}
        # The other direction is as it should be.
        await world.api("b").declare("u")
        await world.publish("b", "u", 5)
        await until(lambda: "u" in world["a"].table("topics"), "a knows the other topic")
        await until(lambda: len(world.log("a", "u")) == 5, "a has b's")

    play(body, tls=certificates(tmp_path, "ab", strangers="b"))
