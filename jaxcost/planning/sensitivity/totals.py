"""Every total of every ledger by its path, and how one case's differ from another's.

A total that does not move is invariant: a statement about this arithmetic, not about run time. One that a side does
not know, or does not have, has no difference; that is not zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from jaxcost.prediction.ledgers import Prediction
from jaxcost.prediction.rows import plain
from jaxcost.report.numbers import flat, unit_of

IDEAL = "rank_local.parameter_bytes"
# What the tables show, of each phase; every other total is in the document.
PRINCIPAL: dict[str, tuple[str, ...]] = {
    "training": (
        "parameters.unique", "parameters.bytes", "state.bytes", "flops.total", "activations.saved_bytes",
        "traffic.attention_bytes", "collectives.payload_bytes", IDEAL, "device.argument_bytes",
    ),
    "prefill": (
        "parameters.unique", "parameters.bytes", "flops.forward", "kv_cache.bytes", "traffic.attention_bytes",
        "collectives.payload_bytes", IDEAL, "device.argument_bytes",
    ),
    "decode": (
        "parameters.unique", "parameters.bytes", "flops.forward", "kv_cache.bytes", "traffic.attention_bytes",
        "collectives.payload_bytes", IDEAL, "device.argument_bytes",
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Delta:
    """One total of a case beside the base's. `derivative` is filled in where there is a symbol for the field."""

    path: str
    unit: str
    base: Any
    value: Any
    reason: str = ""
    derivative: Mapping[str, Any] | None = field(default=None, repr=False)

    @property
    def difference(self) -> Any:
        """Value minus base, exact; None where either is unknown."""
        return None if self.base is None or self.value is None else self.value - self.base

    @property
    def ratio(self) -> Fraction | None:
        """Value over base; None where either is unknown or the base is zero."""
        if self.base is None or self.value is None or not self.base:
            return None
        return Fraction(self.value) / Fraction(self.base)

    @property
    def invariant(self) -> bool:
        """Whether both are known and equal."""
        return self.difference is not None and not self.difference

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form; `ratio` is a decimal, the integers beside it are exact."""
        data: dict[str, Any] = {
            "path": self.path, "unit": self.unit, "base": plain(self.base), "value": plain(self.value),
            "difference": plain(self.difference), "ratio": None if self.ratio is None else float(self.ratio),
            "invariant": self.invariant,
        }  # fmt: skip
        if self.difference is None:
            data["reason"] = self.reason or "a side is unknown"
        if self.derivative is not None:
            data["derivative"] = dict(self.derivative)
        return data


def totals(prediction: Prediction) -> dict[str, Any]:
    """Return every numeric total of a prediction by path; of an interval its expected value, unknown as None."""
    found: dict[str, Any] = {}
    for name, ledger in prediction.ledgers.items():
        for total, value in flat({key: item for key, item in ledger.totals.items() if key != "reason"}):
            if isinstance(value, Mapping):
                value = value["expected"]
            if value is None or (isinstance(value, int | Fraction) and not isinstance(value, bool)):
                found[f"{name}.{total}"] = value
    found[IDEAL] = ideal_rank_bytes(prediction)
    return found


def ideal_rank_bytes(prediction: Prediction) -> Any:
    """Return the parameter payload over the number of parts a copy of it is cut into, as if every array divided evenly.

    Parts: pipeline stages, tensor and fsdp ranks, and data ranks under ZeRO stage 3. Vectors held whole and padding
    are in `ownership.by_role.parameter`; workspaces, activations and gathered weights are in neither.
    """
    run = prediction.case.execution
    cut = [run.degree(axis) for axis in ("pipeline", "tensor", "fsdp")] + [run.degree("data") if run.zero == 3 else 1]
    parts = 1
    for degree in cut:
        parts *= degree
    whole = prediction.value("parameters.bytes")
    return Fraction(whole, parts) if whole % parts else whole // parts


def reasons(prediction: Prediction) -> dict[str, str]:
    """Return why totals are unknown, by path."""
    found: dict[str, str] = {}
    for name, ledger in prediction.ledgers.items():
        found |= {f"{name}.{path.removesuffix('.expected')}": text for path, text in ledger.reasons.items()}
    return found


def deltas(
    base: Mapping[str, Any], case: Mapping[str, Any], unknown: Mapping[str, str] | None = None
) -> tuple[Delta, ...]:
    """Return the difference of every total that either side has; `unknown` says why one may have none."""
    found = []
    for path in dict.fromkeys((*base, *case)):
        ledger, _, name = path.partition(".")
        missing = [side for side, given in (("base", base), ("case", case)) if path not in given]
        reason = f"the {missing[0]} has no such total" if missing else (unknown or {}).get(path, "")
        unit = "bytes" if path == IDEAL else unit_of(ledger, name)
        found.append(Delta(path, unit, base.get(path), case.get(path), reason))
    return tuple(found)
