"""Each property fails on a fault planted in the package itself: one fold, rule or field is wrong, and it is noticed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from jaxcost.catalog import toml_text
from jaxcost.contracts import record
from jaxcost.contracts.architecture import RESIDUAL_NORMS, Architecture, Attention, QkNorm
from jaxcost.contracts.case import Case
from jaxcost.prediction import (
    activations,
    dead,
    flops,
    groups,
    kv_cache,
    ledgers,
    ownership,
    parameters,
    primitives,
    replay,
    sharding,
    stages,
    state,
    traffic,
)
from jaxcost.prediction.builder import Builder
from jaxcost.prediction.liveness import Peak
from jaxcost.prediction.program import Program
from jaxcost.prediction.sizes import Sizes
from jaxcost.verify.failures.subjects import RMS, decode, prefill, toy, train, with_attention
from jaxcost.verify.properties import PROPERTIES
from jaxcost.verify.strategies import altered

Patch = Callable[[pytest.MonkeyPatch], None]
at_once, part = groups.gathered_at_once, groups._part


def larger_part(program: Program, entry: Any) -> Any:
    found = part(program, entry)
    return found._replace(shard=found.shard + 1)


def loosely(patch: pytest.MonkeyPatch) -> None:
    """Any number of K/V heads passes, in the layer and in the case."""
    patch.setattr(Attention, "problems", loose_heads)
    patch.setattr(Case, "_tensor_problems", lambda self: ())


def piped(**options: Any) -> Case:
    return train(batch=4, accumulate=2, mesh={"pipeline": 2}, **options)


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


def formed(residual: str, **changes: Any) -> Architecture:
    """The toy with another residual form and the norms it needs."""
    (group,) = toy().groups
    names = {*RESIDUAL_NORMS["pre"][0], *RESIDUAL_NORMS[residual][0]}
    norms = {name: RMS if name in RESIDUAL_NORMS[residual][0] else None for name in names}
    return altered(toy(), groups=(group.replaced(layer=group.layer.replaced(residual=residual, **norms), **changes),))


def narrow(tied: bool = True) -> Architecture:
    """The toy with a token table of four columns and projections to and from the layers."""
    return altered(toy(tied), embedding_width=4)


def capped() -> Architecture:
    """The toy with soft caps and norms of queries and keys."""
    norms = QkNorm(over="head", norm=RMS)
    return altered(with_attention(toy(), score_softcap=50.0, qk_norm=norms), logit_softcap=30.0)


def windowed() -> Architecture:
    """The toy with a window of two rows in every other layer."""
    return formed("pre", windows=(2, 0))


def without(kind: str) -> Patch:
    """One kind of primitive is not counted."""
    return lambda patch: patch.setattr(
        primitives, "counts_of", lambda *arguments: tuple(c for c in _counts(*arguments) if c.kind != kind)
    )


def all_useful(program: Program) -> Any:
    return _walk(program)._replace(useful=program.ops)


def none_useful(program: Program) -> Any:
    return _walk(program)._replace(useful=())


_kept, _legal = Sizes.kept_rows, Sizes.legal_pairs
_counts, _walk = primitives.counts_of, dead.walk
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
        (
            lambda: prefill(narrow()),
            total("parameters", "unique", lambda case, n: n + 64 * (not case.architecture.tied)),
        ),
    ],
    "kv_heads_leave_pairwise_work": [
        (prefill, contraction(lambda p, op, pairs, n: n * p.sizes.axis("k", 0) // 4 if op.name == "scores" else n)),
        (prefill, loosely),
    ],
    "forward_equals_the_walk": [(prefill, more("down")), (decode, more("scores"))],
    "owned_state_equals_the_walk": [
        (lambda: train(mesh={"fsdp": 2}), lambda patch: patch.delitem(ownership.SHARDED, "d")),
        (lambda: train(mesh={"data": 2}, zero=2), lambda patch: patch.setitem(ownership.ROLE_STAGE, "gradient", 3)),
        (lambda: train(mesh={"fsdp": 2}, offload=["optimizer"]), total("ownership", "host_bytes", lambda case, n: 0)),
        (
            lambda: train(batch=4, accumulate=2, mesh={"fsdp": 2}, gradient_sync="last_microbatch"),
            attribute(sharding, "unreduced", lambda case, item: False),
        ),
    ],
    "the_cluster_holds_every_copy": [
        (lambda: train(mesh={"data": 2}), total("ownership", "cluster_bytes", lambda case, n: n // 2 - 1)),
        (lambda: train(mesh={"fsdp": 2}), total("ownership", "cluster_bytes", lambda case, n: n * 2)),
        (train, total("ownership", "padding_bytes", lambda case, n: n - 1)),
    ],
    "zero_stages_only_shrink": [
        (
            lambda: train(mesh={"data": 2}),
            total("ownership", "by_zero_stage", lambda case, stages: {**stages, "2": stages["0"] + 1}),
        ),
    ],
    "stages_sum_to_the_model": [
        (piped, attribute(stages.Rank, "holds", lambda self, scope, tied=False: True)),
        (piped, attribute(flops, "overlap", lambda stage, group, first, repeat: (first, repeat))),
        (lambda: piped(pipeline_schedule="1f1b"), attribute(ownership, "in_flight", lambda case, rank: 2)),
    ],
    "gathered_groups_equal_the_walk": [
        (lambda: train(mesh={"fsdp": 2}, fsdp_group="block"), attribute(groups, "_part", larger_part)),
        (
            lambda: train(mesh={"fsdp": 2}, fsdp_group="block", prefetch=1),
            attribute(ownership, "group_totals", lambda p, rank: {"gathered_at_once_bytes": at_once(p, rank, 0)}),
        ),
    ],
    "partial_sums_keep_their_extent": [
        (lambda: train(mesh={"tensor": 2}), total("ownership", "tensor", lambda case, n: {"largest_partial_bytes": 64}))
    ],
    "gradients_wait_for_their_reduction": [
        (
            lambda: train(batch=4, accumulate=2, mesh={"fsdp": 2}, gradient_sync="last_microbatch"),
            attribute(sharding, "unreduced", lambda case, item: False),
        ),
        (
            lambda: train(mesh={"data": 2}),
            total("ownership", "gradients", lambda case, found: {**found, "reductions": 2}),
        ),
    ],
    "one_gradient_is_reduced": [
        (lambda: train(mesh={"data": 2}), total("collectives", "payload_bytes", lambda case, n: n * 3)),
        (lambda: train(mesh={"data": 2}), total("collectives", "payload_bytes", lambda case, n: n // 4)),
    ],
    "inputs_equal_the_walk": [(train, total("device", "input_bytes", lambda case, n: n + 4))],
    "saved_activations_equal_the_list": [
        (train, total("activations", "saved_bytes", lambda case, n: n + 128)),
        (train, total("activations", "saved_bytes", lambda case, n: n - 64)),
    ],
    "training_is_six_n_d": [
        (train, more()),
        (lambda: train(narrow()), more("project_in")),
        (lambda: train(narrow(tied=False)), more("project_out")),
        (lambda: train(formed("parallel")), more("down")),
    ],
    "backward_counts_gradients_needed": [
        (lambda: train(frozen=["embed", "group0"]), attribute(Builder, "_gradients", every_gradient)),
        (train, total("flops", "backward", lambda case, n: n - 2)),
        (lambda: train(narrow(), frozen=["embed/project_in"]), attribute(Builder, "_gradients", every_gradient)),
    ],
    "batches_add_up": [(train, more()), (train, more("head"))],
    "sequences_add_up": [(prefill, more("values"))],
    "fused_projections_count_alike": [(prefill, more("k_proj")), (prefill, more("gate"))],
    "causal_is_at_most_rectangular": [(prefill, contraction(lambda p, op, pairs, n: n + 2 * (pairs == "legal")))],
    "logits_rows_scale_the_head": [
        (prefill, more("head")),
        (lambda: prefill(narrow()), more("project_out")),
        (lambda: decode(narrow()), more("head")),
    ],
    "replay_grows_with_the_region": [
        (train, lambda patch: patch.setitem(replay.POLICIES, "block", replay.POLICIES["everything"])),
        (train, lambda patch: patch.setitem(replay.POLICIES, "attention", replay.POLICIES["block"])),
        (lambda: train(narrow()), lambda patch: patch.setitem(replay.POLICIES, "everything", replay.POLICIES["block"])),
    ],
    "dead_replay_follows_the_residual": [
        (train, attribute(dead, "walk", all_useful)),
        (lambda: train(formed("parallel")), attribute(dead, "walk", all_useful)),
        *((lambda form=form: train(formed(form)), attribute(dead, "walk", none_useful)) for form in RESIDUAL_NORMS),
    ],
    "windows_cut_pairs_and_cache": [
        (lambda: decode(windowed()), attribute(Sizes, "kept_rows", lambda sizes, window=0: _kept(sizes))),
        (lambda: prefill(windowed()), attribute(Sizes, "legal_pairs", lambda sizes, window=0: _legal(sizes))),
        (
            lambda: train(windowed()),
            contraction(lambda p, op, pairs, n: n - 2 * any(p.case.architecture.groups[0].windows)),
        ),
        (
            lambda: prefill(windowed()),
            total("kv_cache", "bytes", lambda case, n: n - len(case.architecture.groups[0].windows)),
        ),
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
    "primitives_stay_visible": [
        (prefill, attribute(primitives, "counts_of", lambda program, op, phase: ())),
        (lambda: prefill(capped()), without("tanh")),
        (lambda: prefill(capped()), without("rsqrt")),
    ],
    "cache_equals_the_walk": [(decode, attribute(kv_cache, "payload_bytes", lambda count, dtype: count * 2 + 1))],
    "cache_grows_with_context": [(decode, attribute(kv_cache, "payload_bytes", lambda count, dtype: count * 2 + 1))],
    "attention_moves_eight_payloads": [
        (prefill, attribute(traffic, "_stage_rows", lambda program, op, phase: _stage(program, op, phase)[:-1])),
        (
            lambda: prefill(capped()),
            attribute(
                traffic, "_stage_rows", lambda p, op, phase: [] if op.name == "softcap" else _stage(p, op, phase)
            ),
        ),
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
