"""Faults in counting persistent state (table 0x03K): which objects exist, in which type, of which population, when."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jaxcost.contracts.architecture import Architecture, LayerGroup
from jaxcost.contracts.case import Case
from jaxcost.contracts.state import StatePolicy
from jaxcost.prediction import ledgers
from jaxcost.reconciliation.rows import Report
from jaxcost.verify import recount
from jaxcost.verify.failures.common import Failure, against, bundle, compare, counter, reconciled, rejected, with_totals
from jaxcost.verify.failures.guards import Guard, ignored
from jaxcost.verify.failures.subjects import toy, train
from jaxcost.verify.strategies import altered

COUNTERS = "reconciliation of counters"
PROPERTY = "state_equals_the_walk"


def _roles(change: Callable[[Case, dict[str, int]], dict[str, int]]) -> Callable[[Case], Any]:
    """Return a predictor whose state bytes by role are changed, the total with them."""

    def predict(case: Case) -> Any:
        right = ledgers.predict(case)
        roles = change(case, dict(right.ledgers["state"].totals["by_role"]))
        return with_totals(right, "state", by_role=roles, bytes=sum(roles.values()))

    return predict


def _scaled(*names: str, times: int = 1, over: int = 1) -> Callable[[Case], Any]:
    return _roles(lambda case, roles: {name: n * times // over if name in names else n for name, n in roles.items()})


def _population(role: str, count: Callable[[Case], int], width: int) -> Callable[[Case], Any]:
    return _roles(lambda case, roles: {**roles, role: count(case) * width})


def _measured(extra: int, *reasons: tuple[int, str], case: Case | None = None) -> Report:
    """A state counter that reads `extra` bytes more than the objects hold."""
    case = case or train(precision="bf16_master_adam")
    right = sum(recount.state_bytes(case).values())
    seen = counter("state.bytes", right + extra, "bytes", "tensor payloads of one process; no driver memory", *reasons)
    return compare(case, bundle(case, counters=[seen]))


def _wide() -> Architecture:
    """The toy with hidden and MLP widths that Adafactor factors."""
    layer = toy().groups[0].layer
    wide = layer.replaced(attention=layer.attention.replaced(head_dim=64), mlp=layer.mlp.replaced(width=128))
    return altered(toy(), hidden_size=256, groups=(LayerGroup(repeat=2, layer=wide),))


def _byte_moments() -> Case:
    """A custom policy of one-byte moments."""
    case = train(precision="bf16")
    objects = tuple(
        item.replaced(dtype="int8") if item.role in ("first_moment", "second_moment") else item
        for item in case.state.objects
    )
    return case.replaced(state=case.state.replaced(objects=objects))


def _policy(**changes: Any) -> StatePolicy:
    return StatePolicy.from_data({**train(precision="mixed").state.to_data(), **changes})


def failures() -> list[Failure]:
    """Return the rows of table 0x03K."""
    return [
        rejected(
            "0x03K/1",
            "mixed precision is declared as 16 bytes a parameter",
            "the coefficient may fit another runtime",
            "validation of the state policy",
            sound=_policy,
            faulty=lambda: _policy(bytes_per_parameter=16),
            guard=Guard("jaxcost.contracts.state:StatePolicy.model_config.extra", ignored),
        ),
        rejected(
            "0x03K/1b",
            "a total of bytes is declared with no objects that hold them",
            "nobody says what is stored",
            "validation of the state policy",
            sound=_policy,
            faulty=lambda: _policy(objects=[]),
            guard="jaxcost.contracts.state:StatePolicy.problems",
        ),
        against(
            "0x03K/2",
            "autocast's operands are counted as a permanent half-precision model",
            "model bytes are counted twice",
            PROPERTY,
            lambda: train(precision="fp32_autocast_adam"),
            _roles(
                lambda case, roles: {**roles, "parameter": roles["parameter"] + 2 * recount.unique_parameters(case)}
            ),
        ),
        against(
            "0x03K/3",
            "bf16 parameters are taken to imply fp32 Adam moments",
            "moments are twice too large",
            PROPERTY,
            lambda: train(precision="bf16"),
            _scaled("first_moment", "second_moment", times=2),
        ),
        against(
            "0x03K/4",
            "a lazy Adam is inspected before its first step",
            "both moments are missing",
            PROPERTY,
            lambda: train(precision="bf16_master_adam"),
            _scaled("first_moment", "second_moment", times=0),
        ),
        against(
            "0x03K/5",
            "every parameter is counted as trainable",
            "gradients of frozen scopes are counted",
            PROPERTY,
            lambda: train(frozen=["embed"]),
            _population("gradient", recount.unique_parameters, 4),
        ),
        against(
            "0x03K/6",
            "frozen weights are left out of the loaded state",
            "the resident model is too small",
            PROPERTY,
            lambda: train(frozen=["embed"]),
            _population("parameter", recount.trainable_parameters, 4),
        ),
        reconciled(
            "0x03K/7",
            "dropping the gradients is equated with memory given back to the driver",
            "a device counter still shows the reserve",
            COUNTERS,
            sound=lambda: _measured(4096, (4096, "allocator reserve after release")),
            faulty=lambda: _measured(4096),
        ),
        against(
            "0x03K/8",
            "Adafactor is treated as another type of the same moments",
            "the saving of factored matrices is lost",
            PROPERTY,
            lambda: train(_wide(), optimizer="adafactor"),
            _population("second_moment", lambda case: sum(t.scalars for t in recount.tensors(case, padded=True)), 4),
        ),
        reconciled(
            "0x03K/9",
            "8-bit moments are written as two bytes a parameter",
            "their scales are not counted",
            COUNTERS,
            sound=lambda: _measured(512, (512, "fp32 scales of 128 blocks"), case=_byte_moments()),
            faulty=lambda: _measured(512, case=_byte_moments()),
        ),
        against(
            "0x03K/10",
            "global state is divided by the number of devices",
            "ownership is bypassed",
            PROPERTY,
            lambda: train(mesh={"data": 2}),
            _scaled("first_moment", "second_moment", "parameter", over=2),
        ),
        reconciled(
            "0x03K/11",
            "a checkpoint's size is taken for the resident state",
            "gradients are missing, metadata is added",
            COUNTERS,
            sound=lambda: _measured(0),
            faulty=lambda: _measured(-2 * recount.unique_parameters(train()) + 128),
        ),
    ]
