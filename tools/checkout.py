"""The checkout that a tool belongs to, and a look at whether its code is what runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
#: Of the packages that a tool observes. All others may come from anywhere.
PREFIX: Final = "raftkv"
#: The folders of a checkout that have such packages.
HOMES: Final = ("", "plugins")
SHOWN: Final = 3


def require_own_modules(root: Path = ROOT) -> None:
    """Raise RuntimeError if a package of this checkout was loaded from elsewhere.

    An editable installation of another checkout supplies every module that this one does not have
    any more, so an import of a file that has moved succeeds, and runs the code of before. So does
    a copy of a package that is installed in an environment below this checkout.
    """
    others = sorted(
        f"{name} ({module.__file__})"
        for name, module in list(sys.modules.items())
        if name.startswith(PREFIX)
        and getattr(module, "__file__", None)
        and not _is_own(name, Path(str(module.__file__)), root)
    )
    if others:
        raise RuntimeError(
            f"{len(others)} modules do not belong to {root}, such as "
            f"{', '.join(others[:SHOWN])}: correct the imports, or install this checkout"
        )


def _is_own(name: str, file: Path, root: Path) -> bool:
    package = name.partition(".")[0]
    return any(file.is_relative_to(root / home / package) for home in HOMES)
