"""What is stored, with one field of a recorded program changed at a time: what its row then says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from jaxcost.observation.observed import Observed
from jaxcost.prediction.ledgers import Prediction, predict
from jaxcost.reconciliation.rows import Row
from jaxcost.reconciliation.storage import (
    GRADIENTS,
    device_rows,
    donated_bytes,
    memory_findings,
    memory_rows,
    parameter_rows,
    state_rows,
)
from tests.prediction.cases import TOY, case
from tests.reconciliation.recorded import named, observed, prediction

CPU = named("toy-tied_training_cpu")
UP = "group0/mlp/up/weight"
Document = dict[str, Any]


def entry(document: Document, name: str) -> Document:
    found: Document = next(item for item in document["parameters"]["entries"] if item["name"] == name)
    return found


def parameters(change: Callable[[Document], object]) -> dict[str, Row]:
    return {row.key: row for row in parameter_rows(prediction(CPU), observed(CPU, change))}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"shape": [2, 12, 8]}, "groups.0.mlp.up.weight has shape [2, 12, 8], declared [2, 8, 12]"),
        (
            {"axes": [["layer", 2], ["f", 8], ["d", 12]]},
            "groups.0.mlp.up.weight has axes layer f d, declared layer d f",
        ),
        ({"dtype": "bf16"}, "groups.0.mlp.up.weight is bf16, declared fp32"),
        ({"trainable": False}, "groups.0.mlp.up.weight trainable False, declared True"),
        (
            {"alias": "groups.0.mlp.gate.weight"},
            "groups.0.mlp.up.weight is stored as group0/mlp/gate/weight, declared group0/mlp/up/weight",
        ),
        ({"alias": "elsewhere"}, "groups.0.mlp.up.weight is stored as elsewhere, declared group0/mlp/up/weight"),
        (
            {"dtype": "bf16", "trainable": False},
            "groups.0.mlp.up.weight is bf16, declared fp32; groups.0.mlp.up.weight trainable False, declared True",
        ),
        ({"axes": None}, ""),
        ({"bytes": 0, "repeat": 9}, ""),
    ],
)
def test_each_field_of_a_parameter_is_compared(changes: Document, said: str) -> None:
    found = parameters(lambda d: entry(d, "groups.0.mlp.up.weight").update(changes))
    row = found[f"tensor:{UP}"]
    assert (row.prediction, row.observation, row.unit, row.reason) == (192, 192, "scalars", said)
    assert row.status == ("open" if said else "exact")
    assert {key for key, other in found.items() if other.status != "exact"} == ({f"tensor:{UP}"} if said else set())


def test_parameters_that_are_missing_doubled_unknown_or_buffers() -> None:
    name = "groups.0.mlp.up.weight"

    def gone(document: Document) -> None:
        document["parameters"]["entries"].remove(entry(document, name))

    row = parameters(gone)[f"tensor:{UP}"]
    assert (row.prediction, row.observation, row.reason, row.status) == (192, 0, "0 arrays, declared 1", "open")
    row = parameters(lambda d: entry(d, name).update(kind="buffer"))[f"tensor:{UP}"]
    assert (row.observation, row.reason) == (0, "0 arrays, declared 1")
    row = parameters(lambda d: d["parameters"]["entries"].append(entry(d, name)))[f"tensor:{UP}"]
    assert (row.observation, row.reason) == (384, "2 arrays, declared 1")
    other = {"kind": "parameter", "name": "x.bias", "scope": "group0/mlp/up", "scalars": 3, "alias": "x.bias"}
    row = parameters(lambda d: d["parameters"]["entries"].append(other))["tensor:group0/mlp/up/bias"]
    said = "the network has a parameter that the program does not declare"
    assert (row.prediction, row.observation, row.reason, row.status) == (0, 3, said, "open")


def test_totals_of_parameters_and_the_padding_of_a_vocabulary() -> None:
    """18 rows for 16: 2 x 8 scalars more in the table, and once more under the head's own name."""
    for tied, unique, named_ in ((True, 1128, 1256), (False, 1256, 1256)):
        made = predict(case({**TOY, "tied": tied}, "training", seq=8, vocabulary_multiple=9))
        more = 16 if tied else 32
        seen = {"unique": unique + more, "named": named_ + 32, "trainable": unique + more, "bytes": 4 * (unique + more)}
        found = {
            row.key: row for row in parameter_rows(made, Observed({"parameters": {**seen, "entries": []}}))
        }  # fmt: skip
        for name, added in (("unique", more), ("named", 32), ("trainable", more)):
            row = found[f"parameters.{name}"]
            assert (row.unit, row.residual, row.status) == ("scalars", added, "explained")
            (item,) = row.explanations
            assert (item.amount, item.evidence) == (added, "vocabulary_multiple = 9")
        row = found["parameters.bytes"]
        assert (row.unit, row.status, row.reason) == ("bytes", "exact", "ledger total bytes")
        assert found["parameters.unique"].reason == "ledger total stored"
    frozen = predict(case(TOY, "training", seq=8, vocabulary_multiple=9, frozen=["head"]))
    seen = {"unique": 1288, "named": 1288, "trainable": 1144, "bytes": 4 * 1288, "entries": []}
    found = {row.key: row for row in parameter_rows(frozen, Observed({"parameters": seen}))}
    assert [item.amount for item in found["parameters.trainable"].explanations] == [16]
    assert found["parameters.trainable"].residual == 16
    bare = {row.key: row for row in parameter_rows(prediction(CPU), observed(CPU))}
    assert [bare[f"parameters.{name}"].explanations for name in ("unique", "named", "trainable")] == [(), (), ()]


def states(made: Prediction, **seen: int) -> dict[str, Row]:
    by_role = {role: {"bytes": size} for role, size in seen.items()}
    return {row.key: row for row in state_rows(made, Observed({"state": {"by_role": by_role}}))}


def test_state_by_role() -> None:
    adam = predict(case(TOY, "training", seq=8))
    found = states(adam, parameter=5024, first_moment=5024, second_moment=5023, step=4, tokens=32)
    assert {key: (row.prediction, row.observation, row.status) for key, row in found.items()} == {
        "state.parameter": (5024, 5024, "exact"), "state.first_moment": (5024, 5024, "exact"),
        "state.second_moment": (5024, 5023, "open"), "state.step": (4, 4, "exact"),
        "state.gradient": (5024, None, "unmeasured"),
    }  # fmt: skip
    assert found["state.gradient"].reason == GRADIENTS and {row.unit for row in found.values()} == {"bytes"}
    missing = states(adam, parameter=5024)["state.first_moment"]
    assert (missing.prediction, missing.observation, missing.status) == (5024, 0, "open")
    copied = predict(case(TOY, "training", seq=8, precision="a16_six_object"))
    found = states(copied, step=4)
    assert (found["state.gradient_copy"].observation, found["state.gradient_copy"].reason) == (None, GRADIENTS)
    row = found["state.step"]
    assert (row.prediction, row.observation, row.status) == (0, 4, "explained")
    ((amount, reason, evidence),) = [(item.amount, item.reason, item.evidence) for item in row.explanations]
    assert (amount, evidence) == (4, "optimizer count") and reason.startswith("the policy lists no step counter")
    assert states(copied, step=5)["state.step"].status == "open"
    assert "kv_cache.allocated_bytes" not in states(adam, parameter=5024)


def test_the_cache_of_decode_is_keys_and_values() -> None:
    """Two layers, two key heads of two, five rows of bf16: 2 x 2 x 2 x 5 x 2 bytes of keys, and of values."""
    served = predict(case(TOY, "decode", past=4))
    row = states(served, cache_keys=80, cache_values=80)["kv_cache.allocated_bytes"]
    assert (row.prediction, row.observation, row.unit, row.status) == (160, 160, "bytes", "exact")
    for keys, values in ((80, 79), (0, 160), (81, 80)):
        made = states(served, cache_keys=keys, cache_values=values)["kv_cache.allocated_bytes"]
        assert made.observation == keys + values


def border(change: Callable[[Document], object], name: str = CPU) -> dict[str, Row]:
    return {row.key: row for row in memory_rows(prediction(name), observed(name, change))}


def why(row: Row) -> list[tuple[int, str, str]]:
    return [(item.amount, item.reason, item.evidence) for item in row.explanations]


def test_padded_tiles_are_told_by_their_arrays() -> None:
    tiles = "tiles padded by the layout of the compiler"

    def pad(document: Document) -> None:
        first, second = document["hlo"]["arguments"][:2]
        first["bytes"] += 100
        second["bytes"] += 200
        document["hlo"]["results"][0]["bytes"] += 30
        document["memory"]["argument_bytes"] += 300
        document["memory"]["output_bytes"] += 30
        document["memory"]["alias_bytes"] += 300

    found = border(pad)
    said = "2 arrays: f32[2,8] takes 264 bytes, f32[16,8] takes 612 bytes"
    assert why(found["argument_bytes"]) == [(300, tiles, said)] == why(found["alias_bytes"])
    table = (280, "the table of pointers to the results", "the result is a tuple of 35 arrays")
    assert why(found["output_bytes"]) == [(30, tiles, "1 arrays: f32[16,8] takes 542 bytes"), table]
    assert {row.status for row in found.values()} == {"explained"} and {row.unit for row in found.values()} == {"bytes"}
    assert why(border(lambda d: None)["argument_bytes"]) == []
    found = border(lambda d: d["hlo"].update(result_table_bytes=0))
    assert (why(found["output_bytes"]), found["output_bytes"].status) == ([], "open")

    def tokens(document: Document) -> None:  # a padded argument that no result takes the place of
        document["hlo"]["arguments"].append(
            {"path": "batch.tokens", "shape": "s32[2,8]", "bytes": 70, "logical_bytes": 64}
        )

    found = border(tokens)
    assert why(found["argument_bytes"]) == [(6, tiles, "1 arrays: s32[2,8] takes 70 bytes")]
    assert why(found["alias_bytes"]) == []

    def many(document: Document) -> None:
        for number, item in enumerate(document["hlo"]["arguments"][:6]):
            item["bytes"] += 10 * (number + 1)

    ((amount, _, evidence),) = why(border(many)["argument_bytes"])
    assert amount == 210 and evidence.startswith("6 arrays: ") and evidence.count(" takes ") == 4


def test_arguments_that_nothing_uses_pass_by() -> None:
    def drop(document: Document) -> None:
        document["hlo"]["arguments"] = [
            item for item in document["hlo"]["arguments"] if not item["path"].endswith("embed.tokens.weight")
        ]
        for field in ("argument_bytes", "alias_bytes"):
            document["memory"][field] -= 3 * 512

    found = border(drop)
    names = "parameters.embed.tokens.weight, optimizer.0.mu.embed.tokens.weight, optimizer.0.nu.embed.tokens.weight"
    said = [(-1536, "arguments that nothing uses pass the program by", f"no arguments of the module: {names}")]
    assert why(found["argument_bytes"]) == said == why(found["alias_bytes"])
    assert found["argument_bytes"].status == found["alias_bytes"].status == "explained"

    def kept(document: Document) -> None:
        drop(document)
        for row in document["state"]["rows"]:
            row["donated"] = False

    assert why(border(kept)["argument_bytes"]) == [] and border(kept)["argument_bytes"].status == "open"


def test_what_is_given_away() -> None:
    """A train state of 4 bytes of parameters and twice 4 of moments, and the counter; a cache of 160 bytes."""
    step = case(TOY, "training", seq=8)
    assert donated_bytes(predict(step)) == 3 * 4 * 1256 + 4
    held = step.replaced(execution=step.execution.replaced(donate=False))
    assert donated_bytes(predict(held)) == 0
    assert donated_bytes(predict(case(TOY, "decode", past=4))) == 160
    assert donated_bytes(predict(case(TOY, "prefill", seq=4))) == 0


@pytest.mark.parametrize(("limit", "status"), [(65222, "bounded"), (65221, "open"), (10**9, "bounded")])
def test_a_program_fits_its_device(limit: int, status: str) -> None:
    def device(document: Document) -> None:
        document["target"].update(device_memory_bytes=limit, device_memory_source="a data sheet")

    row = border(device)["fits"]
    assert (row.observation, row.status, row.unit, row.reason) == (
        65222,
        status,
        "bytes",
        "device memory: a data sheet",
    )
    assert "fits" not in border(lambda d: None)

    def unknown(document: Document) -> None:
        device(document)
        document["memory"]["required_bytes"] = None

    assert "fits" not in border(unknown)


def second(
    status: str = "compiled", instructions: int = 3, needed: int | None = 99, device: int | None = 98
) -> Document:
    compiled = {
        "status": status, "refusal": None, "remat_instructions": instructions, "excess_flops": 12,
        "required_bytes": needed, "names": ["fusion.1.remat"],
    }  # fmt: skip
    return {"refusal": None, "second_compile": compiled, "device_memory_bytes": device}


def test_a_second_compile_stands_by_itself() -> None:
    def change(document: Document) -> None:
        document["rematerialisation"] = second()

    rows = {row.key: row for row in device_rows(observed(CPU, change))}
    said = "a second compile with XLA's own rematerialisation on, compiled; of no ledger of this program"
    flops, needed = (rows[f"xla_rematerialisation.{name}"] for name in ("excess_flops", "required_bytes"))
    assert (flops.prediction, flops.observation, flops.unit, flops.reason) == (None, 12, "FLOPs", said)
    assert (needed.prediction, needed.observation, needed.unit, needed.reason) == (None, 99, "bytes", said)
    assert "accepted" not in rows and device_rows(observed(CPU, lambda d: d.update(rematerialisation=None))) == []
    refused = observed(CPU, lambda d: d.update(status="refused", reason="too large", rematerialisation=None))
    (row,) = device_rows(refused)
    assert (row.key, row.prediction, row.observation, row.status) == ("accepted", 1, 0, "open")
    assert (row.unit, row.reason) == ("programs", "the compiler refused the program: too large")


@pytest.mark.parametrize(
    ("section", "text"),
    [
        (second(), "compiled, in silence: 3 instructions recomputed, 12 FLOPs more, 99 bytes required, still above the "
                   "device's 98"),
        (second(device=99), "compiled, in silence: 3 instructions recomputed, 12 FLOPs more, 99 bytes required"),
        (second(device=None), "compiled, in silence: 3 instructions recomputed, 12 FLOPs more, 99 bytes required"),
        (second(needed=None), "compiled, in silence: 3 instructions recomputed, 12 FLOPs more, None bytes required"),
        (second(instructions=0, device=99), "compiled: 0 instructions recomputed, 12 FLOPs more, 99 bytes required"),
        (second("refused", device=99), "refused: 3 instructions recomputed, 12 FLOPs more, 99 bytes required"),
    ],
)  # fmt: skip
def test_what_is_found_of_a_second_compile(section: Document, text: str) -> None:
    found = memory_findings(observed(CPU, lambda d: d.update(rematerialisation=section)))
    assert [finding.kind for finding in found] == ["assumption"] * 3 + ["xla rematerialisation"]
    assert found[-1].text == f"with XLA's own rematerialisation on, the compile was {text}"
    assert found[-1].evidence == ("fusion.1.remat",)
    both = {**section, "refusal": {"text": "one"}}
    both["second_compile"] = {**section["second_compile"], "refusal": {"text": "two"}}
    found = memory_findings(observed(CPU, lambda d: d.update(rematerialisation=both)))
    assert [finding.text for finding in found if finding.kind == "refused"] == [
        "the compiler refused the program: one", "the compiler refused the program: two",
    ]  # fmt: skip
    assert len(memory_findings(observed(CPU, lambda d: d.update(rematerialisation=None)))) == 3
