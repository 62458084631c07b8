"""Show what the guards count, or lower the ceilings to it: `python -m tests.guards [--lower]`.

`--lower` exits with 1, and changes nothing, if a count is on the wrong side of its limit: no limit
is ever loosened. When the glossary gets a new row, delete ceilings.json before: it is then written
for today's counts.
"""

from __future__ import annotations

import argparse
import json
import sys

from tests.guards import structure, wording
from tests.guards.measure import Measure


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.guards", description=__doc__)
    only_one = parser.add_mutually_exclusive_group()
    only_one.add_argument("--json", action="store_true", help="print a JSON document")
    only_one.add_argument("--places", metavar="MEASURE", help="list what a measure has counted")
    only_one.add_argument("--lower", action="store_true", help="set the limits to today's counts")
    given = parser.parse_args(arguments)
    if given.lower:
        return lower()
    measures = structure.measures_of_today()
    if given.places is not None:
        return show_places(measures, given.places)
    words, ceiling = old_words()
    measures = {**measures, words.name: words}
    limits = {**structure.load_limits(), words.name: ceiling}
    if given.json:
        print(json.dumps(structure.as_document(measures, limits), indent=2))
    else:
        print(structure.table(measures, limits))
    return 0


def show_places(measures: dict[str, Measure], name: str) -> int:
    if name not in measures:
        print(f"there is no measure {name!r}; there are {', '.join(measures)}", file=sys.stderr)
        return 2
    print("\n".join(measures[name].places))
    return 0


def old_words() -> tuple[Measure, int]:
    """The old words of the glossary in all files, and the sum of their ceilings."""
    today = wording.counts(wording.hits_of_today())
    found = Measure("words", "old words of the glossary", wording.total(today))
    return found, wording.total(wording.load_ceilings())


def lower() -> int:
    hits = wording.hits_of_today()
    words = wording.counts(hits)
    ceilings = wording.load_ceilings() if wording.CEILINGS.exists() else words
    measures, limits = structure.measures_of_today(), structure.load_limits()
    found = wording.violations(hits, ceilings) + structure.violations(measures, limits)
    if found:
        print("\n".join(found), file=sys.stderr)
        print("no limit was changed: ceilings only fall, floors only rise", file=sys.stderr)
        return 1
    fallen = wording.lowered(ceilings, words)
    wording.store_ceilings(fallen)
    print(f"old words: at most {wording.total(ceilings)} before, {wording.total(fallen)} now")
    tightened = structure.tightened(measures, limits)
    structure.store_limits(tightened)
    for name in sorted(tightened.keys() | limits.keys()):
        if tightened.get(name) != limits.get(name):
            print(f"{name}: {limits.get(name, 'none')} before, {tightened.get(name, 'none')} now")
    return 0


if __name__ == "__main__":
    sys.exit(main())
