"""What the tests of a folder share ends with the folder, also if a teardown raises."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

TESTS = Path(__file__).resolve().parents[1]


def item(path: str) -> Any:
    return SimpleNamespace(path=TESTS / path)


@pytest.fixture
def conftest(pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch) -> Any:
    found: Any = pytestconfig.pluginmanager.get_plugin(str(TESTS / "conftest.py"))
    assert found is not None
    monkeypatch.setattr(found, "_folder_ends", {})
    return found


@pytest.mark.parametrize("raises", [False, True])
def test_the_ends_of_a_folder_are_called_after_its_last_test(conftest: Any, raises: bool) -> None:
    called: list[str] = []

    def failing() -> None:
        called.append("first")
        raise OSError("the process is gone")

    conftest._folder_ends[TESTS / "a"] = [failing, lambda: called.append("second")]
    others = [(item("a/test_1.py"), item("a/test_2.py")), (item("a/test_2.py"), None)]
    for each, following in others:
        assert list(conftest.pytest_runtest_teardown(each, following)) == [None]
    assert called == []
    last = conftest.pytest_runtest_teardown(item("a/test_2.py"), item("b/test_3.py"))
    next(last)
    with pytest.raises(OSError, match="the process is gone"):
        last.throw(ValueError("a teardown failed")) if raises else next(last)
    assert called == ["first", "second"]
