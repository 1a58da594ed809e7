"""What crosses devices, one transfer at a time, on a model of two layers of width 8: counted on paper.

4 query heads and 2 key heads of 2, an MLP of 12, 16 words; four sequences of four rows over all devices.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from jaxcost.contracts.architecture import Architecture
from jaxcost.contracts.case import Case, build_case
from jaxcost.prediction import program
from jaxcost.prediction.program import Program
from jaxcost.prediction.stages import ranks
from jaxcost.prediction.transfers import Transfer, kv_replicas, participants, transfers
from tests.prediction.cases import TOY, architecture, case


def built(sizes: dict[str, Any] = TOY, phase: str = "training", **options: Any) -> Program:
    return program(case(sizes, phase, **{"batch": 4, "seq": 4, **options}))


def moved(of: Program, wanted: Callable[[Transfer], bool], rank: int = 0) -> list[Transfer]:
    return [item for item in transfers(of, ranks(of)[rank]) if wanted(item)]


def within(*scopes: str) -> Callable[[Transfer], bool]:
    return lambda item: any(item.scope == scope or item.scope.startswith(scope + "/") for scope in scopes)


def short(found: list[Transfer]) -> list[tuple[Any, ...]]:
    """Kind, axes, object, phase, dtype, elements, layers, microbatches."""
    return [(item.kind, "+".join(item.axes), item.object, item.phase, *item[5:9]) for item in found]


def narrow(**options: Any) -> Program:
    """A token table of 4 columns beside a width of 8, whose projections lead in and out."""
    data = architecture(**{**TOY, "tied": True}).to_data()
    data["embedding_width"] = 4
    data["absent"].remove("embedding_projection")
    return program(build_case(Architecture.from_data(data), {"phase": "training", "batch": 4, "seq": 4, **options}))


def test_participants_are_the_product_of_their_axes() -> None:
    of = built(batch=6, mesh={"data": 3, "fsdp": 2, "context": 2, "tensor": 4})
    assert kv_replicas(of) == 2
    for axes, count in (
        ((), 1), (("data",), 3), (("data", "fsdp"), 6), (("data", "fsdp", "context"), 12), (("tensor",), 4),
        (("tensor_heads",), 2), (("tensor_replica", "context"), 4), (("pipeline",), 1),
    ):  # fmt: skip
        assert participants(of, axes) == count


def test_ids_travel_to_the_table_and_rows_come_back() -> None:
    """Two devices of fsdp have 8 rows each: all 16 ids are gathered, 8 x 8 numbers are exchanged both ways."""
    of = built(mesh={"fsdp": 2})
    found = moved(of, within("embed"))
    assert short(found) == [
        ("all-gather", "fsdp", "tokens", "forward", "int32", 16, 1, 1),
        ("all-to-all", "fsdp", "embed/tokens/out", "forward", "bf16", 8 * 8, 1, 1),
        ("all-to-all", "fsdp", "d embed/tokens/out", "backward", "bf16", 8 * 8, 1, 1),
    ]
    assert {(item.made_by, item.needed_by) for item in found} == {("embed/tokens", "embed/tokens")}
    # Rows of a table cut by words as well are sums over tensor; split rows are reduced to a device's own half first.
    whole, split = (
        short(moved(built(mesh={"fsdp": 2, "tensor": 2}, sequence_parallel=rows), within("embed")))
        for rows in (False, True)
    )
    assert whole[1:] == [
        ("all-reduce", "tensor", "embed/tokens/out", "forward", "fp32", 64, 1, 1),
        ("all-to-all", "fsdp", "embed/tokens/out", "forward", "bf16", 64, 1, 1),
        ("all-to-all", "fsdp", "d embed/tokens/out", "backward", "bf16", 64, 1, 1),
    ]
    assert split[1:] == [
        ("reduce-scatter", "tensor", "embed/tokens/out", "forward", "fp32", 64, 1, 1),
        ("all-to-all", "fsdp", "embed/tokens/out", "forward", "bf16", 32, 1, 1),
        ("all-to-all", "fsdp", "d embed/tokens/out", "backward", "bf16", 32, 1, 1),
        ("all-gather", "tensor", "d embed/tokens/out", "backward", "bf16", 64, 1, 1),
    ]


def test_a_narrow_table_is_whole_over_fsdp() -> None:
    """fsdp cuts the width of 8, which this table of 4 columns does not have: no exchange, rows of all are gathered."""
    found = short(moved(narrow(mesh={"fsdp": 2}), within("embed/tokens")))
    assert found == [
        ("all-gather", "fsdp", "tokens", "forward", "int32", 16, 1, 1),
        ("all-gather", "fsdp", "d embed/tokens/out", "backward", "bf16", 2 * 8 * 4, 1, 1),
    ]
    summed = short(moved(narrow(mesh={"fsdp": 2, "tensor": 2}), within("embed/tokens")))
    assert summed[1] == ("all-reduce", "tensor", "embed/tokens/out", "forward", "fp32", 2 * 8 * 4, 1, 1)
    # Data ranks have a gradient of the whole table, 16 x 4, each.
    (own,) = moved(narrow(mesh={"data": 2}), lambda item: item.object == "d embed/tokens/weight")
    assert (own.kind, own.axes, own.elements, own.terms) == ("all-reduce", ("data",), 64, ("head", "embed/tokens"))
    # Its fsdp ranks keep whole rows for the lookup, while the head's part is summed on its own.
    both = moved(narrow(mesh={"data": 2, "fsdp": 2}), lambda item: item.object == "d embed/tokens/weight")
    assert [(item.axes, item.elements, item.terms) for item in both] == [(("data",), 64, ())]


def test_positions_are_gathered_and_their_gradient_is_scattered() -> None:
    """Four rows of eight are looked up; two devices of fsdp keep 16 of 32 numbers, which two data ranks sum."""
    of = built({**TOY, "positions": 6}, mesh={"data": 2, "fsdp": 2})
    assert short(moved(of, within("embed/positions"))) == [
        ("all-gather", "fsdp", "embed/positions/weight", "forward", "bf16", 32, 1, 1),
        ("reduce-scatter", "fsdp", "d embed/positions/weight", "backward", "bf16", 32, 1, 1),
        ("all-reduce", "data", "d embed/positions/weight", "backward", "bf16", 16, 1, 1),
    ]
    alone = built({**TOY, "positions": 6}, mesh={"data": 2})
    assert short(moved(alone, within("embed/positions"))) == [
        ("all-reduce", "data", "d embed/positions/weight", "backward", "bf16", 32, 1, 1)
    ]


def test_the_loss_and_the_labels_of_split_rows() -> None:
    """The label of a rank's last row is its neighbour's first id: one for each of a device's two sequences."""
    of = built(mesh={"data": 2, "context": 2})
    found = moved(of, within("loss"))
    assert short(found) == [
        ("collective-permute", "context", "tokens", "forward", "int32", 2, 1, 1),
        ("all-reduce", "data+context", "loss/out", "forward", "fp32", 1, 1, 1),
    ]
    assert {(item.made_by, item.needed_by) for item in found} == {("head", "loss")}
    words = ["row maximum", "row sum", "label's logit"]
    whole = moved(built(mesh={"tensor": 2}, remat="everything"), within("loss"))
    assert [(item.object, item.phase) for item in whole] == [
        *((name, "forward") for name in words), *((name, "replay") for name in words[:2]),
    ]  # fmt: skip
    assert {short([item])[0][4:] for item in whole} == {("fp32", 16, 1, 1)}


@pytest.mark.parametrize("mesh, axes", [({"data": 2, "context": 2}, "data+context"), ({"data": 2}, "data")])
def test_a_tied_head_adds_its_gradient_to_that_of_its_table(mesh: dict[str, int], axes: str) -> None:
    found = moved(built({**TOY, "tied": True}, mesh=mesh), lambda item: item.needed_by == "optimizer")
    ends = [item for item in found if not item.scope.startswith("group")]
    assert short([item for item in ends if item.scope != "final_norm"]) == [
        ("all-reduce", axes, "d embed/tokens/weight", "backward", "fp32", 128, 1, 1)
    ]
    apart = moved(built(mesh=mesh), lambda item: item.object in ("d head/weight", "d embed/tokens/weight"))
    assert [(item.object, item.elements) for item in apart] == [("d head/weight", 128), ("d embed/tokens/weight", 128)]


def test_weights_are_gathered_for_each_of_three_passes() -> None:
    """One checkpoint around everything: forward, a whole forward pass again, backward."""
    of = built(mesh={"fsdp": 2}, remat="everything")
    gathers = moved(of, lambda item: item.object.endswith("/weight") and item.kind == "all-gather")
    query = [item for item in gathers if item.scope == "group0/attn/q_proj"]
    assert sorted(item.phase for item in query) == ["backward", "forward", "replay"]
    assert {(*item[5:9], item.made_by, item.needed_by) for item in query} == {
        ("bf16", 64, 2, 1, "parameters", "group0/attn/q_proj")
    }
    # The head's backward pass follows its replay at once.
    assert [item.phase for item in gathers if item.scope == "head"] == ["forward", "replay"]
    assert {item.phase for item in gathers} == {"forward", "backward", "replay"}


def test_groups_are_gathered_whole() -> None:
    """A layer's matrices are 480 scalars; outside stand head and table, 2 x 128."""
    of = built(mesh={"fsdp": 2}, fsdp_group="block")
    found = moved(of, lambda item: item.kind == "all-gather" and item.made_by == "parameters")
    assert [(item.object, item.scope, item.phase, *item[5:]) for item in found] == [
        (name, scope, phase, "bf16", size, copies, 1, "parameters", phase, ())
        for phase in ("forward", "backward")
        for name, scope, size, copies in (("remainder", "", 256, 1), ("group0", "group0", 480, 2))
    ]


def test_a_partial_gradient_is_named_after_what_makes_it() -> None:
    of = built(mesh={"tensor": 2})
    sums = moved(of, lambda item: item.phase == "backward" and item.object.endswith("norm/out"))
    assert [(item.object, item.scope, item.terms, item.elements, item.layers) for item in sums] == [
        ("d final_norm/out", "head", ("head",), 16 * 8, 1),
        ("d group0/mlp_norm/out", "group0/mlp", ("group0/mlp/gate", "group0/mlp/up"), 16 * 8, 2),
        (
            "d group0/attn_norm/out", "group0/attn", tuple(f"group0/attn/{name}_proj" for name in "qkv"), 16 * 8, 2,
        ),
    ]  # fmt: skip
    assert [item.made_by for item in sums] == ["head", "group0/mlp/gate, group0/mlp/up", ", ".join(sums[2].terms)]


def test_stages_hand_on_what_they_make() -> None:
    """A microbatch of two rows of four, of width 8; rank 0 sends forward, rank 1 sends gradients back."""
    of = built(mesh={"pipeline": 2}, accumulate=2)
    piped: Callable[[Transfer], bool] = lambda item: item.axes == ("pipeline",)  # noqa: E731
    assert short(moved(of, piped, 0)) == [("collective-permute", "pipeline", "group0/in", "forward", "bf16", 64, 1, 2)]
    assert short(moved(of, piped, 1)) == [
        ("collective-permute", "pipeline", "d group0/in", "backward", "bf16", 64, 1, 2)
    ]


def test_a_tied_table_on_two_ranks_is_summed_over_both() -> None:
    """Once a step, as the accumulated gradient of fp32; two devices of fsdp have half of 16 x 8 each."""
    for mesh, held in (({"pipeline": 2}, 128), ({"pipeline": 2, "fsdp": 2}, 64)):
        for precision, dtype in (("mixed", "fp32"), ("bf16", "bf16")):
            of = built({**TOY, "tied": True}, mesh=mesh, accumulate=2, precision=precision)
            for rank in (0, 1):
                (found,) = moved(of, lambda item: item.kind == "all-reduce" and item.axes == ("pipeline",), rank)
                assert tuple(found) == (
                    "all-reduce", ("pipeline",), "d embed/tokens/weight", "embed/tokens", "backward", dtype, held, 1, 1,
                    "first and last stage", "optimizer", (),
                )  # fmt: skip
    data = case({**TOY, "tied": True}, "training", batch=4, seq=4, mesh={"pipeline": 2}, accumulate=2).to_data()
    next(item for item in data["state"]["objects"] if item["role"] == "gradient")["dtype"] = "bf16"
    (own,) = moved(program(Case.from_data(data)), lambda item: item.axes == ("pipeline",) and item.kind == "all-reduce")
    assert own.dtype == "bf16"
    frozen = built({**TOY, "tied": True}, mesh={"pipeline": 2}, accumulate=2, frozen=["embed"])
    assert not moved(frozen, lambda item: item.object == "d embed/tokens/weight")
    # A narrow table has no axis that fsdp cuts.
    (whole,) = moved(
        narrow(mesh={"pipeline": 2, "fsdp": 2}, accumulate=2), lambda item: item.needed_by == "optimizer"
        and item.axes == ("pipeline",)
    )  # fmt: skip
    assert whole.elements == 64


def test_a_stage_hands_rows_on_and_gradients_back() -> None:
    of = built(mesh={"pipeline": 2}, accumulate=2)
    handed = {
        (item.phase, item.made_by, item.needed_by)
        for rank in ranks(of)
        for item in transfers(of, rank)
        if item.kind == "collective-permute"
    }
    assert handed == {
        ("forward", "this stage", "the stage that follows"),
        ("backward", "this stage", "the stage before"),
    }
