"""What was seen, by which instrument, and how far it can see.

Evidence classes do not mix. A record is refused when it claims a class whose proof it does not carry:

- `compiled`: target, versions, flags and the module's digest;
- `locally_measured`: hardware, framework and raw artefacts;
- `source_reported`: the address of its source;
- `synthetic_contract_test` and `unmeasured`: nothing more, and no performance claim follows from them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import Field

from jaxcost.contracts.errors import Problem
from jaxcost.contracts.record import LARGEST_SIZE, Extent, Name, Record

EvidenceClass = Literal[
    "analytical", "synthetic_contract_test", "source_reported", "compiled", "locally_measured", "unmeasured"
]
REQUIRED_FIELDS: dict[str, tuple[str, ...]] = {
    "compiled": ("target", "versions", "flags", "module_digest"),
    "locally_measured": ("hardware", "framework", "artefacts"),
    "source_reported": ("source_url",),
}
Signed = Annotated[int, Field(ge=-(LARGEST_SIZE**2), le=LARGEST_SIZE**2)]


class ObservedTensor(Record):
    """One named entry of a checkpoint or module; equal `alias` means one storage."""

    name: Name
    shape: tuple[Extent, ...]
    dtype: Name
    kind: Literal["parameter", "buffer"]
    trainable: bool
    alias: Name


class SuppliedExplanation(Record):
    """A signed part of a residual, with its reason and the evidence it rests on."""

    amount: Signed
    reason: Name
    evidence: Name


class Counter(Record):
    """One observed number. `visibility` says in words what the instrument could and could not see."""

    counter: Name
    scope: str = ""
    phase: str = ""
    value: Signed
    unit: Name
    visibility: Name
    explanations: tuple[SuppliedExplanation, ...] = ()


class Observation(Record):
    """A supplied bundle of observations, independent of any prediction.

    `layout` says by which convention `tensors` are named and their axes ordered; names are never rewritten to match.
    """

    schema_version: Literal["jaxcost.observation.v1"] = Field(alias="schema")
    evidence_class: EvidenceClass
    producer: Name
    target: str | None = None
    versions: dict[str, str] | None = None
    flags: dict[str, str] | None = None
    module_digest: str | None = None
    hardware: str | None = None
    framework: str | None = None
    artefacts: tuple[Name, ...] = ()
    source_url: str | None = None
    layout: Literal["jaxcost", "huggingface-llama"] = "jaxcost"
    tensors: tuple[ObservedTensor, ...] | None = None
    counters: tuple[Counter, ...] = ()

    def problems(self) -> Iterable[Problem]:
        if self.evidence_class == "analytical":
            rule = "a closed form is a prediction, and a prediction is no observation"
            yield Problem("evidence_class", "analytical", rule, "name the class of what was seen, or unmeasured")
        for field in REQUIRED_FIELDS.get(self.evidence_class, ()):
            value = getattr(self, field)
            if value is None or (field != "flags" and not value):
                rule = f"evidence of class {self.evidence_class} needs {field}"
                yield Problem(field, None, rule, f"give {field}, or claim the class unmeasured")
        keys = [(c.counter, c.scope, c.phase) for c in self.counters]
        for key in sorted({key for key in keys if keys.count(key) > 1}):
            yield Problem(
                "counters", "/".join(key), "the counter appears twice for one scope and phase", "keep one of the two"
            )
        names = [tensor.name for tensor in self.tensors or ()]
        for name in sorted({name for name in names if names.count(name) > 1}):
            yield Problem("tensors", name, "the name appears twice", "a state mapping has each key once")
