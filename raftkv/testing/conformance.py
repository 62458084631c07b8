"""`check_plugin`: whether a plugin's pure half keeps the contract (docs/plugin-contract.md, A11).

    def test_the_contract_is_kept() -> None:
        check_plugin(Locks)

It plays logs of chance: commands of nodes and of a client, nodes that start and are declared dead,
settings, time that passes, commands that come twice. Each log is judged by judging.py. A log that
breaks a rule is made as short as it can be while it still breaks this rule, and the error shows it.
All chance comes from `seed`: the same call plays the same logs.

`check_log` judges a log that another test has written.

What is ugly. Commands that only make sense after others (a protocol of five steps) are not always
reached by values of chance. A command that was never applied is an error, so that nobody believes
it was tested; `commands` lets an author help.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from raftkv.errors import Refused
from raftkv.plugin import Plugin, View
from raftkv.state.machine import Outcomes

from .elsewhere import Elsewhere, Made
from .judging import Checked, ContractBroken, Judge, Run, Tally
from .made_commands import CommandMaker
from .plugin_log import (
    CLIENT,
    CORES,
    NODES,
    Again,
    Batch,
    Down,
    Log,
    Player,
    Promoted,
    Sent,
    SetTo,
    Step,
    Up,
    Votes,
)

__all__ = ["Checked", "Commands", "ContractBroken", "check_log", "check_plugin"]

#: Gives a command by chance and by what the state shows; None: make one from its types.
Commands = Callable[[random.Random, View], msgspec.Struct | None]

# Attempts at making a log shorter. Each plays what is left of it.
SHORTER_MAX: Final = 300
# How many rows of a table commands are made from, and how often one looks.
LEARNED_ROWS: Final = 16
LEARN_EVERY: Final = 4
_SENDERS: Final = (*NODES, *NODES, CLIENT)
# How often a command is sent in one log, beside others.
_SHARES: Final = (0.1, 1, 1, 3)
# How far the clock moves from one step to the next.
_SOON_MS: Final = (0, 0, 1, 10, 100)
_LATER_MS: Final = (*_SOON_MS, *_SOON_MS, 1_000, 30_000, 600_000)


def check_plugin(
    plugin: Made,
    commands: Commands | None = None,
    *,
    beside: Sequence[Made] = (),
    settings: Mapping[str, Sequence[Any]] | None = None,
    by_hand: Collection[type[msgspec.Struct]] = (),
    unreached: Collection[type[msgspec.Struct]] = (),
    logs: int = 30,
    steps: int = 100,
    seed: int = 0,
) -> Checked:
    """Play `logs` logs of `steps` entries and raise `ContractBroken` at the first broken rule.

    `plugin` makes the plugin under test, `beside` those that it uses; a class will do, at the top
    of a module. `settings`: the values to be written, by key; those of other keys are made from
    their types. `by_hand`: commands that `commands` alone gives, because their sender promises
    something; none of them is made up. `unreached`: commands that no log need get applied. Raises
    ConfigError for a plugin that no node would load, ValueError for a setting or command that it
    does not have.
    """
    declared, tally = plugin(), Tally()
    _require_known(declared, settings or {}, {*by_hand, *unreached})
    made = [command for command in declared.commands if command not in by_hand]
    with Elsewhere([*beside, plugin]) as elsewhere:
        judge = Judge(plugin, beside, elsewhere)
        for number in range(logs):
            rng = random.Random(f"{seed}/{number}")
            author = _Author(declared, commands, made, settings or {}, rng)
            _play(judge, author, steps, tally, f"seed={seed}, log {number}")
    _all_reached(declared, tally, unreached)
    return tally.checked()


def check_log(
    plugin: Made, entries: Sequence[bytes | None], *, beside: Sequence[Made] = ()
) -> Checked:
    """Judge a log from its beginning: bodies as `encode_batch` makes them, None for no commands.

    For plugins whose tests write logs of their own. Raises `ContractBroken`.
    """
    with Elsewhere([*beside, plugin]) as elsewhere:
        tally = Tally()
        run = Judge(plugin, beside, elsewhere).run(tally)
        for body in entries:
            run.apply(body)
        run.end()
    return tally.checked()


def _require_known(
    plugin: Plugin[Any], settings: Mapping[str, Any], commands: Collection[type]
) -> None:
    keys = sorted(settings.keys() - {setting.key for setting in plugin.settings})
    names = sorted(each.__name__ for each in set(commands) - set(plugin.commands))
    if keys or names:
        raise ValueError(f"{plugin.name!r} does not declare {', '.join([*keys, *names])}")


def _play(judge: Judge, author: _Author, steps: int, tally: Tally, origin: str) -> None:
    """One log, judged. Raises ContractBroken with a short one."""
    try:
        trial = _Trial(judge, author.version, author.voters, tally)
    except ContractBroken as broken:
        text = f"{broken.what}\n  {origin}, while the nodes start"
        raise ContractBroken(broken.rule, text) from None
    try:
        for _ in range(steps):
            step = author.step(trial.view)
            author.saw(step, trial.play(step), trial.view)
        trial.run.end()
    except ContractBroken as broken:
        log = Log(author.version, author.voters, tuple(trial.steps))
        raise _shortest(judge, log, broken, origin) from None


class _Trial:
    """Steps that are played on a watched machine."""

    def __init__(
        self, judge: Judge, version: int, voters: bool, tally: Tally | None = None
    ) -> None:
        self.run: Run = judge.run(tally)
        self.steps: list[Step] = []
        self.player = Player(self.run.apply, self.run.machine, judge.name, version, voters)
        self.view = self.run.machine.view(judge.name)

    def play(self, step: Step) -> Outcomes:
        self.steps.append(step)
        return self.player.play(step)


def _broken_by(judge: Judge, log: Log) -> ContractBroken | None:
    """The rule that this log breaks."""
    try:
        trial = _Trial(judge, log.version, log.voters)
        for step in log.steps:
            trial.play(step)
        trial.run.end()
    except ContractBroken as broken:
        return broken
    return None


def _all_reached(plugin: Plugin[Any], tally: Tally, unreached: Collection[type]) -> None:
    missed = [
        f"{command.__name__} ({_codes(tally.refused[command.__name__])})"
        for command in plugin.commands
        if not tally.applied[command.__name__] and command not in unreached
    ]
    if missed:
        raise ContractBroken(
            "nothing was shown",
            f"no log applied {', '.join(missed)}. Give `commands` that lead there, more `logs`, or "
            f"name them in `unreached`",
        )


def _codes(refusals: Counter[str]) -> str:
    return ", ".join(f"{code} {count}" for code, count in refusals.most_common(4)) or "never sent"


def _shortest(judge: Judge, log: Log, broken: ContractBroken, origin: str) -> ContractBroken:
    """The error with a log from which nothing can be left out."""
    again = _broken_by(judge, log)
    if again is None or again.rule != broken.rule:
        return ContractBroken(
            broken.rule,
            f"{broken.what}\n  {origin}. It does not happen again when this log is played once "
            f"more: something is kept outside of the plugin's tables and object",
        )
    attempts, size = 0, max(1, len(log.steps) // 2)
    while attempts < SHORTER_MAX:
        gone = False
        for shorter in _without(log, size):
            attempts += 1
            found = _broken_by(judge, shorter)
            if found is not None and found.rule == broken.rule:
                log, broken, gone = shorter, found, True
                break
            if attempts == SHORTER_MAX:
                break
        if size == 1 and not gone:
            break
        if not gone:
            size //= 2
    return ContractBroken(broken.rule, f"{broken.what}\n  {origin}, made shorter:\n{log}")


def _without(log: Log, size: int) -> Iterator[Log]:
    """The log with so many steps less, from the last ones on; at 1 also with single commands less.

    The last ones first: what comes after the mistake plays no part in it.
    """
    steps = log.steps
    for end in range(len(steps), 0, -size):
        yield Log(log.version, log.voters, steps[: max(0, end - size)] + steps[end:])
    if size > 1:
        return
    for number, step in enumerate(steps):
        if isinstance(step, Batch) and len(step.sent) > 1:
            for each in range(len(step.sent)):
                fewer = Batch(step.sent[:each] + step.sent[each + 1 :], after_ms=step.after_ms)
                yield Log(log.version, log.voters, (*steps[:number], fewer, *steps[number + 1 :]))


class _Author:
    """Writes the steps of one log, by chance and by what was seen so far."""

    def __init__(
        self,
        plugin: Plugin[Any],
        commands: Commands | None,
        made: Sequence[type[msgspec.Struct]],
        settings: Mapping[str, Sequence[Any]],
        rng: random.Random,
    ) -> None:
        self._plugin = plugin
        self._commands = commands
        self._made = made
        self._settings = settings
        self._types = {setting.key: setting.type for setting in plugin.settings}
        self._rng = rng
        self._maker = CommandMaker(made, rng)
        # Each log has its own mixture (swarm testing): in some, what undoes others' work is rare.
        self._weights = [rng.choice(_SHARES) for _ in made]
        self._steps = 0
        # In half of the logs little happens but commands: there long protocols get to their end.
        self._calm = rng.random() < 0.5
        old = plugin.version > 1 and rng.random() < 0.3
        self.version = rng.randrange(1, plugin.version) if old else 0
        self.voters = rng.random() < 0.8
        for name in NODES:
            self._maker.learn(name, "node")

    def step(self, view: View) -> Step:
        rng = self._rng
        after_ms = rng.choice(_SOON_MS if self._calm else _LATER_MS)
        kind = rng.random()
        if kind < (0.95 if self._calm else 0.80):
            count = 1 if rng.random() < 0.7 else rng.randint(2, 4)
            sent = [self._sent(view) for _ in range(count)]
            return Batch(tuple(filter(None, sent)), after_ms=after_ms)
        kind = rng.random()
        if kind < 0.3:
            return Again(rng.randrange(8), after_ms=after_ms)
        if kind < 0.5:
            return Up(rng.choice(NODES), after_ms=after_ms)
        if kind < 0.6:
            return Down(rng.choice(NODES), after_ms=after_ms)
        if kind < 0.65:
            return Promoted(after_ms=after_ms)
        if kind < 0.8 or not self._types:
            return Votes(CORES[: rng.randint(1, 3)], after_ms=after_ms)
        return self._set_to(after_ms)

    def _sent(self, view: View) -> Sent | None:
        rng, sender = self._rng, ""
        command = None if self._commands is None else self._commands(rng, view)
        if command is None:
            if not self._made:
                return None
            [kind] = rng.choices(self._made, self._weights)
            command, sender = self._maker.make(kind)
        elif type(command) not in self._plugin.commands:
            raise TypeError(f"{command!r} is no command of the plugin {self._plugin.name!r}")
        else:
            # Raises what is wrong with it.
            msgspec.msgpack.decode(msgspec.msgpack.encode(command), type=type(command))
        return Sent(sender or rng.choice(_SENDERS), command)

    def _set_to(self, after_ms: int) -> SetTo:
        key = self._rng.choice(sorted(self._types))
        values = self._settings.get(key)
        if self._rng.random() < 0.3:
            return SetTo(key, None, after_ms=after_ms)
        value = self._maker.value(self._types[key]) if values is None else self._rng.choice(values)
        return SetTo(key, value, after_ms=after_ms)

    def saw(self, step: Step, outcomes: Outcomes, view: View) -> None:
        """Learn from what was applied and answered, and now and then from the rows."""
        learn = self._maker.learn
        if isinstance(step, Batch):
            for sent, (_, _, outcome) in zip(step.sent, outcomes, strict=True):
                if not isinstance(outcome, Refused):
                    learn(sent.command, "", sent.sender)
                    learn(outcome, "", sent.sender)
        self._steps += 1
        if self._steps % LEARN_EVERY:
            return
        learn(tuple(view.members.values()))
        learn((view.now, view.index))
        for spec in self._plugin.tables:
            reverse = self._rng.random() < 0.5
            for key, row in view.table(spec.name).scan(limit=LEARNED_ROWS, reverse=reverse):
                learn(key, spec.name)
                learn(row, spec.name)
