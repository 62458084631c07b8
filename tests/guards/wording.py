"""Count the old words of docs/glossary.md in each file, and compare with the stored ceilings.

Counts are taken per file and per glossary row, so that a violation names the standard term. Only
names that Python code introduces are counted, not uses of a name that exists already: the renaming
is a step of its own, and new code has to call what is there.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from tests.guards.sources import ROOT, sources

GLOSSARY = ROOT / "docs" / "glossary.md"
CEILINGS = Path(__file__).resolve().parent / "ceilings.json"
UPDATE_COMMAND = "python -m tests.guards --lower"

SUFFIXES = (".py", ".md")
# The glossary and this guard's own test name the old words on purpose; the changelog and the stored
# results describe what former releases were called.
EXEMPT = {"CHANGELOG.md", "docs/glossary.md", "tests/guards/test_wording.py"}
EXEMPT_FOLDERS = ("docs/results/",)

# Where an old word stands: (the line, the old word, its row of the glossary).
Hit = tuple[int, str, "Term"]
Counts = dict[str, dict[str, int]]


@dataclasses.dataclass(frozen=True)
class Term:
    """A row of the glossary: what is banned, and what is written instead."""

    old: str
    standard: str
    names: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    phrases: tuple[str, ...] = ()


class Wording:
    """The terms of a glossary, compiled: finds violations in the text of one file."""

    def __init__(self, terms: Iterable[Term]) -> None:
        self.terms = tuple(terms)
        self._names = {name: term for term in self.terms for name in term.names}
        self._modules = {name: term for term in self.terms for name in term.modules}
        self._phrases = {phrase: term for term in self.terms for phrase in term.phrases}
        self._in_identifiers = re.compile("|".join(map(re.escape, self._names)) or "(?!)")
        self._prose = _phrases_pattern(self._phrases)

    def hits(self, path: str, text: str) -> list[Hit]:
        """The violations in a file, in the order of its lines; `path` is relative to the root."""
        lower = text.lower()
        found = [
            (_line(text, match.start()), phrase, self._phrases[phrase])
            for match in self._prose.finditer(lower)
            for phrase in (" ".join(re.split(r"[\s#]+", match.group())),)
        ]
        if path.endswith(".py"):
            seen = {hit[:2] for hit in found}
            of_code = [
                *self._of_the_module_name(path),
                *self._of_classes(text),
                *self._of_identifiers(text, lower),
            ]
            found += [hit for hit in of_code if hit[:2] not in seen]
        return sorted(found, key=lambda hit: hit[:2])

    def _of_the_module_name(self, path: str) -> Iterator[Hit]:
        for part in Path(path).with_suffix("").parts[-2:]:
            words = part.strip("_").lower()
            for name in {words, *words.split("_")} & self._names.keys():
                yield 1, name, self._names[name]
        whole = Path(path).stem.strip("_").lower()
        if whole in self._modules:
            yield 1, whole, self._modules[whole]

    def _of_classes(self, text: str) -> Iterator[Hit]:
        for match in re.finditer(r"^ *class +_*(\w+)", text, re.M):
            whole = match[1].lower()
            if whole in self._modules:
                yield _line(text, match.start(1)), whole, self._modules[whole]

    def _of_identifiers(self, text: str, lower: str) -> Iterator[Hit]:
        end = 0
        for match in self._in_identifiers.finditer(lower):
            if match.start() < end:
                continue  # a second word of the identifier that was looked at
            start, end = _identifier_at(text, match.start())
            words = words_of(text[start:end])
            banned = {*words, "".join(words)} & self._names.keys()
            if banned and is_introduced(text, start, end):
                for name in sorted(banned):
                    yield _line(text, start), name, self._names[name]


def _identifier_at(text: str, position: int) -> tuple[int, int]:
    start, end = position, position + 1
    while start > 0 and _is_word(text[start - 1]):
        start -= 1
    while end < len(text) and _is_word(text[end]):
        end += 1
    return start, end


def _is_word(character: str) -> bool:
    return character.isalnum() or character == "_"


# What stands before or behind an identifier that Python code introduces: a definition, an alias, a
# loop; an annotation, an assignment with blanks around its sign (keywords in calls have none).
_BEFORE = re.compile(r"(?:\b(?:def|class|as|for)\s+|\bfor\s+(?:\w+,\s*)+)$")
_BEHIND = re.compile(r":\s+[\w\"'(]|\s+(?:[-+*/|&]|//)?=\s|(?:,\s*[*\w.]+)+\s+=\s|\s*:=")


def is_introduced(text: str, start: int, end: int) -> bool:
    """Whether the identifier at text[start:end] is defined there, not only used.

    A look at its line and no parse: exact enough for a guard with ceilings, and ten times as fast.
    """
    before = text[text.rfind("\n", 0, start) + 1 : start]
    if "#" in before:
        return False
    return bool(_BEFORE.search(before) or _BEHIND.match(text, end))


def _phrases_pattern(phrases: Iterable[str]) -> re.Pattern[str]:
    """Match phrases in lower case text, over line ends and comment signs, but not code."""
    longest_first = sorted(phrases, key=len, reverse=True)
    spaced = "|".join(r"[\s#]+".join(map(re.escape, p.split())) for p in longest_first)
    # Beside these characters a word is code: `x.hears`, `says(`, `office=`, `outbox = 1`,
    # `outbox: int,`, a path.
    behind = r"[\w(`=/]|\.\w| = |: \w+(?: = |[,)\n])"
    return re.compile(rf"(?<![\w.`/])(?:{spaced or '(?!)'})(?!{behind})")


@functools.cache
def words_of(identifier: str) -> tuple[str, ...]:
    """The words of an identifier, in lower case: of snake_case and of CamelCase."""
    found = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", identifier)
    return tuple(word.lower() for word in found)


def _line(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


def read_glossary(text: str) -> list[Term]:
    """The rows of all tables of the glossary whose header begins with `old | standard`.

    Raises ValueError for a row without a standard term, and for a word that two rows ban.
    """
    terms: list[Term] = []
    header: list[str] = []
    for line in text.splitlines():
        if not line.startswith("|"):
            header = []
            continue
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not header:
            header = cells
        elif header[:2] == ["old", "standard"] and not set(cells[0]) <= {"-", ":"}:
            terms.append(_term(dict(zip(header, cells, strict=True))))
    for kind in ("names", "modules", "phrases"):
        banned = Counter(word for term in terms for word in getattr(term, kind))
        twice = [word for word, count in banned.items() if count > 1]
        if twice:
            raise ValueError(f"the glossary bans {twice} in more than one row")
    return terms


def _term(row: Mapping[str, str]) -> Term:
    if not row["old"] or not row["standard"]:
        raise ValueError(f"a row of the glossary lacks a term: {dict(row)}")

    def cell(name: str) -> tuple[str, ...]:
        return tuple(filter(None, (word.strip().lower() for word in row.get(name, "").split(","))))

    return Term(
        row["old"], row["standard"], cell("names"), cell("modules and classes"), cell("phrases")
    )


def texts(root: Path = ROOT) -> Iterator[tuple[str, str]]:
    """Every file that is looked at, as (path below the root, text), in a stable order."""
    for each in sources(root):
        is_exempt = each.path in EXEMPT or each.path.startswith(EXEMPT_FOLDERS)
        if each.path.endswith(SUFFIXES) and not is_exempt:
            yield each.path, each.text


def all_hits(wording: Wording, files: Iterable[tuple[str, str]]) -> dict[str, list[Hit]]:
    found = ((path, wording.hits(path, text)) for path, text in files)
    return {path: hits for path, hits in found if hits}


def hits_of_today() -> dict[str, list[Hit]]:
    """The violations of this repository's glossary in its files."""
    rules = Wording(read_glossary(GLOSSARY.read_text(encoding="utf-8")))
    return all_hits(rules, texts())


def counts(hits: Mapping[str, Iterable[Hit]]) -> Counts:
    return {
        path: dict(sorted(Counter(term.old for _, _, term in of_file).items()))
        for path, of_file in sorted(hits.items())
    }


def total(counted: Counts) -> int:
    """The sum of the counts of all files and terms."""
    return sum(sum(of_file.values()) for of_file in counted.values())


def violations(hits: Mapping[str, list[Hit]], ceilings: Counts) -> list[str]:
    """One text per hit of a term that is above its ceiling in its file.

    All hits of that term in the file are listed: which of them is the new one, only the author
    knows.
    """
    found = []
    for path, of_file in counts(hits).items():
        for old, count in of_file.items():
            ceiling = ceilings.get(path, {}).get(old, 0)
            if count > ceiling:
                found += [
                    f"{path}:{line}: {word!r}: write {term.standard!r}"
                    f" ({count} in this file, at most {ceiling})"
                    for line, word, term in hits[path]
                    if term.old == old
                ]
    return found


def load_ceilings(path: Path = CEILINGS) -> Counts:
    loaded: Counts = json.loads(path.read_text(encoding="utf-8"))
    return loaded


def lowered(ceilings: Counts, today: Counts) -> Counts:
    """The ceilings after today's counts: each falls or stays; files and terms at 0 are left out."""
    return {
        path: kept
        for path, of_file in sorted(ceilings.items())
        if (
            kept := {
                old: min(count, today[path][old])
                for old, count in of_file.items()
                if old in today.get(path, {})
            }
        )
    }


def store_ceilings(ceilings: Counts, path: Path = CEILINGS) -> None:
    """One file of the repository per line, so that two branches that lower ceilings merge."""
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(ceilings[name])}" for name in ceilings)
    path.write_text("{\n" + lines + "\n}\n", encoding="utf-8")
