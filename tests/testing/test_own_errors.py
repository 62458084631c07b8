"""An injected bug whose own code fails is not found, but reported as failed.

The code under test is in patched_toys.py, the bugs are here.
"""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from raftkv.errors import NotApplied
from raftkv.testing import planted_table
from raftkv.testing.own_errors import BugFailed
from raftkv.testing.patching import replaced
from raftkv.testing.planting import Bug, Bugs, pretending
from raftkv.testing.scenario import Result
from raftkv.testing.storms import Storm, main
from tests.testing import patched_toys
from tests.testing.patched_toys import COMMANDS, Toy

BUGS = Bugs(seeds_max=3)
wrapping = BUGS.wrapping


def _renamed(original: Any) -> Any:
    return lambda self, number=0: self.renamed


wrapping("plain", "a method", Toy, "plain")(_renamed)
wrapping("attribute", "a property", Toy, "half")(lambda half: property(_renamed(half)))
wrapping("fixed", "a static method", Toy, "fixed")(
    lambda fixed: staticmethod(lambda number: no_such_name)  # noqa: F821
)
wrapping("made", "a class method", Toy, "made")(lambda _: classmethod(lambda cls: cls.renamed))
wrapping("expression", "a generator expression", Toy, "each")(
    lambda each: lambda self: (number for number in (1, 2) if self.renamed)
)
wrapping("unpacked", "an answer has other parts", Toy, "plain")(
    lambda plain: lambda self, number: next(a for a, b in [(plain(self, number),)])
)
wrapping("static as a method", "other parameters, unseen", Toy, "fixed")(lambda _: lambda: 3)
wrapping("deep", "what is replaced below was renamed", Toy, "plain")(
    lambda plain: lambda self, number: _below(self, "no_such_function")
)
wrapping("pretending", "a field was renamed", Toy, "plain")(
    lambda plain: lambda self, number: pretending(self, "renamed", 1).__enter__()
)
wrapping("not there", "what is wrapped was renamed", Toy, "renamed")(lambda renamed: renamed)
BUGS.everywhere("double", patched_toys)("everywhere", "a function of modules")(
    lambda double: lambda number: double(number).renamed
)
BUGS.applying(COMMANDS, int)("command", "what a command does")(
    lambda double: lambda number: double(number, number)
)
BUGS.patching(
    "steps",
    "functions that are listed",
    lambda: replaced(patched_toys, "STEPS", (lambda: Toy().renamed,)),
)


@wrapping("awaited", "an async method", Toy, "awaited")
def _awaited(awaited: Callable[..., Any]) -> Callable[..., Any]:
    async def broken(self: Any, number: int) -> Any:
        await asyncio.sleep(0)
        return self.renamed + await awaited(self, number)

    return broken


@wrapping("each", "a generator", Toy, "each")
def _each(each: Callable[..., Any]) -> Callable[..., Any]:
    def broken(self: Any) -> Any:
        yield from each(self)
        from tests.testing.patched_toys import no_such_name

        yield no_such_name

    return broken


def _below(toy: Any, name: str) -> int:
    with replaced(patched_toys, name, None):
        return 0


class _Helper:
    def number(self) -> Any:
        return self.renamed


@wrapping(
    "left behind", "an object of the bug that the code under test goes on to use", Toy, "plain"
)
def _left_behind(plain: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, number: _Helper()


CALLS: dict[str, Callable[[], Any]] = {
    "plain": lambda: Toy().plain(2),
    "attribute": lambda: Toy().half,
    "fixed": lambda: Toy.fixed(2),
    "made": lambda: Toy.made(),
    "expression": lambda: list(Toy().each()),
    "unpacked": lambda: Toy().plain(2),
    "static as a method": lambda: Toy.fixed(2),
    "deep": lambda: Toy().plain(2),
    "pretending": lambda: Toy().plain(2),
    "not there": lambda: None,
    "everywhere": lambda: patched_toys.double(2),
    "command": lambda: COMMANDS[int](2),
    "steps": lambda: patched_toys.run(),
    "awaited": lambda: asyncio.run(Toy().awaited(2)),
    "each": lambda: list(Toy().each()),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_bug_whose_own_code_fails_is_told_as_such(name: str) -> None:
    with pytest.raises(BugFailed, match=rf"^the injected bug itself failed: {name}: \w+Error at "):
        with BUGS.planted(name):
            CALLS[name]()
    CALLS[name]()


def test_what_the_code_under_test_catches_is_told_too() -> None:
    with pytest.raises(BugFailed, match=r"AttributeError at test_own_errors\.py:\d+: .*'renamed'"):
        with BUGS.planted("plain"):
            patched_toys.swallowed(Toy())


def test_an_error_that_escapes_is_told_although_no_function_was_replaced() -> None:
    result = Result(7)

    def run() -> None:
        with BUGS.planted("left behind"):
            helper: Any = Toy().plain(2)
            try:
                helper.number()
            except AttributeError as error:
                failed = RuntimeError("the world has failed")
                failed.__cause__ = error
                result.ended_by(failed)

    with pytest.raises(BugFailed, match="left behind"):
        run()
    assert result.check == "no exception escapes"


@wrapping("effective", "the code under test fails below the bug", Toy, "plain")
def _effective(plain: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, number: plain(self, "two")


@wrapping("refusing", "a typed error, on purpose", Toy, "plain")
def _refusing(plain: Callable[..., Any]) -> Callable[..., Any]:
    def broken(self: Any, number: int) -> int:
        raise NotApplied("it is not here")

    return broken


wrapping("product", "another function of the code under test", Toy, "fixed")(
    lambda fixed: patched_toys.opposite
)


@pytest.mark.parametrize(
    ("name", "error", "call"),
    [
        ("effective", TypeError, lambda: Toy().plain(2)),
        ("refusing", NotApplied, lambda: Toy().plain(2)),
        ("product", TypeError, lambda: Toy.fixed("two")),
    ],
)
def test_what_a_bug_brings_about_is_not_told(
    name: str, error: type[Exception], call: Callable[[], Any]
) -> None:
    with BUGS.planted(name), pytest.raises(error):
        call()


def test_other_replacements_are_not_watched() -> None:
    """A check that listens, and is entered after the bug, may be wrong for reasons of its own."""
    with _of_another_file().planted("other"):
        with replaced(Toy, "plain", _renamed(None)), suppress(AttributeError):
            Toy().plain(2)


def _of_another_file() -> Bugs:
    bugs = Bugs(seeds_max=1)
    source = "import contextlib\npatch = lambda: contextlib.nullcontext()\n"
    names: dict[str, Any] = {}
    exec(compile(source, "elsewhere.py", "exec"), names)
    bugs["other"] = Bug("nothing", names["patch"])
    return bugs


# The commands -------------------------------------------------------------------------------------


def _run(seed: int, *, seconds: float, bug: str | None, prepare: Any = None) -> Result:
    """Finds one bug, not the other, and meets a bug that fails at the second seed."""
    result = Result(seed)
    if bug == "effective":
        result.check, result.message = "toys", f"seed {seed}: a toy is broken"
    elif bug == "plain":
        with BUGS.planted(bug):
            if seed:
                patched_toys.swallowed(Toy())
    return result


STORM = Storm(
    "tools/x",
    "Toys.",
    "toys",
    _run,
    lambda seed, seconds: seed,
    (),
    {name: BUGS[name] for name in ("effective", "plain", "refusing")},
    seeds_max=3,
)
FAILED = "the injected bug itself failed: plain: AttributeError at test_own_errors.py:"


def test_a_bug_that_fails_is_not_found_and_the_command_names_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(STORM, ["--planted", "--jobs", "1"]) == 1
    *rows, last = capsys.readouterr().out.splitlines()
    assert rows[0] == "| `effective` | the code under test fails below the bug | toys | 1 |"
    assert rows[1].startswith(f"| `plain` | a method | {FAILED}")
    assert last.startswith("3 injected bugs, 1 found within 3 seeds, not found: refusing; ")
    assert FAILED in last


def test_a_bug_that_fails_fails_the_command_although_all_others_are_found(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = {name: STORM.bugs[name] for name in ("effective", "plain")}
    storm = Storm("tools/x", "Toys.", "toys", _run, lambda *given: 0, (), found, seeds_max=3)
    assert main(storm, ["--planted", "--jobs", "1"]) == 1
    assert FAILED in capsys.readouterr().out


@pytest.mark.parametrize("given", [["--seeds", "0:2", "--jobs", "1"], ["--replay", "1"]])
def test_a_bug_that_is_named_and_fails_fails_the_command(
    given: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(STORM, [*given, "--bug", "plain"]) == 1
    assert capsys.readouterr().out.splitlines()[-1].startswith(FAILED)


def test_the_cores_own_table_names_it_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bugs = {name: BUGS[name] for name in ("effective", "plain", "refusing")}
    monkeypatch.setattr(planted_table, "BUGS", bugs)
    monkeypatch.setattr(
        planted_table, "run_seed", lambda seed, bug, **more: _run(seed, seconds=1, bug=bug)
    )
    monkeypatch.setattr(planted_table, "ProcessPoolExecutor", _Here)
    assert planted_table.write_table(str(tmp_path / "page.md"), 1, Console(quiet=True)) == 1
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("3 injected bugs, 1 found, not found: refusing; ")
    assert FAILED in last
    page = (tmp_path / "page.md").read_text(encoding="utf-8")
    assert "| `plain` | a method | **the injected bug itself failed** | 2 | 3 | streams |" in page


class _Here:
    """In place of a pool of processes: this one."""

    def __init__(self, jobs: int) -> None:
        self.map = map

    def __enter__(self) -> _Here:
        return self

    def __exit__(self, *given: object) -> None: ...


def test_the_failure_survives_a_process_pool() -> None:
    assert str(pickle.loads(pickle.dumps(BugFailed("it failed")))) == "it failed"
