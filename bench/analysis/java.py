"""Finds a Java that Spark 4 can run on.

Spark needs Java 17 or newer *with* the module jdk.incubator.vector: cut-down runtimes such as those
that some Python packages bundle lack it, and the JVM then exits without a helpful word.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from bench.analysis import AnalysisError

__all__ = ["JAVA_VERSION_MIN", "find_java", "parse_version"]

JAVA_VERSION_MIN = 17
VECTOR_MODULE = "jdk.incubator.vector"
ASK_TIMEOUT_S = 30.0
"""How long `java -version` may take; it needs well under a second on an idle machine."""

ADVICE = (
    "install Debian's openjdk-17-jre-headless (or any full Java >= 17) and put `java` on PATH, "
    "or set JAVA_HOME"
)


def parse_version(text: str) -> int | None:
    """The major version in the output of `java -version`; None if there is none."""
    found = re.search(r'version "(\d+)(?:\.(\d+))?', text)
    if found is None:
        return None
    major = int(found[1])
    # Up to Java 8 the version was written 1.8.
    return int(found[2]) if major == 1 and found[2] else major


def find_java(environment: Mapping[str, str] | None = None) -> Path:
    """The home of a usable Java: JAVA_HOME if it will do, else that of `java` on PATH.

    Raises AnalysisError which names every Java that was looked at, why it will not do, and what to
    install instead.
    """
    variables = os.environ if environment is None else environment
    candidates: list[Path] = []
    if home := variables.get("JAVA_HOME"):
        candidates.append(Path(home) / "bin" / "java")
    if found := shutil.which("java", path=variables.get("PATH", "")):
        candidates.append(Path(found).resolve())
    objections = []
    for java in dict.fromkeys(candidates):
        objection = _objection(java)
        if objection is None:
            return java.parent.parent
        objections.append(f"{java} {objection}")
    seen = "; ".join(objections) or "there is no `java` on PATH and JAVA_HOME is not set"
    raise AnalysisError(f"Spark needs Java {JAVA_VERSION_MIN} or newer ({seen}): {ADVICE}")


def _objection(java: Path) -> str | None:
    """Why this Java will not do; None if it will."""
    code, text = _ask(java, "-version")
    version = parse_version(text)
    if code != 0 or version is None:
        return "does not run"
    if version < JAVA_VERSION_MIN:
        return f"is version {version}"
    code, _ = _ask(java, f"--add-modules={VECTOR_MODULE}", "-version")
    return None if code == 0 else f"is a cut-down runtime without {VECTOR_MODULE}"


def _ask(java: Path, *arguments: str) -> tuple[int, str]:
    try:
        answer = subprocess.run(
            [str(java), *arguments],
            capture_output=True,
            text=True,
            timeout=ASK_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return 1, str(error)
    return answer.returncode, answer.stderr + answer.stdout
