"""The house's habits as tests: what a reviewer would otherwise have to say again and again.

Every rule is a function from a file's text to the violations in it, so that each is itself tested
on a planted fault below: a check that finds nothing proves nothing.
"""

from __future__ import annotations

import ast
import configparser
import functools
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LINE_LENGTH_MAX = 100
FUNCTION_LINES_MAX = 70

TEXT_SUFFIXES = {".py", ".md", ".cfg", ".toml", ".sh", ".txt", ".html", ".css", ".js", ""}
SKIPPED_FOLDERS = {"build", "dist", "out", "__pycache__", "htmlcov"}

Rule = Callable[[str], list[str]]


def files(*suffixes: str) -> Iterator[Path]:
    """Every text file of the repository, in a stable order; what .gitignore names is left out."""
    for path in sorted(ROOT.rglob("*")):
        parts = path.relative_to(ROOT).parts
        if any(p in SKIPPED_FOLDERS or p.endswith(".egg-info") for p in parts):
            continue
        if any(p.startswith(".") and p not in {".ci", ".gitignore"} for p in parts):
            continue
        if path.is_file() and path.suffix in (suffixes or TEXT_SUFFIXES):
            yield path


@functools.lru_cache(maxsize=1)
def nodes_of(text: str) -> tuple[ast.AST, ...]:
    """A module and all its statements, without what they consist of, which is ten times as much.

    Parsed once for all rules that look at one file in turn.
    """
    found: list[ast.AST] = [ast.parse(text)]
    for node in found:  # it grows meanwhile
        for blocks in ("body", "orelse", "finalbody", "handlers", "cases"):
            inner = getattr(node, blocks, ())
            if isinstance(inner, list):
                found += inner
    return tuple(found)


@functools.cache
def violations() -> dict[Rule, list[str]]:
    """Of all rules, in one walk over the repository."""
    found: dict[Rule, list[str]] = {rule: [] for rule, _ in RULES}
    for path in files():
        text = path.read_text(encoding="utf-8")
        for rule, suffixes in RULES:
            if path.suffix in (suffixes or TEXT_SUFFIXES):
                found[rule] += [f"{path.relative_to(ROOT)}:{each}" for each in rule(text)]
    return found


# The rules ---------------------------------------------------------------------------------------


def long_lines(text: str) -> list[str]:
    return [
        f"{number}: {len(line)} columns, at most {LINE_LENGTH_MAX}"
        for number, line in enumerate(text.splitlines(), 1)
        if len(line) > LINE_LENGTH_MAX
    ]


def untidy_ends(text: str) -> list[str]:
    found = [
        f"{number}: space at the end of the line"
        for number, line in enumerate(text.splitlines(), 1)
        if line != line.rstrip()
    ]
    if text and not text.endswith("\n"):
        found.append(f"{len(text.splitlines())}: no newline at the end of the file")
    return found


def unfinished_work(text: str) -> list[str]:
    pattern = re.compile(r"\b(?:[T]ODO|[F]IXME|[X]XX|[H]ACK)\b|^<<<<<<< |^>>>>>>> ", re.M)
    return [f"{_line(text, m.start())}: {m.group().strip()}" for m in pattern.finditer(text)]


def machine_paths(text: str) -> list[str]:
    """A path of somebody's machine: a home, a mount, a private folder for packages."""
    pattern = re.compile(
        r"(?<![\w.~$}])/(?:home|root|Users|work|mnt|opt)/\w[\w./-]*"
        r"|(?<!\w)/tmp/\w/[\w./-]*|\.[p]yenv"
    )
    return [f"{_line(text, m.start())}: {m.group()}" for m in pattern.finditer(text)]


def long_functions(text: str) -> list[str]:
    return [
        f"{node.lineno}: {node.name} has {_length(node)} lines, at most {FUNCTION_LINES_MAX}"
        for node in nodes_of(text)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and _length(node) > FUNCTION_LINES_MAX
    ]


def swallowed_exceptions(text: str) -> list[str]:
    """An `except` that does nothing must say why in a comment (or be `contextlib.suppress`)."""
    lines = text.splitlines()
    found = []
    for node in nodes_of(text):
        if not isinstance(node, ast.ExceptHandler) or not _does_nothing(node.body):
            continue
        source = "\n".join(lines[node.lineno - 1 : node.body[-1].end_lineno])
        if "#" not in source:
            found.append(f"{node.lineno}: this except swallows the exception without a word")
    return found


def bare_excepts(text: str) -> list[str]:
    """`except:` and `except BaseException` also catch cancellation: raise it, or pass it on."""
    found = []
    for node in nodes_of(text):
        if not isinstance(node, ast.ExceptHandler):
            continue
        wide = node.type is None or (
            isinstance(node.type, ast.Name) and node.type.id == "BaseException"
        )
        passed_on = any(
            isinstance(inner, ast.Raise) or (isinstance(inner, ast.Name) and inner.id == node.name)
            for inner in ast.walk(node)
        )
        if wide and not passed_on:
            found.append(f"{node.lineno}: swallows cancellation and KeyboardInterrupt")
    return found


def missing_docstring(text: str) -> list[str]:
    tree = nodes_of(text)[0]
    assert isinstance(tree, ast.Module)
    if tree.body and ast.get_docstring(tree) is None:
        return ["1: the module does not say what it is for"]
    return []


def _line(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


def _length(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def _does_nothing(body: list[ast.stmt]) -> bool:
    return all(
        isinstance(statement, ast.Pass)
        or (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant))
        for statement in body
    )


# The repository ----------------------------------------------------------------------------------


RULES: tuple[tuple[Rule, tuple[str, ...]], ...] = (
    (long_lines, (".py", ".cfg", ".toml", ".sh")),
    (untidy_ends, (".py", ".md", ".cfg", ".toml", ".sh", "")),
    (unfinished_work, ()),
    (machine_paths, ()),
    (long_functions, (".py",)),
    (swallowed_exceptions, (".py",)),
    (bare_excepts, (".py",)),
    (missing_docstring, (".py",)),
)


@pytest.mark.parametrize("rule", [rule for rule, _ in RULES], ids=lambda rule: rule.__name__)
def test_the_repository_keeps(rule: Rule) -> None:
    found = violations()[rule]
    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("rule", "fault", "sound"),
    [
        (long_lines, "a " * 51, "a " * 50),
        (untidy_ends, "x = 1 \n", "x = 1\n"),
        (untidy_ends, "x = 1", "x = 1\n"),
        (unfinished_work, "# TO" + "DO: later", "# done"),
        (machine_paths, "dir = '/ho" + "me/ann/data'", "dir = 'data'"),
        (machine_paths, "see /o" + "pt/wheels", "the verb/optimal"),
        (long_functions, "def f():\n" + "    x = 1\n" * 70, "def f():\n" + "    x = 1\n" * 69),
        (
            swallowed_exceptions,
            "try:\n    f()\nexcept OSError:\n    pass\n",
            "try:\n    f()\nexcept OSError:\n    pass  # gone already\n",
        ),
        (bare_excepts, "try:\n    f()\nexcept:\n    g()\n", "try:\n    f()\nexcept:\n    raise\n"),
        (missing_docstring, "x = 1\n", '"""About x."""\n'),
    ],
)
def test_each_rule_finds_its_planted_fault(rule: Rule, fault: str, sound: str) -> None:
    assert rule(fault)
    assert not rule(sound)


# Documents ---------------------------------------------------------------------------------------


def test_the_changelog_knows_the_version() -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg", encoding="utf-8")
    version = setup["metadata"]["version"]
    headings = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.M)
    wanted = "Unreleased" if ".dev" in version else version
    assert any(heading.startswith(f"[{wanted}]") for heading in headings), headings


def broken_links(path: Path) -> list[str]:
    """Relative links, and anchors into Markdown files, that lead nowhere."""
    text = path.read_text(encoding="utf-8")
    text = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    found = []
    for target in re.findall(r"\]\(\s*<?([^)\s>]+)", text):
        if re.match(r"[a-z][a-z0-9+.-]*:", target):
            continue
        name, _, anchor = target.partition("#")
        file = (path.parent / name).resolve() if name else path
        if not file.exists():
            found.append(f"{target}: there is no such file")
        elif anchor and file.suffix == ".md" and anchor not in anchors(file):
            found.append(f"{target}: {file.name} has no such heading")
    return found


def anchors(path: Path) -> set[str]:
    """The anchors that code hosts give to headings: lower case, dashes, no punctuation."""
    headings = re.findall(r"^#+ +(.+?) *$", path.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_in_the_documents_lead_somewhere() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {problem}"
        for path in files(".md")
        for problem in broken_links(path)
    ]
    assert not found, "\n" + "\n".join(found)


def test_broken_links_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# One two\n[a](#one-two) [b](#three) [c](other.md) [d](https://e.org/x)\n")
    assert broken_links(page) == [
        "#three: page.md has no such heading",
        "other.md: there is no such file",
    ]
