"""Faults in counting forward and training FLOPs (tables 0x05K and 0x06J): heads, rows, gradients, replay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jaxcost.contracts.case import Case
from jaxcost.prediction import ledgers
from jaxcost.prediction.rows import Row
from jaxcost.reconciliation.rows import Report
from jaxcost.verify import recount
from jaxcost.verify.failures.common import (
    Failure,
    against,
    bundle,
    compare,
    counter,
    reconciled,
    shifted,
    swapped,
    with_totals,
)
from jaxcost.verify.failures.guards import UNITS
from jaxcost.verify.failures.subjects import prefill, train, with_attention
from jaxcost.verify.holding import variant

COUNTERS = "reconciliation of counters"
FLOPS = "flops"


def rescaled(*leaves: str, times: int = 1, over: int = 1) -> Callable[[Case], Any]:
    """Return a predictor in which the forward rows of some contractions are scaled, the total with them."""

    def predict(case: Case) -> Any:
        right = ledgers.predict(case)
        old = right.ledgers[FLOPS]

        def change(row: Row) -> Row:
            hit = row.phase == "forward" and row.object in leaves
            return _valued(row, row.value * times // over) if hit else row

        rows = tuple(map(change, old.rows))
        forward = sum(row.value for row in rows if row.phase == "forward")
        changed = type(old)(old.name, {**old.totals, "forward": forward}, rows)
        return type(right)(right.case, {**right.ledgers, FLOPS: changed}, right.assumptions, right.program)

    return predict


def _valued(row: Row, value: int) -> Row:
    return Row(
        row.object,
        row.scope,
        row.phase,
        value,
        row.unit,
        row.fields,
        part=row.part,
        region=row.region,
        per_device=row.per_device,
    )


def _free_tied_head(case: Case) -> Any:
    return (rescaled("head", times=0) if case.architecture.tied else ledgers.predict)(case)


def _without_primitives(case: Case) -> Any:
    return with_totals(ledgers.predict(case), "primitives", by_phase={"forward": {}})


def _backward_twice(case: Case) -> Any:
    right = ledgers.predict(case)
    return with_totals(right, FLOPS, backward=2 * right.ledgers[FLOPS].totals["forward"])


def _backward_unexplained(case: Case) -> Any:
    """The right total, with no gradient behind it."""
    right = ledgers.predict(case)
    old = right.ledgers[FLOPS]
    kept = type(old)(old.name, old.totals, tuple(row for row in old.rows if row.phase != "backward"))
    return type(right)(right.case, {**right.ledgers, FLOPS: kept}, right.assumptions, right.program)


def _replay_plus_head(case: Case, replay: int) -> int:
    if case.execution.remat != "block":
        return replay
    return replay + sum(p.flops for p in recount.products(case) if p.scope == "head")


def _replay_of_everything(case: Case, replay: int) -> int:
    return recount.forward_flops(case) if case.execution.remat == "block" else replay


def six_nd(pairwise: bool, scalars: Callable[[Case], int]) -> Callable[[Case], Any]:
    """Return a predictor of training FLOPs by 6 N D, N as given, with or without the pairwise products."""

    def predict(case: Case) -> Any:
        rows = sum(recount.sequence_lengths(case))
        pairs = sum(p.flops for p in recount.products(case) if not p.weight) if pairwise else 0
        return with_totals(
            ledgers.predict(case),
            FLOPS,
            forward=2 * scalars(case) * rows + pairs,
            backward=4 * scalars(case) * rows + 2 * pairs,
        )

    return predict


def multiplied(case: Case) -> int:
    """Scalars of the matrices that multiply rows."""
    tied = case.vocabulary_rows * case.architecture.hidden_size if case.architecture.tied else 0
    stored = recount.tensors(case, padded=True)
    return tied + sum(t.scalars for t in stored if t.part == "weight" and not t.scope.startswith("embed"))


def _counted(unit: str, over: int = 1) -> Report:
    case = prefill()
    seen = counter(
        "flops.forward",
        recount.forward_flops(case) // over,
        unit,
        "a formula over recorded shapes; no hardware counter",
    )
    return compare(case, bundle(case, counters=[seen]))


def failures() -> list[Failure]:
    """Return the rows of tables 0x05K and 0x06J."""
    frozen = ["embed", "group0"]
    return [
        reconciled(
            "0x05K/1",
            "multiply-adds are reported as FLOPs",
            "values are half of what they should be",
            COUNTERS,
            sound=lambda: _counted("FLOPs"),
            faulty=lambda: _counted("FLOPs", over=2),
        ),
        against(
            "0x05K/2",
            "four square projections are reused for grouped-query attention",
            "K and V projections cost too much",
            "forward_equals_the_walk",
            prefill,
            swapped(lambda case: variant(case, with_attention(case.architecture, kv_heads=4))),
        ),
        against(
            "0x05K/3",
            "K/V heads are used in QK and PV",
            "pairwise work shrinks with the K/V heads",
            "kv_heads_leave_pairwise_work",
            prefill,
            lambda case: rescaled(
                "scores", "values", times=case.architecture.groups[0].layer.attention.kv_heads, over=4
            )(case),
        ),
        against(
            "0x05K/4",
            "every causal attention number is halved",
            "a kernel's skipping is asserted without a kernel",
            "forward_equals_the_walk",
            prefill,
            rescaled("scores", "values", over=2),
        ),
        against(
            "0x05K/5",
            "all prompt rows are projected for a final-row interface",
            "vocabulary work grows with the prompt",
            "logits_rows_scale_the_head",
            prefill,
            swapped(lambda case: variant(case, logits="all")),
        ),
        against(
            "0x05K/6",
            "tied embeddings are treated as free logits",
            "storage sharing is taken for work not done",
            "tying_saves_parameters_only",
            prefill,
            _free_tied_head,
        ),
        against(
            "0x05K/7",
            "softmax and norms are left out because a profiler reports no FLOPs",
            "unsupported is taken for zero",
            "primitives_stay_visible",
            prefill,
            _without_primitives,
        ),
        against(
            "0x05K/8",
            "backward is an unexplained multiple of forward",
            "no gradient stands behind the total",
            "backward_counts_gradients_needed",
            train,
            _backward_unexplained,
        ),
        reconciled(
            "0x05K/9",
            "analytical FLOPs are read as latency",
            "a time stands where a count is predicted",
            COUNTERS,
            sound=lambda: _counted("FLOPs"),
            faulty=lambda: _counted("nanoseconds"),
            guard=UNITS,
        ),
        against(
            "0x06J/1",
            "backward is stated as twice forward without dX and dW",
            "shapes and needs are invisible",
            "backward_counts_gradients_needed",
            train,
            _backward_unexplained,
        ),
        against(
            "0x06J/2",
            "three times forward is applied to frozen paths",
            "gradients that nobody needs are counted",
            "backward_counts_gradients_needed",
            lambda: train(frozen=frozen),
            _backward_twice,
        ),
        against(
            "0x06J/3",
            "four times the whole forward pass is charged for checkpointed blocks",
            "the region is not named",
            "replay_grows_with_the_region",
            train,
            shifted(FLOPS, "recompute", _replay_of_everything),
        ),
        against(
            "0x06J/4",
            "the head's emitted state is counted as replayed head work",
            "the output is taken for the checkpoint's schedule",
            "replay_grows_with_the_region",
            train,
            shifted(FLOPS, "recompute", _replay_plus_head),
        ),
        against(
            "0x06J/5",
            "all unique scalars of a checkpoint are taken for N",
            "norms and positions multiply nothing, a tied table twice does",
            "training_is_six_n_d",
            train,
            six_nd(True, recount.unique_parameters),
        ),
        against(
            "0x06J/6",
            "6 N D is taken for exact attention work",
            "the pairwise products disappear",
            "training_is_six_n_d",
            train,
            six_nd(False, multiplied),
        ),
        against(
            "0x06J/7",
            "the optimizer's primitives are hidden in model FLOPs",
            "an unexplained multiple of the parameters appears",
            "training_is_six_n_d",
            train,
            shifted(FLOPS, "backward", lambda case, n: n + 14 * recount.trainable_parameters(case)),
        ),
        against(
            "0x06J/8",
            "collectives are hidden in 6 N D",
            "communication vanishes from the report",
            "one_gradient_is_reduced",
            lambda: train(mesh={"data": 2}),
            shifted("collectives", "payload_bytes", lambda case, n: 0),
        ),
        against(
            "0x06J/9",
            "a further 2 B S d V is copied into the total",
            "the vocabulary's forward work is counted twice",
            "training_is_six_n_d",
            train,
            shifted(FLOPS, "forward", lambda case, n: n + recount.logits_rows(case) * 2 * 8 * 16),
        ),
        reconciled(
            "0x06J/11",
            "time is inferred from FLOPs alone",
            "traffic, utilisation and launches disappear",
            COUNTERS,
            sound=lambda: _counted("FLOPs"),
            faulty=lambda: _counted("seconds"),
            guard=UNITS,
        ),
    ]
