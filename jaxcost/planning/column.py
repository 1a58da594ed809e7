"""One column of a comparison: a case on a target, what is predicted of it, what its compiler made of it, the error.

Every number is of one device, the worst one, in both witnesses under the same key. An error is predicted / compiled
- 1: a statement about the two, which changes neither. `fits` rests on the compiled program's required bytes; the
prediction answers for itself, with None where its interval holds the limit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Any

from jaxcost.contracts.case import Case
from jaxcost.observation.observed import Observed
from jaxcost.observation.targets import Target
from jaxcost.planning.expected import predicted_onset, predicted_peak, predicted_reasons, stated
from jaxcost.planning.limits import NO_LIMIT, interval_within, limit_bytes, within
from jaxcost.prediction.ledgers import Prediction
from jaxcost.reconciliation.report import reconcile
from jaxcost.reconciliation.rows import Row
from jaxcost.report.numbers import about

COMPARED = ("argument_bytes", "live_peak_bytes", "required_bytes", "matmul_flops")
NOT_COMPILED = "the spec was not compiled in this run"
BUFFERS_SHOWN = 16
# What a worker says when the program, not this package, was too much for it.
EXHAUSTED = ("timed_out", "memory_exceeded", "crashed")


@dataclass(frozen=True)
class Column:
    """A spec on a target. `options` differ from the base case; `seen` is None where nothing was compiled."""

    name: str
    options: Mapping[str, Any]
    case: Case
    target: Target
    prediction: Prediction = field(repr=False)
    seen: Observed | None = field(repr=False)
    fractions: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """The spec and the target."""
        return f"{self.name} on {self.target.text}"

    @property
    def status(self) -> str:
        """`observed`; `refused` by the compiler; `failed`, the worker died; `unmeasured`, nothing was compiled."""
        if self.seen is None or self._failure == "rejected":
            return "unmeasured"
        return self.seen.status

    @property
    def reason(self) -> str:
        """Why the status is not `observed`."""
        if self.seen is None:
            return NOT_COMPILED
        text = " ".join(self.seen.reason.split())
        if self._failure == "rejected":
            return f"the reference program does not express the spec: {text}"
        return f"{self._failure.replace('_', ' ')}: {text}" if self._failure else text

    @property
    def _failure(self) -> str:
        failure = (self.seen.data.get("failure") or {}) if self.seen else {}
        return str(failure.get("kind", ""))

    @property
    def refused(self) -> str | None:
        """The compiler's own text where it refuses the program, also with its own rematerialisation."""
        return self.seen.reason if self.seen is not None and self.seen.status == "refused" else None

    def limit(self, fraction: str) -> int | None:
        """Return the bytes that a program may fill; None where the target states no memory."""
        return limit_bytes(self.target, fraction)

    def fits(self, fraction: str) -> bool | None:
        """Return whether the compiled program's required bytes stay within a fraction of the device; None: not known.

        A refused program does not fit, whatever the fraction.
        """
        if self.refused is not None:
            return False
        return within(self.memory.get("required_bytes"), self.limit(fraction))

    def predicted_fits(self, fraction: str) -> bool | None:
        """Return whether the predicted peak stays within a fraction of the device; None where that cannot be told."""
        return interval_within(self.peak, self.limit(fraction))

    def infeasible(self, fraction: str) -> bool:
        """Return whether the column is refused, came to nothing, or does not fit; uncompiled, by its prediction."""
        if self.refused is not None or self._failure in EXHAUSTED:
            return True
        fits = self.predicted_fits(fraction) if self.status == "unmeasured" else self.fits(fraction)
        return fits is False

    @property
    def memory(self) -> Mapping[str, Any]:
        """The memory section of the observation; empty without one."""
        return self.seen.memory if self.seen is not None else {}

    @cached_property
    def peak(self) -> dict[str, Any]:
        """The predicted live peak for this family of targets: lower, expected, upper, by_class."""
        return predicted_peak(self.prediction, self.target.family)

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """The compared totals, reconciled, with their explanations."""
        if self.seen is None or self.status in ("failed", "unmeasured") or self.seen.data["hlo"] is None:
            return ()
        found = reconcile(self.prediction, self.seen).rows
        return tuple(row for row in found if _compared(row))

    @property
    def open_rows(self) -> tuple[Row, ...]:
        """The compared totals that nothing explains."""
        return tuple(row for row in self.rows if row.status == "open")

    def predicted(self) -> dict[str, Any]:
        """Return the first witness: bytes and FLOPs of one device, collectives by kind and axis."""
        totals = self.prediction.ledgers["device"].totals
        flops = self.prediction.ledgers["flops"].totals
        saved = self.prediction.ledgers["activations"].totals.get("saved_bytes_per_device")
        found = {
            "evidence": "analytical",
            "argument_bytes": totals["argument_bytes"],
            "peak_bytes": {
                key: self.peak.get(key) for key in ("lower", "expected", "upper", "reason") if key in self.peak
            },
            "by_class": self.peak.get("by_class"),
            "at": self.peak.get("at"),
            "policy": self.peak.get("policy"),
            "saved_bytes": saved,
            "flops": flops["per_device"],
            "flops_all_devices": flops["total"],
            "collectives": predicted_collectives(self.prediction),
            "fits": {fraction: self.predicted_fits(fraction) for fraction in self.fractions},
            "rematerialises": predicted_onset(self.prediction, self.target, self.peak),
        }
        return stated(found, predicted_reasons(self.peak, self.target) | {"collectives_reason": self._not_counted})

    @property
    def _not_counted(self) -> str:
        return self.prediction.ledgers["collectives"].reasons.get("payload_bytes", "")

    def compiled(self) -> dict[str, Any] | None:
        """Return the second witness; None where there is no compiled program."""
        if self.seen is None or not self.memory:
            return None
        memory, hlo, environment = self.memory, self.seen.data["hlo"] or {}, self.seen.data["environment"]
        required, limit = memory["required_bytes"], self.target.device_memory_bytes
        found = {
            "evidence": self.seen.data["evidence_class"],
            "argument_bytes": memory["argument_bytes"],
            "live_peak_bytes": memory["live_peak_bytes"],
            "required_bytes": required,
            "fragmentation_bytes": memory["fragmentation_bytes"],
            "headroom_bytes": None if required is None or limit is None else limit - required,
            "flops": hlo.get("flops"),
            "collectives": compiled_collectives(self.seen),
            "peak": {
                "instruction": memory["peak_instruction"],
                "moment": self.moment,
                "by_class": memory.get("by_class_at_peak"),
                "buffers": [_buffer(row) for row in memory["at_peak"][:BUFFERS_SHOWN]],
            },
            "moments": memory.get("moments"),
            "timeline": memory.get("timeline"),
            "environment": stated(
                {name: environment.get(name) for name in ("versions", "flags", "module_digest", "compile_seconds")},
                {"compile_seconds_reason": "read from a record: nothing was compiled in this run"},
            ),
            **({"reasons": dict(memory["reasons"])} if memory["reasons"] else {}),
        }
        why = NO_LIMIT if limit is None else str((memory["reasons"] or {}).get("required_bytes", ""))
        return stated(found, {"headroom_bytes_reason": why})

    @property
    def moment(self) -> str:
        """The part of the step in which the compiled program is fullest; empty where it is not told."""
        moments = self.memory.get("moments") or ()
        return str(max(moments, key=lambda item: item["bytes"])["name"]) if moments else ""

    def error(self) -> dict[str, float | None]:
        """Return predicted / compiled - 1 of each total, None where a side is unknown."""
        first, second = self.predicted(), self.compiled() or {}
        collectives = [(side or {}).get("bytes") for side in (first["collectives"], second.get("collectives"))]
        return {
            "argument_bytes": _error(first["argument_bytes"], second.get("argument_bytes")),
            "peak_bytes": _error(first["peak_bytes"]["expected"], second.get("live_peak_bytes")),
            "flops": _error(first["flops"], second.get("flops")),
            "collective_bytes": _error(*collectives),
        }

    def rematerialisation(self) -> dict[str, Any] | None:
        """Return what XLA's own rematerialisation made of the program; None where it was not compiled again."""
        section = (self.seen.data["rematerialisation"] or {}) if self.seen is not None else {}
        second = section.get("second_compile")
        if not second:
            return None
        before, excess, required = (
            self.seen.flops if self.seen else None,
            second["excess_flops"],
            second["required_bytes"],
        )
        fits = {
            fraction: False if second["status"] == "refused" else within(required, self.limit(fraction))
            for fraction in self.fractions
        }
        share = excess / before if excess is not None and before else None
        found = {
            "status": second["status"],
            "flops": second["flops"],
            "excess_flops": excess,
            "excess_share": share,
            "instructions": second["remat_instructions"],
            "required_bytes": required,
            "live_peak_bytes": second["live_peak_bytes"],
            "fits": fits,
        }
        return found | {"text": self._remat_text(found)}

    def _remat_text(self, found: Mapping[str, Any]) -> str:
        largest = max(self.fractions, key=Fraction)
        quietly = " silently" if self.target.family == "cuda" else ""
        more = "unknown FLOPs" if found["excess_flops"] is None else f"{found['excess_flops']:,} FLOPs"
        share = "" if found["excess_share"] is None else f", {100 * found['excess_share']:+.1f}%"
        required = "size unknown"
        if found["required_bytes"] is not None:
            required = f"{about(found['required_bytes'], 'bytes')} ({found['required_bytes']:,} bytes) required"
        if found["status"] == "refused":
            return f"XLA would rematerialise ({more} more{share}), and the compiler still refuses the program"
        if not found["instructions"]:
            return f"XLA left to itself recomputes nothing: {required}"
        if self.fits(largest):
            return (
                f"XLA left to itself rematerialises{quietly} ({more} more{share}) though the program fits: {required}"
            )
        end = f"then fit {largest} of the device" if found["fits"][largest] else "still not fit"
        return f"XLA would rematerialise{quietly} ({more} more{share}) and {end}: {required}"

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form of one of `columns[]`."""
        mesh = self.case.execution.mesh_sizes
        compiled = self.compiled()
        data: dict[str, Any] = {
            "name": self.name,
            "mesh": ",".join(f"{axis}={size}" for axis, size in mesh.items()),
            "mesh_sizes": mesh,
            "options": {name: list(v) if isinstance(v, tuple) else v for name, v in self.options.items()},
            "target": self.target.text,
            "device_memory_bytes": self.target.device_memory_bytes,
            "limits": {fraction: self.limit(fraction) for fraction in self.fractions},
            "case_digest": self.case.digest,
            "status": self.status,
            "predicted": self.predicted(),
            "compiled": compiled,
            "error": self.error(),
            "fits": {fraction: self.fits(fraction) for fraction in self.fractions},
            "refused": self.refused,
            "rematerialisation": self.rematerialisation(),
            "rows": [row.to_dict() for row in self.rows],
        }
        no_memory = self.target.device_memory_bytes is None
        reasons = {
            "compiled_reason": self.reason,
            "error_reason": self.reason if compiled is None else "one of the two sides is not known, or zero",
            "device_memory_bytes_reason": NO_LIMIT,
            "limits_reason": NO_LIMIT,
            "fits_reason": NO_LIMIT if no_memory else self._unknown(compiled),
        }
        if self.status != "observed":
            data["reason"] = self.reason
        return stated(data, reasons)

    def _unknown(self, compiled: Mapping[str, Any] | None) -> str:
        if compiled is None:
            return self.reason
        return str((compiled.get("reasons") or {}).get("required_bytes", "required bytes are not known"))


def make_column(
    name: str,
    options: Mapping[str, Any],
    case: Case,
    target: Target,
    prediction: Prediction,
    seen: Observed | None,
    fractions: Sequence[str],
) -> Column:
    """Return a column of its two witnesses."""
    return Column(name, options, case, target, prediction, seen, tuple(fractions))


def predicted_collectives(prediction: Prediction) -> dict[str, Any] | None:
    """Return the ledger's payload by kind and axis; None where it does not predict them."""
    totals = prediction.ledgers["collectives"].totals
    if totals.get("payload_bytes") is None:
        return None
    by: dict[tuple[str, str], int] = {}
    for row in prediction.ledgers["collectives"].rows:
        key = (str(row.fields.get("kind", row.object)), str(row.fields.get("axis", "")))
        by[key] = by.get(key, 0) + int(row.per_device if row.per_device is not None else row.value)
    return _collectives(by)


def compiled_collectives(seen: Observed) -> dict[str, Any] | None:
    """Return the payload of the compiled collectives by kind and axes, trips included.

    The payload is the whole array that moves: the result of a gather, the operand of a reduction.
    """
    section = seen.data["collectives"]
    if section is None:
        return None
    by: dict[tuple[str, str], int | None] = {}
    for row in section["by_kind_axes"]:
        axes = ",".join(row["axes"]) if row["axes"] else "unnamed"
        sides = (row["operand_bytes"], row["result_bytes"])
        known = None if None in sides else max(sides)
        before = by.get((row["kind"], axes), 0)
        by[(row["kind"], axes)] = None if before is None or known is None else before + known
    return _collectives(by)


def _collectives(by: Mapping[tuple[str, str], int | None]) -> dict[str, Any]:
    rows = [{"kind": kind, "axis": axis, "bytes": size} for (kind, axis), size in sorted(by.items())]
    return {
        "bytes": _sum(by.values()),
        "by_kind": {k: _sum(v for (kind, _), v in by.items() if kind == k) for k in sorted({kind for kind, _ in by})},
        "by_axis": {a: _sum(v for (_, axis), v in by.items() if axis == a) for a in sorted({axis for _, axis in by})},
        "rows": rows,
    }


def _sum(values: Any) -> int | None:
    known = list(values)
    return None if None in known else sum(known)


def _compared(row: Row) -> bool:
    """Whether a row is a total, or the payload of one kind of collective over one axis."""
    total = row.counter in COMPARED and not row.scope and not row.phase
    return not row.verdict and (total or row.counter == "collective_bytes")


def _error(predicted: int | None, compiled: int | None) -> float | None:
    if predicted is None or compiled is None:
        return None
    if predicted == compiled:
        return 0.0
    return predicted / compiled - 1 if compiled else None


def _buffer(row: Mapping[str, Any]) -> dict[str, Any]:
    names = ("bytes", "shape", "class", "scope", "phase", "kind", "instruction", "op_name", "source", "padding_bytes")
    return {name: row[name] for name in names if name in row}
