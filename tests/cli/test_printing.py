"""What the commands print, line by line."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from raftkv.cli import output
from raftkv.cli.keys import show_result
from raftkv.cli.options import At
from raftkv.cli.output import Styled
from raftkv.cli.printing import (
    Style,
    event_document,
    event_text,
    fields_text,
    result_document,
    result_text,
)
from raftkv.kv.commands import (
    DeleteRangeResult,
    Event,
    KeyValue,
    OperationResult,
    PutResult,
    RangeResult,
    TxnResult,
)

A = KeyValue(b"a", b"1", 2, 5, 3, 0x694D8A1B)
B = KeyValue(b"b\n\xff", b"\x00", 4, 4, 1)
GONE = KeyValue(b"a", b"", 0, 9, 0)
RANGE = RangeResult(9, (A, B), 2, False)
TXN = TxnResult(10, True, (PutResult(10), RANGE, DeleteRangeResult(10, 1, (A,))))


@pytest.mark.parametrize(
    ("result", "style", "text"),
    [
        (PutResult(3), Style(), b"OK\n"),
        (PutResult(3, A), Style(), b"OK\na\n1\n"),
        (DeleteRangeResult(3, 0), Style(), b"0\n"),
        (DeleteRangeResult(3, 2, (A, B)), Style(), b"2\na\n1\nb\n\xff\n\x00\n"),
        (RANGE, Style(), b"a\n1\nb\n\xff\n\x00\n"),
        (RANGE, Style(value_only=True), b"1\n\x00\n"),
        (RANGE, Style(keys_only=True), b"a\nb\n\xff\n"),
        (RANGE, Style(hexed=True), b"\\x61\n\\x31\n\\x62\\x0a\\xff\n\\x00\n"),
        (RangeResult(9, (), 7, False), Style(count_only=True), b"7\n"),
        (RangeResult(9, (), 0, False), Style(count_only=True), b"0\n"),
        (RangeResult(9, (), 0, False), Style(), b""),
        (TXN, Style(), b"SUCCESS\n\nOK\n\na\n1\nb\n\xff\n\x00\n\n1\na\n1\n"),
        (TxnResult(4, False, ()), Style(), b"FAILURE\n"),
    ],
)
def test_the_simple_form_is_etcdctls(result: OperationResult, style: Style, text: bytes) -> None:
    assert result_text(result, style) == text


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (Event(A), b"PUT\na\n1\n"),
        (Event(A, B), b"PUT\nb\n\xff\n\x00\na\n1\n"),
        (Event(GONE, A), b"DELETE\na\n1\na\n\n"),
    ],
)
def test_events_in_the_simple_form(event: Event, text: bytes) -> None:
    assert event_text(event) == text


def test_fields() -> None:
    assert fields_text(RangeResult(9, (B,), 3, True)) == (
        '"Revision" : 9\n'
        '"Key" : "b\\n\\xff"\n'
        '"CreateRevision" : 4\n'
        '"ModRevision" : 4\n'
        '"Version" : 1\n'
        '"Value" : "\\x00"\n'
        '"Lease" : 0\n'
        '"More" : true\n'
        '"Count" : 3\n'
    )
    assert fields_text(DeleteRangeResult(9, 1, (A,))).splitlines()[:3] == [
        '"Revision" : 9',
        '"Deleted" : 1',
        '"PrevKey" : "a"',
    ]
    assert '"PrevLease" : 1766689307' in fields_text(PutResult(9, A))
    assert fields_text(TXN).splitlines()[:2] == ['"Revision" : 10', '"Succeeded" : true']
    assert fields_text(Event(GONE)).splitlines()[:2] == ['"Revision" : 9', '"Type" : "DELETE"']


PAIR: dict[str, Any] = {
    "key": "a",
    "value": "1",
    "key_base64": "YQ==",
    "value_base64": "MQ==",
    "create_revision": 2,
    "mod_revision": 5,
    "version": 3,
    "lease": "00000000694d8a1b",
}


def as_json(document: Any) -> Any:
    return json.loads(msgspec.json.encode(document))


def test_documents() -> None:
    assert as_json(result_document(PutResult(3))) == {"revision": 3}
    assert as_json(result_document(PutResult(3), prev_kv=True)) == {"revision": 3, "prev": None}
    assert as_json(result_document(PutResult(3, A), prev_kv=True))["prev"] == PAIR
    deleted = as_json(result_document(DeleteRangeResult(3, 1, (A,)), prev_kv=True))
    assert deleted == {"deleted": 1, "revision": 3, "prev": [PAIR]}
    found = as_json(result_document(RANGE))
    assert (found["revision"], found["count"], found["more"]) == (9, 2, False)
    assert found["kvs"][0] == PAIR
    assert (found["kvs"][1]["key"], found["kvs"][1]["lease"]) == (None, None)
    done = as_json(result_document(TXN))
    assert (done["revision"], done["succeeded"]) == (10, True)
    assert [list(each) for each in done["responses"]] == [["put"], ["get"], ["del"]]
    assert done["responses"][2]["del"]["prev"] == [PAIR]


def test_documents_of_events() -> None:
    document = as_json(event_document(Event(GONE, A)))
    assert (document["type"], document["revision"], document["prev"]) == ("DELETE", 9, PAIR)
    assert document["kv"]["key"] == "a"
    assert as_json(event_document(Event(A)))["prev"] is None


def test_a_table_in_a_pipe_is_plain_columns(capsys: pytest.CaptureFixture[str]) -> None:
    show_result(At(endpoints=(), output="table"), RANGE, Style())
    assert capsys.readouterr().out == (
        "KEY      VALUE  CREATE  MOD  VERSION  LEASE\n"
        "a        1           2    5        3  00000000694d8a1b\n"
        "b\\n\\xff  \\x00        4    4        1  -\n"
    )


def test_a_table_without_rows_is_its_heading(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_table(("A", "LONGER"), [], numbers=("LONGER",))
    assert capsys.readouterr().out == "A  LONGER\n"


def test_on_a_terminal_styles_show_and_markup_in_a_key_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import io

    from rich.console import Console

    written = io.StringIO()
    monkeypatch.delenv("NO_COLOR", raising=False)
    table = output.rich_table(("A", "B"), [("[red]x[/red]", Styled("no", "red"))])
    Console(file=written, force_terminal=True, color_system="standard", width=80).print(table)
    text = written.getvalue()
    assert "[red]x[/red]" in text
    assert "\x1b[31mno" in text
    written.truncate(0)
    plain = Console(file=written, force_terminal=True, no_color=True, width=80)
    plain.print(table)
    assert "\x1b[31m" not in written.getvalue()
