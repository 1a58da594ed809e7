"""Published forms against the ledgers, for all sizes: closed by the declared differences, open without any of them."""

from __future__ import annotations

from typing import Any

import pytest
import sympy

from jaxcost.contracts.errors import RejectedError
from jaxcost.papers.components import COMPONENTS, SYMBOLS, Components
from jaxcost.papers.contract import Contract, Quantity
from jaxcost.papers.graphs import architecture, case_of
from jaxcost.papers.registry import registry
from jaxcost.papers.translate import is_zero, proved, translate
from jaxcost.prediction.program import program

FORMS = [
    pytest.param(contract, item, id=f"{contract.name}.{item.name}")
    for contract in registry().values()
    for item in contract.quantities
    if item.symbolic
]
B, S, d, V, L, H, E, F = (sympy.Symbol(name, integer=True, positive=True) for name in "BSdVLHEF")


def form(contract: str, name: str) -> Any:
    found = registry()[contract]
    return proved(found, found.quantity(name))


@pytest.mark.parametrize(("contract", "item"), FORMS)
def test_every_form_closes_for_all_sizes(contract: Contract, item: Quantity) -> None:
    found = proved(contract, item)
    assert found.closed, found.residual
    assert found.status == ("explained" if any(not is_zero(step.amount) for step in found.steps) else "exact")


@pytest.mark.parametrize(("contract", "item"), FORMS)
def test_no_form_closes_without_one_of_its_differences(contract: Contract, item: Quantity) -> None:
    used = [step.name for step in proved(contract, item).steps if not is_zero(step.amount)]
    for name in used:
        fewer = tuple(step for step in item.differences if step.name != name)
        assert proved(contract, item.model_copy(update={"differences": fewer})).status == "open"


@pytest.mark.parametrize(("contract", "item"), FORMS)
def test_no_form_closes_with_another_formula(contract: Contract, item: Quantity) -> None:
    wrong = item.model_copy(update={"formula": f"({item.formula})*1.0000001"})
    assert proved(contract, wrong).status == "open"


# Typed from the papers, in jaxcost's symbols.
PUBLISHED = {
    ("megatron", "p"): 12 * L * d**2 + 13 * L * d + V * d + S * d,
    ("megatron", "iteration_flops"): 96 * B * S * L * d**2 + 16 * B * S**2 * L * d + 6 * B * S * d * V,
    ("teaching-article", "training_flops"): 96 * B * S * L * d**2 + 16 * B * S**2 * L * d + 8 * B * S * d * V,
    ("teaching-article", "block_forward"): L * (24 * B * S * d**2 + 4 * B * S**2 * d),
    ("korthikanti", "layer_bytes"): 34 * B * S * d + 5 * B * H * S**2,
    ("korthikanti", "layer_bytes_selective"): 34 * B * S * d,
    ("korthikanti", "layer_bytes_full"): 2 * B * S * d,
    ("korthikanti", "model_flops"): 72 * B * L * S * d**2 + 12 * B * L * S**2 * d + 6 * B * S * d * V,
    ("korthikanti", "hardware_flops"): 72 * B * L * S * d**2 + 24 * B * L * S**2 * d + 6 * B * S * d * V,
    ("kaplan", "n"): 2 * d * L * (2 * H * E + F),
    ("kaplan", "forward_flops"): 4 * d * L * (2 * H * E + F) + 2 * L * S * H * E,
    ("kaplan", "mask_flops"): 2 * L * S * H * E,
    ("kaplan", "embed_flops"): 4 * d,
}


@pytest.mark.parametrize(("contract", "name"), PUBLISHED)
def test_forms_as_published(contract: str, name: str) -> None:
    assert is_zero(form(contract, name).formula - PUBLISHED[contract, name])


def test_the_mistake_of_the_teaching_article_is_one_explained_difference() -> None:
    found = form("teaching-article", "training_flops")
    assert [sympy.expand(step.amount) for step in found.steps] == [2 * B * S * d * V]
    assert form("teaching-article", "corrected_training_flops").status == "exact"
    assert form("megatron", "iteration_flops").status == "exact"


def test_equation_8_charges_the_replay_of_attention_three_times() -> None:
    found = form("korthikanti", "hardware_flops")
    assert is_zero(found.steps[0].amount - 8 * B * L * S**2 * d)
    assert is_zero(found.ledger - form("korthikanti", "model_flops").ledger - 4 * B * L * S**2 * d)


def test_kaplan_s_attention_term_is_one_of_the_two_products() -> None:
    found = form("kaplan", "mask_flops")
    assert is_zero(found.ledger - 4 * L * S * H * E)
    assert is_zero(found.formula - 2 * L * S * H * E)


@pytest.mark.parametrize("tensor", [1, 2, 4, 8])
@pytest.mark.parametrize(("batch", "seq", "heads", "layers"), [(1, 8, 8, 2), (3, 32, 16, 5), (2, 64, 8, 1)])
def test_the_forms_of_parallelism_close_on_integers(tensor: int, batch: int, seq: int, heads: int, layers: int) -> None:
    contract = registry()["korthikanti"]
    graph = contract.graph("gpt").model_copy(
        update={"sizes": {**contract.graph("gpt").sizes, "vocabulary": "64", "positions": str(seq)}}
    )
    scope = {"hidden": 8 * heads, "layers": layers, "attention_heads": heads}
    seen = 0
    for item in (item for item in contract.quantities if not item.symbolic):
        split = "sequence" in item.name or item.name == "first_stage"
        work = contract.tables[0].workload.model_copy(
            update={
                "batch": str(batch),
                "seq": str(seq),
                "mesh": {"tensor": str(tensor)},
                "sequence_parallel": split,
            }
        )
        case = case_of(graph, item, scope, work)
        found = translate(contract, item, Components(program(case)), {"tensor_parallel": tensor})
        assert found.status == "exact"
        seen += 1
    assert seen == 5


def test_components_are_parts_of_the_ledgers() -> None:
    contract = registry()["megatron"]
    names = Components(program(case_of(contract.graphs[0], contract.quantity("iteration_flops"), None)))
    parts = ("matrix", "embedding", "position", "head", "norm", "bias")
    assert names["parameters"] == sum(names[f"{part}_scalars"] for part in parts)
    assert names["matrix_scalars"] == sum(names[f"{part}_scalars"] for part in ("qkv", "output", "mlp"))
    forward = ("qkv", "pairwise", "output", "mlp", "head")
    assert names["forward"] == sum(names[f"{part}_forward"] for part in forward)
    assert names["pairwise_forward"] == names["scores_forward"] + names["values_forward"]
    assert names["executed"] == names["training"] + names["replay"]
    assert names["replay"] == names["block_forward"]
    assert set(names) == COMPONENTS.keys() | SYMBOLS.keys() and len(names) == len(COMPONENTS) + len(SYMBOLS)
    with pytest.raises(KeyError):
        names["nothing"]


@pytest.mark.parametrize("size", ["0", "0 - 4", "1/2", "d_model/7"])
def test_a_size_that_is_no_positive_integer_is_refused(size: str) -> None:
    contract = registry()["kaplan"]
    graph = contract.graphs[0].model_copy(update={"sizes": {**contract.graphs[0].sizes, "hidden": size}})
    with pytest.raises(RejectedError, match="not a positive integer"):
        architecture(graph, {"d_model": 64, "n_layer": 2})
