"""Damaged write-ahead logs: recovery gives exactly what was acknowledged, or refuses by name.

The oracle knows what was acknowledged when the sample was written (logs.py) and looks at the
damaged files itself; it never asks the code under test what it thinks of them. Allowed:

- exactly the acknowledged state (damage in what does not count, or repaired: a torn tail);
- that of a batch that was written but never acknowledged, where the sample has one;
- `DamagedLog`, naming a file of the directory or the directory, and a place in it.

The known limit. A file that ends before a batch does, or lacks whole sectors of its last batch, is
what a power failure leaves of a write that was never acknowledged; so is a missing newest segment.
If somebody cuts an acknowledged log in just that way, nothing on the disk can tell. The oracle lets
only that pass, computes exactly which state must come back, and counts it under a name of its own.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import Final

from raftkv.errors import DamagedLog, NewerFormat
from raftkv.raft.records import FORMAT_VERSION, HEADER_BYTES, MARK_BYTES, SECTOR_BYTES
from raftkv.testing.fuzz.logs import (
    DIRECTORY,
    SAMPLES,
    Place,
    Sample,
    State,
    make_sample,
    open_log,
    state_of,
)
from raftkv.testing.fuzz.memory import MemoryFiles
from raftkv.testing.fuzz.mutate import damaged
from raftkv.testing.fuzz.target import Case, Finding

__all__ = ["KNOWN_LIMIT", "WalTarget", "lost_tail"]

KNOWN_LIMIT: Final = "tail lost (known limit)"


class WalTarget:
    """See the module's text. Counts damaged directories, each of which has a damaged file."""

    name = "wal"
    unit = "damaged logs"
    traced: Sequence[str] = ("raftkv.raft.wal_recovery", "raftkv.raft.records")
    batch = 500

    def __init__(self) -> None:
        self._samples = [make_sample(number) for number in range(SAMPLES)]
        self._siblings = [make_sample(number, sibling=True) for number in range(SAMPLES)]

    def make(self, rng: random.Random) -> Case:
        number = int(rng.random() * SAMPLES)
        files = dict(self._samples[number].files)
        for _ in range(1 + int(rng.random() ** 3 * 3)):
            self._damage(number, files, rng)
        return Case(files, sample=number)

    def vary(self, case: Case, rng: random.Random) -> Case:
        files = dict(case.parts)
        self._damage(case.sample, files, rng)
        return Case(files, sample=case.sample)

    def run(self, case: Case) -> Counter[str]:
        sample = self._samples[case.sample]
        files = MemoryFiles(case.parts)
        try:
            wal = open_log(files, sample.log_id)
        except DamagedLog as damage:
            if damage.file != DIRECTORY and damage.file not in case.parts:
                raise Finding(f"the error names {damage.file}, which is no file of it") from damage
            if not 0 <= damage.offset <= len(case.parts.get(damage.file, b"")):
                raise Finding(f"the error names byte {damage.offset}, beyond the file") from damage
            return Counter(["refused"])
        except NewerFormat as newer:
            version = int.from_bytes(case.parts[newer.file][8:12], "little")
            if newer.version != version or version <= FORMAT_VERSION:
                raise Finding(f"{version} is no newer format version") from newer
            return Counter(["refused as newer"])
        state = state_of(wal)
        outcome = self._judge(sample, case.parts, state)
        again = open_log(files, sample.log_id)
        if state_of(again) != state:
            raise Finding("a second recovery gives another state than the first")
        return Counter([outcome])

    @staticmethod
    def _judge(sample: Sample, files: dict[str, bytes], state: State) -> str:
        if state == sample.acknowledged:
            return "complete"
        if sample.torn is not None and state == sample.torn:
            return "complete"
        if state == lost_tail(sample, files):
            return KNOWN_LIMIT
        entries, term, vote = state
        wanted, wanted_term, wanted_vote = sample.acknowledged
        if (term, vote) != (wanted_term, wanted_vote):
            raise Finding(f"term and vote are {term} {vote}, not {wanted_term} {wanted_vote}")
        if len(entries) < len(wanted):
            raise Finding(f"{len(wanted) - len(entries)} acknowledged entries are lost")
        raise Finding("the entries are not those that were acknowledged")

    # -- damage

    def _damage(self, number: int, files: dict[str, bytes], rng: random.Random) -> None:
        sample = self._samples[number]
        if not files:
            return
        paths = sorted(files)
        # The newest segment is where most of the rules are.
        path = paths[-1] if rng.random() < 0.5 else paths[int(rng.random() * len(paths))]
        data = files[path]
        match int(rng.random() * 13):
            case 0 | 1:
                files[path] = damaged(data, rng, self._siblings[number].files.get(path, b""))
            case 2:
                files[path] = data[: int(rng.random() * (len(data) + 1))]
            case 3:
                files[path] = _overwritten(data, rng, zeros=True)
            case 4:
                files[path] = _overwritten(data, rng, zeros=False)
            case 5:
                other = paths[int(rng.random() * len(paths))]
                files[path], files[other] = files[other], data
            case 6:
                del files[path]
            case 7:
                files[path] = data + _garbage(data, rng)
            case 8:
                files[path] = _cut_at_batch(data, path, sample.batches, rng)
            case 9 | 10:
                self._splice_record(number, files, rng)
            case 11:
                self._splice_sectors(number, files, path, rng)
            case 12:
                sibling = self._siblings[number].files
                files[path] = sibling.get(path, data)

    def _splice_record(self, number: int, files: dict[str, bytes], rng: random.Random) -> None:
        """Records (or whole batches) of this log or of its sibling, over one of the same size."""
        sample = self._samples[number]
        source = (sample if rng.random() < 0.5 else self._siblings[number]).files
        places = sample.records
        if rng.random() < 0.3:
            places = [(batch.path, batch.start, batch.end) for batch in sample.batches]
        path, start, end = places[int(rng.random() * len(places))]
        fitting = [p for p in places if p[2] - p[1] == end - start]
        from_path, from_start, from_end = fitting[int(rng.random() * len(fitting))]
        piece = source.get(from_path, b"")[from_start:from_end]
        if path in files and piece:
            data = files[path]
            stop = end if rng.random() < 0.8 else start
            files[path] = data[:start] + piece + data[stop:]

    def _splice_sectors(
        self, number: int, files: dict[str, bytes], path: str, rng: random.Random
    ) -> None:
        """A sector that was meant for another place: of this file, another one, another log's."""
        sources = [files, self._siblings[number].files][int(rng.random() * 2)]
        names = sorted(sources)
        if not names:
            return
        source = sources[names[int(rng.random() * len(names))]]
        data = files[path]
        at = int(rng.random() * (len(data) // SECTOR_BYTES + 1)) * SECTOR_BYTES
        start = int(rng.random() * (len(source) // SECTOR_BYTES + 1)) * SECTOR_BYTES
        piece = source[start : start + SECTOR_BYTES]
        files[path] = data[:at] + piece + data[at + len(piece) :]


def _overwritten(data: bytes, rng: random.Random, *, zeros: bool) -> bytes:
    """A range, mostly of whole sectors, that reads as zeros or as something else."""
    if rng.random() < 0.6:
        sectors = len(data) // SECTOR_BYTES + 1
        start = int(rng.random() * sectors) * SECTOR_BYTES
        stop = start + SECTOR_BYTES * (1 + int(rng.random() ** 2 * 3))
    else:
        start = int(rng.random() * (len(data) + 1))
        stop = start + 1 + int(rng.random() ** 2 * 200)
    piece = data[start:stop]
    return data[:start] + (bytes(len(piece)) if zeros else rng.randbytes(len(piece))) + data[stop:]


def _garbage(data: bytes, rng: random.Random) -> bytes:
    count = 1 + int(rng.random() ** 2 * 600)
    match int(rng.random() * 3):
        case 0:
            return bytes(count)
        case 1:
            start = int(rng.random() * (len(data) + 1))
            return data[start : start + count]
    return rng.randbytes(count)


def _cut_at_batch(data: bytes, path: str, batches: Sequence[Place], rng: random.Random) -> bytes:
    ends = [batch.end for batch in batches if batch.path == path]
    return data[: ends[int(rng.random() * len(ends))]] if ends else data


# The oracle of the known limit -------------------------------------------------------------------


def lost_tail(sample: Sample, files: dict[str, bytes]) -> State | None:
    """What must come back if the end of the log is missing as a crash would have taken it.

    None if the damage is anything else: then it may not go unnoticed.
    """
    good = 0
    batches = sorted(sample.batches, key=lambda batch: (batch.path, batch.start))
    for position, batch in enumerate(batches):
        if _whole(batch, sample, files):
            good = batch.sequence
            continue
        if any(b.sequence == batch.sequence and _whole(b, sample, files) for b in batches):
            continue  # a recovery has copied it into the next segment: the original counts no more
        later = [b for b in batches[position + 1 :] if b.sequence > batch.sequence]
        if any(_stands(b, sample, files) for b in later) or not _looks_torn(sample, files, batch):
            return None
        return sample.states.get(good)
    return None


def _whole(batch: Place, sample: Sample, files: dict[str, bytes]) -> bool:
    return files.get(batch.path, b"")[: batch.end] == sample.files[batch.path][: batch.end]


def _stands(batch: Place, sample: Sample, files: dict[str, bytes]) -> bool:
    """Whether the MARK of the batch is where it was: it proves that all before it was synced."""
    place = slice(batch.start, batch.start + MARK_BYTES)
    return files.get(batch.path, b"")[place] == sample.files[batch.path][place]


def _vouches(path: str, batch: Place, sample: Sample, files: dict[str, bytes]) -> bool:
    """Whether the header of a later segment is whole and says that the batch counts."""
    header = files[path][:HEADER_BYTES]
    if header != sample.files[path][:HEADER_BYTES]:
        return False
    # Magic, version and own number before; then number and length of the segment before.
    number, size_bytes = (int.from_bytes(header[at : at + 8], "little") for at in (20, 28))
    return batch.path.endswith(f"{number:016d}.wal") and batch.start < size_bytes


def _looks_torn(sample: Sample, files: dict[str, bytes], batch: Place) -> bool:
    """Whether the first batch that is not whole is missing, cut short, or lacks sectors."""
    for path in files:
        # A segment whose creation was torn may follow, if it is no witness for this batch.
        if path > batch.path and (path not in sample.files or _vouches(path, batch, sample, files)):
            return False
    data, original = files.get(batch.path), sample.files[batch.path]
    if data is None or len(data) < batch.end:
        return True
    if _stands(batch, sample, files) and len(data) != batch.end:
        return False
    begin = batch.start if batch.start != HEADER_BYTES else 0
    for sector in range(begin // SECTOR_BYTES * SECTOR_BYTES, batch.end, SECTOR_BYTES):
        start, stop = max(sector, begin), min(sector + SECTOR_BYTES, batch.end)
        if any(original[start:stop]) and not any(data[start:stop]):
            return True
    return False
