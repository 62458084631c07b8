"""What a chaos run makes of what it saw: the ledger, the histories, the report."""

from __future__ import annotations

import io
import subprocess
from pathlib import Path

import pytest
from rich.console import Console

from bench.chaos.command import main
from bench.chaos.faults import KINDS
from bench.chaos.load import RUN, Slice, ledger_value
from bench.chaos.report import Report, by_kind, show
from bench.chaos.soak import Event
from bench.chaos.verify import check_histories
from bench.history import write_history
from raftkv.testing.histories import Operation

KEY = b"l00000/c1-1"
ROOT = Path(__file__).resolve().parent.parent.parent


def ledger(**books: set[bytes]) -> Slice:
    one = Slice(0, 0.0)
    one.acknowledged = books.get("acknowledged", set())
    one.denied = books.get("denied", set())
    one.unknown = books.get("unknown", set())
    return one


@pytest.mark.parametrize(
    ("books", "found", "words"),
    [
        ({"acknowledged": {KEY}}, {KEY: ledger_value(KEY)}, None),
        ({"unknown": {KEY}}, {}, None),
        ({"unknown": {KEY}}, {KEY: ledger_value(KEY)}, None),
        ({"denied": {KEY}}, {}, None),
        ({"acknowledged": {KEY}}, {}, "acknowledged writes are lost"),
        ({"denied": {KEY}}, {KEY: ledger_value(KEY)}, "denied have been applied"),
        ({}, {KEY: ledger_value(KEY)}, "nobody wrote"),
        ({"acknowledged": {KEY}}, {KEY: b"else"}, "other values"),
    ],
)
def test_the_ledger_finds_what_is_wrong_and_nothing_else(
    books: dict[str, set[bytes]], found: dict[bytes, bytes], words: str | None
) -> None:
    findings = ledger(**books).ledger_findings("core1", found)
    if words is None:
        assert findings == []
    else:
        assert len(findings) == 1
        assert words in findings[0]
        assert KEY.decode() in findings[0]


def put(key: bytes, value: bytes, start: int, end: int) -> Operation:
    return Operation("c1", "put", key, value, None, start, end, "ok", start)


def get(key: bytes, value: bytes | None, start: int, end: int) -> Operation:
    return Operation("c2", "get", key, None, value, start, end, "ok", end)


@pytest.mark.parametrize(("last", "wrong"), [(b"2", 0), (b"1", 1)])
def test_a_last_read_from_the_past_is_found(last: bytes, wrong: int, tmp_path: Path) -> None:
    first, second = b"s00000/01", b"s00001/01"
    write_history(tmp_path, RUN, "slice-00000", [put(first, b"1", 1, 2), put(first, b"2", 3, 4)])
    write_history(tmp_path, RUN, "slice-00001", [put(second, b"3", 5, 6)])
    write_history(tmp_path, RUN, "final", [get(first, last, 7, 8), get(second, b"3", 7, 8)])
    seen: list[int] = []
    checked = check_histories(tmp_path, lambda done, total: seen.append(total), jobs=1)
    assert (checked.keys, checked.operations, checked.undecided) == (2, 5, ())
    named = {finding.split()[0].rstrip(",") for finding in checked.findings}
    assert named == ({"s00000/01"} if wrong else set())
    assert seen == [2, 2]


def report(**changes: object) -> Report:
    events = [
        Event("kill", "core1", 1.0, 0.5, "1 killed", 0.7),
        Event("kill", "core2", 3.0, 0.5, "", None),
    ]
    fields: dict[str, object] = {
        "layout": "3+3",
        "seed": 7,
        "elapsed_s": 10.0,
        "kinds": by_kind(["kill", "stop"], events),
        "acknowledged": 1000,
        "unknown": 3,
        "not_applied": 4,
        "per_second": 100.0,
        "slowest_second": 0,
        "longest_silence_s": 1,
        "terms": 4,
        "power_bytes_lost": 0,
        "power_changes_lost": 0,
        "ends_asked_for": 2,
        "keys_checked": 12,
        "operations_checked": 500,
        "ledger_keys": 300,
        "findings": [],
    }
    return Report(**{**fields, **changes})  # type: ignore[arg-type]


def test_the_table_counts_what_struck_and_what_did_not() -> None:
    kill, stop = report().kinds
    assert (kill.count, kill.struck, kill.recovery_worst_s) == (2, 1, 0.7)
    assert (stop.count, stop.struck, stop.recovery_worst_s) == (0, 0, None)


def test_the_summary_is_one_line_and_says_whether_it_passed() -> None:
    assert report().summary().startswith("passed: 2 faults (1 proved)")
    failed = report(findings=["core1: a write is lost"])
    assert failed.summary().startswith("FAILED: 2 faults")
    assert "1 violation;" in failed.summary()
    assert "\n" not in failed.summary()


def test_the_findings_are_shown() -> None:
    screen = io.StringIO()
    show(report(findings=["core1: a write is lost"]), Console(file=screen, width=120))
    assert "core1: a write is lost" in screen.getvalue()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--faults", "kill,flood"], "unknown fault flood"),
        (["--layout", "many"], "is no layout"),
    ],
)
def test_a_wrong_call_is_told_so(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


def test_an_output_directory_with_content_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "something").touch()
    with pytest.raises(SystemExit) as ended:
        main(["--out", str(tmp_path)])
    assert ended.value.code == 2
    assert "is not empty" in capsys.readouterr().err


def test_the_script_tells_all_faults_and_options() -> None:
    said = subprocess.run(
        [ROOT / "tools" / "chaos", "--help"], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    assert ",".join(KINDS) in said
    with pytest.raises(SystemExit):
        main(["--help"])
    for option in ("--minutes", "--rounds", "--seed", "--layout", "--out", "--json", "--tls"):
        assert option in said


def test_the_page_tells_all_faults() -> None:
    page = (ROOT / "docs" / "internals" / "chaos.md").read_text(encoding="utf-8")
    assert [kind for kind in KINDS if f"`{kind}`" not in page] == []
