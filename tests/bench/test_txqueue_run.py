"""`python -m bench run --scenario txqueue` on real processes: what it logs is what nodes have."""

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
def test_every_node_has_what_its_producers_were_told(tmp_path: Path) -> None:
    out = tmp_path / "out"
    few = ["--layout", "3+3", "--in-flight", "1", "--in-flight", "5", "--seconds", "0.4"]
    sizes = ["--batch", "1", "--batch", "7"]
    assert main(["--out", str(out), "--scenario", "txqueue", *few, *sizes]) == 0
    facts = [json.loads(path.read_bytes()) for path in (out / "txqueue-loads").iterdir()]
    facts.sort(key=lambda one: int(one["load"].rpartition("-")[2]))
    kinds = [("tx", 1), ("tx", 7), ("dtx1", 10), ("dtx2", 10)]
    assert [(one["way"], one["batch"], one["producers"]) for one in facts] == [
        (way, batch, producers) for way, batch in kinds for producers in (1, 5)
    ]
    rows = rows_of(out)
    for one in facts:
        mine = [row for row in rows if row["load"] == one["load"]]
        commits = [row for row in mine if row["op"] == "commit"]
        assert {row["outcome"] for row in commits} == {"ok"}
        assert {row["node"] for row in commits} == {one["node"]}
        assert {row["client"] for row in commits} == {f"p{n}" for n in range(one["producers"])}
        found = {row["client"]: row["index"] for row in mine if row["op"] == "messages"}
        assert found == dict.fromkeys(one["nodes"].split(), len(commits) * one["batch"])
        assert len(found) == 6
        for op in ("surplus", "torn", "displaced"):
            assert [row["index"] for row in mine if row["op"] == op] == [0] * 6, op
        assert one["entries"] > 0
        # A TX is told where it stands in the log; a branch is told that it is committed.
        assert all((row["index"] is not None) == (one["way"] == "tx") for row in commits)
