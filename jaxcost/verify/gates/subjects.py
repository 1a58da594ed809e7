"""The cases that the gates are held against: every model of the catalogue in every phase, alone and on meshes.

A mesh that a model refuses (heads that the tensor axis does not divide, fused storage, stages that do not divide its
layers) is replaced by the next one of its list. That every model of the catalogue takes every plan is tested.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jaxcost.catalog import catalogue_names, load
from jaxcost.contracts.architecture import Architecture
from jaxcost.contracts.case import Case, build_case
from jaxcost.contracts.errors import RejectedError
from jaxcost.verify.gates.common import Subject, subject

ROWS = 64
LENGTHS = (ROWS, 40, 24, 8)


@dataclass(frozen=True)
class Plan:
    """Options of a case, and the meshes to try in turn; the first one that the model takes is used."""

    options: Mapping[str, Any]
    meshes: tuple[Mapping[str, int], ...] = ({},)


def _train(**options: Any) -> dict[str, Any]:
    return {"phase": "training", "batch": 8, "seq": ROWS, **options}


PLANS: tuple[Plan, ...] = (
    Plan(_train()),
    Plan({"phase": "prefill", "batch": 4, "seq": ROWS}, ({}, {"data": 2})),
    Plan({"phase": "decode", "batch": 4, "past": ROWS - 1}),
    Plan(
        _train(remat="block", accumulate=2, zero=1, vocabulary_multiple=64),
        ({"data": 2, "fsdp": 2, "tensor": 2}, {"data": 2, "fsdp": 2}),
    ),
    Plan(
        _train(remat="attention", attention="blockwise", attention_block=16, layers="unrolled", precision="bf16"),
        ({"fsdp": 2, "context": 2},),
    ),
    Plan(_train(precision="a16_six_object", remat="everything", zero=3), ({"data": 8},)),
    Plan(_train(optimizer="adafactor", pairs="legal", lengths=[*LENGTHS, *LENGTHS])),
    Plan(
        _train(
            accumulate=2,
            sequence_parallel=True,
            gradient_sync="last_microbatch",
            offload=["optimizer"],
            vocabulary_multiple=2,
        ),
        ({"tensor": 2, "context": 2}, {"context": 2}),
    ),
    Plan(
        _train(accumulate=2, optimizer="sgd", remat="save_only_these_names", remat_names=["context"]),
        ({"pipeline": 2, "data": 2}, {"data": 2}),
    ),
    Plan(
        {"phase": "prefill", "batch": 4, "seq": ROWS, "logits": "all", "vocabulary_multiple": 2},
        ({"tensor": 2, "context": 2}, {"context": 2}),
    ),
    Plan(
        {"phase": "decode", "batch": 4, "past": ROWS - 1, "vocabulary_multiple": 2},
        ({"data": 2, "tensor": 2}, {"data": 2}),
    ),
)
# One case of each phase, alone, and training with replay on a mesh.
FEW = PLANS[:4]


def planned(architecture: Architecture, plan: Plan) -> Case:
    """Return the case of a plan on the first of its meshes that the architecture takes.

    Raises:
        RejectedError: it takes none.
    """
    refusal: RejectedError | None = None
    for mesh in plan.meshes:
        options = {name: value for name, value in plan.options.items() if name not in _needs(mesh)}
        try:
            return build_case(architecture, {**options, "mesh": dict(mesh)} if mesh else options)
        except RejectedError as error:
            refusal = error
    assert refusal is not None
    raise refusal


def _needs(mesh: Mapping[str, int]) -> tuple[str, ...]:
    """Return the options that have nothing to act on over a mesh."""
    return () if "tensor" in mesh else ("sequence_parallel",)


def title(case: Case) -> str:
    """Return what tells a case from the others of its model."""
    run, parts = case.execution, [case.architecture.name, case.workload.phase]
    if run.remat != "none":
        parts.append(f"remat {run.remat}")
    parts.append(",".join(f"{axis}={size}" for axis, size in run.mesh_sizes.items()) or "one device")
    return " ".join(parts)


def catalogue(names: Iterable[str] | None = None, plans: Sequence[Plan] = PLANS) -> Iterator[Subject]:
    """Yield the subjects of models (of the whole catalogue by default), model by model.

    Raises:
        RejectedError: a model takes none of the plans.
    """
    for name in catalogue_names() if names is None else names:
        architecture = load(name).architecture
        refusals, taken = [], 0
        for plan in plans:
            try:
                case = planned(architecture, plan)
            except RejectedError as error:  # a model of the user's own with few rows of positions, say
                refusals.append(error)
                continue
            taken += 1
            yield subject(title(case), case)
        if not taken:
            raise refusals[0]
