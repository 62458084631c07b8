"""The benchmark log's columns and the writer of its files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench import schema
from bench.schema import Row, RowWriter

parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is in the extra `bench`")


def put(**changes: Any) -> Row:
    values: dict[str, Any] = {
        "run": "r1", "layout": "3+3", "scenario": "puts", "phase": "c16", "registry": "none",
        "node": "core-1", "role": "leader", "op": "put", "client": "p1", "attempt": 1,
        "start_us": 1_790_000_000_000_000, "duration_us": 580, "outcome": "ok", "index": 7,
    }  # fmt: skip
    return Row(**{**values, **changes})


def test_columns_are_the_fields_of_a_row_with_types_and_meanings() -> None:
    assert [column.name for column in schema.COLUMNS] == list(Row.__struct_fields__)
    by_name = {column.name: column for column in schema.COLUMNS}
    assert (by_name["attempt"].type, by_name["attempt"].required) == ("int32", True)
    assert (by_name["index"].type, by_name["index"].required) == ("int64", False)
    assert (by_name["session_present"].type, by_name["session_present"].required) == (
        "bool",
        False,
    )
    assert all(column.meaning for column in schema.COLUMNS)


def test_both_schemas_have_the_same_columns_in_the_same_order() -> None:
    pytest.importorskip("pyspark", reason="pyspark is in the extra `bench`")
    names = [column.name for column in schema.COLUMNS]
    assert schema.arrow_schema().names == names
    assert schema.spark_schema().names == names
    spark_names = {"string": "string", "int32": "int", "int64": "bigint", "bool": "boolean"}
    assert [field.dataType.simpleString() for field in schema.spark_schema()] == [
        spark_names[column.type] for column in schema.COLUMNS
    ]


def test_rows_come_back_as_they_were_written(tmp_path: Path) -> None:
    rows = [put(), put(session_present=True, expected_present=False, index=None, client="ä/∞")]
    with RowWriter(tmp_path, "r1", "core-1") as writer:
        for row in rows:
            writer.add(row)
    (path,) = (tmp_path / "log").iterdir()
    assert path.name == "r1-core-1-0.parquet"
    assert parquet.read_table(path).to_pylist() == [msgspec.structs.asdict(row) for row in rows]


@settings(max_examples=25)
@given(
    st.lists(
        st.builds(
            put,
            client=st.text(st.characters(codec="utf-8"), max_size=20),
            attempt=st.integers(1, 2**31 - 1),
            duration_us=st.integers(0, 2**63 - 1),
            session_present=st.none() | st.booleans(),
            index=st.none() | st.integers(0, 2**63 - 1),
        ),
        min_size=1,
        max_size=7,
    ),
    st.integers(1, 3),
)
def test_any_rows_in_any_portions_come_back(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Row], rows_max: int
) -> None:
    directory = tmp_path_factory.mktemp("log")
    with RowWriter(directory, "r", "n", rows_max=rows_max) as writer:
        for row in rows:
            writer.add(row)
    count = -(-len(rows) // rows_max)
    paths = [directory / "log" / f"r-n-{number}.parquet" for number in range(count)]
    assert sorted(paths) == sorted((directory / "log").iterdir())
    found = [row for path in paths for row in parquet.read_table(path).to_pylist()]
    assert found == [msgspec.structs.asdict(row) for row in rows]


def test_nothing_to_write_makes_no_file(tmp_path: Path) -> None:
    writer = RowWriter(tmp_path, "r1", "core-1")
    assert writer.flush() is None
    writer.close()
    assert list((tmp_path / "log").iterdir()) == []


def test_a_restarted_driver_keeps_the_files_of_its_first_life(tmp_path: Path) -> None:
    for index in (1, 2):
        with RowWriter(tmp_path, "r1", "core-1") as writer:
            writer.add(put(index=index))
    found = [
        parquet.read_table(tmp_path / "log" / f"r1-core-1-{n}.parquet").to_pylist()[0]["index"]
        for n in (0, 1)
    ]
    assert found == [1, 2]


def test_a_failed_write_leaves_no_file_and_loses_no_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full_disk(*_: object) -> None:
        raise OSError(28, "No space left on device")

    writer = RowWriter(tmp_path, "r1", "core-1")
    writer.add(put(index=1))
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full_disk)
        with pytest.raises(OSError, match="No space left"):
            writer.flush()
    assert list((tmp_path / "log").iterdir()) == []
    writer.add(put(index=2))
    path = writer.flush()
    assert path is not None
    assert [row["index"] for row in parquet.read_table(path).to_pylist()] == [1, 2]


@pytest.mark.parametrize("name", ["", "a/b", "..", ".hidden", "a b", "a\n"])
def test_names_that_cannot_be_part_of_a_file_name_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="cannot name a log file"):
        RowWriter(tmp_path, "r1", name)
    with pytest.raises(ValueError, match="cannot name a log file"):
        RowWriter(tmp_path, name, "core-1")


def test_a_buffer_of_no_rows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="rows_max must be at least 1"):
        RowWriter(tmp_path, "r1", "n", rows_max=0)
