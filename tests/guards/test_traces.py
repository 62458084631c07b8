"""No operation goes through more files than its ceiling; the tool that counts them itself works."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

import traces
from checkout import ROOT, require_own_modules
from operation_trace import OPERATIONS, Event, Figures, Trace, counted, figures, steps, trace_of
from stored_runs import python_version

same_python = pytest.mark.skipif(
    traces.stored_python() != python_version(),
    reason="the stored ceilings were counted with another version of Python",
)


@same_python
def test_no_operation_goes_through_more_files_than_its_ceiling() -> None:
    ceilings = traces.load()
    found = traces.above(traces.counts([trace_of(name) for name in OPERATIONS]), ceilings)
    assert not found, "\n" + "\n".join(found) + "\ntools/trace --steps lists the changes of file"


def test_every_operation_has_its_ceilings() -> None:
    assert set(traces.load()) == set(OPERATIONS)


def test_an_operation_is_traced_alike_each_time_and_the_path_ends_with_the_answer() -> None:
    first = trace_of("put")
    assert first == trace_of("put")
    assert first.path.changes < first.whole.changes
    assert set(first.path.files) < set(first.whole.files)
    assert len(first.steps) <= first.path.changes


def test_only_the_leader_is_counted_and_followers_cost_it_something() -> None:
    alone, leader = trace_of("get"), trace_of("get", cores=3)
    assert set(alone.path.files) < set(leader.path.files)


def test_files_and_changes_are_those_of_consecutive_events() -> None:
    calls = [("a.py", "f"), ("b.py", "g"), ("b.py", "h")]
    events = [Event(file, function, True) for file, function in calls]
    events += [Event(file, function, False) for file, function in reversed(calls)]
    assert figures(events) == Figures(("a.py", "b.py"), 2, 3)
    assert steps(events) == ("a.py f", "b.py g")
    assert figures([]) == Figures((), 0, 0)


@pytest.mark.parametrize(
    ("file", "counts"),
    [
        ("raftkv/node.py", True),
        ("plugins/raftkv_lcr/api.py", True),
        ("raftkv/testing/world.py", False),
        ("plugins/raftkv_lcr/testing/broker.py", False),
        ("tools/operation_trace.py", False),
    ],
)
def test_files_of_the_product_count_and_those_that_observe_it_do_not(
    file: str, counts: bool
) -> None:
    assert counted(str(ROOT / file)) == (file if counts else "")
    assert counted(f"elsewhere/{file}") == ""


def test_a_figure_may_fall_and_its_ceiling_follows_but_none_rises(tmp_path: Path) -> None:
    file = tmp_path / "traces.json"
    traces.store({"get": {"files": 10_000, "changes": 10_000}}, file)
    lowering = ["get", "--write", "--ceilings", str(file)]
    assert traces.main(lowering) == 0
    lowered = traces.load(file)
    assert lowered == traces.counts([trace_of("get")])
    traces.store({"get": {**lowered["get"], "files": 1}}, file)
    before = file.read_text()
    assert traces.main(lowering) == 1
    assert file.read_text() == before
    # A new figure gets its count, and one that is counted no more loses its ceiling.
    traces.store({"get": {"lines": 1}, "put": lowered["get"]}, file)
    assert traces.main(lowering) == 0
    assert traces.load(file) == {"get": lowered["get"], "put": lowered["get"]}


def test_a_difference_names_the_other_version_of_python(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "traces.json"
    file.write_text('{"python": "3.9", "runs": {}}')
    assert traces.main(["get", "--check", "--ceilings", str(file)]) == 1
    assert "were counted with Python 3.9" in capsys.readouterr().err


@same_python
def test_the_command_prints_figures_lists_and_a_document(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert traces.main(["get", "--files", "--check"]) == 0
    shown = capsys.readouterr().out
    assert "a linearizable get" in shown
    assert traces.main(["get", "--json"]) == 0
    (document,) = json.loads(capsys.readouterr().out)["traces"]
    assert document["operation"] == "get"
    assert all(file in shown for file in document["path"]["files"])


@pytest.mark.parametrize("arguments", [["nonsense"], ["--cores", "0"], ["--cores", "3", "--check"]])
def test_the_command_refuses_what_it_does_not_understand(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        traces.main(arguments)
    assert refused.value.code == 2


def test_a_figure_above_its_ceiling_is_named() -> None:
    few, many = Figures(("a.py",), 1, 1), Figures(("a.py", "b.py"), 3, 2)
    found = traces.counts([Trace("get", few, many, ())])
    assert traces.above(found, {"get": {**found["get"], "whole_changes": 2}}) == [
        "get: whole_changes is 3, at most 2"
    ]
    assert traces.above(found, found) == []
    assert traces.above({"get": {"files": 1}}, {"get": {}}) == [
        "get: files is 1, without a ceiling"
    ]
    assert traces.above({"get": {"files": 1}}, {}) == ["get: files is 1, without a ceiling"]
    assert traces.above({"get": {}}, {"get": {"files": 1}}) == [
        "get: files is not counted, and has a ceiling"
    ]


def test_code_of_another_checkout_is_noticed(tmp_path: Path) -> None:
    require_own_modules()
    with pytest.raises(RuntimeError, match="do not belong to"):
        require_own_modules(tmp_path)


def test_a_copy_in_an_environment_of_the_checkout_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("raftkv")]:
        monkeypatch.delitem(sys.modules, name)

    def load(file: str) -> None:
        module = ModuleType("raftkv_x.rows")
        module.__file__ = str(tmp_path / file)
        monkeypatch.setitem(sys.modules, module.__name__, module)

    load("plugins/raftkv_x/rows.py")
    require_own_modules(tmp_path)
    load(".venv/lib/site-packages/raftkv_x/rows.py")
    with pytest.raises(RuntimeError, match="1 modules do not belong to"):
        require_own_modules(tmp_path)
