"""What must be true of every case, whatever its sizes: functions of one case that raise AssertionError.

The oracle is `jaxcost.verify.recount`, an identity between two predictions, or a bound; never the fold under test. A
property that says nothing about a case (tying, where heads cannot be tied) returns without a word. The properties of
work are here, those of storage and formats in `storage_properties`, those of sharding in `ownership_properties`;
importing this module registers all. The compiled program is held to the ledger by `jaxcost.verify.fuzz`, which has
the workers for it.

    for name, claim in PROPERTIES.items():
        claim.check(case)
"""

from __future__ import annotations

from typing import Any

from jaxcost.contracts.case import Case
from jaxcost.contracts.errors import RejectedError
from jaxcost.prediction import dead
from jaxcost.prediction.program import program
from jaxcost.verify import ownership_properties, recount, storage_properties
from jaxcost.verify.holding import (
    PROPERTIES,
    at_most,
    broken,
    declares,
    expect,
    flops_by_scope,
    ledger,
    totals,
    variant,
)
from jaxcost.verify.strategies import altered, divisors

__all__ = ["PROPERTIES", "broken", "ownership_properties", "storage_properties"]


@declares("tying the head removes one table of unique parameters and no FLOP")
def tying_saves_parameters_only(case: Case) -> None:
    """Compare the tied with the untied graph."""
    free = {"frozen": None}
    tied = variant(case, altered(case.architecture, tied=True), **free)
    untied = variant(case, altered(case.architecture, tied=False), **free)
    saved = case.architecture.vocabulary_size * case.architecture.table_width
    expect(
        totals(untied, "parameters")["unique"] - totals(tied, "parameters")["unique"],
        saved,
        "parameters saved by tying",
    )
    for phase in ("forward", "backward"):
        expect(totals(tied, "flops")[phase], totals(untied, "flops")[phase], f"{phase} FLOPs of the tied graph")


@declares("K/V heads must divide query heads; they size projections and cache, never the pairwise FLOPs")
def kv_heads_leave_pairwise_work(case: Case) -> None:
    """Walk over K/V head counts of the first group."""
    attention = case.architecture.groups[0].layer.attention
    heads, tensor = attention.query_heads, case.execution.degree("tensor")
    base = flops_by_scope(case)
    cache = {k: totals(_with_kv(case, k), "kv_cache")["bytes"] for k in divisors(heads) if k % tensor == 0}
    for kv_heads in cache:
        other = flops_by_scope(_with_kv(case, kv_heads))
        for part in ("scores", "values", "q_proj", "o_proj"):
            scope = f"group0/attn/{part}"
            expect(other[scope], base[scope], f"{scope} FLOPs with {kv_heads} K/V heads")
        for part in ("k_proj", "v_proj"):
            scope = f"group0/attn/{part}"
            expect(other[scope] * attention.kv_heads, base[scope] * kv_heads, f"{scope} FLOPs per K/V head")
        if case.workload.phase != "training":
            expect(
                cache[kv_heads], recount.cache_bytes(_with_kv(case, kv_heads)), f"cache bytes with {kv_heads} K/V heads"
            )
    for kv_heads in range(1, heads + 2):
        if heads % kv_heads:
            try:
                _with_kv(case, kv_heads)
            except RejectedError:
                continue
            raise AssertionError(f"{kv_heads} K/V heads were accepted for {heads} query heads")


def _with_kv(case: Case, kv_heads: int) -> Case:
    groups = case.architecture.groups
    layer = groups[0].layer
    changed = layer.replaced(attention=layer.attention.replaced(kv_heads=kv_heads))
    return variant(case, case.architecture.replaced(groups=(groups[0].replaced(layer=changed), *groups[1:])))


@declares("forward FLOPs are those of a plain walk over products and pairs")
def forward_equals_the_walk(case: Case) -> None:
    """Compare forward FLOPs, in total and per scope, with `recount.products`."""
    wanted = recount.by_scope(case)
    seen = flops_by_scope(case)
    for scope, value in wanted.items():
        expect(seen.get(scope, 0), value, f"forward FLOPs of {scope}")
    expect({scope for scope, value in seen.items() if value} - wanted.keys(), set(), "scopes with FLOPs")
    expect(totals(case, "flops")["forward"], sum(wanted.values()), "forward FLOPs")


@declares("training matmuls are 6 x N_used x D + 3 x pairwise, to the unit", "training")
def training_is_six_n_d(case: Case) -> None:
    """N_used: scalars of the matrices that multiply rows (lookups, positions, norms and biases excluded)."""
    case = variant(case, frozen=None, pairs="rectangular")
    arch = case.architecture
    looked_up = ("embed/tokens", "embed/positions")
    matrices = [t for t in recount.tensors(case, padded=True) if t.part == "weight" and t.scope not in looked_up]
    used = sum(t.scalars for t in matrices) + (case.vocabulary_rows * arch.table_width if arch.tied else 0)
    rows = sum(recount.sequence_lengths(case))
    squares = sum(length * length for length in recount.sequence_lengths(case))
    pairwise = sum(
        4 * g.repeat * g.layer.attention.query_heads * g.layer.attention.head_dim * squares for g in arch.groups
    )
    seen = totals(case, "flops")
    expect(seen["forward"] + seen["backward"], 6 * used * rows + 3 * pairwise, "forward and backward FLOPs")


@declares("backward is one forward product per gradient needed: twice forward only when all are", "training")
def backward_counts_gradients_needed(case: Case) -> None:
    """Compare with the walk, frozen scopes included; without them backward is exactly twice forward."""
    wanted: dict[tuple[str, str], int] = {}
    for product in recount.products(case):
        for needed, part in zip(product.gradients, ("dx", "dw" if product.weight else "dx"), strict=True):
            if needed:
                wanted[product.scope, part] = wanted.get((product.scope, part), 0) + product.flops
    found: dict[tuple[str, str], int] = {}
    for row in ledger(case, "flops")["rows"]:
        if row["phase"] == "backward":
            found[row["scope"], row["part"]] = found.get((row["scope"], row["part"]), 0) + row["value"]
    expect(found, wanted, "backward FLOPs by scope and operand")
    seen = totals(case, "flops")
    expect(seen["backward"], recount.backward_flops(case), "backward FLOPs")
    if not case.state.frozen:
        expect(seen["backward"], 2 * seen["forward"], "backward against twice forward")
    missing = not all(all(product.gradients) for product in recount.products(case))
    if missing and seen["backward"] >= 2 * seen["forward"]:
        raise AssertionError(f"backward {seen['backward']} is twice forward although gradients are missing")


@declares("the FLOPs of two part batches add up to those of the whole")
def batches_add_up(case: Case) -> None:
    """Cut the batch in two and compare every phase and scope."""
    if case.workload.batch < 2:
        return
    # A short sequence has at most its own rows of logits, so parts of ragged work are compared with all rows.
    ragged = case.workload.lengths is not None
    whole = variant(case, mesh={}, accumulate=None, logits="all" if ragged else case.workload.logits)
    cut = case.workload.batch // 2
    lengths = case.workload.lengths
    parts = [variant(whole, batch=n, **part) for n, part in _split(cut, case.workload.batch, lengths)]
    for phase in ("forward", "backward", "recompute"):
        expect(
            sum(totals(part, "flops")[phase] for part in parts),
            totals(whole, "flops")[phase],
            f"{phase} FLOPs of the parts",
        )


def _split(cut: int, batch: int, lengths: tuple[int, ...] | None) -> list[tuple[int, dict[str, Any]]]:
    if lengths is None:
        return [(cut, {}), (batch - cut, {})]
    halves = (list(lengths[:cut]), list(lengths[cut:]))
    return [(len(half), {"lengths": half, "seq": max(half)}) for half in halves]


@declares("a prefill, then decode steps over its cache, cost what one longer prefill costs (legal pairs)", "prefill")
def sequences_add_up(case: Case) -> None:
    """Cut the rows into a prefill and single decode steps; under legal pairs every FLOP is found again."""
    rows = case.workload.new_tokens
    if rows < 2 or case.workload.lengths is not None:
        return
    whole = variant(case, logits="all", pairs="legal")
    first = rows // 2
    steps = [variant(whole, seq=first)]
    steps += [variant(whole, phase="decode", seq=1, past=past) for past in range(first, rows)]
    wanted = flops_by_scope(whole)
    seen: dict[str, int] = {}
    for step in steps:
        for scope, value in flops_by_scope(step).items():
            seen[scope] = seen.get(scope, 0) + value
    expect(seen, wanted, "FLOPs by scope of the steps")


@declares("a projection counts alike alone and as part of a fused one")
def fused_projections_count_alike(case: Case) -> None:
    """Sum q, k, v (and gate, up) and compare with one product of the joint width."""
    seen, d = flops_by_scope(case), case.architecture.hidden_size
    rows = sum(recount.sequence_lengths(case))
    for index, group in enumerate(case.architecture.groups):
        attention, mlp = group.layer.attention, group.layer.mlp
        width = (attention.query_heads + 2 * attention.kv_heads) * attention.head_dim
        separate = sum(seen[f"group{index}/attn/{name}"] for name in ("q_proj", "k_proj", "v_proj"))
        expect(separate, 2 * rows * d * width * group.repeat, f"group{index}: q, k and v against one product")
        if mlp.form == "gated":
            separate = seen[f"group{index}/mlp/gate"] + seen[f"group{index}/mlp/up"]
            expect(
                separate, 2 * rows * d * 2 * mlp.width * group.repeat, f"group{index}: gate and up against one product"
            )


@declares("legal pairs never exceed the rectangle, and equal the pairs counted one by one")
def causal_is_at_most_rectangular(case: Case) -> None:
    """Compare both conventions with pairs looked at one by one."""
    rectangle, legal = (variant(case, pairs=name) for name in ("rectangular", "legal"))
    seen = totals(rectangle, "flops")
    expect(seen["forward_causal"], recount.forward_flops(legal), "forward FLOPs over legal pairs")
    expect(totals(legal, "flops")["forward"], seen["forward_causal"], "forward FLOPs of the legal convention")
    at_most(seen["forward_causal"], seen["forward"], "legal against rectangular FLOPs")


@declares("final-row logits change the head alone, in proportion to its rows", "prefill", "decode")
def logits_rows_scale_the_head(case: Case) -> None:
    """Compare final with all rows, at the head and, where there is one, at the projection before it."""
    final, full = (flops_by_scope(variant(case, logits=name)) for name in ("final", "all"))
    arch = case.architecture
    each = {"head": 2 * arch.table_width * case.vocabulary_rows}
    if arch.embedding_width:
        each["head/project_out"] = 2 * arch.hidden_size * arch.embedding_width
    for scope, work in each.items():
        expect(final[scope], case.workload.batch * work, f"{scope} FLOPs of the final rows")
        expect(full[scope], sum(recount.sequence_lengths(case)) * work, f"{scope} FLOPs of all rows")
    expect(
        {k: v for k, v in final.items() if k not in each},
        {k: v for k, v in full.items() if k not in each},
        "FLOPs beside the head",
    )


@declares("replaying blocks costs at least what replaying attention does, and that at least nothing", "training")
def replay_grows_with_the_region(case: Case) -> None:
    """Order the replay of none, attention, block and everything; without frozen scopes give them in closed form."""
    seen = {
        name: totals(variant(case, remat=name), "flops")["recompute"]
        for name in ("none", "attention", "block", "everything")
    }
    for less, more in (("none", "attention"), ("attention", "block"), ("block", "everything")):
        at_most(seen[less], seen[more], f"replay of {less} against {more}")
    if case.state.frozen or case.workload.attention != "materialised":
        return
    products = list(recount.products(case))
    expect(seen["none"], 0, "replay of none")
    expect(seen["attention"], sum(p.flops for p in products if not p.weight), "replay of attention")
    expect(seen["block"], sum(p.flops for p in products if p.scope.startswith("group")), "replay of block")
    expect(seen["everything"], sum(p.flops for p in products), "replay of everything")


# What a replayed layer computes for the next layer alone. A norm behind a branch needs its input, so nothing is dead.
DEAD = {"pre": ("mlp/down",), "parallel": ("attn/o_proj", "mlp/down"), "post": (), "post_branch": (), "both": ()}


@declares("of a replayed layer only products that end in its bare residual sum are of no use", "training")
def dead_replay_follows_the_residual(case: Case) -> None:
    """Name the dead products by the residual form, each at its forward FLOPs; blockwise or not, nothing frozen."""
    whole = variant(case, frozen=None, remat="block")
    forward = flops_by_scope(whole)
    wanted = {
        f"group{index}/{name}": forward[f"group{index}/{name}"]
        for index, group in enumerate(whole.architecture.groups)
        for name in DEAD[group.layer.residual]
    }
    seen: dict[str, int] = {}
    for row in dead.dead_replay(program(whole)):
        seen[row.scope] = seen.get(row.scope, 0) + row.value
    expect(seen, wanted, "dead replay by scope")


@declares("windows cut legal pairs and the rows of the cache that matter, no product of the rectangle")
def windows_cut_pairs_and_cache(case: Case) -> None:
    """Compare with full attention, and with pairs and cached rows looked at one by one."""
    arch = case.architecture
    full = variant(case, altered(arch, groups=tuple(group.replaced(windows=()) for group in arch.groups)))
    cut, uncut = (flops_by_scope(variant(item, pairs="rectangular")) for item in (case, full))
    expect(cut, uncut, "rectangular FLOPs with and without windows")
    legal, whole = (variant(item, pairs="legal") for item in (case, full))
    seen, wanted, uncut = flops_by_scope(legal), recount.by_scope(legal), flops_by_scope(whole)
    for index in range(len(arch.groups)):
        for part in ("scores", "values"):
            scope = f"group{index}/attn/{part}"
            expect(seen[scope], wanted[scope], f"{scope} FLOPs over legal pairs")
            at_most(seen[scope], uncut[scope], f"{scope} FLOPs within windows against those without")
    if case.workload.phase != "training":
        cache = totals(case, "kv_cache")
        expect(cache["minimum_bytes"], recount.least_cache_bytes(case), "bytes of the cached rows that windows reach")
        expect(cache["bytes"], totals(full, "kv_cache")["bytes"], "cache bytes with and without windows")


@declares("accumulation changes no parameter, no FLOP and no argument byte", "training")
def accumulation_changes_no_total(case: Case) -> None:
    """Compare with the same step in one microbatch."""
    single = variant(case, accumulate=None)
    for phase in ("forward", "backward", "recompute"):
        expect(totals(case, "flops")[phase], totals(single, "flops")[phase], f"{phase} FLOPs with accumulation")
    expect(totals(case, "parameters"), totals(single, "parameters"), "parameters with accumulation")
    if case.workload.lengths is None:  # the worst shard of ragged work depends on which sequences share a microbatch
        expect(
            totals(case, "device")["argument_bytes"],
            totals(single, "device")["argument_bytes"],
            "argument bytes with accumulation",
        )


@declares("exponentials, roots and soft caps stand in the primitive ledger, none of them counted as a matmul")
def primitives_stay_visible(case: Case) -> None:
    """Count, at the least: an exponential per pair and query head, a root per normalised row, a tanh per capped value.

    A query or key norm takes a root per row, or per row and head.
    """
    seen = totals(case, "primitives")["by_phase"].get("forward", {})
    arch, rectangle, rows = case.architecture, recount.pairs(case, "rectangular"), sum(recount.sequence_lengths(case))
    roots = rows * (arch.embedding_norm is not None)
    capped = recount.logits_rows(case) * case.vocabulary_rows * (arch.logit_softcap is not None)
    exponentials = 0
    for group in arch.groups:
        attention = group.layer.attention
        exponentials += group.repeat * attention.query_heads * rectangle
        roots += group.repeat * rows * len(group.layer.norms)
        if attention.qk_norm:
            over_heads = attention.qk_norm.over == "head"
            roots += group.repeat * rows * (attention.query_heads + attention.kv_heads if over_heads else 2)
        if attention.score_softcap is not None:
            capped += group.repeat * attention.query_heads * rectangle
    at_most(exponentials, seen.get("exp", 0), "softmax exponentials against the ledger's")
    at_most(roots, seen.get("rsqrt", 0), "normalised rows against the ledger's reciprocal roots")
    at_most(capped, seen.get("tanh", 0), "capped values against the ledger's hyperbolic tangents")
