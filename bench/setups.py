"""The files that processes of a benchmark are started with, readable for another revision's code.

A field that has its default is left out. So a revision that lacks a newer field reads the file as
well, and one with another default runs with its own.
"""

from __future__ import annotations

from typing import Any

import msgspec

__all__ = ["encoded"]


def encoded(setup: msgspec.Struct) -> bytes:
    """The JSON of a setup without the fields that have their defaults."""
    return msgspec.json.encode(_lean(setup))


def _lean(value: Any) -> Any:
    if isinstance(value, msgspec.Struct):
        return {
            field.encode_name: _lean(getattr(value, field.name))
            for field in msgspec.structs.fields(value)
            if getattr(value, field.name) != _default(field)
        }
    if isinstance(value, dict):
        return {name: _lean(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_lean(each) for each in value]
    return msgspec.to_builtins(value)


def _default(field: msgspec.structs.FieldInfo) -> Any:
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return field.default
