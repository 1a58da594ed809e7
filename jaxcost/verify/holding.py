"""How properties are held against cases: the table of them, and where they get their predictions from.

A property is a function of one case that raises AssertionError. It asks for ledgers through `ledger` and `totals`, so
that a prediction with a planted fault can be put in the place of the real one (`predicting_with`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from jaxcost.contracts.architecture import Architecture
from jaxcost.contracts.case import Case, build_case
from jaxcost.prediction import ledgers
from jaxcost.prediction.program import program
from jaxcost.prediction.rows import Ledger
from jaxcost.verify.strategies import written_options

Check = Callable[[Case], None]


@dataclass(frozen=True)
class Property:
    """A named claim about cases. `phases` are the workload phases it speaks about."""

    name: str
    claim: str
    check: Check
    phases: tuple[str, ...]


PROPERTIES: dict[str, Property] = {}


def declares(claim: str, *phases: str) -> Callable[[Check], Check]:
    """Register a property under the name of its function; without phases it speaks about all."""

    def register(check: Check) -> Check:
        PROPERTIES[check.__name__] = Property(check.__name__, claim, check, phases or ("training", "prefill", "decode"))
        return check

    return register


def broken(case: Case, names: Iterable[str] | None = None) -> list[tuple[str, str]]:
    """Return (property, message) for every property a case breaks."""
    found = []
    token = _MEMORY.set({})
    try:
        for name in names or PROPERTIES:
            entry = PROPERTIES[name]
            if case.workload.phase in entry.phases:
                try:
                    entry.check(case)
                except AssertionError as error:
                    found.append((name, str(error)))
    finally:
        _MEMORY.reset(token)
    return found


Predict = Callable[[Case], Any]
_PREDICT: ContextVar[Predict | None] = ContextVar("predict", default=None)
_MEMORY: ContextVar[dict[tuple[str, str], Any] | None] = ContextVar("memory", default=None)


@contextmanager
def predicting_with(predict: Predict) -> Iterator[None]:
    """Hold the properties against another prediction, for example one with a planted fault."""
    token = _PREDICT.set(predict)
    try:
        yield
    finally:
        _PREDICT.reset(token)


def ledger(case: Case, name: str) -> Mapping[str, Any]:
    """Return one ledger of the prediction under test, in its JSON form.

    Only that fold runs. Properties of one case ask for the same few variants, so `broken` keeps what it has seen.
    """
    predict = _PREDICT.get()
    if predict is not None:
        return _json(predict(case).ledgers[name])
    memory = _MEMORY.get()
    if memory is None:
        return _json(ledgers.FOLDS[name](program(case)))
    digest = case.digest
    if (digest, "") not in memory:
        memory[digest, ""] = program(case)
    if (digest, name) not in memory:
        memory[digest, name] = _json(ledgers.FOLDS[name](memory[digest, ""]))
    found: Mapping[str, Any] = memory[digest, name]
    return found


def _json(found: Ledger) -> Mapping[str, Any]:
    return found.to_dict()


def totals(case: Case, name: str) -> Mapping[str, Any]:
    """Return the totals of one ledger."""
    found: Mapping[str, Any] = ledger(case, name)["totals"]
    return found


def flops_by_scope(case: Case, *phases: str) -> dict[str, int]:
    """Return predicted FLOPs per component scope, over phases of the step (default: forward)."""
    found: dict[str, int] = {}
    for row in ledger(case, "flops")["rows"]:
        if row["phase"] in (phases or ("forward",)):
            found[row["scope"]] = found.get(row["scope"], 0) + row["value"]
    return found


# What acts over an axis alone, and goes with it.
_OVER = {
    "fsdp_group": "fsdp", "reshard": "fsdp", "prefetch": "fsdp", "sequence_parallel": "tensor",
    "context_method": "context", "pipeline_schedule": "pipeline", "pipeline_layers": "pipeline",
    "pipeline_virtual": "pipeline", "embedding_stage": "pipeline", "head_stage": "pipeline",
}  # fmt: skip


def _undivided(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options without what would split rows that it does not divide."""
    mesh, rows = dict(options.get("mesh") or {}), options.get("seq") or 1
    if rows % mesh.get("context", 1) or options.get("phase") == "decode":
        mesh.pop("context", None)
    found: dict[str, Any] = {"mesh": mesh}
    if "context" not in mesh:
        found["context_method"] = None
    if rows // mesh.get("context", 1) % mesh.get("tensor", 1):
        found["sequence_parallel"] = None
    return found


def variant(case: Case, architecture: Architecture | None = None, **options: Any) -> Case:
    """Return the case with another architecture or other options; an option of None falls back to its default.

    What acts over a mesh axis goes with the axis, the names that a recomputation policy keeps with the policy, and what
    splits rows where it does not divide the new number of them.
    """
    merged = {**written_options(case), **options}
    if "mesh" in options:
        gone = [name for name, axis in _OVER.items() if (options["mesh"] or {}).get(axis, 1) == 1]
        merged = {name: value for name, value in merged.items() if name not in gone or name in options}
    if "remat" in options and "remat_names" not in options:
        merged.pop("remat_names", None)
    if "accumulate" in options and (options["accumulate"] or 1) == 1:
        merged.pop("gradient_sync", None)  # one microbatch has no first and last
    if {"seq", "phase"} & options.keys():
        merged |= _undivided(merged)
    return build_case(
        architecture or case.architecture, {name: value for name, value in merged.items() if value is not None}
    )


def expect(seen: object, wanted: object, what: str) -> None:
    """Raise AssertionError unless the two are equal."""
    if seen != wanted:
        difference = f" (difference {seen - wanted})" if isinstance(seen, int) and isinstance(wanted, int) else ""
        raise AssertionError(f"{what}: {seen}, expected {wanted}{difference}")


def at_most(lower: int, upper: int, what: str) -> None:
    """Raise AssertionError if the first exceeds the second."""
    if lower > upper:
        raise AssertionError(f"{what}: {lower} > {upper}")
