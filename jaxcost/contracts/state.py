"""Which numbers are kept, in which type, how many times, where and for how long.

A policy is a list of named state objects. Three populations of parameters are distinct: loaded (all unique scalars),
trainable (those that receive gradients) and updated (those the optimizer moves). A total in bytes per parameter follows
from the objects; it is never declared.

Presets come in two kinds. Those named after an accounting policy of the literature (`fp32_autocast_adam`,
`bf16_master_adam`, `a16_six_object`, `masterless_bf16`) list just the objects of that policy. `fp32`, `bf16` and
`mixed` take their optimizer state from `optimizer`, as optax lays it out, step counter included.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Literal, cast

from jaxcost.contracts.dtypes import DType
from jaxcost.contracts.errors import Problem, reject
from jaxcost.contracts.record import Name, Record, Size, outside_digest, validated

LIFECYCLE = ("after_load", "after_optimizer_construction", "after_backward", "in_first_step", "after_release")
LifecyclePoint = Literal[
    "after_load", "after_optimizer_construction", "after_backward", "in_first_step", "after_release"
]
Role = Literal[
    "parameter", "master", "gradient", "gradient_copy", "first_moment", "second_moment", "second_moment_row",
    "second_moment_column", "step", "scale",
]  # fmt: skip
CountRule = Literal["dense", "row", "column", "unfactored", "scalar"]
Optimizer = Literal["none", "adam", "adamw", "sgd", "momentum", "lion", "adafactor"]
PRECISIONS = (
    "fp32", "bf16", "mixed", "bf16_inference", "fp32_inference", "masterless_bf16", "fp32_autocast_adam",
    "bf16_master_adam", "a16_six_object",
)  # fmt: skip
OPTIMIZERS = ("adam", "adamw", "sgd", "momentum", "lion", "adafactor")


class StateObject(Record):
    """One kind of stored tensor: `copies` of `dtype` for every scalar its rule counts.

    `count` says how a parameter tensor maps to stored scalars: `dense` one each, `row` and `column` the two factors of
    Adafactor (Shazeer & Stern 2018, arXiv:1804.04235) for tensors it factors, `unfactored` dense for those it does not,
    `scalar` one for the whole model. The object is live from `created` until `released`, half-open.
    """

    name: Name
    role: Role
    basis: Literal["loaded", "trainable", "updated"]
    count: CountRule
    dtype: DType
    copies: Size = 1
    placement: Literal["device", "host", "checkpoint"] = "device"
    created: LifecyclePoint
    released: LifecyclePoint | Literal["never"] = "never"
    owner: Literal["model", "autograd", "optimizer", "wrapper"]

    def problems(self) -> Iterable[Problem]:
        if self.released != "never" and LIFECYCLE.index(self.released) <= LIFECYCLE.index(self.created):
            yield Problem(
                "released", self.released, f"not after created ({self.created})", "use a later point or never"
            )

    def live_at(self, point: str) -> bool:
        """Return whether the object exists at a lifecycle point."""
        now = LIFECYCLE.index(point)
        end = len(LIFECYCLE) if self.released == "never" else LIFECYCLE.index(self.released)
        return LIFECYCLE.index(self.created) <= now < end


class StatePolicy(Record):
    """The numerical state of a run.

    Matrix products take operands in `compute_dtype`; attention scores and probabilities are stored in `score_dtype`
    (softmax itself runs in fp32); logits are `logits_dtype`. `frozen` names component scopes whose parameters are
    loaded but not trained, for example `embed` or `group0/attn`.
    """

    name: str = outside_digest("")
    parameter_dtype: DType
    compute_dtype: DType
    score_dtype: DType
    logits_dtype: DType
    kv_dtype: DType
    optimizer: Optimizer
    objects: tuple[StateObject, ...]
    frozen: tuple[Name, ...] = ()

    def problems(self) -> Iterable[Problem]:
        names = [item.name for item in self.objects]
        for name in sorted({name for name in names if names.count(name) > 1}):
            yield Problem("objects", name, "two state objects share a name", "give each its own name")
        if not any(item.role == "parameter" and item.basis == "loaded" for item in self.objects):
            yield Problem(
                "objects", names, "no object holds the loaded parameters", "declare a parameter object of basis loaded"
            )
        for item in self.objects:
            if item.role == "parameter" and item.dtype != self.parameter_dtype:
                rule = f"the parameter object has dtype {item.dtype}"
                yield Problem("parameter_dtype", self.parameter_dtype, rule, "make the two agree")

    def object(self, role: str) -> StateObject | None:
        """Return the first object of a role, or None."""
        return next((item for item in self.objects if item.role == role), None)


def _parameter(dtype: DType) -> StateObject:
    return StateObject(
        name="parameters",
        role="parameter",
        basis="loaded",
        count="dense",
        dtype=dtype,
        created="after_load",
        owner="model",
    )


def _gradient(dtype: DType) -> StateObject:
    return StateObject(
        name="gradients", role="gradient", basis="trainable", count="dense", dtype=dtype, created="after_backward",
        released="after_release", owner="autograd",
    )  # fmt: skip


def _slot(name: str, role: Role, dtype: DType, created: LifecyclePoint, count: CountRule = "dense") -> StateObject:
    return StateObject(
        name=name, role=role, basis="updated", count=count, dtype=dtype, created=created, owner="optimizer"
    )


def _literature(working: DType, *extra: StateObject) -> tuple[StateObject, ...]:
    """Objects of a published accounting policy: lazily created fp32 Adam moments, no step counter."""
    first = _slot("m", "first_moment", "fp32", "in_first_step")
    second = _slot("v", "second_moment", "fp32", "in_first_step")
    return (_parameter(working), *extra, first, second)


def _master() -> StateObject:
    return StateObject(
        name="master_parameters",
        role="master",
        basis="updated",
        count="dense",
        dtype="fp32",
        created="after_load",
        owner="wrapper",
    )


def _gradient_copy() -> StateObject:
    return StateObject(
        name="gradient_copy",
        role="gradient_copy",
        basis="trainable",
        count="dense",
        dtype="fp32",
        created="after_backward",
        released="after_release",
        owner="wrapper",
    )


def _optax(optimizer: str, dtype: DType) -> tuple[StateObject, ...]:
    """Optimizer state as optax 0.2 lays it out: moments in the parameter dtype, one int32 step counter."""
    made: LifecyclePoint = "after_optimizer_construction"
    step = _slot("step", "step", "int32", made, "scalar")
    first = _slot("m", "first_moment", dtype, made)
    if optimizer in ("adam", "adamw"):
        return (step, first, _slot("v", "second_moment", dtype, made))
    if optimizer == "momentum":
        return (first,)
    if optimizer == "lion":
        return (step, first)
    if optimizer == "adafactor":
        return (
            step,
            _slot("v_row", "second_moment_row", dtype, made, "row"),
            _slot("v_column", "second_moment_column", dtype, made, "column"),
            _slot("v", "second_moment", dtype, made, "unfactored"),
        )
    return ()


def state_policy(
    precision: str, optimizer: str = "adam", training: bool = True, frozen: tuple[str, ...] = ()
) -> StatePolicy:
    """Return the preset of a precision name.

    Raises:
        RejectedError: for an unknown precision or optimizer, an inference precision in training, or an optimizer other
            than adam with a precision whose name fixes Adam.
    """
    if precision not in PRECISIONS:
        raise reject("precision", precision, "not a known precision", f"use one of {', '.join(PRECISIONS)}")
    if optimizer not in OPTIMIZERS:
        raise reject("optimizer", optimizer, "not a known optimizer", f"use one of {', '.join(OPTIMIZERS)}")
    parameter: DType = "fp32" if precision in ("fp32", "mixed", "fp32_inference", "fp32_autocast_adam") else "bf16"
    compute: DType = "fp32" if precision in ("fp32", "fp32_inference") else "bf16"
    if precision.endswith("_inference") and training:
        raise reject(
            "precision", precision, "an inference policy has no gradients", "use mixed, bf16 or fp32 in training"
        )
    literature: dict[str, tuple[StateObject, ...]] = {
        "masterless_bf16": (_gradient("bf16"),),
        "fp32_autocast_adam": (_gradient("fp32"),),
        "bf16_master_adam": (_master(), _gradient("bf16")),
        "a16_six_object": (_master(), _gradient("bf16"), _gradient_copy()),
    }
    objects: tuple[StateObject, ...]
    if not training:
        objects, optimizer = (_parameter(parameter),), "none"
    elif precision in literature:
        if optimizer != "adam":
            raise reject(
                "optimizer", optimizer, f"the policy {precision} keeps Adam moments", "use adam, or precision mixed"
            )
        objects = _literature(parameter, *literature[precision])
    else:
        objects = (_parameter(parameter), _gradient(parameter), *_optax(optimizer, parameter))
    build = partial(
        StatePolicy,
        name=precision,
        parameter_dtype=parameter,
        compute_dtype=compute,
        score_dtype=compute,
        logits_dtype="fp32",
        kv_dtype=compute,
        optimizer=cast(Optimizer, optimizer),
        objects=objects,
        frozen=frozen,
    )
    return validated(build, "state")
