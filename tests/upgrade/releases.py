"""Releases of raftkv side by side: former ones from stored wheels, and this checkout.

A release is driven through its command line, its HTTP API and its data directories only. Its code
is found through PYTHONPATH, before anything that is installed; its dependencies are those of the
running environment, so nothing is downloaded.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
WHEELS = ROOT / "tests" / "fixtures" / "old-releases"
COMMAND_S = 60.0


@dataclasses.dataclass(frozen=True)
class Release:
    """One version of raftkv: where its packages are."""

    name: str
    path: tuple[Path, ...]

    def command(self, *arguments: str) -> list[str]:
        """`raftkv ARGUMENTS` of this release. -P: the working directory is not searched."""
        return [sys.executable, "-P", "-m", "raftkv", *arguments]

    @property
    def environment(self) -> dict[str, str]:
        """This environment without what changes an interpreter; hashes differ per process."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "RAFTKV_"))}
        return {**kept, "PYTHONPATH": os.pathsep.join(map(str, self.path))}

    def run(self, *arguments: str, directory: Path) -> subprocess.CompletedProcess[str]:
        """Run a command to its end in `directory`."""
        return subprocess.run(
            self.command(*arguments),
            cwd=directory,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
        )

    def source_of(self, modules: Sequence[str], directory: Path) -> dict[str, Path]:
        """Where this release's interpreter finds the modules."""
        program = "import importlib, sys\nfor m in sys.argv[1:]:\n"
        program += "    print(importlib.import_module(m).__file__)\n"
        done = subprocess.run(
            [sys.executable, "-P", "-c", program, *modules],
            cwd=directory,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
            check=True,
        )
        return dict(zip(modules, map(Path, done.stdout.split("\n")), strict=False))


CHECKOUT = Release("checkout", (ROOT, ROOT / "plugins"))


def stored_wheels() -> dict[str, str]:
    """The names of the stored wheels with their sha256."""
    lines = (WHEELS / "SHA256SUMS").read_text(encoding="utf-8").splitlines()
    return {name: digest for digest, name in (line.split() for line in lines)}


def unpacked(version: str, directory: Path) -> Release:
    """The stored release `version`, unpacked below `directory`.

    Raises ValueError if the wheel is not the one whose sha256 is stored.
    """
    name = f"raftkv-{version}-py3-none-any.whl"
    wheel = WHEELS / name
    if hashlib.sha256(wheel.read_bytes()).hexdigest() != stored_wheels()[name]:
        raise ValueError(f"{wheel} is not the wheel whose sha256 stands in SHA256SUMS")
    packages = directory / f"raftkv-{version}"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    return Release(version, (packages,))
