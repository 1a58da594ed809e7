"""The ledgers of cuDNN and splash: which pairwise products are done again, and what a policy for dots then keeps."""

from __future__ import annotations

import pytest

from jaxcost.contracts.case import build_case
from jaxcost.prediction.ledgers import predict
from tests.prediction.cases import architecture

PAIR = 2 * 2 * 4 * 256 * 256 * 2 * 2  # two FLOPs, batch, heads, pairs, width, layers


def products(attention: str, **options) -> dict[tuple[str, str], int]:
    """Pairwise products of a training step, each in units of one."""
    case = build_case(architecture(), {"phase": "training", "batch": 2, "seq": 256, "attention": attention, **options})
    found: dict[tuple[str, str], int] = {}
    for row in predict(case).ledgers["flops"].rows:
        component = row.scope.rsplit("/", 1)[-1]
        if component in ("scores", "values"):
            found[component, row.phase] = found.get((component, row.phase), 0) + row.value
    assert all(value % PAIR == 0 for value in found.values())
    return {place: value // PAIR for place, value in found.items()}


FIVE = {
    ("scores", "forward"): 1, ("values", "forward"): 1, ("scores", "backward"): 2, ("values", "backward"): 2,
    ("scores", "replay"): 1,
}  # fmt: skip


def test_cudnn_multiplies_twice_forward_and_five_times_backward():
    assert products("cudnn") == products("blockwise") == FIVE
    assert products("materialised") != FIVE


def test_splash_rebuilds_probabilities_and_their_gradient_once_more():
    assert products("splash") == FIVE | {("scores", "replay"): 2, ("values", "replay"): 1}


@pytest.mark.parametrize("remat", ["block", "attention", "everything", "nothing_saveable"])
def test_recomputation_runs_the_forward_kernel_again(remat):
    assert products("cudnn", remat=remat) == FIVE | {("scores", "replay"): 2, ("values", "replay"): 1}
    assert products("splash", remat=remat) == FIVE | {("scores", "replay"): 3, ("values", "replay"): 2}


def test_a_policy_that_saves_dots_finds_none_in_a_kernel():
    assert products("cudnn", remat="dots_saveable") == FIVE | {("scores", "replay"): 2, ("values", "replay"): 1}
    assert ("values", "replay") not in products("blockwise", remat="dots_saveable")


def test_splash_states_its_scheduled_pairs_beside_the_rectangle():
    def fields(**options):
        case = build_case(architecture(), {"phase": "training", "batch": 2, "attention": "splash", **options})
        row = next(r for r in predict(case).ledgers["flops"].rows if r.scope == "group0/attn/scores")
        return row.value, row.fields.get("block"), row.fields.get("scheduled_pairs")

    assert fields(seq=256, attention_block=128) == (PAIR, 128, 3 * 128 * 128)
    assert fields(seq=256) == (PAIR, 256, 256 * 256)
    assert fields(seq=200)[1:] == (None, None)
