"""The fuzzers: a few thousand inputs of each, and the proof that planted defects are found."""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import pickle
import random
import re
import socket
import textwrap
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from raftkv import config
from raftkv.raft import identity, records, snapshot_file, wal_recovery, wire
from raftkv.server import messages
from raftkv.testing.fuzz import __main__ as command
from raftkv.testing.fuzz.campaign import (
    CORPUS,
    TARGETS,
    Batch,
    Saved,
    Totals,
    run_batch,
    target_of,
)
from raftkv.testing.fuzz.guard import Guard
from raftkv.testing.fuzz.shrink import shrink
from raftkv.testing.fuzz.target import Case, Finding, kind_of
from raftkv.testing.fuzz.tracing import arcs_of, read_corpus, write_corpus
from raftkv.testing.patching import replaced

# Cases in one batch of each: a second of work altogether.
CASES = {
    "frames": 300,
    "wal": 1500,
    "snapshot": 1000,
    "identity": 1500,
    "config": 800,
    "http": 1500,
}


@pytest.mark.parametrize("name", CASES)
def test_nothing_is_found(name: str) -> None:
    for number in (0, 1):  # the first one is guided where that helps
        batch = run_batch(name, seed=3, number=number, cases=CASES[name])
        assert not batch.findings, batch.findings[0].text
        assert sum(batch.counts.values()) >= CASES[name] // 5


def test_whole_nodes_withstand_frames_that_lie() -> None:
    batch = run_batch("handlers", seed=3, number=0, cases=3)
    assert not batch.findings, batch.findings[0].text
    assert batch.counts["sent"] > 100


@pytest.mark.parametrize("name", [name for name in TARGETS if target_of(name).traced])
def test_the_kept_inputs_pass(name: str) -> None:
    corpus = read_corpus(CORPUS, name)
    assert corpus, "tests/fuzz_corpus holds nothing for this target: tools/fuzz NAME --corpus"
    target = target_of(name)
    for case in corpus:
        target.run(case)


def test_every_outcome_is_met() -> None:
    """A target that refuses everything proves little."""
    frames = run_batch("frames", seed=3, number=1, cases=300).counts
    assert {"decoded", "refused", "link dropped"} <= frames.keys()
    wal = run_batch("wal", seed=3, number=1, cases=3000).counts
    assert {"complete", "refused", "tail lost (known limit)"} <= wal.keys()
    assert {"refused", "understood"} <= {
        outcome.replace("answered with 400", "refused")
        for outcome in run_batch("http", seed=3, number=1, cases=300).counts
    }


def test_a_batch_is_a_function_of_its_name_seed_and_number() -> None:
    for name in ("frames", "wal", "snapshot"):
        first, second = (run_batch(name, seed=5, number=10, cases=200) for _ in range(2))
        assert first == second
    other = run_batch("frames", seed=6, number=10, cases=200)
    assert other.counts != run_batch("frames", seed=5, number=10, cases=200).counts


def test_an_episode_is_a_function_of_its_seed() -> None:
    case = Case({}, choice=5)
    assert target_of("handlers").run(case) == target_of("handlers").run(case)


# Planted defects ---------------------------------------------------------------------------------


def rewritten(module: Any, name: str, old: str, new: str) -> Any:
    """A function of a module with one place of its source changed."""
    source = textwrap.dedent(inspect.getsource(getattr(module, name)))
    assert source.count(old) == 1, f"{name} has changed: plant the defect anew"
    found: dict[str, Any] = {}
    lines = "from __future__ import annotations\n" + source.replace(old, new)
    exec(compile(lines, "<planted>", "exec"), vars(module), found)
    return found[name]


# (target, module, function, what is taken out, what stands there instead, what is seen)
SEEN = "acknowledged|term and vote"
DEFECTS = [
    (
        "wal",
        records,
        "_read_records",
        "_CRC.unpack_from(data, stop)[0] != zlib.crc32(view[offset:stop])",
        "False",
        SEEN,
    ),
    ("wal", records, "_read_records", "data[limit:end] == ending", "True", SEEN),
    ("wal", wal_recovery, "_common_id", "found != log_id", "False", SEEN),
    ("wal", wal_recovery, "_check_previous", "last=False", "last=True", SEEN),
    ("wal", wal_recovery, "_check_whole", "state.last_index != last.last_index", "False", SEEN),
    (
        "snapshot",
        snapshot_file,
        "_read_chunks",
        "zlib.crc32(data) != crc",
        "False",
        "names|state|believed",
    ),
    ("identity", identity, "_decode", "!= _checksum(fields)", "is None", "Finding: another"),
    ("config", config, "load_config", "UnicodeDecodeError, ", "", "UnicodeDecodeError"),
    ("http", messages, "_tidied", "name is None", "False", "TypeError"),
    ("frames", wire, "decode", "except (msgspec.DecodeError, ", "except (", "ValidationError"),
]


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: f"{defect[0]} {defect[3][:30]}")
def test_a_planted_defect_is_found(defect: tuple[str, Any, str, str, str, str]) -> None:
    name, module, function, old, new, seen = defect
    cases = 4 * CASES[name]
    with replaced(module, function, rewritten(module, function, old, new)):
        batch = run_batch(name, seed=3, number=1, cases=cases, until_found=True)
        assert batch.findings, f"not found among {cases} cases"
        assert any(re.search(seen, saved.text) for saved in batch.findings), batch.findings[0].text
        for saved in batch.findings:
            # What was made small is still the same finding.
            with pytest.raises(Exception) as caught:  # noqa: PT011
                target_of(name).run(saved.case)
            assert kind_of(caught.value) == saved.kind


def test_a_frame_that_passes_the_limit_is_found() -> None:
    def feed(frames: wire.Frames, data: bytes) -> list[bytes]:
        frames.limit = 1 << 40
        return original(frames, data)

    original = wire.Frames.feed
    with replaced(wire.Frames, "feed", feed):
        batch = run_batch("frames", seed=1, number=1, cases=3000, until_found=True)
    assert "limit" in batch.findings[0].text


def test_a_handler_that_believes_terms_is_found() -> None:
    with replaced(wire, "check_terms", lambda prev_term, entries, term: None):
        batch = run_batch("handlers", seed=1, number=0, cases=30, until_found=True)
    assert "InternalFault" in batch.findings[0].text


class Payload:
    """Its pickle, when loaded, creates a folder."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return os.mkdir, (str(self._path),)


def test_code_that_an_input_runs_is_found(tmp_path: Path) -> None:
    data = pickle.dumps(Payload(tmp_path / "it-ran"))
    with pytest.raises(Finding, match="ran code: pickle.find_class"), Guard():
        pickle.loads(data)
    # Also if the code under test swallows what the guard raises.
    with pytest.raises(Finding, match="ran code"), Guard(), contextlib.suppress(Exception):
        pickle.loads(data)
    assert not (tmp_path / "it-ran").exists()
    with Guard():
        wire.decode(wire.encode(wire.TimeoutNow(1))[4:])


@pytest.mark.parametrize(("module", "trusted"), [("py4j.clientserver", True), ("odd", False)])
def test_the_bridge_of_spark_may_connect_at_any_moment(module: str, trusted: bool) -> None:
    """The collector of a process that has run Spark makes it."""
    names: dict[str, Any] = {"__name__": module}
    exec("def connect(client, address):\n    client.connect(address)", names)
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as client:
        finding = pytest.raises(Finding, match=r"ran code: socket\.connect")
        with contextlib.nullcontext() if trusted else finding, Guard():
            names["connect"](client, server.getsockname())


# Tools -------------------------------------------------------------------------------------------


class Brittle:
    """Fails at every input that holds two letters, in this order."""

    name = "brittle"
    unit = "inputs"
    traced: Sequence[str] = ()
    batch = 10

    def make(self, rng: random.Random) -> Case:
        return Case({"a": rng.randbytes(50), "b": b"x"})

    def vary(self, case: Case, rng: random.Random) -> Case:
        return case

    def run(self, case: Case) -> Counter[str]:
        if re.search(b"p.*q", case.parts.get("a", b""), re.S):
            raise Finding("p and q: found")
        return Counter(["fine"])


def test_a_finding_is_made_small() -> None:
    case = Case({"a": b"-" * 100 + b"p" + b"-" * 77 + b"q" + b"-" * 9, "b": b"other" * 20})
    assert shrink(Brittle(), case, "p and q") == Case({"a": b"pq"})


def test_arcs_tell_inputs_apart_and_the_corpus_keeps_each_once(tmp_path: Path) -> None:
    target = target_of("wal")
    sample = max(read_corpus(CORPUS, "wal"), key=lambda case: case.size_bytes)
    arcs, counts = arcs_of(target, sample)
    assert counts == target.run(sample)
    assert {where.split(".")[2] for where, _, _ in arcs} == {"records", "wal_recovery"}
    empty, _ = arcs_of(target, Case({}, sample.sample))
    assert arcs - empty
    assert write_corpus(tmp_path, "wal", [sample, sample]) == 2
    assert read_corpus(tmp_path, "wal") == [sample, sample]
    assert write_corpus(tmp_path, "wal", [sample]) == 0


def test_the_command_reports_and_replays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = ["--out", str(tmp_path)]
    assert command.main(["http", "--count", "3000", "--jobs", "1", *out]) == 0
    summary = capsys.readouterr().out.splitlines()[-1]
    assert re.match(r"[3-9]\d\d\d requests \(.*\): 0 findings, seed 1, ", summary), summary
    assert command.main(["http", "--count", "3000", "--jobs", "1", "--json", *out]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["findings"] == []
    assert document["targets"]["http"]["unit"] == "requests"
    saved = Saved("http", 1, 2, "kind", "text", Case({"put": b"{}"}))
    path = tmp_path / "x.finding"
    path.write_bytes(msgspec.msgpack.encode(saved))
    assert command.main(["replay", str(path)]) == 0
    assert "no finding any more" in capsys.readouterr().out
    path.write_bytes(b"nonsense")
    assert command.main(["replay", str(path)]) == 2
    assert "no saved finding" in capsys.readouterr().err


def test_a_finding_is_saved_and_makes_the_command_fail(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case({"a": b"pq"})
    batch = Batch(Counter(findings=1), [Saved("http", 1, 0, "p and q", "p and q", case)], [])

    def run_plan(plan: str, *, each: Any, **options: Any) -> Totals:
        totals = Totals()
        totals.add("http", batch)
        each("http", batch)
        return totals

    monkeypatch.setattr(command, "run_plan", run_plan)
    assert command.main(["http", "--out", str(tmp_path)]) == 1
    printed = capsys.readouterr()
    assert "1 finding, seed 1" in printed.out
    assert "tools/fuzz replay" in printed.err
    (file,) = tmp_path.glob("*.finding")
    assert msgspec.msgpack.decode(file.read_bytes(), type=Saved).case == case
