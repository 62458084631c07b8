"""No file uses an old word of the glossary more often than its ceiling; the guard itself works."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.guards import wording

TERMS = wording.read_glossary(wording.GLOSSARY.read_text(encoding="utf-8"))
RULES = wording.Wording(TERMS)


def test_no_file_uses_more_old_words_than_its_ceiling() -> None:
    found = wording.violations(wording.all_hits(RULES, wording.texts()), wording.load_ceilings())
    assert not found, "\n" + "\n".join(found) + "\ndocs/glossary.md has the terms"


def test_every_ceiling_is_of_a_term_that_the_glossary_has() -> None:
    stored = {old for of_file in wording.load_ceilings().values() for old in of_file}
    assert stored <= {term.old for term in TERMS}


def test_a_new_file_with_an_old_word_is_a_violation_that_names_file_line_and_term(
    tmp_path: Path,
) -> None:
    (tmp_path / "raftkv").mkdir()
    (tmp_path / "raftkv" / "queue.py").write_text('"""A queue."""\n\noutbox_bytes = 1\n')
    found = wording.violations(wording.all_hits(RULES, wording.texts(tmp_path)), {})
    assert found == [
        "raftkv/queue.py:3: 'outbox': write 'proposal queue' (1 in this file, at most 0)"
    ]


@pytest.mark.parametrize(
    ("path", "text", "words"),
    [
        ("a.py", "def hand_over_office():\n    pass\n", ["office"]),
        ("a.py", "class DoorClient:\n    pass\n", ["door"]),
        ("a.py", "def f(outbox: int) -> None:\n    pass\n", ["outbox"]),
        ("a.py", "self.heir = 1\n", ["heir"]),
        ("a.py", "import b as fates\n", ["fates"]),
        ("a.py", "class Storm:\n    pass\n", ["storm"]),
        ("raftkv/voter_news.py", "", ["voter_news"]),
        ("raftkv/door_client.py", "", ["door"]),
        ("a.py", '"""Sent through the\ndoor."""\n', ["the door"]),
        ("a.py", "# It is\n# told.\n", ["is told"]),
        ("a.md", "The leader hands over the office. Nobody reads.", ["nobody", "the office"]),
        # Uses of what exists, ordinary words, and code in text are no violations.
        ("a.py", "node.outbox.put(office=1)\n", []),
        ("a.py", "line = text.room(part)\nparts = copy\n", []),
        ("a.py", "doorway = official = heirloom = 1\n", []),
        ("a.py", "class StormyWeather:\n    pass\n", []),
        ("a.md", "There is room on the disk. `says` is a function, and so is says().", []),
    ],
)
def test_what_the_guard_finds(path: str, text: str, words: list[str]) -> None:
    assert sorted(word for _, word, _ in RULES.hits(path, text)) == words


def test_a_count_may_fall_and_its_ceiling_follows_but_none_rises() -> None:
    ceilings = {"a.md": {"anew": 2, "so much": 1}, "gone.md": {"anew": 1}}
    today = {"a.md": {"anew": 1, "hears, says": 4}, "new.md": {"anew": 3}}
    assert wording.lowered(ceilings, today) == {"a.md": {"anew": 1}}


def test_ceilings_are_stored_and_loaded(tmp_path: Path) -> None:
    ceilings = {"a.md": {"anew": 2}, "b.md": {"anew": 1, "so much": 3}}
    wording.store_ceilings(ceilings, tmp_path / "ceilings.json")
    assert wording.load_ceilings(tmp_path / "ceilings.json") == ceilings


def test_a_glossary_that_bans_a_word_twice_is_refused() -> None:
    table = "| old | standard | names |\n| --- | --- | --- |\n| a | b | x |\n| c | d | x |\n"
    with pytest.raises(ValueError, match="more than one row"):
        wording.read_glossary(table)
