"""When leases are due, against a dict that is searched through."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from raftkv.kv.dues import Dues, Identity

ONE, TWO = Identity(1000, 5), Identity(4000, 5)


def test_leases_come_in_the_order_in_which_they_are_due() -> None:
    dues = Dues()
    for lease, due_ms in ((7, 30), (8, 10), (9, 20)):
        dues.extend(lease, ONE, due_ms)
    assert dues.pop(9, 10) == []
    assert dues.pop(20, 1) == [8]
    assert dues.pop(100, 10) == [9, 7]
    assert dues.pop(100, 10) == []


def test_an_extension_counts_and_never_shortens() -> None:
    dues = Dues()
    dues.extend(1, ONE, 10)
    dues.extend(1, ONE, 50)
    dues.extend(1, ONE, 20)
    assert dues.due_ms(1, ONE) == 50
    assert dues.pop(49, 10) == []
    assert dues.pop(50, 10) == [1]


def test_what_was_popped_comes_again_only_when_it_is_put_back() -> None:
    dues = Dues()
    dues.extend(1, ONE, 10)
    assert dues.pop(10, 1) == [1]
    dues.extend(1, ONE, 30)
    assert dues.pop(100, 1) == []
    dues.put_back(1, 20)
    assert dues.pop(29, 1) == []
    assert dues.pop(30, 1) == [1]
    dues.put_back(1, 40)
    dues.put_back(1, 0)
    assert dues.pop(39, 1) == []
    assert dues.pop(40, 9) == [1]


def test_another_lease_of_the_same_id_does_not_inherit_the_extension() -> None:
    dues = Dues()
    dues.extend(1, ONE, 1000)
    dues.extend(1, TWO, 40)
    assert dues.due_ms(1, ONE) is None
    assert dues.due_ms(1, TWO) == 40
    assert dues.pop(40, 9) == [1]
    dues.put_back(1, 2000)
    assert dues.pop(1999, 9) == [], "the entry of the first one came up"


def test_a_forgotten_lease_never_comes() -> None:
    dues = Dues()
    dues.extend(1, ONE, 10)
    dues.forget(1)
    assert dues.due_ms(1, ONE) is None
    assert len(dues) == 0
    assert dues.pop(100, 9) == []
    dues.put_back(1, 0)
    assert dues.pop(100, 9) == []


Step = tuple[str, int, int]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["extend", "extend", "extend", "pop", "back", "forget", "again"]),
        st.integers(1, 4),
        st.integers(0, 60),
    ),
    max_size=60,
)


@given(STEPS)
def test_it_agrees_with_a_search_through_everything(steps: list[Step]) -> None:
    dues = Dues()
    due: dict[int, int] = {}
    popped: dict[int, int] = {}
    identity = {lease: Identity(0, lease) for lease in range(1, 5)}
    for word, lease, number in steps:
        if word == "extend":
            dues.extend(lease, identity[lease], number)
            for table in (due, popped):
                if lease in table:
                    table[lease] = max(table[lease], number)
            if lease not in due and lease not in popped:
                due[lease] = number
        elif word == "pop":
            expected = sorted((at, each) for each, at in due.items() if at <= number)
            found = dues.pop(number, 100)
            assert sorted(found) == sorted(each for _, each in expected)
            for each in found:
                popped[each] = due.pop(each)
        elif word == "back" and lease in popped:
            dues.put_back(lease, number)
            due[lease] = max(popped.pop(lease), number)
        elif word == "forget":
            dues.forget(lease)
            due.pop(lease, None)
            popped.pop(lease, None)
        elif word == "again":
            # Granted anew: nothing is known of it until it is extended.
            identity[lease] = Identity(identity[lease].due_ms + 1, lease)
            dues.extend(lease, identity[lease], number)
            popped.pop(lease, None)
            due[lease] = number
    remaining = [each for _, each in sorted((at, each) for each, at in due.items())]
    assert sorted(dues.pop(10**9, 100)) == sorted(remaining)
