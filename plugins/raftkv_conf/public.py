"""The public names, imported when the first of them is used."""

from .api import CONF_BYTES_MAX, ConfApi
from .diff import HIDDEN, DiffReport, DiffRow, NodeValue
from .effects import Entry
from .errors import ConfError, InvalidValue, NotSet, TooMuchConf, UnknownPath
from .plugin import Conf

__all__ = [
    "CONF_BYTES_MAX",
    "HIDDEN",
    "Conf",
    "ConfApi",
    "ConfError",
    "DiffReport",
    "DiffRow",
    "Entry",
    "InvalidValue",
    "NodeValue",
    "NotSet",
    "TooMuchConf",
    "UnknownPath",
]
