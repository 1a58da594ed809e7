"""Figures as functions of other figures: one declaration each, from which value, unknowns and dependencies follow.

A figure is a function. Its name is the figure's, its parameters name the assumptions and figures that it follows from:

    @figure("budget", "accelerator-hours", scope="allocation")
    def accelerator_hours(devices, days):
        \"\"\"Hours that the allocation pays for.\"\"\"
        return devices * days * 24

So the functions run on exact fractions, and on symbols where a formula is asked for. A parameter without a value makes
the figure unknown, with the names of what was not given; a parameter whose default is None is optional. A figure that
cannot be had for another reason returns `Unknown`. A parameter `each_x` is the tuple of `x` over the stages.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

Compute = Callable[..., Any]


@dataclass(frozen=True)
class Unknown:
    """A figure without a value, and why; unknown is not zero."""

    reason: str


@dataclass(frozen=True)
class Figure:
    """One declared figure: what it is, in which unit, for whom, by which convention and without what."""

    name: str
    section: str
    unit: str
    what: str
    scope: str
    convention: str
    omitted: str
    staged: bool
    compute: Compute

    @cached_property
    def needs(self) -> tuple[str, ...]:
        """The names it follows from."""
        return tuple(inspect.signature(self.compute).parameters)

    @cached_property
    def optional(self) -> frozenset[str]:
        """Those it can do without."""
        parameters = inspect.signature(self.compute).parameters.items()
        return frozenset(name for name, item in parameters if item.default is not inspect.Parameter.empty)


FIGURES: dict[str, Figure] = {}


def figure(
    section: str, unit: str, *, scope: str = "run", convention: str = "", omitted: str = "", staged: bool = False
) -> Callable[[Compute], Compute]:
    """Declare a function as a figure; the first line of its docstring says what it is.

    Args:
        section: where the page shows it.
        unit: of its value.
        scope: whose it is: the allocation, the run, a stage, a step, a device.
        convention: how it is counted.
        omitted: what it leaves out.
        staged: it has a value for every stage.
    """

    def declare(compute: Compute) -> Compute:
        name = getattr(compute, "__name__", "")
        if name in FIGURES:
            raise ValueError(f"two figures are called {name}")
        what = (compute.__doc__ or "").strip().splitlines()[0].rstrip(".")
        FIGURES[name] = Figure(name, section, unit, what, scope, convention, omitted, staged, compute)
        return compute

    return declare


@dataclass
class Sheet:
    """The values of all figures over assumptions: `given` holds those of the run, `stages` those of each stage."""

    given: Mapping[str, Any]
    stages: Mapping[str, Mapping[str, Any]]
    figures: Mapping[str, Figure] = field(default_factory=lambda: FIGURES)

    def __post_init__(self) -> None:
        self._known: dict[tuple[str, str], Any] = {}

    def value(self, name: str, stage: str = "") -> Any:
        """Return the value of a figure or an assumption, or an `Unknown`.

        Raises:
            KeyError: nothing has this name.
        """
        key = (name, stage if self._is_staged(name) else "")
        if key not in self._known:
            self._known[key] = self._computed(*key)
        return self._known[key]

    def known(self, name: str, stage: str = "") -> Any:
        """Return the value, or None where it is unknown."""
        found = self.value(name, stage)
        return None if isinstance(found, Unknown) else found

    def rests_on(self, name: str) -> tuple[str, ...]:
        """Return the assumptions that a figure follows from, through all figures between, in order of first use."""
        found: dict[str, None] = {}

        def visit(label: str) -> None:
            label = label.removeprefix("each_")
            if label in self.figures:
                for need in self.figures[label].needs:
                    visit(need)
            else:
                found[label] = None

        visit(name)
        return tuple(found)

    def _is_staged(self, name: str) -> bool:
        if name in self.figures:
            return self.figures[name].staged
        return any(name in values for values in self.stages.values())

    def _computed(self, name: str, stage: str) -> Any:
        if name.startswith("each_"):
            values = [self.value(name.removeprefix("each_"), label) for label in self.stages]
            return next((item for item in values if isinstance(item, Unknown)), tuple(values))
        if name not in self.figures:
            found = self.stages[stage][name] if stage else self.given[name]
            return Unknown(f"not given: {name}") if found is None else found
        item = self.figures[name]
        arguments = {need: self.value(need, stage) for need in item.needs}
        missing = [
            value for need, value in arguments.items() if isinstance(value, Unknown) and need not in item.optional
        ]
        if missing:
            return Unknown(_joined(value.reason for value in missing))
        return item.compute(**{need: None if isinstance(v, Unknown) else v for need, v in arguments.items()})


def _joined(reasons: Iterable[str]) -> str:
    """Return reasons each once, those of assumptions that were not given as one list."""
    parts = dict.fromkeys(part for reason in reasons for part in reason.split("; "))
    absent: dict[str, None] = {}
    for part in parts:
        if part.startswith("not given: "):
            absent.update(dict.fromkeys(part.removeprefix("not given: ").split(", ")))
    rest = [part for part in parts if not part.startswith("not given: ")]
    return "; ".join(([f"not given: {', '.join(absent)}"] if absent else []) + rest)
