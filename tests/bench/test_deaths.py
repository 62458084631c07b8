"""The judging part of `python -m bench deaths`."""

from __future__ import annotations

from typing import Any

import pytest

from bench.death_rounds import MemberState, Report, Round, judge, states, worst_s

NODE_DOWN_S = 10.0
BEFORE = {"core1": MemberState(1, True), "core2": MemberState(4, True), "r1": MemberState(2, True)}


def stopped(seconds: float, **after: MemberState) -> Round:
    return Round(
        kind="stop", name="core1", role="leader", seconds=seconds, before=BEFORE,
        after={**BEFORE, **after},
    )  # fmt: skip


def killed(declared_s: float | None, **after: MemberState) -> Round:
    after = {"core1": MemberState(3, True), **after}
    return Round(
        kind="kill", name="core1", role="leader", before=BEFORE, after={**BEFORE, **after},
        declared_s=declared_s,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (stopped(8.0), []),
        (stopped(11.0), []),
        (stopped(14.0, core1=MemberState(3, True)), []),
        (stopped(8.0, core1=MemberState(3, True)), ["core1 was declared dead after 8 s"]),
        (stopped(14.0, core1=MemberState(2, False)), ["core1 is not up again"]),
        (stopped(14.0, r1=MemberState(4, True)), ["r1 ran all the time and was declared dead"]),
        (stopped(14.0, core2=MemberState(5, False)), ["core2 is not up again"]),
        (killed(12.9), []),
        (killed(13.1), ["13.10 s after it was killed; 13 s are allowed"]),
        (killed(None), ["killed and not declared dead"]),
        (killed(11.0, r1=MemberState(4, True)), ["r1 ran all the time"]),
    ],
)
def test_what_is_wrong_with_a_round(found: Round, words: list[str]) -> None:
    wrong = judge(found, NODE_DOWN_S)
    assert len(wrong) == len(words)
    assert all(word in text for word, text in zip(words, wrong, strict=True))


def test_the_members_of_a_status() -> None:
    members: list[dict[str, Any]] = [
        {"name": "core1", "incarnation": 1, "up": True, "role": "core"},
        {"name": "r1", "incarnation": 2, "up": False, "role": "replicant"},
    ]
    assert states(members) == {"core1": MemberState(1, True), "r1": MemberState(2, False)}


def test_a_report_passes_if_nothing_was_found_in_it_or_its_rounds() -> None:
    def report(rounds: list[Round], findings: list[str]) -> Report:
        return Report(
            layout="3+3", node_down_s=10.0, rounds=rounds, acknowledged=5, findings=findings
        )

    bad = Round(
        kind="kill", name="core1", role="leader", before=BEFORE, after={}, findings=("late",)
    )
    assert report([killed(11.0)], []).passed
    assert not report([killed(11.0)], ["1 write is lost"]).passed
    assert not report([killed(11.0), bad], []).passed


def test_the_worst_kill_of_a_role() -> None:
    rounds = [killed(11.0), killed(12.5), killed(None), stopped(8.0)]
    assert worst_s(rounds, "leader") == 12.5
    assert worst_s(rounds, "replicant") is None
