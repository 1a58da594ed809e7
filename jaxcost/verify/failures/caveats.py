"""Ways to miscount compute and memory that the second document warns of in passing, outside of its closing list."""

from __future__ import annotations

from typing import Any, Literal

from jaxcost.contracts.architecture import LayerGroup
from jaxcost.contracts.case import Case
from jaxcost.planning.optimizer_work import Matrix, least_critical_flops, orthogonalisation_flops, own
from jaxcost.prediction import ledgers
from jaxcost.verify import recount
from jaxcost.verify.failures.common import Failure, against, judged, shifted, with_totals
from jaxcost.verify.failures.flops import rescaled
from jaxcost.verify.failures.guards import Guard
from jaxcost.verify.failures.subjects import prefill, toy, train
from jaxcost.verify.holding import variant
from jaxcost.verify.strategies import altered

FORWARD = "forward_equals_the_walk"


def _batched_twice(case: Case) -> Any:
    """2 B^2 M K N: the shared axis of a batched product counted for each operand."""
    return rescaled("scores", "values", times=case.workload.batch)(case)


def _with_lookup(case: Case, forward: int) -> int:
    rows = sum(recount.sequence_lengths(case))
    return forward + 2 * rows * case.vocabulary_rows * case.architecture.hidden_size


def _with_elementwise(case: Case, forward: int) -> int:
    multiplied: int = ledgers.predict(case).ledgers["primitives"].totals["by_phase"]["forward"]["multiply"]
    return forward + 2 * multiplied


def _half_square(case: Case, _: int) -> int:
    """Legal pairs taken as S^2 / 2, the diagonal cut in half."""
    pairwise = sum(p.flops for p in recount.products(variant(case, pairs="rectangular")) if not p.weight)
    return recount.forward_flops(variant(case, pairs="rectangular")) - pairwise // 2


def _windowed() -> Case:
    """Two layers, one with a window of two rows."""
    layer = toy().groups[0].layer
    return prefill(altered(toy(), groups=(LayerGroup(repeat=2, layer=layer, windows=(2, 0)),)))


def _uniform_window(case: Case) -> Any:
    """The retained rows of the windowed layer taken for those of every layer."""
    right = ledgers.predict(case)
    totals = right.ledgers["kv_cache"].totals
    windows = [group.windows for group in case.architecture.groups if group.windows]
    if not windows:
        return right
    least = min(window for window in windows[0] if window)
    return with_totals(right, "kv_cache", minimum_bytes=totals["bytes"] * least // case.workload.visible_tokens)


def _owned(by: Literal["cost", "size"]) -> str:
    """Whether two ranks that own four matrices of equal size wait for no more work than they must."""
    found = (Matrix("square", 4096, 4096, 1), Matrix("flat", 1024, 16384, 3))

    def cost(item: Matrix) -> int:
        return orthogonalisation_flops(item.rows, item.columns)

    return "even" if own(found, 2, cost, by).critical_flops == least_critical_flops(found, 2, cost) else "uneven"


def _by_size(_: Any) -> Any:
    return lambda rows, columns, products=(): {"all": rows * columns}


def failures() -> list[Failure]:
    """Return the rows that existing ledgers catch."""
    return [
        against(
            "caveat/40",
            "the shared axis of a batched product is counted for each operand",
            "pairwise work grows with the square of the batch",
            FORWARD,
            lambda: prefill(batch=2),
            _batched_twice,
        ),
        against(
            "caveat/41",
            "an elementwise product is given a contraction's factor of two",
            "work without a contracted axis stands among the products",
            FORWARD,
            prefill,
            shifted("flops", "forward", _with_elementwise),
        ),
        against(
            "caveat/42",
            "looking up rows of the embedding is counted as a product with the vocabulary",
            "the table is multiplied twice a row",
            FORWARD,
            prefill,
            shifted("flops", "forward", _with_lookup),
        ),
        against(
            "caveat/43",
            "a gated MLP is counted as one of two matrices",
            "the gate's product is missing",
            FORWARD,
            prefill,
            rescaled("gate", times=0),
        ),
        against(
            "caveat/44",
            "legal pairs are taken as half of the square",
            "every query loses half of its own key",
            "causal_is_at_most_rectangular",
            prefill,
            shifted("flops", "forward_causal", _half_square),
        ),
        against(
            "caveat/45",
            "one window is taken for the retained rows of every layer",
            "layers of full attention keep too few rows",
            "windows_cut_pairs_and_cache",
            _windowed,
            _uniform_window,
        ),
        against(
            "caveat/46",
            "a step's work is multiplied by its microbatches",
            "accumulation multiplies what it only splits",
            "accumulation_changes_no_total",
            lambda: train(batch=4, accumulate=2),
            shifted("flops", "forward", lambda case, n: n * case.workload.accumulate),
        ),
        judged(
            "caveat/47",
            "ranks that own as many scalars are said to have as much work in a matrix-wise optimizer",
            "a square matrix takes four times the work of a flat one of its size",
            "the critical rank against the least that whole matrices allow",
            sound=lambda: _owned("cost"),
            faulty=lambda: _owned("size"),
            passes="even",
            wanted="uneven",
            guard=Guard("jaxcost.planning.optimizer_work:iteration_flops", _by_size),
        ),
    ]
