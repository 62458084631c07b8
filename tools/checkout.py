"""The checkout that a tool belongs to, and a look at whether its code is what runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
#: Of the packages that a tool observes. All others may come from anywhere.
PREFIX: Final = "raftkv"
SHOWN: Final = 3


def require_own_modules(root: Path = ROOT) -> None:
    """Raise RuntimeError if a package of this checkout was loaded from elsewhere.

    An editable installation of another checkout supplies every module that this one does not have
    any more, so an import of a file that has moved succeeds, and runs the code of before.
    """
    others = sorted(
        f"{name} ({module.__file__})"
        for name, module in list(sys.modules.items())
        if name.startswith(PREFIX)
        and getattr(module, "__file__", None)
        and not Path(str(module.__file__)).is_relative_to(root)
    )
    if others:
        raise RuntimeError(
            f"{len(others)} modules do not belong to {root}, such as "
            f"{', '.join(others[:SHOWN])}: correct the imports, or install this checkout"
        )
