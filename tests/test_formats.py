"""What nodes tell of their software, and what they announce through the log."""

from __future__ import annotations

import configparser
from pathlib import Path

from raftkv import formats
from raftkv.hosting import find_plugins
from raftkv.kv import KV
from raftkv.raft import wire
from raftkv.raft.wire import HELLO_BYTES_MAX, Hello

ROOT = Path(__file__).resolve().parent.parent


def test_the_version_is_that_of_the_package() -> None:
    metadata = configparser.ConfigParser()
    metadata.read(ROOT / "setup.cfg")
    assert metadata["metadata"]["version"] == formats.SOFTWARE


def test_every_plugin_of_the_package_has_its_format_of_the_first_release() -> None:
    plugins = [KV(), *find_plugins(["lcr", "calls", "conf", "limbo", "txqueue", "subscriptions"])]
    assert {plugin.name for plugin in plugins} == set(formats.RELEASE_1)
    assert all(plugin.version >= formats.RELEASE_1[plugin.name] for plugin in plugins)


def test_newer_plugin_formats_are_held_back_at_core_format_1() -> None:
    known = {"kv": 7, "toy": 5}
    assert formats.announced(known, 1) == (("kv", formats.RELEASE_1["kv"]), ("toy", 5))
    assert formats.announced(known, 2) == (("kv", 7), ("toy", 5))


def test_a_handshake_stays_within_its_limit_however_many_plugins_there_are() -> None:
    versions = {f"p{number:03}" + "x" * 60: 2**31 - 1 for number in range(256)}
    versions |= {f"q{number:03}" + "y" * 44: 2**31 - 1 for number in range(256)}
    about = formats.about_node(2, versions, "ab" * 8, ["a", "b"])
    assert about.formats[0] == ("core", 2)
    assert about.core_format == 2
    long = "n" * 63
    hello = Hello(1, "follow", long, "c" * 16, f"{long}-00000000", "replicant", f"{long}:65535")
    whole = Hello(*(getattr(hello, name) for name in hello.__struct_fields__[:-1]), about)
    assert len(wire.encode(whole)) < HELLO_BYTES_MAX - 512  # room for an address of 255 bytes


def test_a_node_that_tells_nothing_knows_core_format_1() -> None:
    assert Hello(1, "raft", "c", "", "a-1", "core", "h:1").core_format == 1
    assert wire.About().core_format == 1


def test_the_digest_is_of_the_names_whatever_their_order() -> None:
    assert formats.bootstrap_digest(["b", "a"]) == formats.bootstrap_digest(["a", "b"])
    assert formats.bootstrap_digest(["ab"]) != formats.bootstrap_digest(["a", "b"])


def test_a_handshake_of_the_first_release_and_the_new_one_are_read_by_both() -> None:
    class FormerHello(wire._Message, frozen=True, tag=1):
        version: int
        purpose: str
        cluster: str
        cluster_id: str
        raft_id: str
        role: str
        peer_address: str
        epoch: wire.Epoch = wire.FOUNDED
        wanted: str = ""
        member: bool = False

    import msgspec

    about = formats.about_node(2, {"kv": 3}, "aa", ["a"])
    hello = Hello(1, "raft", "c", "", "a-1", "core", "h:1", about=about)
    former = msgspec.msgpack.decode(wire.encode(hello)[4:], type=FormerHello)
    assert former.raft_id == "a-1"
    read = wire.decode(msgspec.msgpack.encode(former))
    assert isinstance(read, Hello)
    assert read.about is None
