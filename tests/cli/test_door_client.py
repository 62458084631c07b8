"""One request of the command line to a door: what cannot be sent is told before anything is."""

from __future__ import annotations

import pytest

from raftkv.cli.door_client import request
from raftkv.errors import ConfigError


def test_an_argument_that_is_no_text_is_the_callers_mistake() -> None:
    """A shell passes any bytes; Python makes lone surrogates of those that are no UTF-8."""
    name = b"\xff".decode("utf-8", "surrogateescape")
    with pytest.raises(ConfigError, match="no valid UTF-8"):
        request("http://127.0.0.1:1", "POST", "/v1/x", {"name": name})
