"""Coverage marks ("sometimes" assertions): what a run never saw, it proves nothing about.

    marks = Marks()
    marks.hit("snapshot installed")
    Marks.missing(total)            # names that a long enough run should have hit
    Marks.rare(seeds_of, 2_000)     # names that too few seeds of a full run have hit

A mark says that something worth testing did happen in a run, not that it was right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

__all__ = [
    "EXPECTED",
    "EXPECTED_HARSH",
    "FULL_HARSH_RUN_SEEDS",
    "FULL_RUN_SEEDS",
    "OF_HEAVY",
    "Marks",
]

# A run of so many seeds proves that what it found no fault in did happen: each mark must then be
# hit in one seed of a hundred, so that an accident of one seed does not count as coverage.
FULL_RUN_SEEDS = 2_000
# The same of a run with --harsh, for the marks of that mode.
FULL_HARSH_RUN_SEEDS = 500
SEEDS_SHARE = 0.01

# What some of many seeds must hit.
EXPECTED = (
    "leader elected",
    "leader re-elected",
    "leader stepped down for quorum",
    "leader deposed by a higher term",
    "office offered",
    "vote refused",
    "pre-vote granted",
    "pre-vote refused",
    "append refused",
    "log truncated",
    "log compacted",
    "snapshot written",
    "snapshot installed",
    "snapshot installed on a replicant",
    "replicant changed its upstream",
    "command answered from the table",
    "session reopened",
    "write refused",
    "write unknown",
    "outcome asked: applied",
    "outcome asked: not applied",
    "read failed",
    "read under a lease",
    "compare failed",
    "disk failed",
    "disk alarm raised",
    "disk alarm ended",
    "disk at its end",
    "snapshot found no room",
    "entries declined",
    "damage noticed",
    "states compared",
    "corrupt core stopped",
    "corrupt core rebuilt",
    "uncommitted entry survived an election",
    "members changed",
    "core add",
    "core promote",
    "core remove",
    "core remove by force",
    "promoted and removed at once",
    "bootstrap refused over other cores",
    "second node of a name refused",
    "replicant became a core",
    "change refused",
    "change unknown",
    "removed node told",
    "wiped node refused",
    "local read",
    "recovered by force",
    "recovered by force with a loss",
    "acknowledged writes lost by force",
    "outdated core stopped",
    "watch resumed at another node",
    "watch marked",
    "watch too slow",
    "watch compacted",
    "watch given up",
    "lease kept alive",
    "lease expired",
    "lease left to run out",
    "keep-alive unanswered",
    "stranger refused",
    "newer epoch not believed",
    "hostile replicant let in",
    "member call tried",
    "second process refused",
    "all cores claimed before a bootstrap",
    "entry that takes long",
    "range of many keys compared",
    "entry applied in several turns",
    "thousands of keys deleted at once",
    "transaction too costly",
    "deletion beyond the limit of rows",
    "quota used up",
    "deletion beyond the quota",
    "outcome dropped",
    "read of the past",
    "read of the past ended",
    "read of the past refused",
    "value near the limit",
    "limits differ between nodes",
    "core format raised",
    "raise of the core format failed",
    "node taken back to the former software",
    "disk rolled back",
    "voter distrusted",
    "distrusted voter replaced",
    "sector lost at rest",
    "read refused by the disk",
    "node declared dead",
    "silent link replaced",
    "drill: gone",
    "drill: paused",
    "drill: apart",
    "drill: overtaken",
    "drill: disk hangs",
    "replicant dead while a disk hangs",
)
# What seeds of the heavy profile must hit, and no others can (bursts.py).
OF_HEAVY = ("fault within a burst", "several faults within a burst")

# What some of many seeds with --harsh must hit besides: which messages were lost, doubled or held.
EXPECTED_HARSH = (
    "harsh: consensus",
    "harsh: read",
    "harsh: proposal",
    "harsh: presence",
    "harsh: call",
    "harsh: call of leases",
    "harsh: stream of a replicant",
)


class Marks:
    """How often each event happened."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def hit(self, name: str, times: int = 1) -> None:
        known = (EXPECTED, EXPECTED_HARSH, OF_HEAVY)
        assert any(name in names for names in known), f"{name!r} is no mark: add it to EXPECTED"
        if times:
            self.counts[name] += times

    @staticmethod
    def missing(counts: Counter[str], *, harsh: bool = False) -> list[str]:
        """What was expected and never happened."""
        expected = EXPECTED + EXPECTED_HARSH if harsh else EXPECTED
        return [name for name in expected if not counts[name]]

    @staticmethod
    def rare(seeds_of: Counter[str], seeds: int, expected: Sequence[str] = EXPECTED) -> list[str]:
        """The marks that fewer than `SEEDS_SHARE` of the seeds have hit, with that number.

        `seeds_of` counts for each mark of `expected` the seeds that hit it.
        """
        least = SEEDS_SHARE * seeds
        return [f"{name} {seeds_of[name]}" for name in expected if seeds_of[name] < least]
