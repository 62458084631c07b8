"""Configuration as a function of the log prefix (rules 4 and 5).

Rules of this file: pure; it knows neither PySyncObj nor files. A configuration entry carries the
whole configuration, never a delta, so that applying one late or rolling one back cannot add or
remove anybody by accident. A node uses the *latest* configuration in its log, committed or not
(Ongaro's thesis, section 4.1); truncating the log pops it, applying the log never touches it.

A raft id is the node's name plus an id minted with its data directory (rule 10): a node whose
directory was wiped has forgotten its votes and acknowledgements, so it must be somebody new.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from raftkv.errors import Diverged

__all__ = ["EMPTY", "REMOVED_KEPT", "Configuration", "ConfigurationLog", "make_raft_id", "name_of"]


# Removed members that are remembered, so that they can be told when they knock.
REMOVED_KEPT = 64


class Configuration(msgspec.Struct, frozen=True, array_like=True):
    """Who votes, who only copies (raft ids, sorted), and who was removed (the latest last).

    `distrusted` are voters that no longer held what they had acknowledged (from core format 2 on).
    What they acknowledge, and their votes, count nowhere; in the size of a majority they count.
    """

    voters: tuple[str, ...] = ()
    learners: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    distrusted: tuple[str, ...] = ()

    @property
    def members(self) -> tuple[str, ...]:
        """Everybody who receives the log, sorted."""
        return tuple(sorted(self.voters + self.learners))

    def is_member(self, raft_id: str) -> bool:
        """Whether it receives the log."""
        return raft_id in self.voters or raft_id in self.learners

    def trusts(self, raft_id: str) -> bool:
        """Whether it votes, and its votes and acknowledgements count."""
        return raft_id in self.voters and raft_id not in self.distrusted

    def majority(self, who: Iterable[str]) -> bool:
        """Whether the trusted voters among `who` are more than half of all voters (rule 9)."""
        count = len(frozenset(who).intersection(self.voters).difference(self.distrusted))
        return bool(self.voters) and 2 * count > len(self.voters)

    def raft_id_of(self, name: str) -> str | None:
        """The raft id under which a node of this name is a member."""
        return next((member for member in self.members if name_of(member) == name), None)


EMPTY = Configuration()
_decoder = msgspec.msgpack.Decoder(Configuration)


def make_raft_id(name: str, minted: str) -> str:
    """`minted` must not contain a dash."""
    assert "-" not in minted
    return f"{name}-{minted}"


def name_of(raft_id: str) -> str:
    """The node's name inside a raft id."""
    return raft_id.rpartition("-")[0]


def encode(configuration: Configuration) -> bytes:
    """The body of a configuration entry, and the `configuration` of a snapshot's header."""
    if configuration.distrusted:
        return msgspec.msgpack.encode(configuration)
    # As raftkv 0.1.0 writes it, which has no fourth field.
    fields = (configuration.voters, configuration.learners, configuration.removed)
    return msgspec.msgpack.encode(fields)


def decode(body: bytes) -> Configuration:
    """Raises `Diverged` for bytes that no node of this version writes."""
    try:
        return _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Diverged(f"a configuration entry cannot be read: {error}") from None


class ConfigurationLog:
    """The configurations in a log: the one at its base, then those of entries behind it."""

    def __init__(self, base_index: int, base: Configuration, base_since: int = 0) -> None:
        self._history: list[tuple[int, Configuration]] = [(base_index, base)]
        # The index of the entry that held the base's; 0: not known.
        self._base_since = base_since

    @property
    def latest(self) -> Configuration:
        """The configuration in force: the last one in the log, committed or not."""
        return self._history[-1][1]

    @property
    def latest_index(self) -> int:
        """The index of the entry that holds `latest` (the base's index if there is none)."""
        return self._history[-1][0]

    @property
    def base_index(self) -> int:
        """What was in force before this index is not known."""
        return self._history[0][0]

    def append(self, index: int, configuration: Configuration) -> None:
        assert index > self.latest_index, (index, self.latest_index)
        self._history.append((index, configuration))

    def truncate_from(self, index: int) -> bool:
        """Forget configurations at `index` and behind. True if the one in force changed."""
        before = len(self._history)
        while len(self._history) > 1 and self._history[-1][0] >= index:
            self._history.pop()
        return len(self._history) != before

    def at(self, index: int) -> Configuration:
        """The configuration as the log's prefix up to and with `index` says."""
        for position, configuration in reversed(self._history):
            if position <= index:
                return configuration
        return self._history[0][1]

    def since(self, index: int) -> int:
        """The index of the entry that holds `at(index)`.

        0 if it is not known: the base is a snapshot of core format 1.
        """
        for position, _ in reversed(self._history[1:]):
            if position <= index:
                return position
        return self._base_since

    def member_since(self, raft_id: str, commit: int) -> int | None:
        """The index of the committed configuration since which this id is a member.

        None if it is none by the last committed one. For one that the log's base names already it
        is the base's index, which every node passes.
        """
        since = None
        for position, configuration in self._history:
            if position > commit:
                break
            if not configuration.is_member(raft_id):
                since = None
            elif since is None:
                since = position
        return since

    def rebase(
        self, index: int, configuration: Configuration, since: int = 0, *, keep_behind: bool
    ) -> None:
        """A snapshot at `index` is the new base; entries behind it stay or went with the log."""
        behind = [item for item in self._history[1:] if item[0] > index] if keep_behind else []
        self._history = [(index, configuration), *behind]
        self._base_since = since
