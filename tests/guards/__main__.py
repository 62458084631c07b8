"""Lower the ceilings of old words to today's counts: `python -m tests.guards`.

Exits with 1, and changes nothing, if a count is above its ceiling: no ceiling is ever raised. When
the glossary gets a new row, delete ceilings.json before: it is then written for today's counts.
"""

from __future__ import annotations

import sys

from tests.guards import wording


def main() -> int:
    rules = wording.Wording(wording.read_glossary(wording.GLOSSARY.read_text(encoding="utf-8")))
    hits = wording.all_hits(rules, wording.texts())
    today = wording.counts(hits)
    if not wording.CEILINGS.exists():
        wording.store_ceilings(today)
        print(f"wrote the first ceilings of {len(today)} files")
        return 0
    ceilings = wording.load_ceilings()
    found = wording.violations(hits, ceilings)
    if found:
        print("\n".join(found), file=sys.stderr)
        print("no ceiling was changed: ceilings only fall", file=sys.stderr)
        return 1
    fallen = wording.lowered(ceilings, today)
    wording.store_ceilings(fallen)
    before, now = (sum(sum(f.values()) for f in c.values()) for c in (ceilings, fallen))
    print(f"old words in all files: at most {before} before, {now} now")
    return 0


if __name__ == "__main__":
    sys.exit(main())
