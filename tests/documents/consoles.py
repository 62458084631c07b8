"""Runs what a page shows as typed at a shell (`$ ...`), and compares what it shows as the answer.

Compared are words, signs and small numbers. Endpoints, ids, fractions and numbers of three digits
and more are others each time; so is the width of columns. `...` on a page stands for anything.
Where the page uses an id that a command has given, the one that was really given is put in.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.documents.snippets import ROOT
from tests.plugins.raftkv_subscriptions.test_region_cli import Typist

__all__ = ["Shell", "Typed", "typed"]

COMMAND_S = 120.0
# A link that was lost is listed as such once it was tried again.
SETTLE_S = 60.0
_LISTS = r"raftkv (?:region|sub|topic) (?:list|status|read)\b"
_ENDPOINT = "http://127.0.0.1:7501"
_CHANGING = (
    # Which entry of the log it was, and how many sessions were opened before.
    (r"log index \d+", "log index #"),
    (r'("(?:session|txid|next)":")\d+-', r"\1#-"),
    (r"http://127\.0\.0\.1:\d+", "URL"),
    (r'"(index|term|position|session|consumer)":\d+', r'"\1":#'),
    (r"\b[0-9a-f]{12,}\b", "#"),
    (r"\b\d+\.\d+\b", "#"),
    (r"\b\d{3,}\b", "#"),
    (r"remaining\(\d+s\)", "remaining(#s)"),
)


class Typed(NamedTuple):
    """A command of a page, and the lines that it answers there."""

    page: str
    line: int
    command: str
    answer: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.page}: {self.command.splitlines()[0]}"


def typed(page: str) -> list[Typed]:
    """All commands behind a `$`, in the order of the page."""
    lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
    starts = [n for n, line in enumerate(lines) if line.startswith("    $ ")]
    found = []
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=False):
        taken = list(_indented(lines[start:end]))
        command = _command(taken)
        answer = taken[len(command) :]
        while answer and not answer[-1].strip():
            answer.pop()
        text = re.sub(r" {2,}# .*$", "", "\n".join(command).removeprefix("$ "))
        found.append(Typed(page, start + 1, text, tuple(answer)))
    return found


def _indented(lines: list[str]) -> Iterator[str]:
    """The block that begins with the first line, without its indentation."""
    for number, line in enumerate(lines):
        following = next((each for each in lines[number:] if each.strip()), "")
        shown = following.startswith("    ") and not following.startswith("    raftkv ")
        if not shown or (not line.strip() and number == 0):
            return
        yield line[4:]


def _command(lines: list[str]) -> list[str]:
    """The first lines, which are one command."""
    if "<<END" in lines[0]:
        return lines[: lines.index("END") + 1]
    count = 1
    while lines[count - 1].endswith("\\") or "\n".join(lines[:count]).count("'") % 2:
        count += 1
    return lines[:count]


class Shell:
    """Types commands in a directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        program = directory / "bin" / "raftkv"
        program.parent.mkdir(parents=True)
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -m raftkv "$@"\n')
        program.chmod(0o755)
        path = os.pathsep.join((str(program.parent), os.environ["PATH"]))
        # What is said on both of its outputs comes in the order in which it is said.
        self._env = {**Typist(directory).env, "PATH": path, "PYTHONUNBUFFERED": "1"}
        self._given: dict[str, str] = {}

    def __call__(self, command: str, *, fails: bool = False) -> str:
        """What a command answers. Raises AssertionError if it fails, or does not though it must."""
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self.directory,
            env=self._env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if "curl" not in command else subprocess.DEVNULL,
            text=True,
            timeout=COMMAND_S,
        )
        assert (done.returncode != 0) == fails, f"{command}\n{done.stdout}"
        return done.stdout

    def play(self, each: Typed, endpoint: str) -> None:
        """Type it, and compare. Raises AssertionError with both answers.

        What lists a state that changes by itself is typed again until it is as on the page.
        """
        command = each.command.replace(_ENDPOINT, endpoint)
        # The longest first: a lease's id can be a part of a session's.
        for shown in sorted(self._given, key=len, reverse=True):
            command = command.replace(shown, self._given[shown])
        answer = "\n".join(each.answer)
        fails = any(line.startswith("error:") for line in each.answer)
        until_s = time.monotonic() + (SETTLE_S if re.match(_LISTS, command) else 0.0)
        while True:
            found = self(command, fails=fails).replace(f"{self.directory}/", "")
            pattern, said = _pattern(answer), _steady(found)
            if not answer or re.fullmatch(pattern, said, re.S):
                break
            assert time.monotonic() < until_s, (
                f"{each.page}:{each.line}: $ {command}\n--- the page:\n{_steady(answer)}\n"
                f"--- the program:\n{said}"
            )
        self._learn(answer, found)

    def _learn(self, shown: str, found: str) -> None:
        """Ids that the page uses further down."""
        leases = [re.findall(r"\b[0-9a-f]{16}\b", text) for text in (shown, found)]
        self._given.update(zip(leases[0][:1], leases[1][:1], strict=False))
        if shown.startswith("{"):
            ours, theirs = json.loads(found), json.loads("".join(shown.splitlines()))
            for key, route in (("session", "sessions"), ("consumer", "consumers")):
                if key in theirs:
                    self._given[f"/{route}/{theirs[key]}/"] = f"/{route}/{ours[key]}/"
            if "txid" in theirs:
                self._given[f"/tx/{theirs['txid']}/"] = f"/tx/{ours['txid']}/"


def _steady(text: str) -> str:
    """A text without what is another each time."""
    if text.startswith("{"):
        text = json.dumps(json.loads("".join(text.splitlines())), separators=(",", ":"))
    for changing, steady in _CHANGING:
        text = re.sub(changing, steady, text)
    lines = (re.sub(r" +", " ", line).strip() for line in text.strip().splitlines())
    return "\n".join(line for line in lines if line)


def _pattern(answer: str) -> str:
    # A time may have fewer digits than on the page.
    return re.escape(_steady(answer)).replace(r"\.\.\.", ".*").replace(r"\#", r"(?:#|\d+)")
