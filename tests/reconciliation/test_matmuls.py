"""Products of a recorded program with one thing changed: the amount of each rule and the words of each finding."""

from __future__ import annotations

from typing import Any

from tests.reconciliation.recorded import named, report, row_of
from tests.reconciliation.test_rules import hoist, misplaced

CPU = named("toy-tied_training_cpu")


def test_a_hoisted_product_saves_one_execution() -> None:
    """16 rows x 8 x 12, twice: 3,072 FLOPs a layer; once instead of twice."""
    row = row_of(report(CPU, hoist), "matmul_flops:group0/mlp/up:forward")
    assert (row.prediction, row.observation, row.unit) == (6144, 3072, "FLOPs")
    ((amount, evidence),) = [(item.amount, item.evidence) for item in row.explanations]
    assert amount == -3072 and evidence == "dot.179 runs 1 times for 2"


def test_a_group_compared_as_one_says_whose_names_are_gone() -> None:
    row = row_of(report(CPU, misplaced), "matmul_flops:group0")
    assert row.prediction == row.observation and (row.phase, row.unit) == ("", "FLOPs")
    assert row.reason.startswith("the compiler dropped the names of dot.")
    assert row.reason.endswith(": compared over all parts and phases")


def test_what_has_no_scope_is_found() -> None:
    def stray(document: dict[str, Any]) -> None:
        document["hlo"]["unattributed"] = [{"phase": "forward", "instructions": [f"dot.{n}" for n in range(7)]}]

    (finding,) = [item for item in report(CPU, stray).findings if item.kind == "unattributed"]
    assert finding.text == "contractions without a component scope"
    assert finding.evidence == ("forward: dot.0, dot.1, dot.2, dot.3, dot.4, dot.5 and 1 more",)
    assert "unattributed" not in {item.kind for item in report(CPU).findings}


def test_an_undeclared_kernel_hides_what_it_may_hold() -> None:
    def opaque(document: dict[str, Any]) -> None:
        for row in document["hlo"]["by_scope_phase"]:
            if row["scope"] in ("group0/attn/values", "group0/mlp/up") and row["phase"] == "forward":
                row["flops"] -= 2
        document["hlo"]["opaque"].append({
            "id": 1, "name": "custom-call.99", "computation": "main", "target": "mystery", "op_name": "jit(f)/mystery",
            "scope": "group0/attn/kernel", "phase": "forward", "operands": [], "result": "f32[2]", "executions": 1,
            "declared": {},
        })  # fmt: skip

    found = report(CPU, opaque)
    nobody = "nobody declared what these calls multiply: custom-call.99"
    row = row_of(found, "matmul_flops:group0/attn/values:forward")
    assert (row.observation, row.status, row.reason) == (None, "unmeasured", nobody)
    assert row_of(found, "matmul_flops:group0/attn/scores:forward").status == "exact"  # nothing is missing there
    assert row_of(found, "matmul_flops:group0/mlp/up:forward").status == "open"  # no kernel stands near
    whole = row_of(found, "matmul_flops")
    assert (whole.observation, whole.reason) == (None, nobody)
    row = row_of(found, "opaque_flops:group0/attn/kernel:forward")
    assert (row.unit, row.prediction, row.observation) == ("FLOPs", None, None)
    assert row.reason == "mystery is opaque and not declared here: its FLOPs do not follow from its shapes"
