"""The comparison gate: numbers of two papers stand in one table only when both are on one target manifest.

A claim is one quantity of one contract. It is normalised to a target (a case) axis by axis: what its form takes for
granted about the graph must hold of the target; its replay must be the target's or be one signed step; its ledger and
its signed differences must close against its formula there, to the last unit; global and per-device figures, and kinds
of unit, never meet. Whatever fails is an open axis, and then no number is given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from jaxcost.contracts.case import Case
from jaxcost.contracts.dtypes import payload_bytes
from jaxcost.contracts.errors import Problem, RejectedError
from jaxcost.papers.components import Components
from jaxcost.papers.contract import AXES, KINDS, Contract, Quantity
from jaxcost.papers.expression import expression
from jaxcost.papers.translate import Scope, Step, is_zero, translate
from jaxcost.prediction.program import program

# The ledger of jaxcost that all claims of a kind are compared with.
COMMON = {
    "parameters": "parameters",
    "forward_flops": "forward",
    "model_flops": "training",
    "hardware_flops": "executed",
    "saved_bytes_per_layer": "saved_layer",
    "state_bytes": "state",
    "state_bytes_per_device": "state_on_device_0",
}
REPLAY = "replay"
# The axis on which a rest that no difference explains is open.
RESIDUAL_AXIS = {
    "parameters": "coordinate",
    "forward_flops": "operations",
    "model_flops": "operations",
    "hardware_flops": "operations",
    "saved_bytes_per_layer": "state",
    "state_bytes": "state",
    "state_bytes_per_device": "ownership",
}


@dataclass(frozen=True)
class OpenAxis:
    """An axis on which a claim is not normalised, and why."""

    axis: str
    reason: str


@dataclass(frozen=True)
class Claim:
    """One quantity of one contract, as it would be compared."""

    contract: Contract
    quantity: Quantity

    @property
    def label(self) -> str:
        """Contract and quantity in one name."""
        return f"{self.contract.name}.{self.quantity.name}"


@dataclass(frozen=True)
class Normalised:
    """A claim on a target: its value for the whole step there, or the axes that are still open and no value."""

    claim: Claim
    open: tuple[OpenAxis, ...]
    ledger: Any = None
    steps: tuple[Step, ...] = ()
    value: Any = None

    @property
    def status(self) -> str:
        """`normalized`, or `not_comparable`."""
        return "not_comparable" if self.open else "normalized"

    @property
    def cancels(self) -> bool:
        """Whether nearness to the ledger rests on errors of both signs, of which half or more cancel."""
        amounts = [step.amount for step in self.steps if step.name != REPLAY]
        both = any(amount > 0 for amount in amounts) and any(amount < 0 for amount in amounts)
        return both and 2 * abs(sum(amounts)) <= sum(abs(amount) for amount in amounts)


@dataclass(frozen=True)
class Comparison:
    """Claims of one kind on one target. `status` is `normalized` only where every claim is."""

    kind: str
    target_case_id: str | None
    claims: tuple[Normalised, ...]
    open: tuple[OpenAxis, ...] = field(default=())

    @property
    def status(self) -> str:
        """`normalized` where the gate is open for every claim, else `not_comparable`."""
        closed = self.open or not self.claims or any(item.open for item in self.claims)
        return "not_comparable" if closed else "normalized"


def claims_of(contracts: Iterable[Contract]) -> tuple[Claim, ...]:
    """Return every quantity that has a kind, of every contract."""
    return tuple(Claim(c, q) for c in contracts for q in c.quantities if q.kind is not None)


def normalise(claim: Claim, target: Case | None) -> Normalised:
    """Map every axis of a claim to a target, or say which are open.

    Args:
        claim: what is to be compared.
        target: the case both sides are brought to; without one every axis is open.
    """
    if target is None:
        return Normalised(claim, tuple(OpenAxis(axis, "no target manifest") for axis in AXES))
    quantity = claim.quantity
    assert quantity.kind is not None
    found = [test(target) for name, test in REQUIREMENTS.items() if name in quantity.requires]
    open_axes = [item for item in (*found, *_phase(quantity, target)) if item is not None]
    if open_axes:
        return Normalised(claim, tuple(open_axes))
    try:
        return _mapped(claim, target, quantity.kind)
    except RejectedError as error:
        reasons = "; ".join(f"{problem.path}: {problem.rule}" for problem in error.problems)
        return Normalised(claim, (OpenAxis("architecture", reasons),))


def _mapped(claim: Claim, target: Case, kind: str) -> Normalised:
    quantity = claim.quantity
    own = Components(program(target))
    variant, replays = own, kind == "hardware_flops" and quantity.remat != target.execution.remat
    if replays:
        changed = target.replaced(execution=target.execution.replaced(remat=quantity.remat, remat_names=()))
        variant = Components(program(changed))
    inputs: dict[str, Any] = {
        "dp_degree": target.execution.degree("data"),
        "tensor_parallel": target.execution.degree("tensor"),
    }
    found = translate(claim.contract, quantity, variant, inputs)
    scale = expression(quantity.to_kind).value(Scope(variant, inputs))
    common_name = COMMON[kind] if kind != "state_bytes_per_device" else f"state_on_device_{target.execution.zero}"
    common = own[common_name]
    steps = tuple(Step(item.name, _exact(item.amount * scale), item.form, item.why) for item in found.steps)
    ledger = _exact(found.ledger * scale)
    if replays:
        form = f"executed under remat {quantity.remat} - executed under remat {target.execution.remat}"
        why = "the contract's replay is not the target's"
        steps = (Step(REPLAY, ledger - common, form, why), *steps)
    elif ledger != common:  # the contract starts from parts of the ledger: what those leave out would be hidden
        reason = f"its ledger {quantity.ledger} is {ledger - common:+,} from {common_name} on this target"
        return Normalised(claim, (OpenAxis(RESIDUAL_AXIS[kind], reason),))
    value = _exact(found.formula * scale)
    rest = value - common - sum((step.amount for step in steps), 0)
    if not is_zero(rest):
        reason = "the differences leave a rest on this target: the form takes something else for granted"
        return Normalised(claim, (OpenAxis(RESIDUAL_AXIS[kind], reason),))
    return Normalised(claim, (), common, tuple(step for step in steps if step.amount != 0), value)


def _exact(value: Any) -> Any:
    return value.numerator if isinstance(value, Fraction) and value.denominator == 1 else value


def compare(claims: Sequence[Claim], target: Case | None) -> Comparison:
    """Compare claims on a target: with every axis of each normalised the values are there, else the open axes are.

    Args:
        claims: at least one; kinds, units and ownership must agree.
        target: the case, or None, which leaves every axis open.
    """
    kinds = {item.quantity.kind for item in claims}
    mixed = tuple(unlike(claims))
    kind = next(iter(kinds), None) if len(kinds) == 1 else None
    found = tuple(normalise(item, target) for item in claims)
    return Comparison(kind or "mixed", target.digest if target else None, found, mixed)


def unlike(claims: Sequence[Claim]) -> Iterator[OpenAxis]:
    """Yield the axes on which claims can never meet, whatever the target: unit, replay, quantity, ownership."""
    kinds = {item.quantity.kind for item in claims}
    if len(kinds) > 1:
        units = {KINDS[kind] for kind in kinds if kind}
        named = ", ".join(sorted(str(kind) for kind in kinds))
        replay = {"model_flops", "hardware_flops"} <= kinds
        if replay:
            yield OpenAxis("replay", "model FLOPs and hardware FLOPs have separate denominators")
        if len(units) > 1:
            yield OpenAxis("output", f"{named} are counted in {' and '.join(sorted(units))}")
        elif not replay:
            yield OpenAxis("output", f"{named} are different quantities")
    if len({item.quantity.rank_local for item in claims}) > 1:
        yield OpenAxis("ownership", "one is of one device, the other of all")


def values(claims: Sequence[Claim], target: Case | None) -> dict[str, Any]:
    """Return the figures of claims side by side, by label.

    Raises:
        RejectedError: the gate is closed; one problem for each open axis.
    """
    found = compare(claims, target)
    if found.status == "normalized":
        return {item.claim.label: item.value for item in found.claims}
    problems = [Problem(f"comparison.{item.axis}", found.kind, item.reason, _REMEDY) for item in found.open]
    problems += [
        Problem(f"comparison.{claim.claim.label}.{item.axis}", None, item.reason, _REMEDY)
        for claim in found.claims
        for item in claim.open
    ]
    raise RejectedError(problems)


_REMEDY = "bring every axis of both contracts to one target manifest"


def compare_all(contracts: Iterable[Contract], target: Case | None) -> tuple[Comparison, ...]:
    """Return one comparison for each kind that at least one contract gives."""
    found = claims_of(contracts)
    grouped = {kind: [item for item in found if item.quantity.kind == kind] for kind in KINDS}
    return tuple(compare(items, target) for items in grouped.values() if items)


def _phase(quantity: Quantity, target: Case) -> Iterable[OpenAxis | None]:
    if quantity.kind not in ("parameters", "forward_flops") and target.workload.phase != "training":
        yield OpenAxis("phase", f"a training step is counted, the target is {target.workload.phase}")
    if target.workload.lengths is not None and quantity.kind != "parameters":
        yield OpenAxis("phase", "sequences of different lengths; the form has one")
    if quantity.kind == "saved_bytes_per_layer" and target.execution.remat != "none":
        yield OpenAxis("replay", f"nothing is recomputed there, the target recomputes ({target.execution.remat})")
    if quantity.kind in ("state_bytes", "state_bytes_per_device") and quantity.precision:
        same = target.state.name == quantity.precision
        yield None if same else OpenAxis("state", f"the state is {quantity.precision}'s, not {target.state.name}'s")


def _uniform(target: Case) -> OpenAxis | None:
    same = len(target.architecture.groups) == 1
    return None if same else OpenAxis("architecture", "the target has several kinds of layer")


def _layers(test: Callable[[Any], bool], reason: str) -> Callable[[Case], OpenAxis | None]:
    def check(target: Case) -> OpenAxis | None:
        layers = [group.layer for group in target.architecture.groups]
        return None if all(test(layer) for layer in layers) else OpenAxis("architecture", reason)

    return check


def _when(test: Callable[[Case], bool], axis: str, reason: str) -> Callable[[Case], OpenAxis | None]:
    return lambda target: None if test(target) else OpenAxis(axis, reason)


def _fills(target: Case) -> bool:
    found = [group.layer.attention for group in target.architecture.groups]
    return all(item.query_heads * item.head_dim == target.architecture.hidden_size for item in found)


def _wide(target: Case) -> bool:
    return all(group.layer.mlp.width == 4 * target.architecture.hidden_size for group in target.architecture.groups)


def _drops(target: Case) -> bool:
    rates = target.architecture.dropout
    return target.workload.dropout and rates.attention > 0 and rates.residual > 0


def _two_bytes(target: Case) -> bool:
    return all(payload_bytes(1, dtype) == 2 for dtype in (target.state.compute_dtype, target.state.score_dtype))


def _stage(number: int) -> Callable[[Case], OpenAxis | None]:
    return _when(lambda c: c.execution.zero == number, "ownership", f"the target's ZeRO stage is not {number}")


REQUIREMENTS: Mapping[str, Callable[[Case], OpenAxis | None]] = {
    "one_kind_of_layer": _uniform,
    "multi_head": _layers(lambda layer: layer.attention.query_heads == layer.attention.kv_heads,
                          "the form is of multi-head attention, the target groups its queries"),
    "classic_mlp": _layers(lambda layer: layer.mlp.form == "classic",
                           "the form is of a two-matrix MLP, the target's is gated"),
    "heads_fill_width": _when(_fills, "architecture", "heads times their width is not the hidden width"),
    "width_4d": _when(_wide, "architecture", "the MLP is not four times the hidden width"),
    "no_windows": _when(lambda c: not any(g.windows for g in c.architecture.groups), "architecture",
                        "the target has sliding windows"),
    "table_of_hidden_width": _when(lambda c: c.architecture.embedding_width is None, "architecture",
                                   "the token table is narrower than the hidden width"),
    "rows_all": _when(lambda c: c.workload.logits == "all", "phase", "logits of all rows are counted there"),
    "dropout": _when(_drops, "state", "dropout masks are saved there, the target drops nothing (--dropout)"),
    "two_byte_activations": _when(_two_bytes, "state", "activations have two bytes there"),
    "materialised": _when(lambda c: c.workload.attention == "materialised", "state",
                          "scores and probabilities are stored there"),
    "zero_0": _stage(0), "zero_1": _stage(1), "zero_2": _stage(2), "zero_3": _stage(3),
    "data_parallel_only": _when(lambda c: set(c.execution.mesh_sizes) == {"data"}, "ownership",
                                "devices of one data axis are counted there (--mesh data=N)"),
    "one_device": _when(lambda c: c.execution.device_count == 1, "ownership", "one device holds all there"),
}  # fmt: skip
