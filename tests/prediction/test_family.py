"""The dense family: parameter totals of released models, residual forms under recomputation, windows, fused storage."""

from __future__ import annotations

from typing import Any

import pytest
import sympy

from jaxcost.prediction import dead_replay, predict, program
from jaxcost.prediction.activations import saved
from jaxcost.prediction.flops import flops
from jaxcost.prediction.kv_cache import kv_cache
from jaxcost.prediction.parameters import parameters
from jaxcost.prediction.primitives import primitives
from jaxcost.prediction.sizes import Sizes
from jaxcost.prediction.state import state
from jaxcost.prediction.symbols import formula
from tests.prediction.family import a_norm, case_of, dense, draw_family

LAYER = a_norm("layer")
OFFSET = a_norm(unit_offset=True)
BIASES = {"qkv_bias": True, "output_bias": True, "mlp_bias": True, "norm": LAYER}
CLASSIC = {"form": "classic", "activation": "gelu"}

# Sizes from the released configs; totals (unique, named) as transformers makes the modules.
MODELS: dict[str, tuple[dict[str, Any], int, int]] = {
    "gpt2-xl": (
        {"L": 48, "d": 1600, "h": 25, "k": 25, "e": 64, "f": 6400, "V": 50257, "tied": True, "positions": (1024, 0)}
        | {**BIASES, **CLASSIC, "activation": "gelu_tanh", "fused": True},
        1_557_611_200,
        1_638_022_400,
    ),
    "opt-350m": (
        {"L": 24, "d": 1024, "h": 16, "k": 16, "e": 64, "f": 4096, "V": 50272, "tied": True, "positions": (2050, 2)}
        | {**BIASES, **CLASSIC, "activation": "relu", "residual": "post", "final": False, "embedding_width": 512},
        331_196_416,
        356_935_680,
    ),
    "pythia-6.9b": (
        {"L": 32, "d": 4096, "h": 32, "k": 32, "e": 128, "f": 16384, "V": 50432, "rotary": 32, "fused": True}
        | {**BIASES, **CLASSIC, "residual": "parallel"},
        6_857_302_016,
        6_857_302_016,
    ),
    "falcon-7b": (
        {"L": 32, "d": 4544, "h": 71, "k": 1, "e": 64, "f": 18176, "V": 65024, "tied": True, "rotary": 64}
        | {**CLASSIC, "residual": "parallel", "shared": True, "norm": LAYER, "fused": True},
        6_921_720_704,
        7_217_189_760,
    ),
    "bloom-176b": (
        {"L": 70, "d": 14336, "h": 112, "k": 112, "e": 128, "f": 57344, "V": 250880, "tied": True, "fused": True}
        | {**BIASES, **CLASSIC, "activation": "gelu_tanh", "attention": {"alibi": True}, "embedding_norm": LAYER},
        176_247_271_424,
        179_843_887_104,
    ),
    "mpt-7b": (
        {"L": 32, "d": 4096, "h": 32, "k": 32, "e": 128, "f": 16384, "V": 50432, "tied": True, "fused": True}
        | {**CLASSIC, "norm": a_norm("layer", bias=False), "attention": {"alibi": True}},
        6_649_286_656,
        6_855_856_128,
    ),
    "gemma2-9b": (
        {"L": 42, "d": 3584, "h": 16, "k": 8, "e": 256, "f": 14336, "V": 256000, "tied": True, "rotary": 256}
        | {"residual": "both", "norm": OFFSET, "activation": "gelu_tanh", "windows": (4096, 0)}
        | {"attention": {"score_softcap": 50.0, "scale": 0.0625}, "logit_softcap": 30.0, "embedding_scale": 59.87},
        9_241_705_984,
        10_159_209_984,
    ),
    "olmo2-7b": (
        {"L": 32, "d": 4096, "h": 32, "k": 32, "e": 128, "f": 11008, "V": 100352, "rotary": 128}
        | {"residual": "post_branch", "attention": {"qk_norm": {"over": "width", "norm": a_norm()}}},
        7_298_617_344,
        7_298_617_344,
    ),
    "qwen3-0.6b": (
        {"L": 28, "d": 1024, "h": 16, "k": 8, "e": 128, "f": 3072, "V": 151936, "tied": True, "rotary": 128}
        | {"attention": {"qk_norm": {"over": "head", "norm": a_norm()}}},
        596_049_920,
        751_632_384,
    ),
    "qwen3-4b": (
        {"L": 36, "d": 2560, "h": 32, "k": 8, "e": 128, "f": 9728, "V": 151936, "tied": True, "rotary": 128}
        | {"attention": {"qk_norm": {"over": "head", "norm": a_norm()}}},
        4_022_468_096,
        4_022_468_096 + 151936 * 2560,
    ),
    "phi3-mini-4k": (
        {"L": 32, "d": 3072, "h": 32, "k": 32, "e": 96, "f": 8192, "V": 32064, "rotary": 96, "fused": True}
        | {"windows": (2047,)},
        3_821_079_552,
        3_821_079_552,
    ),
    "qwen1.5-72b": (
        {"L": 80, "d": 8192, "h": 64, "k": 64, "e": 128, "f": 24576, "V": 152064, "rotary": 128, "qkv_bias": True},
        72_287_920_128,
        72_287_920_128,
    ),
}


def built(phase: str = "training", options: dict[str, Any] | None = None, **keywords: Any) -> Any:
    given = {"seq": 8, **(options or {})}
    if phase == "decode":
        del given["seq"]
    return program(case_of(dense(**keywords), phase, **given))


@pytest.mark.parametrize("name", MODELS)
def test_parameters_of_released_models(name: str) -> None:
    keywords, unique, named = MODELS[name]
    for phase in ("training", "prefill"):
        totals = parameters(built(phase, **keywords)).totals
        assert (totals["unique"], totals["named"]) == (unique, named)


@pytest.mark.parametrize(
    ("name", "change", "difference"),
    [
        ("qwen1.5-72b", {"form": "classic"}, -80 * 8192 * 24576),
        ("qwen1.5-72b", {"qkv_bias": False}, -80 * 3 * 8192),
        ("opt-350m", {"positions": (2048, 0)}, -2 * 1024),
        ("opt-350m", {"final": True}, 2 * 1024),
        ("falcon-7b", {"shared": False}, 32 * 2 * 4544),
        ("falcon-7b", {"k": 71}, 32 * 4544 * 2 * 70 * 64),
        ("bloom-176b", {"embedding_norm": None}, -2 * 14336),
        ("olmo2-7b", {"attention": {"qk_norm": {"over": "head", "norm": a_norm()}}}, -32 * 2 * (4096 - 128)),
        ("gemma2-9b", {"residual": "pre"}, -42 * 2 * 3584),
        ("gemma2-9b", {"norm": a_norm(), "windows": ()}, 0),
        ("pythia-6.9b", {"fused": False}, 0),
    ],
)
def test_a_wrong_part_changes_the_count(name: str, change: dict[str, Any], difference: int) -> None:
    keywords, unique, _ = MODELS[name]
    assert parameters(built("prefill", **{**keywords, **change})).totals["unique"] == unique + difference


def test_two_matrices_explain_the_low_report_of_a_gated_model() -> None:
    keywords, unique, _ = MODELS["qwen1.5-72b"]
    low = parameters(built("prefill", **{**keywords, "form": "classic"})).totals["unique"]
    assert low == unique - 80 * 8192 * 24576
    assert low - (2 * 80 + 1) * 8192 - 80 * 3 * 8192 == 56_178_507_776


@pytest.mark.parametrize(
    ("size", "multiple", "tensor", "rows"),
    [
        (128_256, 64 * 8, 8, 128_512),
        (129_280, 64 * 24, 24, 130_560),
        (129_280, 192, 24, 129_408),
        (151_552, 64 * 6, 6, 151_680),
        (50_257, 128, 1, 50_304),
    ],
)
def test_padded_vocabulary_is_stored_computed_and_not_learned(size: int, multiple: int, tensor: int, rows: int) -> None:
    """Released scalars do not change with padding; stored scalars, logits FLOPs and each rank's rows do."""
    d = 4096 if tensor == 8 else 16
    keywords = {"L": 1, "d": d, "h": tensor, "k": tensor, "e": 2, "f": tensor, "V": size}
    options = {"seq": 4, "vocabulary_multiple": multiple, "mesh": {"tensor": tensor}}
    padded, plain = built("prefill", options, **keywords), built("prefill", **keywords)
    found = parameters(padded).totals
    assert padded.sizes.axis("v") == rows
    assert padded.device_sizes.axis("v") * tensor == rows
    assert found["unique"] == parameters(plain).totals["unique"]
    assert found["padding"] == 2 * (rows - size) * d
    assert found["stored"] == found["unique"] + found["padding"]
    head = [row.value for row in flops(padded).rows if row.scope == "head" and row.phase == "forward"]
    assert head == [2 * d * rows]


def test_padded_vocabulary_of_eight_ranks() -> None:
    options = {"vocabulary_multiple": 512, "mesh": {"tensor": 8}}
    found = built("prefill", options, L=1, d=4096, h=8, k=8, e=2, f=8, V=128_256)
    assert found.device_sizes.axis("v") == 16_064
    assert parameters(found).totals["padding"] == 2 * 1_048_576
    tied = built("prefill", options, L=1, d=4096, h=8, k=8, e=2, f=8, V=128_256, tied=True)
    assert parameters(tied).totals["padding"] == 1_048_576


# One layer, 32 query heads of width 128, hidden 4096, 8192 new rows.
ONE = {"L": 1, "d": 4096, "h": 32, "k": 8, "e": 128, "f": 14336, "V": 32}


def pairwise_flops(found: Any) -> int:
    return sum(row.value for row in flops(found).rows if row.phase == "forward" and row.object in ("scores", "values"))


@pytest.mark.parametrize("kv_heads", [1, 8, 32])
@pytest.mark.parametrize(
    ("windows", "pairs", "expected"),
    [
        ((), "rectangular", 1_099_511_627_776),
        ((), "legal", 549_822_922_752),
        ((4096,), "rectangular", 1_099_511_627_776),
        ((4096,), "legal", 412_350_414_848),
        ((8192,), "legal", 549_822_922_752),
        ((10**9,), "legal", 549_822_922_752),
        ((1,), "legal", 4 * 32 * 128 * 8192),
    ],
)
def test_window_and_kv_heads(kv_heads: int, windows: tuple[int, ...], pairs: str, expected: int) -> None:
    found = built("prefill", {"seq": 8192, "pairs": pairs}, **{**ONE, "k": kv_heads}, windows=windows)
    assert pairwise_flops(found) == expected
    causal = flops(found).totals["forward"] - flops(found).totals["forward_causal"]
    assert causal == (0 if pairs == "legal" else expected - pairwise_flops(legal(found)))


def legal(found: Any) -> Any:
    convention = found.case.convention.replaced(attention_pairs="legal")
    return program(found.case.model_copy(update={"convention": convention}))


def brute_pairs(past: int, new: int, window: int) -> int:
    """Look at every pair: the key is not after the query, and among its last `window` where there is a window."""
    return sum(
        1
        for query in range(past, past + new)
        for key in range(past + new)
        if key <= query and (not window or key > query - window)
    )


@pytest.mark.parametrize("cycle", [(), (3,), (3, 0), (0, 2, 5), (7, 7, 0)])
@pytest.mark.parametrize("repeat", [1, 2, 5])
@pytest.mark.parametrize("first", [0, 1])
def test_windows_layer_by_layer(cycle: tuple[int, ...], repeat: int, first: int) -> None:
    for past, new in ((0, 6), (9, 1), (2, 5)):
        sizes = Sizes({"b": 2, "s": new, "t": past + new, "r": 1}, ({"h": 3},), (repeat,), None, 0, (cycle,))
        layers = [cycle[i % len(cycle)] if cycle else 0 for i in range(first, first + repeat)]
        expected = sum(2 * 3 * brute_pairs(past, new, window) for window in layers)
        assert sizes.over_layers("b h s t", 0, first, repeat, "legal") == expected
        assert sizes.over_layers("b h s t", 0, first, repeat) == 6 * new * (past + new) * repeat
        kept = sum(sizes.kept_rows(window) * count for window, count in sizes.by_window(0, first, repeat))
        assert kept == sum(2 * min(past + new, window or past + new) for window in layers)


def test_ragged_windows() -> None:
    found = built("prefill", {"batch": 3, "lengths": [2, 8, 5], "pairs": "legal"}, L=3, windows=(3, 0))
    expected = sum(brute_pairs(0, n, window) for n in (2, 8, 5) for window in (3, 0, 3))
    assert pairwise_flops(found) == 4 * 4 * 2 * expected
    rows = sum(min(n, window or n) for n in (2, 8, 5) for window in (3, 0, 3))
    assert kv_cache(found).totals["minimum_bytes"] == rows * 2 * 2 * 2 * 2


def test_first_unrolled_layer_keeps_its_window() -> None:
    """Frozen embeddings make the first layer a section of its own: the others start at the cycle's second window."""
    options = {"frozen": ["embed"], "layers": "unrolled", "pairs": "legal"}
    found = built("training", options, L=4, windows=(3, 0))
    by_layer = {op.first: op for op in found.contractions if op.name == "scores"}
    assert sorted(by_layer) == [0, 1]
    assert pairwise_flops(found) == 2 * 2 * 4 * 2 * sum(brute_pairs(0, 8, window) for window in (3, 0, 3, 0))


@pytest.mark.parametrize("length", [8192, 128, 1])
def test_least_cache_of_alternating_windows(length: int) -> None:
    """24 layers, 8 heads of 64, window 128 in every other: the least bytes, and those of one page size for all."""
    found = built("decode", {"batch": 32, "past": length - 1}, L=24, h=8, k=8, e=64, d=512, f=4, windows=(128, 0))
    totals = kv_cache(found).totals
    assert totals["bytes_per_token"] == 49_152
    assert totals["allocated_bytes"] == totals["bytes"] == 32 * length * 49_152
    assert totals["minimum_bytes"] == {8192: 6_543_114_240}.get(length, totals["bytes"])


def test_window_formulas_hold_for_every_cycle() -> None:
    case = case_of(dense(L=5, windows=(3, 0)), "prefill", seq=8)
    causal = formula(case, "flops.forward_causal")
    values = {"L": 5, "B": 1, "S": 8, "d": 8, "H": 4, "K": 2, "E": 2, "F": 12, "V": 16, "W": 3}
    given = {sympy.Symbol(name, integer=True, positive=True): value for name, value in values.items()}
    assert causal.subs(given) == flops(program(case)).totals["forward_causal"]
    assert formula(case, "kv_cache.minimum_bytes").subs(given) == kv_cache(program(case)).totals["minimum_bytes"]
    two = case_of(dense(L=7, windows=(3, 0, 5)), "prefill", seq=8)
    names = {str(name) for name in formula(two, "flops.forward_causal").free_symbols}
    assert {"W_0", "W_1"} <= names
    wide = {**given, sympy.Symbol("L", integer=True, positive=True): 7}
    wide |= {sympy.Symbol(f"W_{i}", integer=True, positive=True): w for i, w in enumerate((3, 5))}
    assert formula(two, "flops.forward_causal").subs(wide) == flops(program(two)).totals["forward_causal"]


DEAD = {
    "pre": ["mlp/down"],
    "post": [],
    "post_branch": [],
    "both": [],
    "parallel": ["attn/o_proj", "mlp/down"],
}


@pytest.mark.parametrize("plan", ["materialised", "blockwise"])
@pytest.mark.parametrize("residual", DEAD)
def test_dead_replay_of_every_residual_form(residual: str, plan: str) -> None:
    """What a layer's replay computes for the next layer alone is dead; a norm after a branch needs its input."""
    for extra in ({}, {"shared": True}, {"norm": LAYER, "output_bias": True, "mlp_bias": True}):
        found = built(options={"remat": "block", "attention": plan}, residual=residual, **extra)
        assert [row.scope for row in dead_replay(found)] == [f"group0/{name}" for name in DEAD[residual]]
    for remat in ("attention", "none", "everything"):
        assert not dead_replay(built(options={"remat": remat}, residual=residual))


@pytest.mark.parametrize("residual", DEAD)
def test_saved_tensors_of_every_residual_form(residual: str) -> None:
    """A layer replayed whole keeps its input; the stream is kept once however many readers it has."""
    found = built(options={"remat": "block"}, residual=residual, L=3)
    block = [row for row in saved(found) if row.region == "block" or row.object == "group0/in"]
    assert [(row.object, row.fields["layers"]) for row in block] == [("group0/in", 3)]
    names = [row.object for row in saved(built(options={"remat": "none"}, residual=residual))]
    assert len(names) == len(set(names))
    wanted = {
        "pre": {"group0/in", "group0/residual/mid"},
        "post": {"group0/in", "group0/residual/mid", "group0/attn_post_norm/out", "group0/residual/out"},
        "post_branch": {"group0/in", "group0/attn/o_proj/out", "group0/residual/mid", "group0/mlp/down/out"},
        "both": {"group0/in", "group0/attn/o_proj/out", "group0/residual/mid", "group0/mlp/down/out"},
        "parallel": {"group0/in"},
    }[residual]
    assert wanted <= set(names)
    assert ("group0/residual/mid" in names) == (residual != "parallel")


def test_a_shared_norm_is_one_norm_and_one_saved_tensor() -> None:
    one, two = (built(residual="parallel", shared=shared, norm=LAYER) for shared in (True, False))
    assert parameters(two).totals["unique"] - parameters(one).totals["unique"] == 2 * 2 * 8
    assert {row.object for row in saved(two)} - {row.object for row in saved(one)} == {"group0/mlp_norm/out"}
    assert flops(one).totals == flops(two).totals


def names_of(found: Any) -> dict[str, tuple[str, ...]]:
    return {row.object: tuple(row.fields["axes"].split()) for row in parameters(found).rows}


@pytest.mark.parametrize("layers", ["scan", "unrolled"])
def test_fused_storage_changes_arrays_and_nothing_else(layers: str) -> None:
    options = {"layers": layers, "remat": "block", "mesh": {"fsdp": 4}, "batch": 4, "frozen": ["embed"]}
    keywords = {"L": 3, "qkv_bias": True, "mlp_bias": True, "rotary": 2}
    fused, apart = (built(options=options, fused=fused, **keywords) for fused in (True, False))
    extra = ("layer",) if layers == "scan" else ()
    there, gone = names_of(fused), names_of(apart)
    assert {name: axes for name, axes in there.items() if name not in gone} == {
        "group0/attn/qkv/weight": (*extra, "d", "n", "e"),
        "group0/attn/qkv/bias": (*extra, "n", "e"),
        "group0/mlp/gate_up/weight": (*extra, "d", "u"),
        "group0/mlp/gate_up/bias": (*extra, "u"),
    }
    parts = [f"{name}/{leaf}" for name in ("attn/q_proj", "attn/k_proj", "attn/v_proj", "mlp/gate", "mlp/up")
             for leaf in ("weight", "bias")]  # fmt: skip
    assert set(gone) - set(there) == {f"group0/{part}" for part in parts}
    for ledger in ("parameters", "state", "flops", "primitives", "activations", "traffic", "ownership", "device"):
        left, right = (dict(predict(item.case).ledgers[ledger].totals) for item in (fused, apart))
        for totals in (left, right):
            totals.pop("fsdp", None)  # groups are of arrays, and a fused array is gathered whole
        assert left == right, ledger
    flop_rows = [[(r.scope, r.phase, r.part, r.value, r.fields) for r in flops(item).rows] for item in (fused, apart)]
    assert flop_rows[0] == flop_rows[1]


def test_fused_arrays_are_factored_as_they_are_stored() -> None:
    """Adafactor looks at the stored array, so fusing may change what it keeps."""
    keywords = {"L": 1, "d": 128, "h": 48, "k": 48, "e": 2, "f": 128, "V": 8}
    options = {"optimizer": "adafactor", "layers": "unrolled"}
    fused, apart = (state(built(options=options, fused=fused, **keywords)).totals for fused in (True, False))
    assert fused["loaded"] == apart["loaded"]
    assert fused["optimizer_bytes"] != apart["optimizer_bytes"]


def test_embedding_projections_are_products_and_no_state_of_the_table() -> None:
    found = built(options={"batch": 2}, embedding_width=6, tied=True)
    rows = {
        (row.scope, row.part): row.value for row in flops(found).rows if row.scope.split("/")[0] in ("embed", "head")
    }
    assert rows == {
        ("embed/project_in", "forward"): 2 * 16 * 6 * 8,
        ("embed/project_in", "dx"): 2 * 16 * 6 * 8,
        ("embed/project_in", "dw"): 2 * 16 * 6 * 8,
        ("head/project_out", "forward"): 2 * 16 * 8 * 6,
        ("head/project_out", "dx"): 2 * 16 * 8 * 6,
        ("head/project_out", "dw"): 2 * 16 * 8 * 6,
        ("head", "forward"): 2 * 16 * 6 * 16,
        ("head", "dx"): 2 * 16 * 6 * 16,
        ("head", "dw"): 2 * 16 * 6 * 16,
    }
    shapes = {row.object: row.fields["shape"] for row in parameters(found).rows}
    assert shapes["embed/tokens/weight"] == shapes["head/weight"] == (16, 6)
    assert shapes["embed/project_in/weight"] == (6, 8) and shapes["head/project_out/weight"] == (8, 6)
    served = built("prefill", {"logits": "final"}, embedding_width=6)
    projected = [row for row in flops(served).rows if row.scope == "head/project_out"]
    assert [row.value for row in projected] == [2 * 8 * 6]
    frozen = built(options={"frozen": ["embed"], "layers": "unrolled"}, embedding_width=6)
    assert not [row for row in flops(frozen).rows if row.scope == "embed/project_in" and row.phase == "backward"]


def counts(found: Any, scope: str, phase: str = "forward") -> dict[str, int]:
    sums: dict[str, int] = {}
    for row in primitives(found).rows:
        if row.scope == scope and row.phase == phase:
            sums[row.object] = sums.get(row.object, 0) + row.value
    return sums


def difference(left: dict[str, int], right: dict[str, int]) -> dict[str, int]:
    found = {kind: left.get(kind, 0) - right.get(kind, 0) for kind in {*left, *right}}
    return {kind: value for kind, value in found.items() if value}


def test_what_has_no_parameters_costs_primitives_only() -> None:
    plain = built(options={"batch": 2})
    pairs, rows, logits = 2 * 2 * 4 * 8 * 8, 2 * 8, 2 * 8 * 16
    alibi = built(options={"batch": 2}, attention={"alibi": True})
    scope = "group0/attn/softmax"
    assert difference(counts(alibi, scope), counts(plain, scope)) == {"add": pairs}
    assert counts(alibi, scope, "backward") == counts(plain, scope, "backward")
    capped = built(options={"batch": 2}, attention={"score_softcap": 50.0}, logit_softcap=30.0)
    assert difference(counts(capped, scope), counts(plain, scope)) == {"multiply": -pairs}
    assert counts(capped, "group0/attn/softcap") == {"multiply": 2 * pairs, "divide": pairs, "tanh": pairs}
    assert counts(capped, "head/softcap") == {"multiply": logits, "divide": logits, "tanh": logits}
    assert counts(capped, "head/softcap", "backward") == {"multiply": 2 * logits, "divide": logits, "add": logits}
    window = built(options={"batch": 2}, windows=(3,))
    assert difference(counts(window, scope), counts(plain, scope)) == {"compare": pairs}
    scaled = built(options={"batch": 2}, embedding_scale=3.0, sinusoidal_positions=True)
    assert counts(scaled, "embed/scale") == {"multiply": rows * 8}
    assert counts(scaled, "embed") == {"add": rows * 8}
    offset = built(options={"batch": 2}, norm=OFFSET)
    assert difference(counts(offset, "final_norm"), counts(plain, "final_norm")) == {"add": 8}
    assert difference(counts(offset, "group0/attn_norm"), counts(plain, "group0/attn_norm")) == {"add": 2 * 8}
    turned = {"rotary": {"theta": 1e4, "dimensions": 2}}
    neighbours = {"rotary": {**turned["rotary"], "interleaved": True}}
    one, other = (built(attention=item) for item in (turned, neighbours))
    assert primitives(one).totals == primitives(other).totals
    for item in (alibi, capped, window, scaled, offset):
        assert parameters(item).totals == parameters(plain).totals
        assert flops(item).totals | {"forward_causal": 0} == flops(plain).totals | {"forward_causal": 0}
    assert flops(window).totals["forward_causal"] < flops(plain).totals["forward_causal"]


@pytest.mark.parametrize("kind", ["rms", "layer"])
def test_norms_of_queries_and_keys(kind: str) -> None:
    """Over heads there are as many rows as heads; over the width one, and a scale for every head."""
    norm = a_norm(kind)
    head, width = (built(attention={"qk_norm": {"over": over, "norm": norm}}) for over in ("head", "width"))
    assert counts(head, "group0/attn/q_norm")["rsqrt"] == 2 * 8 * 4
    assert counts(head, "group0/attn/k_norm")["rsqrt"] == 2 * 8 * 2
    assert counts(width, "group0/attn/q_norm")["rsqrt"] == counts(width, "group0/attn/k_norm")["rsqrt"] == 2 * 8
    assert counts(head, "group0/attn/q_norm")["multiply"] == counts(width, "group0/attn/q_norm")["multiply"]
    axes = names_of(head)
    assert axes["group0/attn/q_norm/scale"] == axes["group0/attn/k_norm/scale"] == ("layer", "e")
    assert names_of(width)["group0/attn/k_norm/scale"] == ("layer", "k", "e")
    assert ("group0/attn/q_norm/bias" in axes) == (kind == "layer")
    meshed = {"mesh": {"tensor": 2, "fsdp": 2}, "batch": 2}
    shared = predict(built(options=meshed, attention={"qk_norm": {"over": "width", "norm": norm}}).case)
    plain = predict(built(options=meshed).case)
    own = 2 * (4 + 2) * 2 * (2 if kind == "layer" else 1) * 4
    found = shared.value("ownership.by_role.parameter") - plain.value("ownership.by_role.parameter")
    assert found == own  # vectors lie whole on every device


def test_score_cap_in_attention_schedules() -> None:
    """Materialised, the cap is one more stage over all pairs; blockwise, its interior never leaves the chip."""
    size = 4 * 8 * 8 * 2 * 2  # heads, rows, rows, layers, two bytes
    for plan, extra in (("materialised", 2 * size), ("blockwise", 0)):
        capped, plain = (
            predict(built(options={"attention": plan}, attention={"score_softcap": cap}).case) for cap in (50.0, None)
        )
        assert capped.value("traffic.attention_bytes") - plain.value("traffic.attention_bytes") == extra
        assert capped.value("activations.saved_bytes") - plain.value("activations.saved_bytes") == extra // 2
    names = {row.object for row in saved(built(attention={"score_softcap": 50.0}, logit_softcap=30.0))}
    assert {"group0/attn/softcap/out", "head/softcap/out"} <= names
    assert not {"group0/attn/scores/out", "head/out"} & names  # backward reads what the cap returns
    replayed = built(options={"attention": "blockwise"}, attention={"score_softcap": 50.0})
    assert counts(replayed, "group0/attn/softcap", "replay") == counts(replayed, "group0/attn/softcap")


def hand_count(s: dict[str, Any]) -> int:
    """Parameters of `draw_family` keywords, summed line by line."""
    d, h, k, e, f, v = (s[name] for name in "dhkefV")
    one = (1 if s["norm"]["scale"] else 0) + (1 if s["norm"]["bias"] else 0)
    width = s["embedding_width"] or d
    layer = d * (h + 2 * k) * e + h * e * d
    layer += (h + 2 * k) * e if s["qkv_bias"] else 0
    layer += d if s["output_bias"] else 0
    matrices = 2 if s["form"] == "gated" else 1
    layer += matrices * d * f + f * d + ((matrices * f + d) if s["mlp_bias"] else 0)
    norms = {"pre": 2, "post": 2, "post_branch": 2, "both": 4, "parallel": 1 if s["shared"] else 2}[s["residual"]]
    layer += norms * one * d
    if s["attention"]["qk_norm"]:
        layer += one * (2 * e if s["attention"]["qk_norm"]["over"] == "head" else (h + k) * e)
    total = s["L"] * layer + v * width * (1 if s["tied"] else 2)
    total += s["positions"][0] * d if s["positions"] else 0
    total += 2 * d * width if s["embedding_width"] else 0
    total += one * d * (bool(s["final"]) + bool(s["embedding_norm"]))
    return total


def hand_flops(s: dict[str, Any], rows: int, pairs: int) -> int:
    d, h, k, e, f, v = (s[name] for name in "dhkefV")
    width = s["embedding_width"] or d
    matrices = 3 if s["form"] == "gated" else 2
    layer = 2 * rows * (d * (h + 2 * k) * e + h * e * d + matrices * d * f) + 4 * pairs * h * e
    return s["L"] * layer + 2 * rows * (width * v + (2 * d * width if s["embedding_width"] else 0))


@pytest.mark.parametrize("seed", range(40))
def test_mixed_members_of_the_family(seed: int) -> None:
    sizes, options = draw_family(seed)
    found = predict(case_of(dense(**sizes), "training", **options))
    batch, seq = options["batch"], options["seq"]
    forward = hand_flops(sizes, batch * seq, batch * seq * seq)
    assert found.value("parameters.unique") == hand_count(sizes)
    assert found.value("state.bytes") == 16 * hand_count(sizes) + 4
    assert found.value("flops.forward") == forward
    assert found.value("flops.backward") == 2 * forward
    windows = sizes["windows"] or (0,)
    legal_pairs = sum(brute_pairs(0, seq, windows[i % len(windows)]) for i in range(sizes["L"]))
    full = sizes["L"] * seq * seq
    heads = 4 * batch * sizes["h"] * sizes["e"]
    assert forward - found.value("flops.forward_causal") == heads * (full - legal_pairs)
    for remat in ("block", "attention", "everything"):
        again = predict(case_of(dense(**sizes), "training", remat=remat, **options))
        assert again.value("activations.saved_bytes") <= found.value("activations.saved_bytes")
        assert again.value("activations.program_order_peak_bytes") > 0
    for phase, extra in (("prefill", {"seq": seq}), ("decode", {"past": seq})):
        served = predict(case_of(dense(**sizes), phase, batch=batch, **extra))
        assert served.value("parameters.unique") == hand_count(sizes)
        assert served.value("kv_cache.minimum_bytes") <= served.value("kv_cache.bytes")
        assert served.to_dict()


def test_device_peak_says_why_it_is_unknown() -> None:
    found = predict(built().case).ledgers["device"]
    assert found.totals["peak_bytes"]["expected"] is None and found.totals["peak_bytes"]["upper"] is None
    assert "narrower" in found.reasons["peak_bytes.expected"]
    assert "narrower" in found.reasons["peak_bytes_by_family.tpu.expected"]
