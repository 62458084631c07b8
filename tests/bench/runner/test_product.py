"""Inner names of raftkv: each has a module in this checkout, and older modules are found, too."""

from __future__ import annotations

import ast
import importlib
import sys
from pathlib import Path

import pytest

from bench.runner import product


def test_each_name_is_found_where_a_type_checker_sees_it() -> None:
    tree = ast.parse(Path(product.__file__).read_text(encoding="utf-8"))
    seen = {
        alias.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("raftkv")
        for alias in node.names
    }
    assert sorted(seen) == sorted(product.HOMES)
    for name, module in seen.items():
        assert module in product.HOMES[name]
        assert getattr(product, name) is getattr(importlib.import_module(str(module)), name)
    with pytest.raises(AttributeError, match="has no attribute 'colour'"):
        _ = product.colour  # type: ignore[attr-defined]


@pytest.mark.parametrize("present", ["new.inner", "old"])
def test_the_module_of_the_revision_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, present: str
) -> None:
    file = tmp_path / f"product_{present.replace('.', '/')}.py"
    file.parent.mkdir(exist_ok=True)
    file.write_text("Name = 1\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    homes = ("product_new.inner", "product_old")
    assert product.home_of(homes) == f"product_{present}"
    for name in ("product_new", "product_new.inner", "product_old"):
        sys.modules.pop(name, None)


def test_a_name_that_a_revision_lacks_names_its_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(product.HOMES, "Gone", ("raftkv.errors.inner", "raftkv.gone"))
    with pytest.raises(ModuleNotFoundError, match=r"raftkv\.gone"):
        _ = product.Gone  # type: ignore[attr-defined]
