"""Simulated runs are digested alike in every process, and a change of what they do is noticed."""

from __future__ import annotations

import io
import itertools
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

import fingerprint
from checkout import ROOT
from name_finder import Finder, names_in_run, names_of_code
from raftkv.raft import wire
from raftkv.testing.patching import replaced
from raftkv_cluster_call import worker
from raftkv_limbo import service
from run_digest import PARTS, SUBJECTS, Recorder, RunDigest, digest_of_run, without_names
from stored_runs import python_version

# The run that takes the least time.
CHEAPEST = ("limbo", 2)
# A run of each plugin, of those that take little time; an unordered choice once showed in calls 2.
IN_ANOTHER_PROCESS = {2: ("calls", "limbo", "txqueue"), 1: ("lcr", "subscriptions")}

same_python = pytest.mark.skipif(
    fingerprint.stored_python() != python_version(),
    reason="the stored digests were made with another version of Python",
)


def test_every_plugin_runs_with_another_hash_seed() -> None:
    plugins = sorted({*SUBJECTS} - {"core"})
    assert sorted(itertools.chain(*IN_ANOTHER_PROCESS.values())) == plugins


# They take about 17 s of processor time: on a loaded machine that is minutes.
@pytest.mark.timeout(900)
@pytest.mark.slow
@same_python
@pytest.mark.parametrize("seed", IN_ANOTHER_PROCESS)
def test_another_process_with_another_hash_seed_digests_runs_as_they_are_stored(seed: int) -> None:
    subjects = IN_ANOTHER_PROCESS[seed]
    arguments = ["--seeds", f"{seed}:{seed + 1}", "--check", "--jobs", "1"]
    for subject in subjects:
        arguments += ["--plugin", subject]
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "fingerprint.py"), *arguments],
        env={
            **os.environ,
            # tools/fingerprint stores those of 0.
            "PYTHONHASHSEED": "1",
            "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'plugins'}",
        },
        capture_output=True,
        text=True,
        timeout=890,
    )
    expected = f"{len(subjects)} runs, 0 violations, 0 not as stored\n"
    assert done.stdout == expected, done.stdout + done.stderr


@same_python
def test_a_change_of_a_delay_changes_the_digest() -> None:
    stored = fingerprint.load()[CHEAPEST]
    assert digest_of_run(*CHEAPEST).parts == stored.parts
    with replaced(service, "POLL_S", 1.01 * service.POLL_S):
        slower = digest_of_run(*CHEAPEST)
    assert not slower.violation
    assert slower.parts["network"] != stored.parts["network"]
    assert slower.parts["log"] != stored.parts["log"]


@pytest.mark.slow
def test_no_name_of_the_code_is_in_the_bytes_of_a_run_with_failing_calls() -> None:
    assert names_in_run("calls", 0) == {}


def test_every_subject_has_its_stored_runs() -> None:
    stored = fingerprint.load()
    assert set(stored) == {(subject, seed) for subject in SUBJECTS for seed in range(5)}
    assert all(set(digest.parts) == set(PARTS) for digest in stored.values())
    assert not any(digest.violation for digest in stored.values())
    # A digest of nothing agrees with everything.
    assert all(digest.lines["log"] and digest.lines["state"] for digest in stored.values())


# The command, with runs that were made before -----------------------------------------------------


@pytest.fixture
def digests(monkeypatch: pytest.MonkeyPatch) -> fingerprint.Digests:
    """What the runs of the command give in this test, in place of simulations."""
    made = dict(fingerprint.load())

    def run_all(
        runs: Sequence[fingerprint.Run], work: object, jobs: int, console: object
    ) -> Iterator[tuple[fingerprint.Run, RunDigest]]:
        return ((run, made[run]) for run in runs)

    monkeypatch.setattr(fingerprint, "run_all", run_all)
    return made


def changed(digest: RunDigest, part: str) -> RunDigest:
    return replace(digest, parts={**digest.parts, part: "0" * 16})


def test_the_check_passes_while_all_is_as_it_is_stored(
    digests: fingerprint.Digests, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fingerprint.main(["--check"]) == 0
    assert capsys.readouterr().out == f"{len(digests)} runs, 0 violations, 0 not as stored\n"


@pytest.mark.parametrize("part", PARTS)
def test_the_check_names_the_run_and_the_part_that_differ(
    part: str, digests: fingerprint.Digests, capsys: pytest.CaptureFixture[str]
) -> None:
    digests["limbo", 3] = changed(digests["limbo", 3], part)
    assert fingerprint.main(["--check"]) == 1
    first, last = capsys.readouterr().out.splitlines()
    assert first.startswith(f"limbo 3: {part} (")
    assert last.endswith("1 not as stored")
    assert fingerprint.main(["--check", "--plugin", "lcr"]) == 0


def test_a_changed_stored_value_is_noticed(digests: fingerprint.Digests, tmp_path: Path) -> None:
    file = tmp_path / "stored.json"
    check = ["--check", "--plugin", "lcr", "--seeds", "0:2", "--stored", str(file)]
    assert fingerprint.main(check) == 1
    fingerprint.store(digests, file)
    assert fingerprint.main(check) == 0
    fingerprint.store({**digests, ("lcr", 1): changed(digests["lcr", 1], "state")}, file)
    assert fingerprint.main(check) == 1


def test_writing_replaces_the_chosen_runs_and_keeps_the_others(
    digests: fingerprint.Digests, tmp_path: Path
) -> None:
    file = tmp_path / "stored.json"
    before = dict(digests)
    fingerprint.store(before, file)
    for run in (("lcr", 0), ("core", 0)):
        digests[run] = changed(digests[run], "log")
    assert fingerprint.main(["--write", "--plugin", "lcr", "--stored", str(file)]) == 0
    assert fingerprint.load(file) == {**before, ("lcr", 0): digests["lcr", 0]}


def test_a_run_that_breaks_a_promise_fails_and_is_not_stored(
    digests: fingerprint.Digests, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "stored.json"
    digests["lcr", 2] = replace(digests["lcr", 2], violation="two owners")
    assert fingerprint.main(["--write", "--plugin", "lcr", "--stored", str(file)]) == 1
    assert not file.exists()
    assert "two owners\n5 runs, 1 violations\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments", [["--seeds", "3"], ["--seeds", "2:2"], ["--plugin", "nonsense"], ["--jobs", "0"]]
)
def test_the_command_refuses_what_it_does_not_understand(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        fingerprint.main(arguments)
    assert refused.value.code == 2


# What is digested ---------------------------------------------------------------------------------


def test_lines_are_digested_by_part_and_can_be_read() -> None:
    one, other, copy = Recorder(), Recorder(), io.StringIO()
    read = Recorder(copy)
    for recorder in (one, other, read):
        recorder.add("log", "core1", 7)
    other.add("disk", "core1", 7)
    assert read.digests() == one.digests()
    assert copy.getvalue() == "log core1 7\n"
    differing = [part for part in PARTS if one.digests()[part] != other.digests()[part]]
    assert differing == ["disk"]


def test_versions_names_and_texts_of_errors_are_kept_out_of_a_run() -> None:
    def sent(text: bytes, reason: str) -> bytes:
        failed = wire.RpcReply(1, "remote_failed", text)
        return wire.encode(failed) + wire.encode(wire.Refusal("not_member", reason))

    error = ValueError("x")
    assert sent(b"Full: it is full", "a") != sent(b"", "")
    with without_names():
        assert sent(b"Full: it is full", "no member") == sent(b"Busy: wait", "unknown")
        # A caller decides by these.
        assert sent(b"core2 has no method 'a'", "") != sent(b"", "")
        assert wire.encode(wire.RpcReply(1, "", b"answer")) != wire.encode(
            wire.RpcReply(1, "", b"")
        )
        assert worker.cause_of(error) == ""
    assert worker.cause_of(error) == "ValueError"


def test_names_of_the_code_are_found_in_bytes(tmp_path: Path) -> None:
    (tmp_path / "plugins" / "raftkv_a").mkdir(parents=True)
    (tmp_path / "plugins" / "raftkv_a" / "station.py").write_text(
        "class Refusing(Exception):\n    async def _fail_now(self): ...\n    def public(): ...\n"
    )
    finder = Finder(set(names_of_code(tmp_path)))
    finder.look(b"\x95\xc4*Refusing in _fail_now\x00 of station.py, RefusingAll, public, Refusing")
    assert finder.found == {"Refusing": 2, "_fail_now": 1, "station.py": 1}
