"""What can be wrong with a change of the configuration. All of it is found on the initiator, before
anything was changed on any node.
"""

from __future__ import annotations

from typing import ClassVar

from raftkv.errors import RaftkvError

__all__ = ["ConfError", "InvalidValue", "NotSet", "TooMuchConf", "UnknownPath"]


class ConfError(RaftkvError):
    """The configuration was not changed, on no node."""

    code: ClassVar[str] = "conf_error"


class UnknownPath(ConfError):
    """Nobody has registered this path. The text names similar ones."""

    code = "conf_unknown_path"


class InvalidValue(ConfError):
    """The path has a type, or a check, that the value does not pass. The text says which."""

    code = "conf_invalid_value"


class TooMuchConf(ConfError):
    """The values of all paths together would exceed `CONF_BYTES_MAX`."""

    code = "conf_too_much"


class NotSet(ConfError):
    """The handler of the path failed on the node that tried it first, for another reason."""

    code = "conf_not_set"
