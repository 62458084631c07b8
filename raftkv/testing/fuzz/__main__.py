"""`python -m raftkv.testing.fuzz`: the command behind `tools/fuzz`."""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from raftkv.testing.arguments import positive
from raftkv.testing.fuzz.campaign import CORPUS, PLANS, Batch, Saved, Totals, run_plan, target_of
from raftkv.testing.fuzz.target import kind_of
from raftkv.testing.fuzz.tracing import arcs_of, write_corpus

__all__ = ["main"]

FINDINGS_SHOWN = 10


def _save(folder: Path, saved: Saved, number: int) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{saved.target}-{saved.seed}-{saved.batch}-{number}.finding"
    path.write_bytes(msgspec.msgpack.encode(saved))
    return path


def _run(options: argparse.Namespace, console: Console) -> int:
    started = time.monotonic()
    end = started + options.minutes * 60 if options.minutes else float("inf")
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
    )
    files: list[Path] = []
    with progress:
        bar = progress.add_task(options.target, total=options.count)

        def each(name: str, batch: Batch) -> None:
            progress.advance(bar, sum(batch.counts.values()))
            for saved in batch.findings:
                path = _save(Path(options.out), saved, len(files))
                files.append(path)
                if len(files) <= FINDINGS_SHOWN:
                    told = f"{saved.target}: {saved.text}\n  again: tools/fuzz replay {path}"
                    progress.console.print(told, style="red", markup=False, soft_wrap=True)

        totals = run_plan(
            options.target,
            count=options.count,
            seed=options.seed,
            jobs=options.jobs,
            more=lambda: time.monotonic() < end,
            each=each,
        )
    if options.corpus:
        for name, cases in sorted(totals.reached.items()):
            added = _minimised(name, cases, Path(options.corpus))
            console.print(f"{name}: {added} inputs were added to {options.corpus}")
    _report(options, totals, files, time.monotonic() - started)
    return 1 if totals.findings else 0


def _minimised(name: str, cases: Sequence[Any], folder: Path) -> int:
    """Of inputs that different batches found, those that still reach something new together."""
    from raftkv.testing.fuzz.tracing import read_corpus

    target, known, kept = target_of(name), set(), []
    for case in read_corpus(folder, name):
        known |= arcs_of(target, case)[0]
    for case in sorted(cases, key=lambda case: case.size_bytes):
        arcs, _ = arcs_of(target, case)
        if not arcs <= known:
            known |= arcs
            kept.append(case)
    return write_corpus(folder, name, kept)


def _report(
    options: argparse.Namespace, totals: Totals, files: Sequence[Path], seconds: float
) -> None:
    if options.json:
        document = {
            "seed": options.seed,
            "seconds": round(seconds, 1),
            "targets": {
                name: {"unit": target_of(name).unit, "outcomes": dict(sorted(counts.items()))}
                for name, counts in sorted(totals.counts.items())
            },
            "findings": [{"file": str(file), "text": s.text} for file, s in _pairs(files, totals)],
        }
        print(json.dumps(document, indent=2))
        return
    parts = []
    for name, counts in sorted(totals.counts.items()):
        outcomes = ", ".join(f"{outcome} {count}" for outcome, count in sorted(counts.items()))
        parts.append(f"{totals.units(name)} {target_of(name).unit} ({outcomes})")
    found = len(totals.findings)
    print(
        f"{'; '.join(parts)}: {found} finding{'' if found == 1 else 's'}, seed {options.seed}, "
        f"{seconds:.0f} s with {options.jobs} job{'' if options.jobs == 1 else 's'}"
    )


def _pairs(files: Sequence[Path], totals: Totals) -> list[tuple[Path, Saved]]:
    return list(zip(files, totals.findings, strict=True))


def _replay(path: str) -> int:
    """Run a saved finding again; 1 if it still is one."""
    try:
        saved = msgspec.msgpack.decode(Path(path).read_bytes(), type=Saved)
    except (OSError, msgspec.DecodeError) as error:
        print(f"error: {path} is no saved finding: {error}", file=sys.stderr)
        return 2
    print(f"{saved.target}, seed {saved.seed}, batch {saved.batch}: {saved.text}")
    for name, data in sorted(saved.case.parts.items()):
        print(f"  {name}: {len(data)} bytes: {data[:400].hex(' ')}")
    logging.disable(logging.CRITICAL)
    try:
        counts = target_of(saved.target).run(saved.case)
    except Exception as error:
        traceback.print_exception(error)
        same = "the same finding" if kind_of(error) == saved.kind else "another finding"
        print(f"{same}: {type(error).__name__}: {error}")
        return 1
    finally:
        logging.disable(logging.NOTSET)
    print(f"no finding any more: {dict(counts)}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tools/fuzz",
        description="Feed damaged input and compare what comes of it with an oracle. Exits with 0 "
        "only without a finding; the last line is the summary.",
        epilog="Findings are saved and shown with the command that replays them: "
        "tools/fuzz replay out/fuzz/wal-1-20-0.finding",
    )
    parser.add_argument("target", choices=[*PLANS, "replay"], help="what to fuzz")
    parser.add_argument("file", nargs="?", help="the saved finding to be replayed")
    parser.add_argument("--count", type=int, default=100_000, metavar="N", help="how many inputs")
    parser.add_argument("--minutes", type=positive, metavar="M", help="start no batch after that")
    parser.add_argument("--seed", type=int, default=1, metavar="S", help="other inputs (default 1)")
    parser.add_argument("--jobs", type=int, default=2, help="processes at one time (default 2)")
    parser.add_argument("--json", action="store_true", help="print a JSON document instead")
    parser.add_argument("--out", default="out/fuzz", metavar="DIR", help="where findings go")
    parser.add_argument(
        "--corpus",
        nargs="?",
        const=str(CORPUS),
        metavar="DIR",
        help="keep the inputs that reached new lines (default tests/fuzz_corpus)",
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.target == "replay":
        if options.file is None:
            parser.error("replay needs the file of a saved finding")
        return _replay(options.file)
    if options.file is not None:
        parser.error("only replay takes a file")
    if options.jobs < 1 or options.count < 1:
        parser.error("--jobs and --count must be at least 1")
    return _run(options, Console(stderr=True))


if __name__ == "__main__":
    sys.exit(main())
