"""Damaged snapshot files: the state comes back with the digest it had, or the file is refused.

The whole way: the store finds and validates the file, and the state machine restores it from
chunks, each verified again. Allowed: the very state that was written, or `DamagedSnapshot`. A
snapshot is one file under its final name; that it is there at all, the log's base proves.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import Final

import msgspec

from raftkv.errors import DamagedSnapshot, NewerFormat
from raftkv.kv import KV
from raftkv.kv.commands import Put
from raftkv.raft.snapshot import SnapshotMeta, SnapshotStore
from raftkv.raft.snapshot_file import FORMAT_VERSION
from raftkv.state import Envelope, NodeUp, StateMachine, encode_batch
from raftkv.testing.fuzz.memory import MemoryFiles
from raftkv.testing.fuzz.mutate import damaged
from raftkv.testing.fuzz.target import Case, Finding

__all__ = ["SnapshotTarget"]

DIRECTORY: Final = "snapshots"
SAMPLES: Final = 16
_encode = msgspec.msgpack.Encoder().encode


class _Sample:
    """A written snapshot: its file, where its chunks lie, and the digest of its state."""

    def __init__(self, number: int, *, sibling: bool = False) -> None:
        content = random.Random(f"snapshot {number} {sibling}")
        machine = StateMachine([KV()])
        machine.skip(1)
        node = NodeUp(1, "n", "core", "n-1", "h:1", None, tuple(machine.plugin_versions.items()))
        self._apply(machine, [Envelope(0, 1, 0, "core", _encode(node))])
        opened = machine.session_of("n", 1)
        assert opened is not None
        for seq in range(1, 2 + number):
            value = content.randbytes(number * 7 % 50)
            command = Put(b"key %d" % (seq % 9), value, False)
            self._apply(machine, [Envelope(opened[0], seq, 0, "kv", _encode(command))])
        self.digest, self.index = machine.digest(), machine.index
        files = MemoryFiles()
        cluster = "other" if sibling else "cluster"
        meta = SnapshotMeta(machine.index, 3, b"\x93\x91\xa3n-1\x90\x90", cluster)
        writer = SnapshotStore(files, DIRECTORY).writer(meta)
        self.chunks = list(machine.freeze().slices(1 + number % 4))
        for chunk in self.chunks:
            writer.write(chunk)
        writer.commit()
        ((self.path, self.data),) = files.contents(DIRECTORY).items()

    @staticmethod
    def _apply(machine: StateMachine, envelopes: Sequence[Envelope]) -> None:
        machine.apply(machine.index + 1, encode_batch(1_000 + machine.index, envelopes))


class SnapshotTarget:
    """See the module's text."""

    name = "snapshot"
    unit = "damaged snapshots"
    traced: Sequence[str] = (
        "raftkv.raft.snapshot_file",
        "raftkv.raft.snapshot",
        "raftkv.state.snapshot",
    )
    batch = 500

    def __init__(self) -> None:
        self._machine = StateMachine([KV()])
        self._samples = [_Sample(number) for number in range(SAMPLES)]
        self._siblings = [_Sample(number, sibling=True) for number in range(SAMPLES)]

    def make(self, rng: random.Random) -> Case:
        number = int(rng.random() * SAMPLES)
        sample = self._samples[number]
        case = Case({sample.path: sample.data}, sample=number)
        for _ in range(1 + int(rng.random() ** 3 * 3)):
            case = self.vary(case, rng)
        return case

    def vary(self, case: Case, rng: random.Random) -> Case:
        sample, sibling = self._samples[case.sample], self._siblings[case.sample]
        ((path, data),) = case.parts.items()
        match int(rng.random() * 9):
            case 0 | 1:
                data = damaged(data, rng, sibling.data)
            case 2:
                data = data[: int(rng.random() * (len(data) + 1))]
            case 3:
                start = int(rng.random() * (len(data) + 1))
                stop = start + 1 + int(rng.random() * 600)
                data = data[:start] + bytes(len(data[start:stop])) + data[stop:]
            case 4 | 5 | 6:
                data = self._exchange(case.sample, data, rng)
            case 7:
                data += rng.randbytes(1 + int(rng.random() * 40))
            case 8:
                path = path.replace("-", f"{int(rng.random() * 3)}-", 1).replace("/0", "/", 1)
                if data == sample.data and path == sample.path:
                    data = data[:-1]
        return Case({path: data}, sample=case.sample)

    def _exchange(self, number: int, data: bytes, rng: random.Random) -> bytes:
        """Chunks, each whole with its head and checksum, in another order, number or place."""
        sample, sibling = self._samples[number], self._siblings[number]
        frames = [self._framed(sample.data, chunk) for chunk in sample.chunks]
        others = [self._framed(sibling.data, chunk) for chunk in sibling.chunks]
        mine = frames[int(rng.random() * len(frames))]
        other = (frames if rng.random() < 0.5 else others)[int(rng.random() * len(frames))]
        return data.replace(mine, (other, b"", mine + mine, other + mine)[int(rng.random() * 4)], 1)

    @staticmethod
    def _framed(data: bytes, chunk: bytes) -> bytes:
        at = data.index(chunk)
        return data[at - 8 : at + len(chunk)]

    def run(self, case: Case) -> Counter[str]:
        sample = self._samples[case.sample]
        ((path, data),) = case.parts.items()
        files = MemoryFiles(case.parts)
        machine = self._machine
        reader = machine.reader()
        try:
            found = SnapshotStore(files, DIRECTORY).latest()
            if found is None:
                raise Finding("the file was not found")
            for chunk in found.chunks():
                reader.add(chunk)
            image = reader.finish()
            machine.reset()
            machine.adopt(image, found.meta.index)
        except DamagedSnapshot as damage:
            if damage.file != path or not 0 <= damage.offset <= len(data):
                raise Finding(f"the error names {damage.file} byte {damage.offset}") from damage
            return Counter(["refused"])
        except NewerFormat as newer:
            version = int.from_bytes(data[8:12], "little")
            if newer.version != version or version <= FORMAT_VERSION:
                raise Finding(f"{version} is no newer format version") from newer
            return Counter(["refused as newer"])
        if (machine.index, machine.digest()) != (sample.index, sample.digest):
            raise Finding("another state than the one that was written was restored")
        if found.meta.cluster_id != "cluster" or data != sample.data:
            raise Finding("a damaged file was believed")
        return Counter(["complete"])
