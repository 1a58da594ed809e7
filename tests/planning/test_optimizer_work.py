"""Newton-Schulz work against matrices really multiplied, partitions against every partition of small sets."""

import itertools
import json
import subprocess
import sys

import jsonschema
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jaxcost
from jaxcost.contracts.errors import RejectedError
from jaxcost.planning import optimizer_work
from jaxcost.planning.lookup import LookupTable
from jaxcost.planning.optimizer_work import (
    USUAL,
    Matrix,
    iteration_flops,
    launches,
    least_critical_flops,
    matrices,
    orthogonalisation_flops,
    own,
    own_by_offset,
    plan_optimizer,
)
from jaxcost.prediction.ledgers import predict
from jaxcost.schema import schema


def test_the_two_printed_examples_of_the_usual_estimate():
    assert orthogonalisation_flops(4096, 4096, 8, USUAL) == 4 * 8 * 4096**3 == 2_199_023_255_552
    assert orthogonalisation_flops(1024, 16384, 8, USUAL) == 4 * 8 * 1024**2 * 16384 == 549_755_813_888


class Counting(np.ndarray):
    """An array that counts the multiply-adds of its products, two FLOPs each."""

    flops = 0

    def __matmul__(self, other):
        Counting.flops += 2 * self.shape[0] * self.shape[1] * other.shape[1]
        return np.asarray(self) @ np.asarray(other)


def newton_schulz(matrix, iterations):
    """Muon's quintic iteration (Jordan et al. 2024), written from its definition; counts as it multiplies."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = matrix / np.linalg.norm(matrix)
    x = x.T if x.shape[0] > x.shape[1] else x
    for _ in range(iterations):
        gram = x.view(Counting) @ x.T.view(Counting)
        mixed = b * gram + c * (gram.view(Counting) @ gram.view(Counting))
        x = a * x + (mixed.view(Counting) @ x.view(Counting))
    return x


@given(st.integers(1, 24), st.integers(1, 24), st.integers(1, 4))
def test_flops_are_those_of_the_products_that_the_iteration_does(rows, columns, iterations):
    Counting.flops = 0
    newton_schulz(np.random.default_rng(0).normal(size=(rows, columns)), iterations)
    assert Counting.flops == orthogonalisation_flops(rows, columns, iterations)


def test_the_iteration_that_is_counted_does_orthogonalise():
    found = newton_schulz(np.random.default_rng(1).normal(size=(24, 60)), 5)
    assert np.all(np.abs(np.linalg.svd(found, compute_uv=False) - 1) < 0.4)


def cost(item):
    return orthogonalisation_flops(item.rows, item.columns)


SMALL = st.lists(
    st.builds(Matrix, st.just("w"), st.integers(1, 9), st.integers(1, 9), st.integers(1, 2)), min_size=1, max_size=4
)


@given(SMALL, st.integers(1, 3))
def test_a_partition_by_cost_is_within_grahams_bound_of_the_best_of_all(found, ranks):
    costs = [cost(item) for item in found for _ in range(item.copies)]
    best = min(
        max(sum(c for c, owner in zip(costs, owners, strict=True) if owner == rank) for rank in range(ranks))
        for owners in itertools.product(range(ranks), repeat=len(costs))
    )
    ours = own(found, ranks, cost)
    assert least_critical_flops(found, ranks, cost) <= best <= ours.critical_flops
    assert 3 * ranks * ours.critical_flops <= (4 * ranks - 1) * best
    assert sum(ours.flops) == sum(costs)


@given(SMALL, st.integers(1, 5))
def test_every_matrix_is_owned_once_under_each_rule(found, ranks):
    elements = sum(item.elements * item.copies for item in found)
    for owner in (own(found, ranks, cost), own(found, ranks, cost, "size"), own_by_offset(found, ranks, cost)):
        assert len(owner.flops) == ranks
        assert sum(owner.elements) == elements
        assert sum(owner.flops) == sum(cost(item) * item.copies for item in found)
        assert owner.flops[owner.critical_rank] == owner.critical_flops >= sum(owner.flops) / ranks
        assert owner.balance >= 1


def test_equal_scalars_are_not_equal_work():
    """Four square matrices and four flat ones of as many scalars: by size a rank may get only squares."""
    square, flat = Matrix("square", 64, 64, 4), Matrix("a flat one", 16, 256, 4)
    assert square.elements == flat.elements and cost(square) > 4 * cost(flat) * 0.99
    by_size, by_cost = own([flat, square], 3, cost, "size"), own([flat, square], 3, cost)
    assert sorted(by_size.elements) == [2 * 64 * 64, 3 * 64 * 64, 3 * 64 * 64]  # as even as eight on three can be
    assert by_cost.critical_flops < by_size.critical_flops


@pytest.mark.parametrize("split", optimizer_work.SPLITS)
@pytest.mark.parametrize("name", ["llama-3.1-8b", "phi-3-mini-4k", "gpt2", "opt-350m", "falcon-7b"])
def test_matrices_and_the_rest_are_the_whole_model(name, split):
    case = jaxcost.training(jaxcost.load(name), seq=8)
    found, others = matrices(case, split)
    rows = {row.object: row.value for row in predict(case).ledgers["parameters"].rows if not row.fields["alias"]}
    assert sum(item.elements * item.copies for item in found) + sum(rows[name] for name in others) == sum(rows.values())
    assert not [name for name in others if name.endswith("/weight") and name.startswith("group")]


def test_splits_cut_where_they_say():
    case = jaxcost.training(jaxcost.load("phi-3-mini-4k"), seq=8)
    shapes = {
        split: {(m.rows, m.columns, m.copies) for m in matrices(case, split)[0]} for split in optimizer_work.SPLITS
    }
    assert (3072, 9216, 32) in shapes["stored"] and (3072, 16384, 32) in shapes["stored"]
    assert (3072, 3072, 32) in shapes["projection"] and (3072, 8192, 32) in shapes["projection"]
    assert (3072, 96, 32 * 32) in shapes["head"] and (96, 3072, 32 * 32) in shapes["head"]


def test_launches_count_kernels_of_every_matrix():
    found = [Matrix("a", 4, 8, 3), Matrix("b", 8, 4, 2), Matrix("c", 4, 4, 1)]
    counted = launches(found, iterations=2, elementwise=1)
    assert counted["kernels_per_matrix"] == 1 + 2 * (3 + 1) == 9
    assert counted["one_by_one"] == 9 * 6 and counted["batched_by_shape"] == 9 * 2


def test_pieces_are_gathered_and_returned():
    case = jaxcost.training(jaxcost.load("gpt2"), seq=8)
    data = plan_optimizer(case, 4, tensor=8).to_data()
    assert data["exchange"]["gathered_bytes"] == 2 * data["elements"] * 7 // 8
    assert data["exchange"]["buffer_bytes"] == 2 * 768 * 3072
    assert plan_optimizer(case, 4).to_data()["exchange"]["gathered_bytes"] == 0


def test_times_need_their_assumptions():
    case = jaxcost.training(jaxcost.load("gpt2"), seq=8)
    unknown = plan_optimizer(case, 4).to_data()["times"]
    assert unknown["bound"] is None and "rate" in unknown["reason"] and "launch" in unknown["reason"]
    slow = plan_optimizer(case, 4, rate_flops_per_s=10**15, launch_seconds=1e-3).to_data()["times"]
    assert slow["bound"] == "launches" and "reason" not in slow
    assert plan_optimizer(case, 4, rate_flops_per_s=10**9, launch_seconds=0).to_data()["times"]["bound"] == "products"


@pytest.mark.parametrize(
    "change", [{"ranks": 0}, {"ranks": True}, {"iterations": 0}, {"iterations": 101}, {"split": "row"}, {"tensor": -1},
               {"rate_flops_per_s": float("nan")}, {"launch_seconds": -1}, {"ranks": 10**9}],
)  # fmt: skip
def test_numbers_out_of_range_are_refused(change):
    case = jaxcost.training(jaxcost.load("gpt2"), seq=8)
    with pytest.raises(RejectedError):
        plan_optimizer(case, **{"ranks": 2, **change})
    with pytest.raises(RejectedError, match="not a product"):
        iteration_flops(2, 2, ["cube"])


def test_a_lookup_table_of_51_billion_scalars_is_102_gigabytes():
    assert LookupTable(51 * 10**9, "bf16").table_bytes == 102 * 10**9


def test_a_prefetch_hides_what_fits_before_the_lookup():
    table = LookupTable(10**6, "bf16", width=100, lookups=2)
    assert table.read_bytes(1000) == 1000 * 2 * 100 * 2
    hidden = table.prefetch(1000, 4 * 10**9, hidden_seconds=1e-4)  # 400,000 B at 4 GB/s: 100 us
    assert hidden["hidden"] and hidden["transfer_seconds"] == 1e-4
    late = table.prefetch(1000, 4 * 10**9, hidden_seconds=1e-4, latency_seconds=1e-5)
    assert not late["hidden"] and abs(late["exposed_seconds"] - 1e-5) < 1e-12
    for bad in (LookupTable(0), LookupTable(5, "text"), LookupTable(5, lookups=0)):
        with pytest.raises(RejectedError):
            bad.prefetch(1, 1, 0)
            _ = bad.table_bytes


def run(*words):
    return subprocess.run(
        [sys.executable, "-m", "jaxcost", "plan", *words], capture_output=True, text=True, check=False
    )


def test_the_commands_print_documents_and_tables():
    done = run("optimizer", "qwen3-0.6b", "--ranks", "24", "--split", "head", "--json")
    data = json.loads(done.stdout)
    jsonschema.validate(data, schema("jaxcost.plan_optimizer.v1"))
    assert data["matrix_count"] == 28 * (16 + 8 + 8 + 16 + 3)
    done = run("optimizer", "qwen3-0.6b", "--ranks", "24", "--tensor", "2", "--rate", "3e14", "--launch", "5e-6")
    assert done.returncode == 0 and "over the mean" in done.stdout and "bound by" in done.stdout
    words = ("lookup", "--elements", "51000000000", "--width", "1024", "--tokens", "4096", "--device", "h100")
    done = run(*words, "--hidden-us", "500", "--json")
    assert done.returncode == 0
    jsonschema.validate(json.loads(done.stdout), schema("jaxcost.plan_lookup.v1"))
    done = run(*words)
    assert done.returncode == 1 and "102 GB" in done.stdout and "stay exposed" in done.stdout
    for bad in (("--reach", "between"), ("--dtype", "text"), ("--hidden-us", "inf"), ("--elements", "0")):
        done = run(*words, *bad)
        assert done.returncode == 2 and "Traceback" not in done.stderr


def test_the_bound_is_a_sum_that_whole_matrices_can_have() -> None:
    """Five equal matrices on two ranks: one rank has three, which half of five is not."""
    found = [Matrix("w", 8, 8, 5)]
    assert least_critical_flops(found, 2, cost) == 3 * cost(found[0]) == own(found, 2, cost).critical_flops
