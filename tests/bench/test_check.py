"""`python -m bench check`: histories on disk, bad input, and one run of Spark."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

pytest.importorskip("pyarrow", reason="pyarrow is in the extra `bench`")

from pyarrow import parquet

import bench.__main__ as command
from bench import check
from bench.history import COLUMNS, HistoryError, find_histories, operation, write_history
from raftkv.testing.histories import Operation
from raftkv.testing.linearizability import Budget

NO_LIMITS = msgspec.json.encode(Budget())


def run_of(keys: int, count: int, seed: int = 1) -> list[Operation]:
    """A store that takes each operation at once, with revisions; some puts were never answered."""
    rng = random.Random(seed)
    state: dict[bytes, bytes | None] = {}
    history = []
    for n in range(count):
        key, now, revision = b"k%d" % rng.randrange(keys), 10 * n, n + 2
        process = f"c{n % 4}"
        if rng.random() < 0.5:
            got = state.get(key)
            history.append(
                Operation(process, "get", key, None, got, now, now + 15, revision=revision)
            )
            continue
        value = b"v%d" % n
        if rng.random() < 0.05:
            lost = Operation(process, "put", key, value, None, now, None, "unknown")
            history.append(lost)
            continue
        state[key] = value
        history.append(
            Operation(process, "put", key, value, None, now, now + 15, revision=revision)
        )
    return history


VALUES: list[Any] = [None, b"", b"\x00\xff", True, False, 7, (None, b"x"), (b"x", None)]


def test_operations_come_back_as_they_were_written(tmp_path: Path) -> None:
    history = [
        Operation("c", "cas", b"k", given, given, 1, 2 if n % 2 else None, "unknown", n)
        for n, given in enumerate(VALUES)
    ]
    path = write_history(tmp_path, "r1", "n1", history)
    assert path == tmp_path / "history" / "r1-n1.parquet"
    rows = parquet.read_table(path).to_pylist()
    assert [operation(row) for row in rows] == history
    assert list(rows[0]) == [name for name, _, _ in COLUMNS]
    assert [one.name for one in path.parent.iterdir()] == [path.name]


def test_a_history_is_never_overwritten(tmp_path: Path) -> None:
    write_history(tmp_path, "r1", "n1", [])
    with pytest.raises(FileExistsError):
        write_history(tmp_path, "r1", "n1", [])
    with pytest.raises(ValueError, match="cannot name a file"):
        write_history(tmp_path, "../r1", "n1", [])


def failure(directory: Path, capsys: pytest.CaptureFixture[str]) -> str:
    assert command.main(["check", str(directory)]) == 2
    text = capsys.readouterr().err
    (line,) = [one for one in text.splitlines() if one.startswith("bench check: ")]
    assert "Traceback" not in text
    return line


def test_what_cannot_be_checked_is_said_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "there is no directory" in failure(tmp_path / "nowhere", capsys)
    assert "there are no history files" in failure(tmp_path, capsys)
    path = write_history(tmp_path, "r1", "n1", run_of(2, 50))
    sound = path.read_bytes()
    path.write_bytes(sound[: len(sound) // 2])
    assert "is damaged" in failure(tmp_path, capsys)
    path.write_bytes(sound)
    parquet.write_table(parquet.read_table(path).drop_columns(["revision"]), path)
    assert "has no column revision of type int64" in failure(tmp_path, capsys)


def test_a_flipped_bit_is_found(tmp_path: Path) -> None:
    path = write_history(tmp_path, "r1", "n1", run_of(2, 200))
    data = bytearray(path.read_bytes())
    data[100] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(HistoryError, match="is damaged"):
        find_histories(tmp_path)


def verdict_of(history: list[Operation], tmp_path: Path) -> check.KeyVerdict:
    path = write_history(tmp_path, "r", f"n{len(list(tmp_path.rglob('*.parquet')))}", history)
    rows = parquet.read_table(path).to_pylist()
    (found,) = check.check_rows(rows, NO_LIMITS)
    return msgspec.json.decode(found, type=check.KeyVerdict)


def test_each_oracle_may_find_a_violation(tmp_path: Path) -> None:
    put = Operation("a", "put", b"k", b"x", None, 0, 1, revision=5)
    stale = Operation("b", "get", b"k", None, None, 2, 3, revision=5)
    found = verdict_of([put, stale], tmp_path)
    assert (found.outcome, found.by_revision) == ("violation", "violation")
    assert "not linearizable" in found.explanation
    # The same without a fault that the search could see: the revision went back.
    late = Operation("b", "get", b"k", None, b"x", 2, 3, revision=4)
    found = verdict_of([put, late], tmp_path)
    assert (found.outcome, found.by_revision) == ("linearizable", "violation")
    assert found.is_violation
    assert "against the order of revisions" in found.explanation


def test_rows_that_make_no_sense_leave_their_key_undecided(tmp_path: Path) -> None:
    found = verdict_of([Operation("a", "increment", b"k", 1, None, 0, 1)], tmp_path)
    assert (found.outcome, found.is_violation, found.is_decided) == ("unknown", False, False)
    assert "knows no operation 'increment'" in found.explanation


def test_the_exit_code_says_the_worst() -> None:
    def verdict(outcome: Any, by_revision: Any = "unknown") -> check.KeyVerdict:
        return check.KeyVerdict("r", "k", 1, 0, outcome, by_revision, 1, "")

    fine, undecided = verdict("linearizable"), verdict("unknown", "consistent")
    assert check.exit_code([fine, fine]) == 0
    assert check.exit_code([fine, undecided]) == 3
    assert check.exit_code([undecided, verdict("violation"), fine]) == 1
    assert check.exit_code([fine, verdict("linearizable", "violation")]) == 1


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_the_command_on_spark(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyspark", reason="pyspark is in the extra `bench`")
    good, bad = run_of(20, 2_000), run_of(20, 500, seed=2)
    number = next(n for n in reversed(range(len(bad))) if bad[n].op == "get")
    bad[number] = msgspec.structs.replace(bad[number], output=b"[nobody/put this]")
    # Halves of a run in different files: a key's operations must meet again.
    write_history(tmp_path, "good", "n1", good[::2])
    write_history(tmp_path, "good", "n2", good[1::2])
    write_history(tmp_path, "bad", "n1", bad)
    arguments = ["check", str(tmp_path), "--master", "local[2]"]
    assert command.main([*arguments, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["linearizable"] is False
    unknown = sum(one.outcome == "unknown" for one in good)
    sums = [20, 2_000, unknown, 20, 0, 0, 20]
    assert found["runs"]["good"] == dict(zip(check.SUMS, sums, strict=True))
    assert found["runs"]["bad"]["violations"] == 1
    (key,) = found["keys"]
    assert (key["run"], key["key"].encode()) == ("bad", bad[number].key)
    # The same verdicts as a table, without a second Java machine.
    verdicts = [
        msgspec.convert(key, check.KeyVerdict),
        check.KeyVerdict("good", "k1", 2_000, unknown, "linearizable", "consistent", 1, ""),
    ]
    monkeypatch.setattr(check, "check_directory", lambda *_: verdicts)
    assert command.main(arguments) == 1
    text = capsys.readouterr().out
    assert "2,000" in text
    assert "x |" in text
    assert "[nobody/put this]" in text
