"""identity.py: one URI names one node, and nothing else does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftkv.config import is_name
from raftkv.security.identity import CertificateIdentity, parse_uri, uri_of

NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}", fullmatch=True)


@given(NAMES, NAMES, st.booleans())
def test_what_is_written_is_read(cluster: str, name: str, replicant_only: bool) -> None:
    identity = CertificateIdentity(cluster, name, replicant_only)
    assert parse_uri(uri_of(identity)) == identity


@given(st.text(max_size=40) | NAMES.map(lambda name: f"raftkv://{name}"))
def test_any_other_text_names_nobody_or_comes_back_the_same(text: str) -> None:
    found = parse_uri("raftkv://" + text)
    if found is not None:
        assert uri_of(found) == "raftkv://" + text
        assert is_name(found.name)
        assert is_name(found.cluster)


@pytest.mark.parametrize(
    "uri",
    [
        "raftkv://orders",
        "raftkv://orders/",
        "raftkv:///a",
        "raftkv://orders/a/b",
        "raftkv://orders/a?role=core",
        "raftkv://orders/a?role=replicant?role=replicant",
        "raftkv://orders/a#b",
        "raftkv://orders/a\x00b",
        "raftkv://orders/a ",
        "https://orders/a",
        "RAFTKV://orders/a",
        "",
    ],
)
def test_what_names_no_node(uri: str) -> None:
    assert parse_uri(uri) is None
