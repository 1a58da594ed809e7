"""Merged replay: explained where equal products are there and merging is possible, and nowhere else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jaxcost.contracts.case import Case
from jaxcost.reconciliation.merged import Done, done, merged
from jaxcost.verify.failures.subjects import train

PRODUCTS = ("attn/q_proj", "attn/k_proj", "attn/v_proj", "attn/scores", "attn/values", "attn/o_proj", "mlp/up")
SIZE = {name: 100 * (index + 1) for index, name in enumerate(PRODUCTS)}
UNROLLED = train(layers="unrolled", remat="block")
SCANNED = train(layers="scan", remat="block")


def step() -> list[Done]:
    """One layer's products: forward, replay, twice as many backward."""
    times = {"forward": 1, "replay": 1, "backward": 2}
    return [Done(f"group0/{name}", phase, SIZE[name], n, name) for name in PRODUCTS for phase, n in times.items()]


def without(*names: str) -> list[Done]:
    return [item for item in step() if item.phase != "replay" or item.scope.removeprefix("group0/") not in names]


def amounts(case: Case, equations: list[Done], products: list[Done]) -> dict[str, int]:
    found = merged(case, equations, products)
    assert all(evidence for _, evidence in found.values())
    names = {place: place[0].removeprefix("group0/") for place in found}
    return {name if place[1] == "replay" else f"{name} {place[1]}": found[place][0] for place, name in names.items()}


def test_nothing_is_merged_where_nothing_is_missing() -> None:
    assert amounts(UNROLLED, step(), step()) == {}


@pytest.mark.parametrize("count", range(1, 5))
def test_what_is_merged_from_the_input_on_is_explained(count: int) -> None:
    gone = PRODUCTS[:count]
    assert amounts(UNROLLED, step(), without(*gone)) == {name: -SIZE[name] for name in gone}


def test_a_missing_product_whose_operands_are_replayed_stays_open() -> None:
    assert amounts(UNROLLED, step(), without("attn/o_proj")) == {}
    assert amounts(UNROLLED, step(), without("attn/q_proj", "attn/scores")) == {"attn/q_proj": -100}


def test_saved_operands_are_not_in_the_way() -> None:
    """Under a policy that saves q, k and v, nothing but scores and values is replayed."""
    saved = ("attn/q_proj", "attn/k_proj", "attn/v_proj", "attn/o_proj", "mlp/up")
    assert amounts(UNROLLED, without(*saved), without(*saved, "attn/scores")) == {"attn/scores": -400}


def test_a_loop_over_layers_keeps_forward_and_replay_apart() -> None:
    assert amounts(SCANNED, step(), without(*PRODUCTS[:4])) == {}


def test_two_equal_products_under_replay_meet_in_a_loop_too() -> None:
    """The layer's replay and the kernel's own multiply the same Q and K."""
    twice = [*step(), Done("group0/attn/scores", "replay", 400, 1)]
    assert amounts(SCANNED, twice, step()) == {"attn/scores": -400}
    assert amounts(SCANNED, twice, without("attn/scores")) == {}


def test_backward_products_and_one_of_the_two_must_be_there() -> None:
    left = [item for item in without("attn/q_proj") if (item.scope, item.phase) != ("group0/attn/q_proj", "backward")]
    assert amounts(UNROLLED, step(), left) == {}
    left = [item for item in without("attn/q_proj") if (item.scope, item.phase) != ("group0/attn/q_proj", "forward")]
    assert amounts(UNROLLED, step(), left) == {}


def test_what_stays_may_bear_the_name_of_the_replay() -> None:
    left = [item for item in step() if (item.scope, item.phase) != ("group0/attn/q_proj", "forward")]
    assert amounts(UNROLLED, step(), left) == {"attn/q_proj forward": -100}
    assert amounts(SCANNED, step(), left) == {}


def test_a_product_that_runs_less_often_is_another_matter() -> None:
    equations = [replace(item, executions=2 * item.executions) for item in step()]
    hoisted = [
        item if (item.scope, item.phase) != ("group0/attn/q_proj", "forward") else replace(item, executions=1)
        for item in equations
    ]
    assert amounts(UNROLLED, equations, hoisted) == {}


def test_dots_without_names_are_told_apart_by_size() -> None:
    def nameless(items: list[Done]) -> list[Done]:
        return [replace(item, scope="group0/attn", phase="backward", name="") for item in items]

    assert amounts(UNROLLED, step(), nameless(step())) == {}
    assert amounts(UNROLLED, step(), nameless(without("attn/q_proj"))) == {"attn/q_proj": -100}


def test_unknown_numbers_say_nothing() -> None:
    row = {"scope": "group0/attn/q_proj", "phase": "forward", "flops": 100, "total": 200, "name": "dot"}
    assert done([row]) == [Done("group0/attn/q_proj", "forward", 100, 2, "dot")]
    assert done([{**row, "total": None}]) is None
    assert done([{**row, "flops": None}]) is None
