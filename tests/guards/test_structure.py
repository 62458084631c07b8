"""No measure of the structure is on the wrong side of its limit, and limits follow the counts."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.guards import __main__ as command
from tests.guards import structure, wording
from tests.guards.measure import Measure
from tests.guards.sources import GIT_VARIABLES, ROOT, paths, sources, unknown_folders

# All modules are parsed once, in about 8 s of processor time: on a loaded machine that is minutes.
pytestmark = pytest.mark.timeout(900)

CEILING = Measure("circles", "circles of imports", 3, ("raftkv/a.py:1: x",))
COARSE = Measure("lines", "lines", 2_100, step=1_000)
FLOOR = Measure("assertions", "assertions", 40, kind="floor")
MEASURES = {each.name: each for each in (CEILING, COARSE, FLOOR)}


def test_no_measure_is_on_the_wrong_side_of_its_limit() -> None:
    found = structure.violations(structure.measures_of_today(), structure.load_limits())
    assert not found, "\n" + "\n".join(found)


def test_every_limit_is_as_near_to_its_count_as_it_can_be() -> None:
    found = structure.loose_limits(structure.measures_of_today(), structure.load_limits())
    assert not found, "\n" + "\n".join(found) + f"\n{wording.UPDATE_COMMAND} sets the limits"


@pytest.mark.parametrize(
    ("limits", "violated", "loose"),
    [
        ({"circles": 3, "lines": 3_000, "assertions": 40}, [], []),
        ({"circles": 2, "lines": 3_000, "assertions": 40}, ["circles"], []),
        ({"circles": 4, "lines": 3_000, "assertions": 40}, [], ["circles"]),
        ({"circles": 3, "lines": 2_000, "assertions": 40}, ["lines"], []),
        ({"circles": 3, "lines": 4_000, "assertions": 40}, [], ["lines"]),
        ({"circles": 3, "lines": 3_000, "assertions": 41}, ["assertions"], []),
        ({"circles": 3, "lines": 3_000, "assertions": 39}, [], ["assertions"]),
        ({"circles": 3, "lines": 3_000, "assertions": 40, "gone": 1}, [], ["gone"]),
        ({"lines": 3_000, "assertions": 40}, [], ["circles"]),
    ],
)
def test_a_limit_that_does_not_fit_is_found(
    limits: dict[str, int], violated: list[str], loose: list[str]
) -> None:
    found = structure.violations(MEASURES, limits)
    assert [text.partition(":")[0] for text in found] == violated
    found = structure.loose_limits(MEASURES, limits)
    assert [text.partition(":")[0] for text in found] == loose


def test_a_violation_names_the_limit_and_the_places() -> None:
    (found,) = structure.violations(MEASURES, {"circles": 2})
    assert found == "circles: 3 circles of imports, at most 2\n    raftkv/a.py:1: x"
    many = Measure("circles", "circles", 30, tuple(f"a.py:{n}" for n in range(30)))
    (found,) = structure.violations({"circles": many}, {"circles": 2})
    assert len(found.splitlines()) == 1 + structure.PLACES_SHOWN + 1
    assert found.endswith("--places circles has all 30")


def test_limits_follow_better_counts_only_and_new_measures_get_theirs() -> None:
    limits = {"circles": 5, "lines": 2_000, "gone": 1}
    assert structure.tightened(MEASURES, limits) == {
        "assertions": 40,
        "circles": 3,
        "lines": 2_000,
    }
    assert structure.tightened(MEASURES, {"assertions": 50})["assertions"] == 50


def test_limits_are_stored_and_loaded(tmp_path: Path) -> None:
    path = tmp_path / "limits.json"
    assert structure.load_limits(path) == {}
    structure.store_limits({"b": 2, "a": 1}, path)
    assert path.read_text().splitlines() == ["{", '"a": 1,', '"b": 2', "}"]
    assert structure.load_limits(path) == {"a": 1, "b": 2}


def test_every_folder_with_python_is_known() -> None:
    assert unknown_folders(paths()) == []
    listed = ["raftkv/a.py", "tests/b.py", "docs/c.py", "raftkv_core/d.py", "e.py", "f/g.md"]
    assert unknown_folders(listed) == ["e.py", "raftkv_core"]


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Files of which git would read all but the ones in `notes`."""
    names = ("raftkv/a.py", "tools/run", "build/b.py", ".ci/c.py", "docs/d.png", "notes/e.py")
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x = 1\n")
    (tmp_path / ".gitignore").write_text("/notes/\n")
    return tmp_path


def test_only_text_files_of_the_repository_are_read(files: Path) -> None:
    read = ["notes/e.py", "raftkv/a.py", "tools/run"]
    assert [source.path for source in sources(files)] == read
    # Not a repository that git can read.
    (files / ".git").mkdir()
    assert [source.path for source in sources(files)] == read


@pytest.mark.skipif(shutil.which("git") is None, reason="there is no git")
def test_git_lists_the_files_of_a_checkout(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {name: each for name, each in os.environ.items() if name not in GIT_VARIABLES}
    for arguments in (["init", "-q"], ["add", "raftkv", "docs"]):
        subprocess.run(["git", "-C", str(files), *arguments], check=True, env=environment)
    monkeypatch.setenv("GIT_DIR", str(ROOT / ".git"))
    (files / "raftkv" / "f.py").write_text("x = 1\n")
    read = [".ci/c.py", ".gitignore", "build/b.py", "raftkv/a.py", "raftkv/f.py", "tools/run"]
    assert [source.path for source in sources(files)] == read
    # Git still lists a file that was deleted since.
    (files / "raftkv" / "a.py").unlink()
    assert "raftkv/a.py" not in [source.path for source in sources(files)]


# The command --------------------------------------------------------------------------------------


@pytest.fixture
def limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The command works on made-up measures and limits, and on no old words."""
    path = tmp_path / "limits.json"
    structure.store_limits({"circles": 4, "lines": 3_000}, path)
    monkeypatch.setattr(structure.load_limits, "__defaults__", (path,))
    monkeypatch.setattr(structure.store_limits, "__defaults__", (path,))
    monkeypatch.setattr(structure, "measures_of_today", lambda: dict(MEASURES))
    ceilings = tmp_path / "ceilings.json"
    ceilings.write_text('{"a.md": {"a term": 2}}')
    monkeypatch.setattr(wording.load_ceilings, "__defaults__", (ceilings,))
    monkeypatch.setattr(wording.store_ceilings, "__defaults__", (ceilings,))
    monkeypatch.setattr(wording, "hits_of_today", dict)
    return path


@pytest.mark.usefixtures("limits")
def test_the_table_has_each_measure_with_its_limit(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["circles", "3", "<=", "4", "circles", "of", "imports"] in rows
    assert ["lines", "2,100", "<=", "3,000", "lines"] in rows
    assert ["assertions", "40", "none", "assertions"] in rows
    assert ["words", "0", "<=", "2", "old", "words", "of", "the", "glossary"] in rows


@pytest.mark.usefixtures("limits")
def test_the_table_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["circles"] == {
        "count": 3,
        "kind": "ceiling",
        "limit": 4,
        "what": "circles of imports",
    }
    assert found["assertions"]["limit"] is None
    assert list(found) == ["circles", "lines", "assertions", "words"]


@pytest.mark.usefixtures("limits")
def test_the_places_of_a_measure(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--places", "circles"]) == 0
    assert capsys.readouterr().out == "raftkv/a.py:1: x\n"
    assert command.main(["--places", "circle"]) == 2
    assert "there is no measure 'circle'" in capsys.readouterr().err


def test_lower_sets_the_limits(limits: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--lower"]) == 0
    assert json.loads(limits.read_text()) == {"assertions": 40, "circles": 3, "lines": 3_000}
    assert capsys.readouterr().out.splitlines() == [
        "old words: at most 2 before, 0 now",
        "assertions: none before, 40 now",
        "circles: 4 before, 3 now",
    ]


def test_lower_changes_nothing_if_a_limit_is_violated(limits: Path) -> None:
    structure.store_limits({"circles": 2, "lines": 4_000}, limits)
    assert command.main(["--lower"]) == 1
    assert json.loads(limits.read_text()) == {"circles": 2, "lines": 4_000}
