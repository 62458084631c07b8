"""Comparing what nodes tell of their configuration."""

from __future__ import annotations

import msgspec

from raftkv_conf.diff import HIDDEN, Listing, Told, compare, digest
from raftkv_conf.effects import Source

SALT = b"0123456789abcdef"


def told(
    path: str,
    value: object,
    stored: object = ...,
    source: Source = "set",
    secret: bool = False,
    salt: bytes = SALT,
) -> Told:
    encoded = msgspec.json.encode(value)
    kept = encoded if stored is ... else None if stored is None else msgspec.json.encode(stored)
    shown = b"" if secret else encoded
    return Told(path, shown, digest(encoded, salt), digest(kept, salt), source, secret)


def test_equal_nodes_have_no_rows() -> None:
    listing = Listing(3, (told("a.b", 1),))
    report = compare({"n1": listing, "n2": listing}, {})
    assert report.consistent
    assert report.nodes == {"n1": 3, "n2": 3}
    assert not compare({"n1": listing}, {"n2": "it is down"}).consistent


def test_a_value_that_one_lacks_or_has_otherwise_is_a_row() -> None:
    one = Listing(3, (told("a.b", 1), told("a.c", 1), told("a.d", 1)))
    two = Listing(2, (told("a.b", 2), told("a.d", 1)))
    report = compare({"n1": one, "n2": two}, {})
    assert [(row.path, row.cause) for row in report.rows] == [("a.b", "stored"), ("a.c", "stored")]
    assert [each.value for each in report.rows[0].values] == [1, 2]
    lacking = report.rows[1].values[1]
    assert (lacking.value, lacking.digest, lacking.source) == (None, "", "default")


def test_a_local_value_is_a_row_of_another_cause_even_if_it_is_the_same() -> None:
    one = Listing(3, (told("a.b", 1),))
    for value in (1, 2):
        two = Listing(3, (told("a.b", value, stored=1, source="local"),))
        [row] = compare({"n1": one, "n2": two}, {}).rows
        assert (row.cause, row.values[1].source) == ("local", "local")
    # Where nothing was set, a local value is all there is.
    alone = Listing(3, (told("a.b", 5, stored=None, source="local"),))
    [row] = compare({"n1": Listing(3, ()), "n2": alone}, {}).rows
    assert row.cause == "local"


def test_a_secret_of_one_node_is_hidden_on_all() -> None:
    one = Listing(3, (told("a.b", "hunter2", secret=True),))
    # It does not know the handler, so it does not know that this is a secret.
    two = Listing(3, (told("a.b", "hunter3"),))
    report = compare({"n1": one, "n2": two}, {})
    assert [each.value for each in report.rows[0].values] == [HIDDEN, HIDDEN]
    assert "hunter" not in str(report)
    first, second = report.rows[0].values
    assert first.digest != second.digest


def test_digests_are_of_one_report() -> None:
    assert digest(b"1", SALT) == digest(b"1", SALT) != digest(b"2", SALT)
    assert digest(b"1", SALT) != digest(b"1", SALT[::-1])
    assert digest(None, SALT) == b""
