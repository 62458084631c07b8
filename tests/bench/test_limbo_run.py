"""`python -m bench run --scenario limbo` on real processes: what it logs is what nodes have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.run import main

pytest.importorskip("pyarrow", reason="pyarrow is in the extra `bench`")

from pyarrow import parquet


def rows_of(out: Path) -> list[dict[str, Any]]:
    return [
        row
        for path in (out / "log").glob("*.parquet")
        for row in parquet.read_table(path).to_pylist()
    ]


@pytest.mark.cluster
@pytest.mark.slow
def test_every_node_has_what_its_writers_were_told(tmp_path: Path) -> None:
    out = tmp_path / "out"
    few = ["--layout", "3+3", "--in-flight", "1", "--in-flight", "5", "--seconds", "0.4"]
    assert main(["--out", str(out), "--scenario", "limbo", *few]) == 0
    facts = [json.loads(path.read_bytes()) for path in sorted((out / "limbo-loads").iterdir())]
    assert [(one["quorum"], one["writers"]) for one in facts] == [
        (quorum, writers) for quorum in ("majority", "cores", "members") for writers in (1, 5)
    ]
    rows, positions = rows_of(out), []
    for one in facts:
        mine = [row for row in rows if row["load"] == one["load"]]
        written = [row for row in mine if row["op"] == "submit"]
        assert {row["outcome"] for row in written} == {"ok"}
        assert {row["node"] for row in written} == {one["owner"]}
        assert {row["client"] for row in written} == {f"w{n}" for n in range(one["writers"])}
        positions += [row["index"] for row in written]
        found = {row["client"]: row["index"] for row in mine if row["op"] == "rows"}
        assert found == dict.fromkeys(one["nodes"].split(), len(written))
        assert len(found) == 6
        assert {row["index"] for row in mine if row["op"] == "strays"} == {0}
        # Raft's own majority needs no acknowledgement, and every other quorum those of its nodes.
        assert (one["acks"] == 0) == (one["quorum"] == "majority")
        assert one["entries"] > 0
    assert len(set(positions)) == len(positions), "a position is never used twice"
