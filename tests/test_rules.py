"""The 31 rules of consensus: each has tests of its name and a row in docs/internals/rules.md.

A rule without a test is a wish. `tests/mutants.py` shows that the tests notice when a fix is gone.
"""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "internals" / "rules.md"
RULES = range(1, 32)

_CLASS = re.compile(r"TestRule(\d\d)[A-Z]")
_ROW = re.compile(r"^\| (\d+) \|", re.MULTILINE)


@functools.cache
def named_tests() -> dict[int, set[tuple[str, str]]]:
    """(class, file) of all test classes that are named after a rule and hold a test."""
    found: dict[int, set[tuple[str, str]]] = {rule: set() for rule in RULES}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for node in ast.parse(path.read_text()).body:
            match = _CLASS.match(node.name) if isinstance(node, ast.ClassDef) else None
            if match is not None:
                assert isinstance(node, ast.ClassDef)
                methods = [m.name for m in node.body if isinstance(m, ast.FunctionDef)]
                assert any(name.startswith("test_") for name in methods), node.name
                found[int(match[1])].add((node.name, path.relative_to(ROOT).as_posix()))
    return found


def rows() -> dict[int, list[str]]:
    """The cells of each rule's row."""
    lines = [line for line in PAGE.read_text().splitlines() if _ROW.match(line)]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert all(len(row) == 4 for row in cells)
    return {int(row[0]): row for row in cells}


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_has_tests_that_bear_its_name(rule: int) -> None:
    assert named_tests()[rule], f"rule {rule} has no class TestRule{rule:02d}..."


def test_the_page_has_a_row_for_every_rule_in_order() -> None:
    assert list(rows()) == list(RULES)


@pytest.mark.parametrize("rule", RULES)
def test_a_row_names_all_tests_of_its_rule(rule: int) -> None:
    _, what, _, tests = rows()[rule]
    assert len(what) > 20
    told = {tuple(re.findall(r"`([^`]+)`", cell)) for cell in tests.split("<br>")}
    assert told == named_tests()[rule]


@pytest.mark.parametrize("rule", RULES)
def test_a_row_names_code_that_exists(rule: int) -> None:
    code = re.findall(r"`([^`]+)`", rows()[rule][2])
    assert code
    assert [path for path in code if not (ROOT / path).is_file()] == []
