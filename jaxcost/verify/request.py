"""What a verification is asked to do, and what it gives back: the border between the command line and the run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol


def _silent(message: str) -> None:
    pass


@dataclass(frozen=True)
class VerifyRequest:
    """One run of `jaxcost verify`.

    `models` are MODEL texts as given; without any (and without a case file, suite, fuzz or replay) the default suite
    runs. `case_options` holds only the options given by flags, over `jaxcost.contracts.case.OPTION_NAMES`; they
    override those of `case_file`. `targets` are target texts, empty for all available. `fuzz` is the number of random
    cases, None for none. `record` and `replay` are folders, `observation` a bundle. `explain` is a row's key
    `counter[:scope][:phase]`. `progress` takes one line at a time, for standard error.
    """

    models: tuple[str, ...] = ()
    case_options: Mapping[str, Any] = field(default_factory=dict)
    case_file: Path | None = None
    targets: tuple[str, ...] = ()
    suite: str | None = None
    fuzz: int | None = None
    seed: int = 0
    observation: Path | None = None
    record: Path | None = None
    replay: Path | None = None
    failures: bool = False
    proofs: bool = False
    gates: bool = False
    explain: str | None = None
    strict: bool = False
    quiet: bool = False
    progress: Callable[[str], None] = _silent


class VerifyOutcome(Protocol):
    """What `jaxcost.verify.command.verify` returns, as far as the command line is concerned."""

    @property
    def exit_code(self) -> int:
        """0, or 1 where something is open, grown, refused or infeasible (with `strict`, also unmeasured)."""

    def to_dict(self) -> dict[str, Any]:
        """Return the body of the JSON document: `reports` and whatever else the run produced."""
