"""Damaged `identity.json` and configuration files: typed errors, or what the file really says.

An identity has a checksum: a damaged one is refused, or it is (but for blanks) what it was. A
configuration is written by people, so a changed one may be another valid one; all that is asked is
that whatever cannot be read is a `ConfigError`, and that what can be is consistent.
"""

from __future__ import annotations

import io
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from raftkv import config
from raftkv.config import NodeConfig
from raftkv.errors import ConfigError, WrongCluster, WrongDataDirectory
from raftkv.raft.epoch import Epoch
from raftkv.raft.identity import DataDirectory, Identity
from raftkv.testing.fuzz.memory import MemoryFiles
from raftkv.testing.fuzz.mutate import damaged
from raftkv.testing.fuzz.target import Case, Finding
from raftkv.testing.patching import replaced

__all__ = ["ConfigTarget", "IdentityTarget"]

_PATH: Final = "data/identity.json"


class _Runtime:
    """As much of a runtime as a data directory asks for."""

    def __init__(self, files: MemoryFiles) -> None:
        self.files = files

    def token(self, count: int) -> bytes:
        return b"\1" * count


def _config(role: str = "core") -> NodeConfig:
    return msgspec.convert(
        {
            "name": "core1" if role == "core" else "replicant1",
            "role": role,
            "dir": "data",
            "peer_address": "127.0.0.1:7000" if role == "core" else "127.0.0.1:7001",
            "cores": {"core1": "127.0.0.1:7000"},
        },
        NodeConfig,
    )


class IdentityTarget:
    """Damaged identity files, opened as a node does."""

    name = "identity"
    unit = "damaged identities"
    traced: Sequence[str] = ("raftkv.raft.identity",)
    batch = 1000

    def __init__(self) -> None:
        self._configs = [_config("core"), _config("core"), _config("replicant")]
        self._originals = [self._written(number) for number in range(len(self._configs))]

    def _open(self, number: int, files: MemoryFiles) -> DataDirectory:
        runtime: Any = _Runtime(files)
        return DataDirectory(self._configs[number], runtime)

    def _written(self, number: int) -> tuple[Identity, bytes]:
        files = MemoryFiles()
        directory = self._open(number, files)
        if number:
            directory.join("0a1b2c3d4e5f6071", Epoch(number, "0a0b0c0d"))
        return directory.identity, files.contents("data")[_PATH]

    def make(self, rng: random.Random) -> Case:
        number = int(rng.random() * len(self._originals))
        return self.vary(Case({_PATH: self._originals[number][1]}, sample=number), rng)

    def vary(self, case: Case, rng: random.Random) -> Case:
        other = self._originals[int(rng.random() * len(self._originals))][1]
        return Case({_PATH: damaged(case.parts[_PATH], rng, other)}, sample=case.sample)

    def run(self, case: Case) -> Counter[str]:
        try:
            directory = self._open(case.sample, MemoryFiles(case.parts))
        except (WrongDataDirectory, WrongCluster):
            return Counter(["refused"])
        if directory.identity != self._originals[case.sample][0]:
            raise Finding("another identity than the one that was written was believed")
        return Counter(["complete"])


_TOML: Final = b"""\
name = "core1"
role = "core"
dir = "data"
cluster = "fuzz"
peer_address = "127.0.0.1:7000"
http_address = "127.0.0.1:8000"
fsync = "on"
timeout_s = 5.0
plugins = ["lcr"]

[cores]
core1 = "127.0.0.1:7000"
core2 = "[::1]:7001"

[raft]
election_timeout_min_ms = 600
lease_ms = 100

[limits]
value_bytes_max = 1_000_000
frame_bytes_max = 0x1000000

[options.lcr]
ticket_ttl_ms = 1000
"""
_WORDS: Final = (
    b"[[limits]]", b"[raft]", b"\x00", b"'''", b'"""', b"= nan", b"= inf", b"1979-05-27", b"\\u",
    b"= -1", b"= 1e400", b"= 99999999999999999999999999", b'""', b"{}", b"[]", b"core1.x = 1",
    b"[" * 500, b"{a=" * 300, b"a." * 400, b"true", b"\xff\xfe", b"0:0", b'":70000"', b"=",
)  # fmt: skip


class ConfigTarget:
    """Damaged configuration files, through `load_config`."""

    name = "config"
    unit = "damaged configurations"
    traced: Sequence[str] = ("raftkv.config",)
    batch = 500

    def make(self, rng: random.Random) -> Case:
        return self.vary(Case({"config.toml": _TOML}), rng)

    def vary(self, case: Case, rng: random.Random) -> Case:
        data = case.parts["config.toml"]
        if rng.random() < 0.5:
            at = int(rng.random() * (len(data) + 1))
            stop = at + int(rng.random() * 6)
            data = data[:at] + _WORDS[int(rng.random() * len(_WORDS))] + data[stop:]
        else:
            data = damaged(data, rng, _TOML)
        return Case({"config.toml": data})

    def run(self, case: Case) -> Counter[str]:
        def opened(path: str, mode: str) -> io.BytesIO:
            return io.BytesIO(case.parts["config.toml"])

        # A name `open` in the module hides the built-in one: a million files need no disk.
        vars(config).setdefault("open", open)
        with replaced(config, "open", opened):
            try:
                read = config.load_config("/config.toml")
            except ConfigError:
                return Counter(["refused"])
        if read.validated() != read:
            raise Finding("a configuration that was read is not consistent")
        return Counter(["read"])
