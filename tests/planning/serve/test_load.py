"""Load, goodput, pools, speculation and lifetime: closed forms, a played-out check, and what is refused."""

from __future__ import annotations

import random
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxcost.catalog import load
from jaxcost.contracts.errors import RejectedError
from jaxcost.planning.serve.inputs import Lifetime, Speculation, Workload, parse_scales
from jaxcost.planning.serve.lifetime import compare, crossover, side
from jaxcost.planning.serve.load import Requests, goodput, integers, offered, pools, under_target
from jaxcost.planning.serve.speculative import break_even, expected_tokens, one_layer, speculation
from tests.planning.serve.plans import model, requests


@pytest.fixture(scope="module")
def asked() -> Requests:
    return requests()


def test_the_batch_is_the_largest_that_meets_the_target_and_fits(asked: Requests) -> None:
    for tpot in (Fraction(1, 200), Fraction(1, 50), Fraction(1, 10)):
        found = under_target(asked, tpot)
        batch = found["batch"]
        assert asked.decode(batch).full_overlap <= tpot and batch <= asked.memory_batch
        more = asked.decode(batch + 1).full_overlap > tpot
        assert more if found["limit"] == "latency target" else batch == asked.memory_batch
    assert under_target(asked, Fraction(1, 10_000))["limit"] == "none: latency target"
    few = requests(max_num_seqs=5)
    assert under_target(few, Fraction(1, 10)) | {"by_target": 0} == {
        "batch": 5, "by_target": 0, "by_memory": 5, "limit": "max_num_seqs",
    }  # fmt: skip


def test_mixing_is_never_slower_than_taking_turns(asked: Requests) -> None:
    for batch in (1, 16, asked.memory_batch):
        assert asked.seconds(batch, mixed=True) <= asked.seconds(batch, mixed=False)
        assert asked.seconds(batch) >= asked.output * asked.decode(batch).full_overlap


def test_goodput_meets_both_targets(asked: Requests) -> None:
    work = Workload(prompt=2000, output=500, ttft=0.5, tpot=0.02)
    found = goodput(asked, work)
    assert asked.tpot(found["batch"]) <= Fraction("0.02") < asked.tpot(found["batch"] + 1)
    assert goodput(asked, work, mixed=False)["requests_per_second"] <= found["requests_per_second"]
    late = goodput(asked, Workload(prompt=2000, output=500, ttft=0.001))
    assert late["requests_per_second"] == 0 and "first token" in late["limit"]


def test_requests_in_flight_and_an_overload(asked: Requests) -> None:
    found = offered(asked, Workload(prompt=2000, output=500, rate=5.0), 1)
    assert found["in_flight"] == pytest.approx(5.0 * found["residence_seconds"])
    assert asked.rate(found["batch"]) >= 5 and asked.rate(found["batch"] - 1) < 5
    two = offered(asked, Workload(prompt=2000, output=500, rate=10.0), 2)
    assert two["in_flight"] == found["in_flight"]
    with pytest.raises(RejectedError, match="grows without end"):
        offered(asked, Workload(prompt=2000, output=500, rate=1000.0), 1)
    with pytest.raises(RejectedError, match="not one request"):
        offered(requests("llama-3.1-70b"), Workload(prompt=2000, output=500, rate=1.0), 1)


def test_pools_move_the_prompts_rows_once(asked: Requests) -> None:
    work = Workload(prompt=2000, output=500, tpot=0.02, link="inside")
    found = pools(asked, work, 3)
    assert found["global_kv_bytes"] == 2000 * 131072 == found["transfer_bytes_per_device"]
    assert found["transfer_seconds"] == pytest.approx(2000 * 131072 / 450e9)
    assert found["ratio"] == pytest.approx(found["prefill_seconds_per_request"] / found["decode_seconds_per_request"])
    assert sum(found["pools"][kind] for kind in ("prefill", "decode")) == 3
    with pytest.raises(RejectedError, match="declare"):
        pools(asked, Workload(prompt=2000, output=500, link="between"), 1)
    slow = Requests(model(wires={"between_gb_per_s": Fraction(1, 100)}), asked.capacity, 2000, 500)
    late = pools(slow, Workload(prompt=2000, output=500, ttft=1.0, link="between"), 2)
    assert late["requests_per_second"] == 0 and late["pays"] == "no" and "transfer" in late["reason"]


@given(st.integers(2, 12), st.fractions(min_value="1/100", max_value=10), st.fractions(min_value="1/100", max_value=10))
def test_whole_pools_are_the_best_of_all_splits(replicas: int, first: Fraction, per: Fraction) -> None:
    found = integers(replicas, first, per)
    assert found is not None
    best = max(min(n / first, (replicas - n) / per) for n in range(1, replicas))
    assert found["requests_per_second"] == float(best)
    assert integers(1, first, per) is None


@given(st.fractions(min_value=0, max_value=1, max_denominator=50), st.integers(1, 8))
def test_expected_tokens_are_the_sum_of_powers(chance: Fraction, drafted: int) -> None:
    assert expected_tokens(chance, drafted) == sum((chance**n for n in range(drafted + 1)), Fraction(0))


def test_expected_tokens_by_playing_it_out() -> None:
    chance, drafted, runs, rng = 0.7, 4, 40_000, random.Random(0)
    total = 0
    for _ in range(runs):
        accepted = 0
        while accepted < drafted and rng.random() < chance:
            accepted += 1
        total += accepted + 1
    spread = drafted / 2 / runs**0.5
    assert abs(total / runs - expected_tokens(Fraction("0.7"), drafted)) < 5 * spread


@given(st.fractions(min_value="1/2", max_value=9, max_denominator=40), st.integers(1, 7))
def test_break_even_is_where_the_tokens_pay_the_cost(cost: Fraction, drafted: int) -> None:
    found = break_even(cost, drafted)
    if found is None:
        assert cost >= drafted + 1
    elif found:
        assert expected_tokens(found, drafted) >= cost > expected_tokens(found - Fraction(1, 2**60), drafted)
    else:
        assert cost <= 1


def test_speculation_pays_above_its_break_even_and_not_below() -> None:
    for batch in (1, 256):
        base = speculation(
            model(), model("llama-3.2-1b"), Speculation(tokens=3, acceptance=0.5, draft="x"), batch, 2000
        )
        even = base["break_even_acceptance"]
        for acceptance, pays in ((min(1.0, even + 0.01), True), (even - 0.01, False)):
            asked = Speculation(tokens=3, acceptance=acceptance, draft="x")
            assert speculation(model(), model("llama-3.2-1b"), asked, batch, 2000)["pays"] is pays
    self_drafted = speculation(model(), model(), Speculation(tokens=2, acceptance=1.0, draft="x"), 1, 2000)
    assert not self_drafted["pays"] and self_drafted["expected_tokens_exact"] == "3"


def test_heads_draft_with_one_layer_and_the_head() -> None:
    cut = one_layer(load("llama-3.1-8b").architecture)
    assert [group.repeat for group in cut.groups] == [1] and cut.vocabulary_size == 128256
    with pytest.raises(RejectedError, match="vocabulary"):
        speculation(model(), model("qwen2.5-0.5b"), Speculation(tokens=2, acceptance=0.5, draft="x"), 1, 100)


LIFE: dict[str, Any] = {
    "against": "llama-3.1-70b", "train_tokens": 15e12, "against_train_tokens": 1e12, "train_utilization": 0.4,
    "prefill_utilization": 0.4, "decode_utilization": 0.02,
}  # fmt: skip


def lifetime(**changes: Any) -> Any:
    life = Lifetime.from_data({**LIFE, **changes}, "lifetime")
    small, large = load("llama-3.1-8b").architecture, load("llama-3.1-70b").architecture
    sides = [
        side(name, each, Fraction(str(tokens)), 4096, 1000, 200)
        for name, each, tokens in (("8b", small, life.train_tokens), ("70b", large, life.against_train_tokens))
    ]
    return compare(sides[0], sides[1], life, Fraction(10**15), "a peak", (1000, 200))


def test_both_models_cost_the_same_at_the_crossover() -> None:
    found = lifetime()
    at = lifetime(volume=found["crossover_tokens"])["device_hours_at_volume"]
    assert at["model"] == pytest.approx(at["against"], rel=1e-9)
    beyond = lifetime(volume=2 * found["crossover_tokens"])["device_hours_at_volume"]
    assert beyond["model"] < beyond["against"] and found["cheaper_beyond"] == "model"


def test_training_counts_more_than_six_flops_a_parameter() -> None:
    found = lifetime()["model"]
    assert found["train_flops"] > 6 * (8_030_261_248 - 128256 * 4096) * 15e12


def test_decode_of_an_output_is_the_sum_of_its_steps() -> None:
    architecture = load("qwen2.5-0.5b").architecture
    made = side("x", architecture, Fraction(1), 16, 10, 7)
    from jaxcost.contracts.case import build_case
    from jaxcost.prediction.flops import flops
    from jaxcost.prediction.program import program

    steps = (build_case(architecture, {"phase": "decode", "past": 10 + i, "pairs": "legal"}) for i in range(7))
    assert made.decode == sum(flops(program(case)).totals["forward"] for case in steps)


def test_crossover_in_all_directions() -> None:
    one, two = Fraction(1), Fraction(2)
    assert crossover((two, one), (one, two), 10)["crossover_tokens"] == 10.0
    assert crossover((one, two), (two, one), 10) == {
        "crossover_tokens": 10.0,
        "cheaper_beyond": "against",
        "reason": "",
    }
    for mine, other, who in (((one, one), (two, two), "model"), ((two, two), (one, one), "against")):
        found = crossover(mine, other, 10)
        assert found["crossover_tokens"] is None and found["cheaper_beyond"] == who and found["reason"]


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"utilization": 0.4}, "one utilisation"),
        ({"decode_utilization": None}, "unknown"),
        ({"price": 3.0}, "a price has"),
        ({"price": 3.0, "currency": "USD", "price_includes": "all", "price_date": "spring"}, "price_date"),
        ({"train_tokens": float("inf")}, "train_tokens"),
        ({"train_utilization": 1.5}, "train_utilization"),
    ],
)
def test_what_a_lifetime_refuses(changes: dict[str, Any], what: str) -> None:
    with pytest.raises(RejectedError, match=what):
        Lifetime.from_data({**LIFE, **changes}, "lifetime")


@pytest.mark.parametrize(
    "text", ["", "row", "group", "group:", "group:0", "group:99999999999", "channel:int64", "group:²"]
)
def test_scales_that_are_none(text: str) -> None:
    assert parse_scales(text) is None
