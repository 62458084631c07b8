"""What can be registered, how it is found, and what is told of a failure."""

from __future__ import annotations

import msgspec
import pytest

from raftkv_cluster_call.causes import without_place
from raftkv_cluster_call.functions import (
    Call,
    Functions,
    UnknownFunction,
    cause_of,
    error_of,
    logged_cause,
    place_of,
)


class Args(msgspec.Struct, frozen=True):
    """Arguments."""

    path: str
    size: int = 0


def take(args: Args, call: Call) -> None:
    """Takes them. More of it here."""


async def take_later(args: Args, call: Call) -> None: ...


def functions() -> Functions:
    found = Functions()
    found.add("take", 1, take)
    return found


def test_a_function_is_found_by_name_and_version() -> None:
    found = functions()
    found.add("take", 3, take_later, effect=True)
    assert found.get("take", 1).handler is take
    assert found.get("take").version == 3
    assert len(found) == 2
    assert [(f.name, f.version) for f in found] == [("take", 1), ("take", 3)]


@pytest.mark.parametrize(
    ("name", "version", "said"),
    [("give", None, "register it"), ("give", 1, "register it"), ("take", 2, "version 1 and not")],
)
def test_what_is_not_known_says_what_is(name: str, version: int | None, said: str) -> None:
    with pytest.raises(UnknownFunction, match=said):
        functions().get(name, version)


def test_a_version_is_registered_once() -> None:
    with pytest.raises(ValueError, match="new version"):
        functions().add("take", 1, take_later)


@pytest.mark.parametrize("name", ["", "a b", ".a", "ü", "a" * 256, "a\n"])
def test_names_are_plain(name: str) -> None:
    with pytest.raises(ValueError, match="cannot name"):
        functions().add(name, 1, take)


@pytest.mark.parametrize("version", [0, -1, 2**31])
def test_versions_count_from_one(version: int) -> None:
    with pytest.raises(ValueError, match="count from 1"):
        functions().add("other", version, take)


def test_the_type_of_the_arguments_is_the_annotation() -> None:
    function = functions().get("take")
    assert function.type is Args
    assert function.decode(msgspec.msgpack.encode({"path": "a"})) == Args("a")
    with pytest.raises(msgspec.ValidationError):
        function.decode(msgspec.msgpack.encode({"path": 5}))


def test_a_type_that_is_not_known_is_an_error_at_once() -> None:
    def bare(args, call):  # type: ignore[no-untyped-def]
        return args

    class Local(msgspec.Struct):
        """Cannot be seen from outside."""

    def local(args: Local, call: Call) -> None: ...

    def one(args: Args) -> None: ...

    found = Functions()
    with pytest.raises(TypeError, match="annotate"):
        found.add("bare", 1, bare)
    with pytest.raises(TypeError, match="give type="):
        found.add("local", 1, local)
    with pytest.raises(TypeError, match=r"takes \(args, call\)"):
        found.add("one", 1, one)
    found.add("local", 1, local, type_=Local)
    assert found.get("local").type is Local


def test_methods_are_functions_too() -> None:
    class Keeper:
        def take(self, args: Args, call: Call) -> None: ...

    found = Functions()
    found.add("take", 1, Keeper().take)
    assert found.get("take").type is Args


def test_people_see_the_first_line() -> None:
    [info] = functions().infos()
    assert (info.name, info.version, info.effect) == ("take", 1, False)
    assert info.argument == "Args"
    assert info.doc == "Takes them. More of it here."


def test_a_call_has_a_token_of_its_own() -> None:
    call = Call(7, "replicate", "n2", "n1", 5, 3)
    assert call.token == "7@n2"


def fail(text: str) -> None:
    raise KeyError(text)


def test_c9_a_cause_has_the_class_and_the_function_and_no_file() -> None:
    with pytest.raises(KeyError) as caught:
        fail("secret")
    error = caught.value
    assert place_of(error).startswith("raftkv_cluster_call/test_functions.py:")
    assert logged_cause(error) == f"KeyError at {place_of(error)}"
    assert cause_of(error) == "KeyError in fail"
    told = error_of(error)
    assert told.kind == "KeyError"
    assert "secret" in told.reason
    assert "in fail" in told.stack
    assert cause_of(ValueError("never raised")) == "ValueError"
    assert logged_cause(ValueError("never raised")) == "ValueError"


@pytest.mark.parametrize(
    ("kept", "shown"),
    [
        ("OSError at myapp/disk.py:62 in work", "OSError in work"),
        ("failed: KeyError at a.py:3 in <lambda>", "failed: KeyError in <lambda>"),
        ("NameError at <string>:1 in <module>", "NameError in <module>"),
        ("OSError at my app/disk.py:62 in work", "OSError in work"),
        ("OSError at lib/quick.pyx:7 in work", "OSError in work"),
        ("OSError at app:2/disk.py:62 in work", "OSError in work"),
        ("failed: OSError at a: b at c/disk.py:62 in work", "failed: OSError in work"),
        (
            "x: its handler failed: KeyError at a b/c.pyc:3 in f",
            "x: its handler failed: KeyError in f",
        ),
        ("withdrawn", "withdrawn"),
        ("PeerUnreachable: core2 at 127.0.0.1:7401 in vain", None),
    ],
)
def test_c9_a_cause_of_an_earlier_release_is_shown_without_its_place(
    kept: str, shown: str | None
) -> None:
    assert without_place(kept) == (kept if shown is None else shown)


def test_what_is_told_of_an_error_is_bounded() -> None:
    told = error_of(ValueError("x" * 10_000))
    assert len(told.reason) == 2_000
