"""Cluster-wide configuration on top of cluster calls.

    from raftkv_conf import Conf
    conf = node.plugin(Conf)                      # plugins has "calls" and "conf", as by default
    conf.handler("smtp.port", int, default=25, apply=reconnect, doc="Port of the mail server.")
    await conf.set("smtp.port", 587)              # or: raftkv conf set smtp.port 587

docs/conf.md explains it. The public names are those below; everything else may change.
"""

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
