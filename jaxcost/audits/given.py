"""What a caller gives beside the program: axes of a mesh and trips of loops, checked before anything is read."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from jaxcost.contracts.errors import Problem, RejectedError, reject

_MESH = "write mesh={'data': 2, 'model': 4} in Python, --mesh data=2,model=4 at the terminal"
_TRIPS = "write trips={'while.5': 4} in Python, --trips while.5=4 at the terminal"


def checked_mesh(mesh: Any) -> dict[str, int] | None:
    """Return the axes of a mesh, None where none is given (no axis is a mesh too).

    Raises:
        RejectedError: it is no mapping of names to sizes of 1 or more.
    """
    return _checked("mesh", mesh, 1, "an axis has a name and a size of 1 or more", _MESH)


def checked_trips(trips: Any) -> dict[str, int] | None:
    """Return the trips of loops by instruction name, None where none are given.

    Raises:
        RejectedError: they are no mapping of names to counts of 0 or more.
    """
    return _checked("trips", trips, 0, "a loop has a name and a trip count of 0 or more", _TRIPS)


def of_devices(mesh: Mapping[str, int], devices: int) -> None:
    """Refuse a mesh over another number of devices than the module has.

    Raises:
        RejectedError: the product of its axes is another.
    """
    if prod(mesh.values()) != devices:
        text = ",".join(f"{name}={size}" for name, size in mesh.items())
        rule = f"has {prod(mesh.values())} devices, and the module is for {devices}"
        raise reject("mesh", text, rule, "give axes of as many devices, or leave the mesh out")


def _checked(name: str, given: Any, least: int, rule: str, remedy: str) -> dict[str, int] | None:
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise reject(name, given, "is no mapping of names to numbers", remedy)
    problems = [
        Problem(f"{name}.{key}", value, rule, remedy)
        for key, value in given.items()
        if not isinstance(key, str) or not key or type(value) is not int or not least <= value < 2**63
    ]
    if problems:
        raise RejectedError(problems)
    return dict(given)
