"""Each property fails on a fault planted in the package itself: one fold, rule or field is wrong, and it is noticed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from jaxcost.catalog import toml_text
from jaxcost.contracts import record
from jaxcost.contracts.architecture import Attention
from jaxcost.contracts.case import Case
from jaxcost.prediction import (
    activations,
    flops,
    kv_cache,
    ledgers,
    ownership,
    parameters,
    primitives,
    replay,
    state,
    traffic,
)
from jaxcost.prediction.builder import Builder
from jaxcost.prediction.liveness import Peak
from jaxcost.prediction.program import Program
from jaxcost.verify.failures.subjects import decode, prefill, train
from jaxcost.verify.properties import PROPERTIES

Patch = Callable[[pytest.MonkeyPatch], None]
contraction_flops = flops.contraction_flops


def contraction(change: Callable[[Program, Any, str, Any], Any]) -> Patch:
    """Plant a fault in the FLOPs of a contraction: `change(program, op, pairs, right value)`."""

    def wrong(program: Program, op: Any, pairs: str = "rectangular") -> Any:
        return change(program, op, pairs, contraction_flops(program, op, pairs))

    return lambda patch: patch.setattr(flops, "contraction_flops", wrong)


def more(*names: str) -> Patch:
    """One multiply-add too many in every contraction, or in those named."""
    return contraction(lambda program, op, pairs, n: n + 2 if not names or op.name in names else n)


def total(name: str, key: str, change: Callable[[Case, Any], Any]) -> Patch:
    """Plant a fault in one total of one ledger."""
    fold = ledgers.FOLDS[name]

    def wrong(program: Program) -> Any:
        found = fold(program)
        return replace(found, totals={**found.totals, key: change(program.case, found.totals[key])})

    return lambda patch: patch.setitem(ledgers.FOLDS, name, wrong)


def attribute(owner: Any, name: str, value: Any) -> Patch:
    return lambda patch: patch.setattr(owner, name, value)


def every_gradient(builder: Builder, inputs: tuple[str, ...]) -> tuple[str, ...]:
    return inputs if builder.training else ()


def sum_of_events(events: Any) -> Peak:
    return Peak(sum(item.bytes for item in events.objects), 0.0, "", ())


def loose_heads(self: Attention) -> Any:
    return ()


_entry, _stage, _outside, _value = parameters.entry, traffic._stage_rows, record._is_outside, toml_text._value

FAULTS: dict[str, list[tuple[Callable[[], Case], Patch]]] = {
    "parameters_equal_the_walk": [
        (train, attribute(parameters, "entry", lambda p, t: replace(_entry(p, t), scalars=_entry(p, t).scalars + 1))),
        (lambda: train(frozen=["embed"]), total("parameters", "trainable", lambda case, n: n + 128)),
    ],
    "parameters_ignore_the_workload": [
        (prefill, total("parameters", "unique", lambda case, n: n + case.workload.new_tokens))
    ],
    "tying_saves_parameters_only": [
        (prefill, contraction(lambda p, op, pairs, n: 0 if op.name == "head" and p.case.architecture.tied else n)),
        (prefill, total("parameters", "unique", lambda case, n: n + case.architecture.tied)),
    ],
    "kv_heads_leave_pairwise_work": [
        (prefill, contraction(lambda p, op, pairs, n: n * p.sizes.axis("k", 0) // 4 if op.name == "scores" else n)),
        (prefill, attribute(Attention, "problems", loose_heads)),
    ],
    "forward_equals_the_walk": [(prefill, more("down")), (decode, more("scores"))],
    "training_is_six_n_d": [(train, more())],
    "backward_counts_gradients_needed": [
        (lambda: train(frozen=["embed", "group0"]), attribute(Builder, "_gradients", every_gradient)),
        (train, total("flops", "backward", lambda case, n: n - 2)),
    ],
    "batches_add_up": [(train, more()), (train, more("head"))],
    "sequences_add_up": [(prefill, more("values"))],
    "fused_projections_count_alike": [(prefill, more("k_proj")), (prefill, more("gate"))],
    "causal_is_at_most_rectangular": [(prefill, contraction(lambda p, op, pairs, n: n + 2 * (pairs == "legal")))],
    "logits_rows_scale_the_head": [(prefill, more("head"))],
    "replay_grows_with_the_region": [
        (train, lambda patch: patch.setitem(replay.POLICIES, "block", replay.POLICIES["everything"])),
        (train, lambda patch: patch.setitem(replay.POLICIES, "attention", replay.POLICIES["block"])),
    ],
    "saved_activations_shrink_with_remat": [
        (train, lambda patch: patch.setitem(replay.POLICIES, "block", replay.POLICIES["none"]))
    ],
    "accumulation_changes_no_total": [
        (lambda: train(accumulate=2), contraction(lambda p, op, pairs, n: n * p.case.workload.accumulate))
    ],
    "shards_add_up": [
        (lambda: prefill(batch=2, mesh={"fsdp": 2}), lambda patch: patch.delitem(ownership.SHARDED, "d")),
        (lambda: prefill(mesh={"tensor": 2}), lambda patch: patch.setitem(ownership.SHARDED, "d", "tensor")),
    ],
    "state_equals_the_walk": [
        (train, attribute(state, "object_scalars", lambda program, item: 1)),
        (lambda: train(optimizer="adafactor"), attribute(state, "FACTORED_FROM", 4)),
    ],
    "primitives_stay_visible": [(prefill, attribute(primitives, "counts_of", lambda program, op, phase: ()))],
    "cache_equals_the_walk": [(decode, attribute(kv_cache, "payload_bytes", lambda count, dtype: count * 2 + 1))],
    "cache_grows_with_context": [(decode, attribute(kv_cache, "payload_bytes", lambda count, dtype: count * 2 + 1))],
    "attention_moves_eight_payloads": [
        (prefill, attribute(traffic, "_stage_rows", lambda program, op, phase: _stage(program, op, phase)[:-1]))
    ],
    "one_pass_keeps_all_operands": [
        (prefill, attribute(traffic, "_operands", lambda op: [(op.inputs[1], "read"), (op.outputs[0], "write")]))
    ],
    "liveness_peak_is_a_cut": [
        (prefill, attribute(activations, "supplied_peak", sum_of_events)),
        (prefill, total("activations", "peak_bytes", lambda case, n: n or 0)),
    ],
    "digest_covers_the_fields": [
        (train, attribute(record, "_is_outside", lambda model, name: name == "batch" or _outside(model, name))),
        (train, attribute(record, "_is_outside", lambda model, name: name != "notes" and _outside(model, name))),
    ],
    "formats_round_trip": [
        (train, attribute(toml_text, "_value", lambda value: "false" if value is True else _value(value)))
    ],
}


def test_every_property_has_a_planted_fault() -> None:
    assert FAULTS.keys() == PROPERTIES.keys()


@pytest.mark.parametrize(
    ("name", "make", "plant"),
    [pytest.param(name, *fault, id=name) for name, faults in FAULTS.items() for fault in faults],
)
def test_a_planted_fault_breaks_the_property(
    name: str, make: Callable[[], Case], plant: Patch, monkeypatch: pytest.MonkeyPatch
) -> None:
    check, case = PROPERTIES[name].check, make()
    assert case.workload.phase in PROPERTIES[name].phases
    check(case)
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        check(case)


def test_an_off_by_one_in_any_contraction_breaks_a_property(monkeypatch: pytest.MonkeyPatch) -> None:
    from jaxcost.verify.holding import broken

    names = {op.name for op in ledgers.predict(prefill()).program.contractions}
    assert broken(prefill()) == []
    for name in sorted(names):
        with monkeypatch.context() as patch:
            more(name)(patch)
            assert broken(prefill(), ["forward_equals_the_walk"]), name
