"""The checker against recorded histories, against brute force, and against planted faults."""

from __future__ import annotations

import itertools
import random
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftkv.testing.histories import Operation
from raftkv.testing.linearizability import Budget, Verdict, check, check_per_key
from raftkv.testing.models import (
    REFUSED,
    CasRegister,
    KeyValueStore,
    Model,
    Product,
    Register,
)
from tests.testing.recorded import read_history, verdicts

# Recorded histories ------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "linearizable"), list(verdicts()))
def test_recorded_history(name: str, linearizable: bool) -> None:
    history = read_history(name)
    if name.startswith("kv/"):
        found = list(check_per_key(history, KeyValueStore(initial="")).values())
    else:
        found = [check(history, CasRegister())]
    assert len(history) > 50
    assert all(verdict.outcome != "unknown" for verdict in found)
    assert all(verdict.outcome == "linearizable" for verdict in found) is linearizable


# Brute force -------------------------------------------------------------------------------------


def brute_force(history: Sequence[Operation], model: Model) -> bool:
    """Tries every permutation of every choice of the unknown operations. No rule, no memory."""
    known = [one for one in history if one.outcome == "ok"]
    unknown = [one for one in history if one.outcome == "unknown"]
    for count in range(len(unknown) + 1):
        for chosen in itertools.combinations(unknown, count):
            for order in itertools.permutations([*known, *chosen]):
                if in_time(order) and answers(order, model):
                    return True
    return False


def in_time(order: Sequence[Operation]) -> bool:
    return not any(
        later.end is not None and later.end < earlier.start
        for earlier, later in itertools.combinations(order, 2)
    )


def answers(order: Sequence[Operation], model: Model) -> bool:
    state = model.initial
    for operation in order:
        state = model.step(state, operation)
        if state is REFUSED:
            return False
    return True


VALUES = st.integers(1, 3)
MAYBE = st.none() | VALUES


@st.composite
def operations(draw: st.DrawFn, kinds: Sequence[str], keys: int = 1) -> Operation:
    op = draw(st.sampled_from(kinds))
    given: Hashable = None
    output: Hashable = None
    if op in ("get", "read"):
        output = draw(MAYBE)
    elif op == "cas":
        given, output = (draw(MAYBE), draw(MAYBE)), draw(st.booleans())
    elif op == "delete":
        output = draw(st.sampled_from([None, True, False]))
    else:
        given = draw(VALUES)
    start = draw(st.integers(0, 8))
    unknown = draw(st.integers(0, 3)) == 0
    end = None if unknown else start + draw(st.integers(0, 4))
    key = draw(st.integers(1, keys))
    outcome: Any = "unknown" if unknown else "ok"
    return Operation("p", op, key, given, None if unknown else output, start, end, outcome)


def texts(history: Sequence[Operation]) -> list[Operation]:
    """Appending needs text, and so do the gets that see it."""
    return [
        msgspec.structs.replace(
            one,
            input=str(one.input) if isinstance(one.input, int) else one.input,
            output=str(one.output) if type(one.output) is int else one.output,
        )
        for one in history
    ]


@settings(max_examples=400)
@given(st.lists(operations(["get", "put", "delete", "cas"]), max_size=6))
def test_the_search_agrees_with_brute_force(history: list[Operation]) -> None:
    agrees(history, KeyValueStore())


@settings(max_examples=150)
@given(st.lists(operations(["get", "put", "append", "delete"]), max_size=6))
def test_the_search_agrees_with_brute_force_on_appends(history: list[Operation]) -> None:
    agrees(texts(history), KeyValueStore())


@settings(max_examples=150)
@given(st.lists(operations(["read", "write", "cas"]), max_size=6), MAYBE)
def test_the_search_agrees_with_brute_force_on_registers(
    history: list[Operation], initial: int | None
) -> None:
    agrees(history, CasRegister(initial))
    agrees([one for one in history if one.op != "cas"], Register(initial))


def agrees(history: Sequence[Operation], model: Model) -> None:
    expected = "linearizable" if brute_force(history, model) else "violation"
    assert check(history, model).outcome == expected


def test_many_small_histories_agree_with_brute_force() -> None:
    """Hypothesis likes simple histories; these are dense ones, half of their puts unknown."""
    found = {"linearizable": 0, "violation": 0}
    for seed in range(1_500):
        history = dense_history(random.Random(seed))
        expected = "linearizable" if brute_force(history, KeyValueStore()) else "violation"
        assert check(history, KeyValueStore()).outcome == expected, f"seed {seed}"
        found[expected] += 1
    assert min(found.values()) > 300, found


def dense_history(rng: random.Random) -> list[Operation]:
    history = []
    for _ in range(6):
        op = rng.choice(["get", "get", "put", "cas", "append", "delete"])
        unknown = op != "get" and rng.random() < 0.5
        given: Any = rng.choice("ab") if op in ("put", "append") else None
        output: Any = rng.choice([None, "a", "b", "ab", "ba"]) if op == "get" else None
        if op == "cas":
            given, output = (rng.choice("ab"), rng.choice(["a", "b", None])), rng.random() < 0.5
        start = rng.randrange(8)
        history.append(
            Operation(
                *("p", op, "k", given, None if unknown else output, start),
                *((None, "unknown") if unknown else (start + rng.randrange(6), "ok")),
            )
        )
    return history


# Longer histories, recorded from a store that is linearizable by construction --------------------


def recorded_run(
    rng: random.Random,
    count: int,
    clients: int,
    keys: int = 1,
    unknown: float = 0.0,
    values: int = 1_000_000,
) -> list[Operation]:
    """Clients call in random order; each operation takes effect at one moment in between."""
    store: dict[int, Any] = {}
    pending: dict[int, tuple[Operation, Any, bool]] = {}
    done: list[Operation] = []
    late: list[Operation] = []
    now = 0
    while len(done) < count:
        now += 1
        client = rng.randrange(clients)
        if client not in pending:
            op = rng.choice(["get", "get", "put", "put", "cas", "delete"])
            key = rng.randrange(keys)
            given: Any = rng.randrange(values) if op == "put" else None
            if op == "cas":
                given = (store.get(key), rng.randrange(values))
            pending[client] = (Operation(client, op, key, given, start=now), None, False)
            continue
        operation, output, applied = pending.pop(client)
        if not applied and rng.random() < unknown and operation.op != "get":
            done.append(msgspec.structs.replace(operation, outcome="unknown"))
            late.append(operation)
        elif not applied:
            pending[client] = (operation, effect(store, operation), True)
        else:
            done.append(msgspec.structs.replace(operation, output=output, end=now))
        if late and rng.random() < 0.2:
            effect(store, late.pop(rng.randrange(len(late))))
    unanswered = [operation for operation, _, _ in pending.values()]
    return done + [msgspec.structs.replace(one, outcome="unknown") for one in unanswered]


def effect(store: dict[int, Any], operation: Operation) -> Any:
    key, old = operation.key, store.get(operation.key)
    if operation.op == "get":
        return old
    if operation.op == "put":
        store[key] = operation.input
        return None
    if operation.op == "delete":
        return store.pop(key, None) is not None
    expected, new = operation.input
    if old == expected:
        store[key] = new
    return old == expected


@pytest.mark.parametrize("values", [3, 1_000_000], ids=["few values", "distinct values"])
@pytest.mark.parametrize("unknown", [0.0, 0.02])
def test_a_long_history_of_one_key(values: int, unknown: float) -> None:
    history = recorded_run(random.Random(1), 4_000, clients=10, unknown=unknown, values=values)
    verdict = check(history, KeyValueStore())
    assert verdict.outcome == "linearizable"
    # The search walks nearly straight ahead: its cost is not that of a blind one.
    assert verdict.steps < 100 * len(history)


def test_a_long_history_of_many_keys() -> None:
    history = recorded_run(random.Random(2), 20_000, clients=32, keys=100, unknown=0.01)
    found = check_per_key(history, KeyValueStore())
    assert len(found) == 100
    assert {verdict.outcome for verdict in found.values()} == {"linearizable"}


@pytest.mark.parametrize("unknown", [0.0, 0.02])
def test_a_corrupted_history_is_refuted(unknown: float) -> None:
    """A get that answers what was never put, or what was overwritten long ago."""
    rng = random.Random(3)
    for _ in range(5):
        history = recorded_run(rng, 1_000, clients=8, unknown=unknown)
        gets = [n for n, one in enumerate(history) if one.op == "get" and one.outcome == "ok"]
        first = next(n for n in gets[len(gets) // 3 :] if history[n].output is not None)
        last = gets[-1]
        never = msgspec.structs.replace(history[last], output=-1)
        stale = msgspec.structs.replace(history[last], output=history[first].output)
        for wrong in (never, stale):
            if wrong.output == history[last].output:
                continue
            verdict = check([*history[:last], wrong, *history[last + 1 :]], KeyValueStore())
            assert verdict.outcome == "violation"
            assert verdict.violation is not None
            assert verdict.violation.culprit == wrong


@settings(max_examples=60)
@given(st.lists(operations(["get", "put", "cas", "delete"], keys=3), max_size=9))
def test_checking_each_key_apart_equals_checking_the_whole(history: list[Operation]) -> None:
    apart = {verdict.outcome for verdict in check_per_key(history, KeyValueStore()).values()}
    whole = check(history, Product(KeyValueStore())).outcome
    assert whole == ("violation" if "violation" in apart else "linearizable")


def test_checking_each_key_apart_equals_checking_the_whole_of_a_run() -> None:
    for seed in range(6):
        history = recorded_run(random.Random(seed), 60, clients=5, keys=4)
        wrong = msgspec.structs.replace(
            next(one for one in history if one.op == "get"), output="never put"
        )
        assert check(history, Product(KeyValueStore())).outcome == "linearizable"
        assert check([*history, wrong], Product(KeyValueStore())).outcome == "violation"
        apart = check_per_key([*history, wrong], KeyValueStore())
        assert [key for key, v in apart.items() if v.outcome == "violation"] == [wrong.key]


# Outcomes ----------------------------------------------------------------------------------------


def put(value: str, start: int, end: int | None, **changes: Any) -> Operation:
    return Operation("a", "put", "k", value, None, start, end, **changes)


def get(value: str | None, start: int, end: int, process: str = "b") -> Operation:
    return Operation(process, "get", "k", None, value, start, end)


def outcome(*history: Operation) -> str:
    return check(history, KeyValueStore()).outcome


def test_an_unknown_put_may_take_effect_at_any_later_time_once() -> None:
    lost = put("x", 0, None, outcome="unknown")
    assert outcome(lost, get(None, 1, 2)) == "linearizable"
    assert outcome(lost, get("x", 1, 2)) == "linearizable"
    assert outcome(lost, get(None, 1, 2), put("y", 3, 4), get("x", 5, 6)) == "linearizable"
    assert outcome(lost, get("x", 1, 2), put("y", 3, 4), get("x", 5, 6)) == "violation"


def test_an_unknown_put_does_not_take_effect_before_it_was_asked_for() -> None:
    assert outcome(get("x", 0, 1), put("x", 2, None, outcome="unknown")) == "violation"
    assert outcome(get("x", 0, 2), put("x", 2, None, outcome="unknown")) == "linearizable"


def test_a_put_that_was_not_applied_must_not_be_seen() -> None:
    refused = put("x", 0, 1, outcome="not_applied")
    assert outcome(refused, get(None, 2, 3)) == "linearizable"
    assert outcome(refused, get("x", 2, 3)) == "violation"


def test_equal_stamps_are_concurrent() -> None:
    assert outcome(put("x", 0, 5), get(None, 5, 6)) == "linearizable"
    assert outcome(put("x", 0, 5), get(None, 6, 7)) == "violation"


def test_a_stale_read_after_a_fresh_one() -> None:
    """Both are concurrent with the put, but not with each other."""
    slow = put("x", 0, 10)
    assert outcome(slow, get("x", 1, 2), get(None, 2, 3)) == "linearizable"
    assert outcome(slow, get("x", 1, 2), get(None, 3, 4)) == "violation"


def test_a_plain_contradiction_needs_no_search() -> None:
    """Out of thin air, before it was put, after it was overwritten, two values at one time."""
    for history in (
        [get("x", 0, 1)],
        [get("x", 0, 1), put("x", 2, 3)],
        [put("x", 0, 1), put("y", 2, 3), get("x", 4, 5)],
        [put("x", 0, 9), put("y", 0, 9), *(get(v, 20 + n, 20 + n) for n, v in enumerate("xyxy"))],
    ):
        verdict = check(history, KeyValueStore())
        assert (verdict.outcome, verdict.steps) == ("violation", 0)


def test_an_empty_history_is_linearizable() -> None:
    assert outcome() == "linearizable"
    assert check_per_key([], KeyValueStore()) == {}


# Budgets -----------------------------------------------------------------------------------------


def hard_history() -> list[Operation]:
    """Appends all at once, and a get that saw one character too many: all orders must be tried."""
    letters = "abcdefghijklmnopqr"
    appends = [Operation(c, "append", "k", c, None, 0, 100) for c in letters]
    return [*appends, get(letters[::-1] + "z", 101, 102)]


@pytest.mark.parametrize("limit", ["steps_max", "configurations_max"])
def test_a_budget_that_is_used_up_gives_no_verdict(limit: str) -> None:
    verdict = check(hard_history(), KeyValueStore(), Budget(**{limit: 2_000}))
    assert (verdict.outcome, verdict.limit, verdict.violation) == ("unknown", limit, None)
    assert max(verdict.steps if limit == "steps_max" else verdict.configurations, 0) <= 2_001


def test_a_budget_of_seconds_asks_the_clock() -> None:
    ticks = itertools.count()
    budget = Budget(seconds_max=2.5)
    verdict = check(hard_history(), KeyValueStore(), budget, clock=lambda: float(next(ticks)))
    assert (verdict.outcome, verdict.limit) == ("unknown", "seconds_max")
    assert verdict.steps == 3 * 4096


# Explanations ------------------------------------------------------------------------------------


def test_an_explanation_is_short_and_names_the_culprit() -> None:
    history = [
        Operation("c1", "put", "k", 1, None, 10, 20),
        Operation("c2", "put", "k", 2, None, 30, 60),
        Operation("c3", "get", "k", None, 2, 40, 50),
        Operation("c1", "get", "k", None, 1, 70, 80),
        Operation("c2", "cas", "k", (1, 3), True, 75, 90),
        Operation("c4", "put", "k", 7, None, 100, 110),
    ]
    assert explained(check(history, KeyValueStore())) == [
        "not linearizable: the first 3 answers fit together",
        "an order:",
        "      1 |<->.....................| [c1] put 1",
        "      2 |.....<------>...........| [c2] put 2",
        "      3 |.......<-->.............| [c3] get: 2",
        "the state is then 2; the next answer fits neither this order nor any other:",
        "      x |...............<---->...| [c1] get: 1",
        "what else was asked for by then is of no help:",
        "      ? |.................<----->| [c2] cas 1 -> 3: True",
    ]


def explained(verdict: Verdict) -> list[str]:
    assert verdict.violation is not None
    return verdict.violation.text().splitlines()


def test_the_culprit_is_the_first_answer_that_does_not_fit() -> None:
    """Whatever comes later, and however often it goes wrong again."""
    rng = random.Random(6)
    history = recorded_run(rng, 300, clients=6)
    gets = [one for one in history if one.op == "get" and one.outcome == "ok"]
    wrong = {id(one) for one in gets[len(gets) // 2 :: 5]}
    broken = [
        msgspec.structs.replace(one, output="foreign") if id(one) in wrong else one
        for one in history
    ]
    first = min((one for one in broken if one.output == "foreign"), key=lambda one: one.end or 0)
    violation = check(broken, KeyValueStore()).violation
    assert violation is not None
    assert (violation.culprit, violation.exact) == (first, True)
    # What is said to fit does fit.
    assert in_time(violation.order)
    assert violation.answers == sum(
        one.outcome == "ok" and (one.end or 0) < (first.end or 0) for one in broken
    )


def test_an_explanation_of_a_long_history_stays_short() -> None:
    history = recorded_run(random.Random(5), 3_000, clients=30)
    wrong = get("x" * 5_000, 10_000_000, 10_000_001)
    lines = explained(check([*history, wrong], KeyValueStore()))
    assert len(lines) < 30
    assert max(len(line) for line in lines) < 200


# Bad input ---------------------------------------------------------------------------------------


def nonsense() -> Iterator[tuple[Operation, str]]:
    yield put("x", 5, 4), "ends before it starts"
    yield put("x", 5, None), "has no end"
    yield put("x", 0, 1, outcome="perhaps"), "unknown outcome"
    yield Operation("a", "increment", "k", 1, None, 0, 1), "knows no operation 'increment'"
    yield Operation("a", "cas", "k", 1, True, 0, 1), "is not \\(expected, new\\)"


@pytest.mark.parametrize(("operation", "message"), list(nonsense()))
def test_rows_that_make_no_sense_are_named(operation: Operation, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check([operation], KeyValueStore())


def test_a_register_has_no_compare_and_set() -> None:
    cas = Operation("a", "cas", "k", (None, 1), True, 0, 1)
    assert check([cas], CasRegister()).outcome == "linearizable"
    with pytest.raises(ValueError, match="it knows read, write"):
        check([cas], Register())
