"""`python -m bench run --scenario subscriptions` on real processes of two regions."""

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
def test_a_consumer_moves_and_nothing_is_skipped(tmp_path: Path) -> None:
    out = tmp_path / "out"
    few = ["--layout", "1", "--message-rate", "200", "--delay-ms", "20", "--seconds", "2"]
    assert main(["--out", str(out), "--scenario", "subscriptions", *few]) == 0
    facts = {
        one["mode"]: one
        for one in (
            json.loads(path.read_bytes()) for path in (out / "subscription-loads").iterdir()
        )
    }
    assert sorted(facts) == ["off", "snapshot", "vector"]
    # The first load is not counted: it warms up what others would have to pay for.
    assert facts["off"]["load"] == "subscriptions-2"
    assert all(one["errors"] == 0 for one in facts.values())
    rows = rows_of(out)
    assert "subscriptions-1" not in {row["load"] for row in rows}
    for mode in ("vector", "snapshot"):
        one = facts[mode]
        mine = [row for row in rows if row["load"] == one["load"]]
        counts = {row["op"]: row["index"] for row in mine if row["phase"] == "audit"}
        assert counts["skipped"] == 0
        assert counts["received"] > 0
        moved = [row for row in mine if row["op"] == "moved" and row["outcome"] == "ok"]
        # Nobody hears of anything before it could have come the whole way.
        assert moved
        assert min(row["duration_us"] for row in moved) >= 20_000
        assert 0 < one["acked"] <= one["published"]
        assert one["entries"] > 0
        assert one["link_bytes"] > 0
    vector = {
        row["op"]: row["index"]
        for row in rows
        if row["load"] == facts["vector"]["load"] and row["phase"] == "audit"
    }
    assert vector["again_quiesced"] == 0
    assert not [row for row in rows if row["load"] == facts["off"]["load"]]
    assert facts["off"]["published"] > 0
