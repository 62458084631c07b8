"""C9: text from elsewhere reaches a terminal by one way, which escapes it."""

from __future__ import annotations

import ast
import io
from collections.abc import Iterator
from pathlib import Path

import pytest

from raftkv.cli import saying
from raftkv.cli.saying import ask, confirm, note, note_line, say, say_line
from raftkv.errors import ConfigError

ROOT = Path(__file__).resolve().parent.parent.parent
SOURCES = sorted((*ROOT.glob("raftkv/cli/*.py"), *ROOT.glob("plugins/*/cli*.py")))

# What may print, and why it needs no escaping of `saying.py`.
ALLOWED = {
    "raftkv/cli/saying.py": {"echo", "prompt"},  # the way itself
    "raftkv/cli/main.py": {"stderr.write"},  # the error line, by `printable`
    "raftkv/cli/output.py": {"console().print", "stdout.write", "buffer.write"},  # cells, bytes
    "raftkv/cli/keys.py": {"stdout.write"},  # etcdctl's fields: numbers and quoted bytes
}
PRINTING = {"echo", "secho", "prompt", "confirm", "echo_via_pager"}


def ways(source: str) -> Iterator[tuple[int, str]]:
    """Line and form of every call that writes on a terminal."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        last = name.rpartition(".")[2]
        if name.split(".")[0] in {"typer", "click"} and last in PRINTING:
            yield node.lineno, last
        elif name in {"print", "input", "rich.print"} or name.endswith(("console().print",)):
            yield node.lineno, name
        elif last in {"write", "writelines"} and (".stdout" in name or ".stderr" in name):
            yield node.lineno, ".".join(name.split(".")[-2:])
        elif last == "TextColumn" and "markup=False" not in ast.unparse(node):
            yield node.lineno, "TextColumn with markup"
    # Else a name would hide them.
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module in {"typer", "click"}:
            yield from ((node.lineno, each.name) for each in node.names if each.name in PRINTING)


def test_c9_nothing_prints_but_by_the_way_that_escapes() -> None:
    assert len(SOURCES) > 40
    found = []
    for path in SOURCES:
        name = str(path.relative_to(ROOT))
        source = path.read_text(encoding="utf-8")
        found += [
            f"{name}:{line}: {form}: use say, note or print_table"
            for line, form in ways(source)
            if form not in ALLOWED.get(name, set())
        ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "source",
    [
        "typer.echo(f'x {name}')",
        "click.secho(text)",
        "print(text)",
        "sys.stdout.write(text)",
        "sys.stderr.write(text)",
        "sys.stdout.buffer.write(text)",
        "typer.prompt(text)",
        "console().print(text)",
        "from typer import echo",
        "TextColumn('{task.description}')",
    ],
)
def test_c9_the_guard_finds_a_new_one(source: str) -> None:
    assert list(ways(source))


def test_c9_a_name_cannot_move_the_cursor(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    evil = "core\x1b[2J\u202e\x00\nerror: forged"
    say_line(evil)
    note_line(evil)
    say(evil)
    note(evil)
    monkeypatch.setattr("typer.prompt", lambda text, err: text)
    asked = ask(evil)
    out, err = capsys.readouterr()
    for text in (out, err):
        assert "\x1b" not in text
        assert "\u202e" not in text
        assert text.splitlines()[0] == "core\\x1b[2J\\u202e\\x00\\nerror: forged"
    assert asked == "core\\x1b[2J\\u202e\\x00\\nerror: forged"


class Terminal(io.StringIO):
    """A standard input on which something can be typed, or not."""

    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


def test_what_is_confirmed_is_typed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", Terminal(terminal=False))
    with pytest.raises(ConfigError, match="cannot be confirmed here: add --yes"):
        confirm("all goes\x1b[2J", "reset")
    monkeypatch.setattr("sys.stdin", Terminal(terminal=True))
    monkeypatch.setattr(saying, "ask", lambda text: "yes")
    with pytest.raises(ConfigError, match="nothing was changed"):
        confirm("all goes", "reset")
    monkeypatch.setattr(saying, "ask", lambda text: text.split()[1])
    confirm("all goes", "reset")
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "all goes\\x1b[2J\nall goes\nall goes\n"


def test_one_function_asks_for_a_confirmation() -> None:
    """The others would differ in time, as five of them did."""
    found = [
        str(path.relative_to(ROOT))
        for path in SOURCES
        if 'to go on")' in path.read_text(encoding="utf-8")
    ]
    assert found == ["raftkv/cli/saying.py"]
