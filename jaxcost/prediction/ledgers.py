"""All ledgers of a case, joined: what `jaxcost estimate` prints and reconciliation compares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jaxcost.contracts.case import Case
from jaxcost.contracts.errors import reject
from jaxcost.prediction.activations import activations
from jaxcost.prediction.collectives import collectives
from jaxcost.prediction.device import device
from jaxcost.prediction.flops import flops
from jaxcost.prediction.kv_cache import kv_cache
from jaxcost.prediction.ownership import ownership
from jaxcost.prediction.parameters import parameters
from jaxcost.prediction.primitives import primitives
from jaxcost.prediction.program import Program, program
from jaxcost.prediction.rows import Ledger
from jaxcost.prediction.state import state
from jaxcost.prediction.traffic import traffic

FOLDS = {
    "parameters": parameters,
    "state": state,
    "flops": flops,
    "primitives": primitives,
    "activations": activations,
    "kv_cache": kv_cache,
    "traffic": traffic,
    "ownership": ownership,
    "collectives": collectives,
    "device": device,
}


@dataclass(frozen=True)
class Prediction:
    """The first witness's answer for one case.

    Attributes:
        case: what was declared.
        ledgers: by name (`FOLDS`), each with totals and rows.
        assumptions: what the numbers rest on beyond the case.
        program: the ops and tensors the ledgers are folds of.
    """

    case: Case
    ledgers: dict[str, Ledger]
    assumptions: tuple[str, ...]
    program: Program

    def value(self, path: str) -> Any:
        """Return a total by its path, as in `flops.forward` or `state.by_role.parameter`.

        Raises:
            KeyError: naming the path, where there is no such total.
        """
        ledger, _, rest = path.partition(".")
        found: Any = self.ledgers[ledger].totals if ledger in self.ledgers else None
        for part in rest.split("."):
            if not isinstance(found, dict) or part not in found:
                there = ", ".join(found if isinstance(found, dict) else self.ledgers)
                raise KeyError(f"{path} is not a total of a prediction; there are {there}")
            found = found[part]
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form: `schema`, `case` (records and digest), `ledgers` and `assumptions`."""
        return {
            "schema": "jaxcost.estimate.v1",
            "case": {**self.case.to_data(), "digest": self.case.digest},
            "ledgers": {name: ledger.to_dict() for name, ledger in self.ledgers.items()},
            "assumptions": list(self.assumptions),
        }

    def _repr_html_(self) -> str:
        import html

        lines = []
        for name, ledger in self.ledgers.items():
            for key, value in ledger.totals.items():
                if isinstance(value, int):
                    label = f"<td>{html.escape(name)}</td><td>{html.escape(key)}</td>"
                    lines.append(f"<tr>{label}<td style='text-align:right'>{value:,}</td></tr>")
        title = html.escape(f"{self.case.architecture.name}, {self.case.workload.phase}")
        return f"<table><caption>{title}</caption>{''.join(lines)}</table>"


def _require_case(case: object) -> None:
    if not isinstance(case, Case):
        rule = "a prediction is of a case: a model, and what one step of it does"
        raise reject("case", type(case).__name__, rule, "make one with jaxcost.training, prefill or decode")


def predict(case: Case) -> Prediction:
    """Return all ledgers of a case; arithmetic only, exact integers.

    Raises:
        RejectedError: `case` is no Case.
    """
    _require_case(case)
    built = program(case)
    ledgers = {name: fold(built) for name, fold in FOLDS.items()}
    return Prediction(case, ledgers, assumptions(case), built)


def assumptions(case: Case) -> tuple[str, ...]:
    """Return what the ledgers take for granted beyond the declared case."""
    work, run = case.workload, case.execution
    pairs = "every query-key pair" if case.convention.attention_pairs == "rectangular" else "legal query-key pairs"
    found = [
        "one multiply-add is two FLOPs; lookups are gathers and cost none",
        f"attention counts {pairs}",
        "traffic is the logical payload of the declared schedule, not memory transactions",
        "norms rebuild their row statistics in the backward pass; rotary tables and masks are not stored",
    ]
    if work.phase == "training":
        found += [
            "labels are the tokens shifted by one inside the step; logits are computed for every row",
            f"recomputation as declared ({run.remat}); what differentiation then drops as unused is not subtracted",
            "saved activations are those of one microbatch; compute-dtype copies of weights are not among them",
        ]
    if work.attention != "materialised":
        stays = "scores and probabilities stay on chip, its backward pass repeats QK once"
        found.append(f"attention plan {work.attention}: {stays}")
    if any(group.windows for group in case.architecture.groups):
        found.append("windows cut masks, legal pairs and the least cache; every rectangular product stays whole")
    if any("fused" in (group.layer.attention.storage, group.layer.mlp.storage) for group in case.architecture.groups):
        found.append("fused projections are one stored array, multiplied part by part")
    if work.lengths is not None:
        found.append("ragged sequences count the sums of L and of L squared, without padding")
    if run.device_count > 1:
        found.append(
            "matrices are sharded (hidden over fsdp; heads, MLP width, vocabulary over tensor), vectors replicated"
        )
    if run.layers == "scan" and case.state.frozen:
        found.append("a scanned layer is one program: every layer computes the gradients that any layer needs")
    return tuple(found)
