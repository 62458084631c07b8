"""Two revisions in turns: what the rounds say together, and whose code runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import turns
from bench.embedding import Member
from bench.sides import ROOT, prepare
from bench.turns import Turn, level_of, main


def turn(per_s: float, cpu_us: float = 100.0) -> Turn:
    return Turn(per_s=per_s, cpu_us=cpu_us, p50_ms=1.0, p99_ms=2.0)


def test_ratios_are_taken_within_a_round() -> None:
    """The machine became four times slower on the way: the sides did not differ."""
    rounds = [(turn(800 / 2**n, 10 * 2**n), turn(800 / 2**n, 5 * 2**n)) for n in range(3)]
    level = level_of("puts", 16, rounds)
    assert level.rate.median == 1.0
    assert level.rate.between == (1.0, 1.0)
    assert level.cpu.median == 0.5
    assert (level.base.per_s, level.tree.cpu_us) == (400, 10)
    assert not level.slower


@pytest.mark.parametrize(
    ("rates", "cpus", "slower"),
    [
        ((0.90, 0.93, 0.95), (1.0, 1.0, 1.0), True),
        ((0.90, 0.93, 1.00), (1.0, 1.0, 1.0), False),
        ((1.0, 1.0, 1.0), (1.05, 1.06, 1.2), True),
        ((1.2, 1.2, 1.2), (1.02, 1.06, 1.2), False),
        ((0.98, 0.98, 0.98), (1.02, 1.02, 1.02), False),
    ],
)
def test_only_what_is_no_chance_is_slower(
    rates: tuple[float, ...], cpus: tuple[float, ...], slower: bool
) -> None:
    rounds = [
        (turn(100), turn(100 * rate, 100 * cpu)) for rate, cpu in zip(rates, cpus, strict=True)
    ]
    assert level_of("puts", 1, rounds).slower is slower


@pytest.mark.cluster
def test_a_tree_beside_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(tmp_path / "other", str(ROOT))
    codes: list[Path] = []
    spawn = Member.spawn

    async def noted(member: Member) -> None:
        codes.append(member._code)
        await spawn(member)

    monkeypatch.setattr(Member, "spawn", noted)
    monkeypatch.setattr(turns, "WARM_S", 0.1)
    options = ["--layout", "1", "--rounds", "2", "--seconds", "0.1", "--in-flight", "2", "4"]
    options += ["--what", "puts", "gets", "--keys", "64"]
    assert main(["--against", str(tmp_path / "other"), *options, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    levels = [(level["what"], level["in_flight"]) for level in found["levels"]]
    assert levels == [("puts", 2), ("puts", 4), ("gets", 2), ("gets", 4)]
    assert all(level["rate"]["median"] > 0 < level["cpu"]["median"] for level in found["levels"])
    assert [code.name for code in codes] == ["base", "tree"]
    assert ROOT not in codes


def test_a_revision_that_does_not_exist_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--against", "no-such-revision"]) == 2
    told = capsys.readouterr().err
    assert "no-such-revision" in told
    assert "Traceback" not in told
