"""What must be true of storage and formats: parameters, state, cache, traffic, liveness, digests, round trips."""

from __future__ import annotations

import json
import random
import tomllib
from collections.abc import Iterable
from typing import Any

from jaxcost.catalog.toml_text import manifest_toml
from jaxcost.contracts.architecture import Architecture
from jaxcost.contracts.case import Case, build_case
from jaxcost.contracts.dtypes import BITS
from jaxcost.contracts.liveness import Liveness
from jaxcost.contracts.record import Record
from jaxcost.prediction import ledgers
from jaxcost.verify import recount
from jaxcost.verify.holding import at_most, declares, expect, ledger, totals, variant
from jaxcost.verify.strategies import altered, options_of


@declares("unique, trainable and named parameters are those of a plain walk over the layers")
def parameters_equal_the_walk(case: Case) -> None:
    """Compare the parameter ledger with `recount.tensors`."""
    seen = totals(case, "parameters")
    tied = case.architecture.vocabulary_size * case.architecture.table_width if case.architecture.tied else 0
    expect(seen["unique"], recount.unique_parameters(case), "unique parameters")
    expect(seen["named"], recount.unique_parameters(case) + tied, "named parameters")
    expect(seen["stored"], sum(t.scalars for t in recount.tensors(case, padded=True)), "stored parameters")
    if case.workload.phase == "training":
        expect(seen["trainable"], recount.trainable_parameters(case), "trainable parameters")


@declares("the learned scalars do not depend on batch, rows or cache")
def parameters_ignore_the_workload(case: Case) -> None:
    """Compare with a smaller workload of the same graph."""
    free: dict[str, Any] = {"mesh": {}, "lengths": None, "accumulate": None, "batch": 1}
    smaller: dict[str, Any] = {"past": 0} if case.workload.phase == "decode" else {"seq": 1, "logits": "all"}
    expect(
        totals(case, "parameters"),
        totals(variant(case, **free, **smaller), "parameters"),
        "parameters of two workloads",
    )


@declares("more recomputation never saves more activations", "training")
def saved_activations_shrink_with_remat(case: Case) -> None:
    """Compare the saved bytes of none, attention and block."""
    saved = {
        name: totals(variant(case, remat=name), "activations")["saved_bytes"] for name in ("none", "attention", "block")
    }
    at_most(saved["block"], saved["attention"], "bytes saved under block against attention")
    at_most(saved["attention"], saved["none"], "bytes saved under attention against none")


@declares("bytes of parameters over all devices are the replicas of the global bytes, padding counted")
def shards_add_up(case: Case) -> None:
    """Compare parameter bytes on a device with a walk over the tensors."""
    rows = ledger(case, "device")["rows"]
    local = sum(row["per_device"] for row in rows if row["object"] == "parameters" and row["phase"] == "argument")
    wanted, everywhere = recount.device_parameter_bytes(case)
    expect(local, wanted, "parameter bytes on one device")
    expect(local * case.execution.device_count, everywhere, "parameter bytes over all devices")
    if case.execution.device_count == 1:
        expect(local, totals(case, "parameters")["bytes"], "parameter bytes of one device against the ledger")


@declares("a plain gated layer saves its two norm inputs and outputs, q, k, v, probabilities, context and three widths")
def saved_activations_equal_the_list(case: Case) -> None:
    """Add up the list by hand, with the head's operand, final norm and logits; other forms of layer are left out."""
    arch, work, state = case.architecture, case.workload, case.state
    if case.workload.phase != "training" or case.execution.remat != "none" or state.frozen or work.dropout:
        return
    if work.attention != "materialised" or work.lengths or arch.embedding_width or arch.embedding_norm:
        return
    width, scored = BITS[state.compute_dtype] // 8, BITS[state.score_dtype] // 8
    rows, d = work.batch // work.accumulate * work.new_tokens, arch.hidden_size
    total = (1 + (arch.final_norm is not None)) * rows * d * width
    total += rows * case.vocabulary_rows * BITS[state.logits_dtype] // 8 * (1 + (arch.logit_softcap is not None))
    for index, group in enumerate(arch.groups):
        layer, attention = group.layer, group.layer.attention
        plain = layer.residual == "pre" and layer.mlp.form == "gated" and layer.attention_norm and layer.mlp_norm
        if not plain or attention.qk_norm or attention.score_softcap is not None or arch.logit_softcap is not None:
            return
        queries, keys = (heads * attention.head_dim for heads in (case.query_heads(index), attention.kv_heads))
        own = 4 * d + 2 * queries + 2 * keys + 3 * layer.mlp.width
        pairs = rows * work.new_tokens * case.query_heads(index) * scored
        total += group.repeat * (rows * own * width + pairs)
    expect(totals(case, "activations")["saved_bytes"], total, "saved bytes of one microbatch")


@declares("every state role holds its population's scalars in its own dtype, and nothing else")
def state_equals_the_walk(case: Case) -> None:
    """Compare the bytes of every role while all are alive with a walk over arrays and objects."""
    seen, wanted = totals(case, "state"), recount.state_bytes(case)
    expect(dict(seen["by_role"]), wanted, "state bytes by role")
    expect(seen["bytes"], sum(wanted.values()), "state bytes")


@declares("keys and values take 2 x visible rows x K/V heads x head width per layer and sequence", "prefill", "decode")
def cache_equals_the_walk(case: Case) -> None:
    """Compare the cache ledger with a walk over layers and sequences."""
    expect(totals(case, "kv_cache")["bytes"], recount.cache_bytes(case), "K/V cache bytes")


@declares(
    "cached bytes grow in proportion to the visible rows, though arithmetic intensity does not see them", "decode"
)
def cache_grows_with_context(case: Case) -> None:
    """Double the visible rows."""
    longer = variant(
        case, altered(case.architecture, learned_positions=None), past=2 * case.workload.visible_tokens - 1
    )
    expect(
        totals(longer, "kv_cache")["bytes"], 2 * totals(case, "kv_cache")["bytes"], "cache bytes of twice the context"
    )


@declares("materialised attention moves eight payloads a layer: Q, K, S twice, P twice, V, O; a soft cap, S twice more")
def attention_moves_eight_payloads(case: Case) -> None:
    """Add them up from sizes; dropout moves more and is left out, and a blockwise plan never moves S and P."""
    case = variant(case, dropout=None)
    seen = totals(variant(case, attention="materialised"), "traffic")["attention_bytes"]
    pairs, rows = recount.pairs(case, "rectangular"), sum(recount.sequence_lengths(case))
    visible = rows if case.workload.lengths is not None else case.workload.batch * case.workload.visible_tokens
    state, total = case.state, 0
    width = {
        name: BITS[dtype] // 8
        for name, dtype in (("x", state.compute_dtype), ("s", state.score_dtype), ("kv", state.kv_dtype))
    }
    for group in case.architecture.groups:
        attention = group.layer.attention
        query, key = (heads * attention.head_dim for heads in (attention.query_heads, attention.kv_heads))
        ends = 2 * rows * query * width["x"] + 2 * visible * key * width["kv"]
        squares = 4 if attention.score_softcap is None else 6
        total += group.repeat * (ends + squares * pairs * attention.query_heads * width["s"])
    expect(seen, total, "bytes of the materialised attention schedule")


@declares("an isolated product reads both operands and writes its result: M K + K N + M N, no term dropped")
def one_pass_keeps_all_operands(case: Case) -> None:
    """Add the three payloads of every product with a weight."""
    width = BITS[case.state.compute_dtype] // 8
    total = 0
    for product in recount.products(case):
        if product.weight:
            m, k, n = product.rows, product.inner, product.outputs
            out = BITS[case.state.logits_dtype] // 8 if product.scope == "head" else width
            total += width * (m * k + k * n) + out * m * n
    expect(totals(case, "traffic")["gemm_one_pass_bytes"], total, "one-pass bytes of the products with weights")


@declares("the peak of supplied events is their deepest cut: at least the largest, at most the sum")
def liveness_peak_is_a_cut(case: Case) -> None:
    """Supply random events (seeded by the case) and compare with a look at every moment."""
    choose = random.Random(case.digest)
    objects: list[dict[str, Any]] = []
    for index in range(choose.randint(1, 8)):
        birth = choose.randint(0, 9)
        size, end = choose.randint(0, 500), birth + choose.randint(1, 5)
        objects.append(
            {"name": f"t{index}", "bytes": size, "birth": float(birth), "death": float(end), "kind": "tensor"}
        )
    persistent = choose.choice((0, 64))
    deepest = max(sum(o["bytes"] for o in objects if o["birth"] <= t < o["death"]) for t in range(16))
    supplied = case.replaced(liveness=Liveness.from_data({"objects": objects, "persistent_bytes": persistent}))
    seen = totals(supplied, "activations")
    peak = seen["peak_bytes"]
    expect(peak, deepest, "peak of the supplied events")
    expect(seen["process_peak_bytes"], deepest + persistent, "peak with the bytes that persist")
    at_most(max(o["bytes"] for o in objects), peak, "the largest event against the peak")
    at_most(peak, sum(o["bytes"] for o in objects), "the peak against the sum of events")
    expect(totals(case.replaced(liveness=None), "activations")["peak_bytes"], None, "peak without supplied events")


# `absent` follows from the branches that are there.
_UNCOVERED = {"name", "family", "huggingface_id", "source", "notes", "expected", "absent"}


@declares("the digest changes if and only if a field that changes the graph or a number does")
def digest_covers_the_fields(case: Case) -> None:
    """Alter every field of every record of the case, one at a time."""
    for path, changed in _altered_records(case):
        covered = path[-1] not in _UNCOVERED or _is_keyed_by_name(path)
        if (changed.digest != case.digest) != covered:
            state = "does not change" if covered else "changes"
            raise AssertionError(f"the digest {state} with {'.'.join(map(str, path))}")


def _is_keyed_by_name(path: tuple[Any, ...]) -> bool:
    # The name of a state object, live object or mesh axis is what a ledger is keyed by.
    return "objects" in path or "mesh" in path


def _altered_records(record: Record) -> Iterable[tuple[tuple[Any, ...], Any]]:
    """Yield (path, record with that field altered), unvalidated: only the digest is asked of them."""
    for name in type(record).model_fields:
        value = getattr(record, name)
        if isinstance(value, Record):
            inner: Iterable[tuple[tuple[Any, ...], Any]] = _altered_records(value)
        elif isinstance(value, tuple) and value and isinstance(value[0], Record):
            inner = [
                ((index, *path), (*value[:index], changed, *value[index + 1 :]))
                for index, item in enumerate(value)
                for path, changed in _altered_records(item)
            ] + [((), (*value, value[0]))]
        else:
            inner = [((), _another(value))]
        for path, changed in inner:
            yield (name, *path), record.model_copy(update={name: changed})


def _another(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, str):
        return value + "x"
    if isinstance(value, tuple):
        return (*value, "x")
    return {"x": 1} if value is None else None


@declares("every format gives back what was written: records, manifest, case file, prediction")
def formats_round_trip(case: Case) -> None:
    """Write and read each format."""
    expect(Case.from_data(json.loads(json.dumps(case.to_data()))), case, "the case through JSON")
    again = Architecture.from_data(tomllib.loads(manifest_toml(case.architecture)))
    expect(again.digest, case.architecture.digest, "the architecture through a TOML manifest")
    options = json.loads(json.dumps(options_of(case)))
    expect(build_case(case.architecture, options).digest, case.digest, "the case through its options")
    document = ledgers.predict(case).to_dict()
    expect(json.loads(json.dumps(document, allow_nan=False)), document, "the prediction through JSON")
