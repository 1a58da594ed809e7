"""Where the evidence rooms are.

`models/` (what is counted), `papers/` (what was published), `hardware/` (what it runs on), `verify/` (what is claimed)
and `hlo_dumps/` (what XLA said) are folders of files, not code. In a checkout they stand beside the package; in an
installed wheel they lie inside it, under `jaxcost/_data/`. The two are told apart by where this file is, never by the
working directory, so that `python -m jaxcost` gives the same answer from every folder.

    >>> import jaxcost.data
    >>> jaxcost.data.room("models").name
    'models'

Standard library only, and it imports no other part of the package.
"""

from __future__ import annotations

from pathlib import Path

ROOMS = ("models", "papers", "hardware", "verify", "hlo_dumps")

_PACKAGE = Path(__file__).resolve().parent
_INSTALLED = _PACKAGE / "_data"
_CHECKOUT = _PACKAGE.parent


def evidence_root() -> Path:
    """The folder that holds the rooms.

    An installed package looks inside itself only: a folder called `models` that happens to stand beside
    site-packages is not ours. A package without `_data` is a checkout (or an editable install of one).

    Raises:
        FileNotFoundError: neither place holds the rooms, that is, the installation is broken.
    """
    if _INSTALLED.is_dir():
        return _INSTALLED
    if (_CHECKOUT / "pyproject.toml").is_file():
        return _CHECKOUT
    raise FileNotFoundError(
        f"jaxcost's data is missing: neither {_INSTALLED} exists nor is {_CHECKOUT} a checkout of jaxcost. "
        "Install the package again (pip install --force-reinstall --no-deps jaxcost)."
    )


def room(name: str) -> Path:
    """The folder of one room (`ROOMS`).

    Raises:
        ValueError: there is no room of that name.
        FileNotFoundError: the installation is broken.
    """
    if name not in ROOMS:
        raise ValueError(f"no room is called {name!r}; the rooms are {', '.join(ROOMS)}")
    folder = evidence_root() / name
    if not folder.is_dir():
        raise FileNotFoundError(
            f"jaxcost's room {name}/ is missing: expected it at {folder}. Install the package again."
        )
    return folder
