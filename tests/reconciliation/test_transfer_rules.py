"""Each form in which a compiler may write a transfer: explained where its evidence is there, open where it is not.

The observation is written from the prediction, one instruction for each declared transfer, and one of them rewritten.
"""

from __future__ import annotations

from typing import Any

import pytest

from jaxcost.observation.observed import Observed
from jaxcost.prediction.ledgers import Prediction, predict
from jaxcost.reconciliation.collectives import TYPES, Transfers
from jaxcost.reconciliation.rows import Row
from tests.prediction.cases import TOY, case

HLO_TYPES = {ours: theirs for theirs, ours in TYPES.items()}
Rows = list[dict[str, Any]]


def predicted(**options: Any) -> Prediction:
    sizes = TOY | {"tied": options.pop("tied", False), "qkv_bias": options.pop("qkv_bias", False)}
    return predict(case(sizes, "training", seq=8, **options))


def instruction(fields: dict[str, Any], scope: str, phase: str, name: str) -> dict[str, Any]:
    sizes = {"operand_bytes": fields["input_bytes"], "result_bytes": fields["output_bytes"]}
    part = {"dtype": HLO_TYPES[fields["dtype"]], "scope": scope, "phase": phase, "argument": "", "sliced": [], **sizes}
    return {
        "kind": fields["kind"], "axes": fields["axis"].split(","), "executions": fields["times"], "name": name,
        "form": "plain", "source": "model.py:1", "scope": scope, "phase": phase, "parts": [part], **sizes,
    }  # fmt: skip


def compiled(prediction: Prediction) -> Rows:
    """One instruction for each declared transfer; a sum bears the name of its last term."""
    found = []
    for number, row in enumerate(prediction.ledgers["collectives"].rows):
        scope = row.fields.get("terms", (row.scope,))[-1]
        found.append(instruction(dict(row.fields), scope, row.phase, f"instruction.{number}") | {"object": row.object})
    return found


def reconciled(prediction: Prediction, rows: Rows, replayed: bool = True) -> dict[str, Row]:
    replay = [{"scope": "group0/mlp/up", "phase": "replay"}]
    data: dict[str, Any] = {
        "collectives": {"rows": rows}, "target": {}, "jaxpr": {"by_scope_phase": replay},
        "hlo": {"by_scope_phase": replay if replayed else []},
    }  # fmt: skip
    return {row.key: row for row in Transfers(prediction, Observed(data)).rows()}


def reasons(rows: dict[str, Row]) -> set[str]:
    assert not [row for row in rows.values() if row.status not in ("exact", "explained")]
    return {item.reason for row in rows.values() for item in row.explanations}


def of(rows: Rows, name: str, kind: str) -> dict[str, Any]:
    return next(row for row in rows if row["object"] == name and row["kind"] == kind)


def resize(row: dict[str, Any], operand: int, result: int) -> None:
    for holder in (row, *row["parts"]):
        holder |= {"operand_bytes": operand, "result_bytes": result}


def copied(row: dict[str, Any], **changes: Any) -> dict[str, Any]:
    part = row["parts"][0] | {key: changes[key] for key in ("scope", "phase", "dtype") if key in changes}
    return row | {"parts": [part], **changes}


HYBRID: dict[str, Any] = {"batch": 8, "mesh": {"data": 2, "fsdp": 2, "tensor": 2}, "remat": "block"}


def test_a_program_that_does_what_is_declared_is_exact() -> None:
    for options in (HYBRID, {"batch": 4, "mesh": {"context": 2, "tensor": 2}}, {"batch": 8, "mesh": {"fsdp": 8}}):
        prediction = predicted(**options)
        assert reasons(reconciled(prediction, compiled(prediction))) == set()
        for gone in range(len(compiled(prediction))):
            rest = compiled(prediction)
            del rest[gone]
            assert "open" in {row.status for row in reconciled(prediction, rest).values()}


def test_a_wider_type() -> None:
    prediction = predicted(**HYBRID)
    rows = compiled(prediction)
    row = of(rows, "group0/mlp/down/out", "all-reduce")
    row["parts"][0]["dtype"] = "f32"
    resize(row, 2 * row["operand_bytes"], 2 * row["result_bytes"])
    assert reasons(reconciled(prediction, rows)) == {"sent in a wider type than declared"}
    row["parts"][0]["scope"] = row["scope"] = "head"  # an instruction of another component is no evidence
    assert "open" in {row.status for row in reconciled(prediction, rows).values()}


def test_an_all_reduce_and_a_slice() -> None:
    prediction = predicted(**HYBRID)
    rows = compiled(prediction)
    row = of(rows, "d group0/mlp/up/weight", "reduce-scatter")
    row["kind"] = "all-reduce"
    resize(row, row["operand_bytes"], row["operand_bytes"])
    row["parts"][0]["sliced"] = ["own.1"]
    found = reconciled(prediction, rows)
    assert reasons(found) == {"an all-reduce and a slice in place of a reduce-scatter"}
    assert found["collective_bytes"].residual == 0
    row["parts"][0]["sliced"] = []
    assert "open" in {row.status for row in reconciled(prediction, rows).values()}


def test_scattered_and_summed_at_once() -> None:
    prediction = predicted(**HYBRID)
    rows = compiled(prediction)
    row = of(rows, "d group0/mlp/up/weight", "reduce-scatter")
    rows.remove(of(rows, "d group0/mlp/up/weight", "all-reduce"))
    row |= {"kind": "all-reduce", "axes": ["data", "fsdp"]}
    resize(row, row["operand_bytes"], row["operand_bytes"])
    row["parts"][0]["sliced"] = ["own.1"]
    text = "scattered and summed at once: one all-reduce over all axes, and a slice"
    assert reasons(reconciled(prediction, rows)) == {text}
    row["axes"] = ["data"]
    assert "open" in {row.status for row in reconciled(prediction, rows).values()}


def test_one_sum_each() -> None:
    prediction = predicted(**HYBRID)
    rows = compiled(prediction)
    row = of(rows, "d group0/attn_norm/out", "all-reduce")
    rows += [copied(row, name=f"{n}.sum", scope=f"group0/attn/{n}_proj") for n in "qk"]
    found = reconciled(prediction, rows)
    assert reasons(found) == {"parts of one gradient reduced one by one instead of their sum"}
    assert found["collective_bytes"].residual == 2 * row["operand_bytes"] * row["executions"]
    assert "open" in {row.status for row in reconciled(prediction, rows[:-1]).values()}


def test_out_of_the_loop() -> None:
    prediction = predicted(qkv_bias=True, **HYBRID)
    rows = compiled(prediction)
    row = of(rows, "d group0/attn/q_proj/bias", "all-reduce")
    layers = TOY["L"]
    resize(row, layers * row["operand_bytes"], layers * row["result_bytes"])
    row["executions"] //= layers
    assert reasons(reconciled(prediction, rows)) == {"moved out of the loop: one collective of all layers"}
    row["executions"] += 1
    assert "open" in {row.status for row in reconciled(prediction, rows).values()}


def test_hoisted_out_of_the_microbatches() -> None:
    prediction = predicted(accumulate=4, **(HYBRID | {"batch": 16}))
    rows = compiled(prediction)
    row = of(rows, "head/weight", "all-gather")
    row["executions"] = 1
    text = "a gather of what does not change, moved out of the loop over microbatches"
    assert reasons(reconciled(prediction, rows)) == {text}
    of(rows, "group0/mlp/up/weight", "all-gather")["executions"] = TOY["L"]  # a loop over layers is no such loop
    assert "open" in {row.status for row in reconciled(prediction, rows).values()}


def test_summed_over_microbatches_first() -> None:
    prediction = predicted(accumulate=4, **(HYBRID | {"batch": 16}))
    rows = compiled(prediction)
    row = of(rows, "d final_norm/scale", "all-reduce")
    row["executions"] = 1
    text = "a gradient summed over microbatches before it is summed over devices"
    assert reasons(reconciled(prediction, rows)) == {text}
    row["executions"] = 2
    assert "open" in {row.status for row in reconciled(prediction, rows).values()}


def test_axis_by_axis() -> None:
    prediction = predicted(**HYBRID)
    rows = compiled(prediction)
    row = of(rows, "d group0/mlp_norm/scale", "all-reduce")
    rows.append(copied(row, name="second", axes=["fsdp"]))
    row["axes"] = ["data"]
    assert reasons(reconciled(prediction, rows)) == {"a sum over several mesh axes taken one axis at a time"}
    assert "open" in {row.status for row in reconciled(prediction, rows[:-1]).values()}


def test_gathered_by_a_sum() -> None:
    prediction = predicted(**HYBRID)
    rows = compiled(prediction)
    row = of(rows, "group0/mlp/up/weight", "all-gather")
    row |= {"kind": "all-reduce", "form": "plain, gathers by summing into zeros"}
    resize(row, row["result_bytes"], row["result_bytes"])
    assert reasons(reconciled(prediction, rows)) == {"a gather by summing shards written into zeros"}
    row["form"] = "plain"
    assert "open" in {row.status for row in reconciled(prediction, rows).values()}


@pytest.mark.parametrize("times", range(6, 11))
def test_passed_around_a_ring(times: int) -> None:
    prediction = predicted(batch=8, mesh={"fsdp": 8})
    rows = compiled(prediction)
    row = of(rows, "d group0/mlp/up/weight", "reduce-scatter")
    rows.remove(row)
    shard, layers = row["result_bytes"], row["executions"]
    for number in range(times):
        passed = copied(row, name=f"permute.{number}", kind="collective-permute", executions=layers)
        resize(passed, shard, shard)
        rows.append(passed)
    found = reconciled(prediction, rows)
    status = "explained" if times in (7, 8, 9) else "open"
    assert found["collective_bytes:reduce-scatter/fsdp"].status == status


def test_a_padded_scatter_passes_on_its_border() -> None:
    prediction = predicted(batch=8, mesh={"fsdp": 4, "data": 2})
    rows = compiled(prediction)
    row = of(rows, "d group0/mlp/up/weight", "reduce-scatter")
    declared, extra = row["operand_bytes"], 16
    row["parts"][0]["unpadded_elements"] = declared // 2
    resize(row, declared + 4 * extra, row["result_bytes"] + extra)
    passed = copied(row, name="border", kind="collective-permute")
    resize(passed, 3 * extra, 3 * extra)
    rows.append(passed)
    text = "a reduce-scatter of a padded array, the rows at its border passed on"
    assert reasons(reconciled(prediction, rows)) == {text}
    assert "open" in {found.status for found in reconciled(prediction, rows[:-1]).values()}
    row["parts"][0]["unpadded_elements"] = 0
    assert "open" in {found.status for found in reconciled(prediction, rows).values()}


def test_a_recomputation_undone_takes_its_transfers_along() -> None:
    prediction = predicted(**HYBRID)
    rows = [row for row in compiled(prediction) if row["phase"] != "replay"]
    text = "collectives of a recomputation that the compiler undid"
    assert reasons(reconciled(prediction, rows, replayed=False)) == {text}
    assert "open" in {row.status for row in reconciled(prediction, rows).values()}
