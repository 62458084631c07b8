"""Terms, votes, the log, changes of the configuration and a replicant that becomes a core.

The nodes are three voters and one replicant, or four voters. Steps: a node campaigns, another one
votes, a candidate begins to lead, a leader appends to another node's log and gets its answer, a
write becomes durable, a leader commits, a leader changes the configuration, a node crashes and
loses what was not durable, the replicant applies a committed entry, is asked to become a core, and
becomes one.

Checked in every state: one leader for each term; committed entries stay, and are the same on all
nodes; in every log at most one configuration is not committed; the base of a promoted core is the
configuration in force at its index. Decided by the project's own functions: votes (`judge_vote`),
elections (`Candidacy`), appends (`judge_append`), commits (`quorum_index`), changes (`add_learner`,
`promote`, `remove`, `check_change`).

What the model leaves out on purpose. A message and its answer are one step, and a message that does
not arrive is a step that is not taken: what arrives late is refused by its term, or carries a
prefix of what was sent since. Time, pre-votes and leases: they keep a leader in its place and let
followers read, no vote or commit rests on them, so any node may campaign at any moment here.
Snapshots of cores, and the handing over of leadership, which is a campaign.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from functools import cache
from typing import Final, NamedTuple

from raftkv.errors import Diverged, MembershipRefused
from raftkv.raft.append import Rejected, judge_append, quorum_index
from raftkv.raft.changing import add_learner, check_change, promote, remove
from raftkv.raft.election import Candidacy, Stage, VoteRequest, judge_vote
from raftkv.raft.membership import Configuration, decode, encode
from raftkv.testing.model.search import Broken

__all__ = [
    "BUGS",
    "FEEDS",
    "LEADS",
    "NODES",
    "Bounds",
    "Entry",
    "Node",
    "Replication",
    "State",
    "configuration_at",
    "decoded",
    "is_change",
    "put",
]

NODES: Final = ("core1-a", "core2-a", "core3-a", "node4-a")
LATECOMER: Final = 3
# What is no configuration begins with this byte.
PLAIN: Final = b"\x01"
NO_OP: Final = PLAIN
WRITE: Final = PLAIN + b"write"
ABSENT: Final = -1

FOLLOWS, CAMPAIGNS, LEADS, FEEDS = range(4)

# What each former or possible bug does.
BUGS: Final = {
    "base-from-leader": "a promoted core begins with the configuration that the leader sent, "
    "whatever its index, and a promotion under way is reused",
    "two-changes": "a leader changes the configuration while another change is not committed",
    "change-before-own-term": "a new leader changes the configuration before it has committed "
    "an entry of its term",
    "commit-former-term": "a leader commits an entry of a former term by counting",
    "acknowledge-unsynced": "a leader counts its own entry before it is durable",
    "forget-vote": "a crash forgets the vote",
    "vote-for-shorter-log": "a vote does not compare the logs",
}


class Bounds(NamedTuple):
    """How far the walk goes. Without `replicant` the fourth node is a voter from the start."""

    terms: int = 2
    changes: int = 2
    crashes: int = 1
    entries: int = 3
    replicant: bool = True
    writes: int = 0


class Entry(NamedTuple):
    """`payload` is NO_OP, WRITE or an encoded configuration."""

    term: int
    payload: bytes


class Node(NamedTuple):
    """`log` begins behind `base`, where `configuration` was in force.

    `durable` is the last index on its disk. `granted`: bits of the nodes that voted for it;
    `matches`: what a leader knows of each node's log. A replicant has neither log nor term:
    `commit` is what it has applied. `asked` is the index of the configuration, and that
    configuration, with which the leader asked it to become a core.
    """

    role: int
    term: int = 1
    vote: int = ABSENT
    base: int = 0
    configuration: bytes = b""
    log: tuple[Entry, ...] = ()
    commit: int = 0
    durable: int = 0
    granted: int = 0
    matches: tuple[int, ...] = ()
    asked: tuple[int, bytes] | None = None

    @property
    def last(self) -> int:
        return self.base + len(self.log)


class State(NamedTuple):
    """`decided` is every entry that was ever committed, `leaders` who led in term 1, 2, ..."""

    nodes: tuple[Node, ...]
    decided: tuple[Entry, ...]
    leaders: tuple[int, ...]
    changes: int = 0
    crashes: int = 0
    writes: int = 0
    # How often a disk has lost what was durable, and the terms whose leader has noticed it, as bits
    # (distrust.py).
    losses: int = 0
    noticed: int = 0


class _Log:
    """A node's log as `judge_append` looks at it."""

    __slots__ = ("_base_term", "_node", "base_index", "last_index")

    def __init__(self, node: Node, base_term: int) -> None:
        self._node = node
        self._base_term = base_term
        self.base_index = node.base
        self.last_index = node.last

    def term_at(self, index: int) -> int | None:
        if index == self.base_index:
            return self._base_term
        position = index - self.base_index - 1
        return self._node.log[position].term if 0 <= position < len(self._node.log) else None


@cache
def decoded(body: bytes) -> Configuration:
    return decode(body)


@cache
def _exchanged(payload: bytes) -> bytes:
    """The same configuration with core2 and core3 exchanged."""
    if not payload or payload.startswith(PLAIN):
        return payload
    swap = {NODES[1]: NODES[2], NODES[2]: NODES[1]}
    now = decoded(payload)
    lists = [[swap.get(name, name) for name in group] for group in (now.voters, now.learners)]
    removed = tuple(swap.get(name, name) for name in now.removed)
    return encode(Configuration(tuple(sorted(lists[0])), tuple(sorted(lists[1])), removed))


class Replication:
    """See the module's text. `bug` is one of BUGS.

    The walk begins `behind` these steps, so that a deep fault is found within few states.
    """

    def __init__(
        self, bounds: Bounds | None = None, bug: str = "", behind: Sequence[str] = ()
    ) -> None:
        assert not bug or bug in BUGS, bug
        self.bounds = bounds or Bounds()
        self.bug = bug
        self._behind = behind
        voters = NODES[:LATECOMER] if self.bounds.replicant else NODES
        self._genesis = encode(Configuration(voters))

    # -- the walk

    def first(self) -> State:
        """The first node leads in term 1, and all nodes have its first entry, committed."""
        entry = Entry(1, NO_OP)
        core = Node(FOLLOWS, 1, 0, 0, self._genesis, (entry,), 1, 1)
        leader = core._replace(role=LEADS, granted=1, matches=(1, 1, 1, 0))
        fourth = Node(FEEDS, 0, commit=1) if self.bounds.replicant else core
        if not self.bounds.replicant:
            leader = leader._replace(matches=(1, 1, 1, 1))
        state = State((leader, core, core, fourth), (entry,), (0,))
        for step in self._behind:
            state = next(after for name, after in self.steps(state) if name == step)
        return state

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        for me, node in enumerate(state.nodes):
            if node.role == FEEDS:
                yield from self._replicant(state, me, node)
                continue
            yield from self._campaign(state, me, node)
            if node.durable < node.last:
                yield f"{me + 1} syncs", put(state, me, node._replace(durable=node.last))
            if node.role == CAMPAIGNS:
                yield from self.candidate(state, me, node)
            elif node.role == LEADS:
                yield from self._leader(state, me, node)
            if state.crashes < self.bounds.crashes:
                yield f"{me + 1} crashes", self._crashed(state, me, node)

    def broken(self, state: State) -> str:
        decided = state.decided
        for me, node in enumerate(state.nodes):
            if node.role == FEEDS:
                continue
            inside = max(node.base, min(node.commit, len(decided)))
            if node.log[: inside - node.base] != decided[node.base : inside]:
                return f"committed entries stay: node {me + 1} holds something else as committed"
            if node.commit > len(decided):
                return f"committed entries stay: node {me + 1} commits what no leader did"
            if node.base and node.configuration != self._in_force(decided[: node.base]):
                return (
                    f"the base of a promoted core: node {me + 1} begins at {node.base} with "
                    f"{decoded(node.configuration).voters}"
                )
            shared = _shared(node, decided)
            changes = sum(is_change(entry) for entry in node.log[shared:])
            if changes > 1:
                return f"one change at a time: node {me + 1} holds {changes} that are not committed"
        return ""

    def canonical(self, state: State) -> Hashable:
        """One of the two states in which core2 and core3 have exchanged their names."""
        return min(_plain(state), _plain(self.exchange(state)))

    # -- what a model that builds on this one may change

    def counts(self, state: State, node: Node, position: int) -> bool:
        """Whether, for this node, the votes and acknowledgements of another one count."""
        return True

    def may_campaign(self, state: State, me: int) -> bool:
        return True

    def exchange(self, state: State) -> State:
        """The state with the names of two nodes that are alike exchanged."""
        return _exchange(state)

    # -- elections

    def _campaign(self, state: State, me: int, node: Node) -> Iterator[tuple[str, State]]:
        if node.role == LEADS or node.term >= self.bounds.terms:
            return
        if not self.may_campaign(state, me):
            return
        if NODES[me] in self.latest(node).voters:
            after = node._replace(
                role=CAMPAIGNS, term=node.term + 1, vote=me, granted=1 << me, durable=node.last
            )
            yield f"{me + 1} campaigns in term {after.term}", put(state, me, after)

    def candidate(self, state: State, me: int, node: Node) -> Iterator[tuple[str, State]]:
        request = VoteRequest(NODES[me], node.term, node.last, _last_term(state, node), False, True)
        for other, voter in enumerate(state.nodes):
            if other == me or voter.role == FEEDS or node.granted >> other & 1:
                continue
            verdict = judge_vote(
                request,
                term=voter.term,
                vote=None if voter.vote == ABSENT else NODES[voter.vote],
                last_index=0 if self.bug == "vote-for-shorter-log" else voter.last,
                last_term=0 if self.bug == "vote-for-shorter-log" else _last_term(state, voter),
                leader_alive=False,
            )
            if verdict.adopt_term:
                voter = _followed(voter, node.term)
            if verdict.granted:
                # The vote, and with it the whole log, is durable before the answer leaves.
                voter = voter._replace(vote=me, durable=voter.last)
                candidate = node._replace(granted=node.granted | 1 << other)
                after = put(put(state, other, voter), me, candidate)
                yield f"{other + 1} votes for {me + 1}", after
            elif verdict.adopt_term:
                yield f"{other + 1} refuses {me + 1}", put(state, other, voter)
        yield from self._elected(state, me, node)

    def _elected(self, state: State, me: int, node: Node) -> Iterator[tuple[str, State]]:
        candidacy = Candidacy(Stage.VOTE, node.term, 1, False)
        for position, voter in enumerate(NODES):
            if node.granted >> position & 1 and self.counts(state, node, position):
                candidacy.grant(voter, term=node.term, attempt=1, pre_vote=False)
        if not candidacy.won(self.latest(node)):
            return
        if len(state.leaders) >= node.term and state.leaders[node.term - 1] != ABSENT:
            raise Broken(
                f"one leader for each term: {me + 1} and {state.leaders[node.term - 1] + 1} lead "
                f"in term {node.term}"
            )
        leader = node._replace(
            role=LEADS,
            log=(*node.log, Entry(node.term, NO_OP)),
            matches=(0,) * len(NODES),
        )
        missing = node.term - len(state.leaders)
        leaders = [*state.leaders, *[ABSENT] * missing]
        leaders[node.term - 1] = me
        yield (
            f"{me + 1} leads in term {node.term}",
            put(state, me, leader)._replace(leaders=tuple(leaders)),
        )

    # -- the log

    def _leader(self, state: State, me: int, node: Node) -> Iterator[tuple[str, State]]:
        for other, peer in enumerate(state.nodes):
            if other != me and peer.role != FEEDS:
                yield from self._append(state, me, node, other, peer)
        yield from self._commit(state, me, node)
        if state.changes < self.bounds.changes and node.last < self.bounds.entries:
            yield from self._change(state, me, node)
        if state.writes < self.bounds.writes:
            written = node._replace(log=(*node.log, Entry(node.term, WRITE)))
            after = put(state, me, written)._replace(writes=state.writes + 1)
            yield f"{me + 1} appends a write", after
        latecomer = state.nodes[LATECOMER]
        if latecomer.role == FEEDS:
            yield from self._ask(state, node, latecomer)

    def _append(
        self, state: State, me: int, node: Node, other: int, peer: Node
    ) -> Iterator[tuple[str, State]]:
        """One message with the next entry that the peer lacks, and its answer."""
        if peer.term > node.term:
            after = _followed(node, peer.term)
            yield f"{other + 1} refuses the entries of {me + 1}", put(state, me, after)
            return
        if NODES[other] not in self.latest(node).members or peer.base > node.last:
            return
        peer = _followed(peer, node.term) if peer.term < node.term else peer
        peer = peer._replace(role=FOLLOWS, granted=0, matches=())
        verdict = None
        # What the leader steps back to, a rejection at a time, until the logs meet.
        for prev in range(min(node.last, peer.last), node.base - 1, -1):
            entries = node.log[prev - node.base :][:1]
            term = _term_at(state, node, prev)
            log = _Log(peer, _base_term(state, peer))
            try:
                verdict = judge_append(log, peer.commit, prev, term, entries, node.commit)
            except Diverged as error:
                raise Broken(f"committed entries stay: {error}") from None
            if not isinstance(verdict, Rejected):
                break
        if verdict is None or isinstance(verdict, Rejected):
            return
        kept = peer.log
        if verdict.truncate_from is not None:
            kept = peer.log[: verdict.truncate_from - 1 - peer.base]
        log_after = (*kept, *entries[verdict.skip :])
        follower = peer._replace(
            log=log_after, commit=verdict.commit, durable=peer.base + len(log_after)
        )
        matches = list(node.matches)
        matches[other] = max(matches[other], verdict.match)
        leader = node._replace(matches=tuple(matches))
        yield f"{me + 1} appends to {other + 1}", put(put(state, other, follower), me, leader)

    def _commit(self, state: State, me: int, node: Node) -> Iterator[tuple[str, State]]:
        own = node.last if self.bug == "acknowledge-unsynced" else node.durable
        index = quorum_index(
            (own if position == me else node.matches[position])
            if self.counts(state, node, position)
            else 0
            for position in range(len(NODES))
            if NODES[position] in self.latest(node).voters
        )
        if index <= node.commit:
            return
        if _term_at(state, node, index) != node.term and self.bug != "commit-former-term":
            return
        if node.base > len(state.decided):
            raise Broken(f"committed entries stay: {me + 1} is based on what is not committed")
        whole = state.decided[: node.base] + node.log[: index - node.base]
        both = min(len(whole), len(state.decided))
        if whole[:both] != state.decided[:both]:
            raise Broken(f"committed entries stay: {me + 1} commits something else up to {index}")
        decided = max(whole, state.decided, key=len)
        after = put(state, me, node._replace(commit=index))
        yield f"{me + 1} commits {index}", after._replace(decided=decided)

    def _crashed(self, state: State, me: int, node: Node) -> State:
        """What is not durable is lost; the commit index is known again from the next leader."""
        after = node._replace(
            role=FOLLOWS,
            log=node.log[: node.durable - node.base],
            commit=node.base,
            granted=0,
            matches=(),
            vote=ABSENT if self.bug == "forget-vote" else node.vote,
        )
        return put(state, me, after)._replace(crashes=state.crashes + 1)

    # -- configurations

    def _change(self, state: State, me: int, node: Node) -> Iterator[tuple[str, State]]:
        latest = self.latest(node)
        index = self.latest_index(node, node.last)
        first = next(
            node.base + position + 1
            for position, entry in enumerate(node.log)
            if entry.term == node.term and entry.payload == NO_OP
        )
        for what, proposed in _proposals(latest):
            if NODES[me] not in proposed.voters:
                continue
            try:
                check_change(
                    proposed,
                    latest_index=0 if self.bug == "two-changes" else index,
                    commit=node.commit,
                    first_index=0 if self.bug == "change-before-own-term" else first,
                    alive=NODES,
                    able=NODES,
                    force=False,
                )
            except MembershipRefused:
                continue
            after = node._replace(log=(*node.log, Entry(node.term, encode(proposed))))
            yield (
                f"{me + 1} appends: {what}",
                put(state, me, after)._replace(changes=state.changes + 1),
            )

    def latest(self, node: Node) -> Configuration:
        """The configuration in force by the node's log, committed or not."""
        return decoded(configuration_at(node, node.last))

    def latest_index(self, node: Node, upto: int) -> int:
        for position in range(upto - node.base - 1, -1, -1):
            if is_change(node.log[position]):
                return node.base + position + 1
        return node.base

    def _in_force(self, prefix: Sequence[Entry]) -> bytes:
        changes = [entry.payload for entry in prefix if is_change(entry)]
        return changes[-1] if changes else self._genesis

    # -- the replicant

    def _replicant(self, state: State, me: int, node: Node) -> Iterator[tuple[str, State]]:
        """It applies what any core has committed, an entry at a time, and becomes a core."""
        if any(core.role != FEEDS and core.commit > node.commit for core in state.nodes):
            yield (
                f"{me + 1} applies {node.commit + 1}",
                put(state, me, node._replace(commit=node.commit + 1)),
            )
        if node.asked is None:
            return
        index, sent = node.asked
        base = self._in_force(state.decided[: node.commit])
        if self.bug == "base-from-leader":
            base = sent
        elif node.commit < index or NODES[me] not in decoded(base).members:
            return
        core = Node(
            FOLLOWS,
            term=state.decided[node.commit - 1].term,
            base=node.commit,
            configuration=base,
            commit=node.commit,
            durable=node.commit,
        )
        yield f"{me + 1} becomes a core at {node.commit}", put(state, me, core)

    def _ask(self, state: State, node: Node, latecomer: Node) -> Iterator[tuple[str, State]]:
        index = self.latest_index(node, node.commit)
        committed = configuration_at(node, node.commit)
        if NODES[LATECOMER] not in decoded(committed).learners:
            return
        if latecomer.asked is not None and (
            self.bug == "base-from-leader" or latecomer.asked[0] >= index
        ):
            return
        after = latecomer._replace(asked=(index, committed))
        yield f"4 is asked to become a core as of {index}", put(state, LATECOMER, after)


# -- plain functions of a state


def is_change(entry: Entry) -> bool:
    return not entry.payload.startswith(PLAIN)


def put(state: State, position: int, node: Node) -> State:
    nodes = list(state.nodes)
    nodes[position] = node
    return state._replace(nodes=tuple(nodes))


def _followed(node: Node, term: int) -> Node:
    """It has met a higher term."""
    return node._replace(role=FOLLOWS, term=term, vote=ABSENT, granted=0, matches=())


def _base_term(state: State, node: Node) -> int:
    return state.decided[node.base - 1].term if node.base else 0


def _term_at(state: State, node: Node, index: int) -> int:
    return node.log[index - node.base - 1].term if index > node.base else _base_term(state, node)


def _last_term(state: State, node: Node) -> int:
    return _term_at(state, node, node.last)


def configuration_at(node: Node, index: int) -> bytes:
    for position in range(index - node.base - 1, -1, -1):
        if is_change(node.log[position]):
            return node.log[position].payload
    return node.configuration


def _shared(node: Node, decided: tuple[Entry, ...]) -> int:
    """How many entries of the node's log are committed ones."""
    count = 0
    for mine, theirs in zip(node.log, decided[node.base :], strict=False):
        if mine != theirs:
            break
        count += 1
    return count


@cache
def _proposals(now: Configuration) -> tuple[tuple[str, Configuration], ...]:
    """Every change that the rules of one node at a time allow."""
    found = []
    changes = [("add", add_learner), ("promote", promote), ("remove", remove)]
    for what, change in changes:
        for position, name in enumerate(NODES):
            try:
                found.append((f"{what} {position + 1}", change(now, name)))
            except MembershipRefused:
                continue
    return tuple(found)


_ORDER: Final = (0, 2, 1, 3)


def _exchange(state: State) -> State:
    """The state with core2 and core3 exchanged."""
    nodes = tuple(_exchanged_node(state.nodes[position]) for position in _ORDER)
    return state._replace(
        nodes=nodes,
        decided=_exchanged_log(state.decided),
        leaders=tuple(_place(leader) for leader in state.leaders),
    )


def _place(position: int) -> int:
    return position if position == ABSENT else _ORDER[position]


@cache
def _exchanged_log(log: tuple[Entry, ...]) -> tuple[Entry, ...]:
    return tuple(Entry(entry.term, _exchanged(entry.payload)) for entry in log)


@cache
def _exchanged_node(node: Node) -> Node:
    bits = node.granted
    return node._replace(
        vote=_place(node.vote),
        configuration=_exchanged(node.configuration),
        log=_exchanged_log(node.log),
        granted=bits & 0b1001 | (bits & 0b0010) << 1 | (bits & 0b0100) >> 1,
        matches=tuple(node.matches[position] for position in _ORDER) if node.matches else (),
        asked=None if node.asked is None else (node.asked[0], _exchanged(node.asked[1])),
    )


def _plain(state: State) -> tuple[object, ...]:
    """Comparable: no None in it."""
    nodes = tuple((*node[:-1], node.asked or (0, b"")) for node in state.nodes)
    return (nodes, *state[1:])
