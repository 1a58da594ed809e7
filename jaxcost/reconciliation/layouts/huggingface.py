"""State mappings of transformers 4.57, family by family: `models/<family>/modeling_<family>.py`.

A line reads: stored name, the declared parameters it holds, the axes of its dimensions. `torch.nn.Linear` keeps
[output, input]; GPT-2's `Conv1D` keeps [input, output]. `n` is h + 2k and `u` is 2f, the rows of fused arrays; `*` is
all declared axes as one dimension. Where a fused array's rows are not simply q, then k, then v, the line says how.

Each table is also known as NAME-base without the prefix of the class's inner model (`model.`, `transformer.`), which is
how the bare model, and the released GPT-2 and BLOOM, are stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from jaxcost.prediction.program import Program
from jaxcost.reconciliation.layouts.pieces import ExpectedTensor, Piece, by_layer, pieces, product

_QKV = ("attn/q_proj", "attn/k_proj", "attn/v_proj")
_GATE_UP = ("mlp/gate", "mlp/up")
PER_HEAD = "rows are cut per head: its query, key and value rows, then the next head's"
PER_GROUP = "rows are cut per K/V group: its query heads, its key head, its value head, then the next group's"


@dataclass(frozen=True)
class Rule:
    """One stored array: `parts` are local names of pieces, `dims` the axes of each dimension."""

    name: str
    parts: tuple[str, ...]
    dims: tuple[str, ...]
    order: str = ""


@dataclass(frozen=True)
class Family:
    """The table of one family; `layers` is the prefix of a layer, `{}` standing for its number."""

    prefix: str
    layers: str
    outside: tuple[Rule, ...]
    inside: tuple[Rule, ...]


def _one(name: str, part: str, *dims: str) -> Rule:
    return Rule(name, (part,), dims)


def _linear(name: str, part: str, out: str, into: str) -> tuple[Rule, ...]:
    """A torch.nn.Linear: weight [out, in] and, where it is declared, bias [out]."""
    return _one(f"{name}.weight", f"{part}/weight", out, into), _one(f"{name}.bias", f"{part}/bias", out)


def _fused(name: str, parts: tuple[str, ...], out: str, into: str, order: str = "") -> tuple[Rule, ...]:
    """A torch.nn.Linear that holds several projections side by side in its rows."""
    return (
        Rule(f"{name}.weight", tuple(f"{part}/weight" for part in parts), (out, into), order),
        Rule(f"{name}.bias", tuple(f"{part}/bias" for part in parts), (out,), order),
    )


def _norm(name: str, part: str) -> tuple[Rule, ...]:
    return _one(f"{name}.weight", f"{part}/scale", "*"), _one(f"{name}.bias", f"{part}/bias", "*")


def _outside(tokens: str, final: str, head: str, *more: Rule) -> tuple[Rule, ...]:
    return (
        _one(f"{tokens}.weight", "embed/tokens/weight", "v", "w"), *more, *_norm(final, "final_norm"),
        _one(f"{head}.weight", "head/weight", "v", "w"),
    )  # fmt: skip


_SEPARATE = (
    *_linear("self_attn.q_proj", "attn/q_proj", "h e", "d"),
    *_linear("self_attn.k_proj", "attn/k_proj", "k e", "d"),
    *_linear("self_attn.v_proj", "attn/v_proj", "k e", "d"),
)
_GATED = (
    *_linear("mlp.gate_proj", "mlp/gate", "f", "d"),
    *_linear("mlp.up_proj", "mlp/up", "f", "d"),
    *_linear("mlp.down_proj", "mlp/down", "d", "f"),
)
_O_PROJ = _linear("self_attn.o_proj", "attn/o_proj", "d", "h e")
_QK_NORMS = (*_norm("self_attn.q_norm", "attn/q_norm"), *_norm("self_attn.k_norm", "attn/k_norm"))
_MODEL = _outside("model.embed_tokens", "model.norm", "lm_head")
_PRE = (*_norm("input_layernorm", "attn_norm"), *_norm("post_attention_layernorm", "mlp_norm"))


def _like_llama(norms: tuple[Rule, ...], qkv: tuple[Rule, ...] = _SEPARATE, mlp: tuple[Rule, ...] = _GATED) -> Family:
    return Family("model.", "model.layers.{}.", _MODEL, (*norms, *qkv, *_QK_NORMS, *_O_PROJ, *mlp))


def _bloom_like(name: str, order: str) -> tuple[Rule, ...]:
    return (
        *_fused(f"{name}.query_key_value", _QKV, "n e", "d", order),
        *_linear(f"{name}.dense", "attn/o_proj", "d", "h e"),
        *_linear("mlp.dense_h_to_4h", "mlp/up", "f", "d"), *_linear("mlp.dense_4h_to_h", "mlp/down", "d", "f"),
    )  # fmt: skip


_FAMILIES: Mapping[str, Family] = {
    "llama": _like_llama(_PRE),
    "gemma2": _like_llama((
        *_norm("input_layernorm", "attn_norm"), *_norm("post_attention_layernorm", "attn_post_norm"),
        *_norm("pre_feedforward_layernorm", "mlp_norm"), *_norm("post_feedforward_layernorm", "mlp_post_norm"),
    )),
    "olmo2": _like_llama((
        *_norm("post_attention_layernorm", "attn_post_norm"), *_norm("post_feedforward_layernorm", "mlp_post_norm"),
    )),
    "phi3": _like_llama(
        _PRE,
        _fused("self_attn.qkv_proj", _QKV, "n e", "d"),
        (*_fused("mlp.gate_up_proj", _GATE_UP, "u", "d"), *_linear("mlp.down_proj", "mlp/down", "d", "f")),
    ),
    "starcoder2": _like_llama(
        _PRE, _SEPARATE, (*_linear("mlp.c_fc", "mlp/up", "f", "d"), *_linear("mlp.c_proj", "mlp/down", "d", "f"))
    ),
    "gpt2": Family(
        "transformer.", "transformer.h.{}.",
        _outside("transformer.wte", "transformer.ln_f", "lm_head",
                 _one("transformer.wpe.weight", "embed/positions/weight", "p", "d")),
        (
            *_norm("ln_1", "attn_norm"), *_norm("ln_2", "mlp_norm"),
            Rule("attn.c_attn.weight", tuple(f"{part}/weight" for part in _QKV), ("d", "n e")),
            Rule("attn.c_attn.bias", tuple(f"{part}/bias" for part in _QKV), ("n e",)),
            _one("attn.c_proj.weight", "attn/o_proj/weight", "h e", "d"),
            _one("attn.c_proj.bias", "attn/o_proj/bias", "d"),
            _one("mlp.c_fc.weight", "mlp/up/weight", "d", "f"), _one("mlp.c_fc.bias", "mlp/up/bias", "f"),
            _one("mlp.c_proj.weight", "mlp/down/weight", "f", "d"), _one("mlp.c_proj.bias", "mlp/down/bias", "d"),
        ),
    ),
    "gpt_bigcode": Family(
        "transformer.", "transformer.h.{}.",
        _outside("transformer.wte", "transformer.ln_f", "lm_head",
                 _one("transformer.wpe.weight", "embed/positions/weight", "p", "d")),
        (
            # The names of GPT-2 with torch.nn.Linear in place of Conv1D.
            *_norm("ln_1", "attn_norm"), *_norm("ln_2", "mlp_norm"),
            *_fused("attn.c_attn", _QKV, "n e", "d"), *_linear("attn.c_proj", "attn/o_proj", "d", "h e"),
            *_linear("mlp.c_fc", "mlp/up", "f", "d"), *_linear("mlp.c_proj", "mlp/down", "d", "f"),
        ),
    ),
    "opt": Family(
        "model.", "model.decoder.layers.{}.",
        _outside("model.decoder.embed_tokens", "model.decoder.final_layer_norm", "lm_head",
                 _one("model.decoder.embed_positions.weight", "embed/positions/weight", "p", "d"),
                 _one("model.decoder.project_in.weight", "embed/project_in/weight", "d", "w"),
                 _one("model.decoder.project_out.weight", "head/project_out/weight", "w", "d")),
        (
            # Norms keep their names where they stand before or after their block.
            *_norm("self_attn_layer_norm", "attn_norm"), *_norm("self_attn_layer_norm", "attn_post_norm"),
            *_norm("final_layer_norm", "mlp_norm"), *_norm("final_layer_norm", "mlp_post_norm"),
            *_SEPARATE, *_linear("self_attn.out_proj", "attn/o_proj", "d", "h e"),
            *_linear("fc1", "mlp/up", "f", "d"), *_linear("fc2", "mlp/down", "d", "f"),
        ),
    ),
    "gpt_neox": Family(
        "gpt_neox.", "gpt_neox.layers.{}.",
        _outside("gpt_neox.embed_in", "gpt_neox.final_layer_norm", "embed_out"),
        (*_PRE, *_bloom_like("attention", PER_HEAD)),
    ),
    "falcon": Family(
        "transformer.", "transformer.h.{}.",
        _outside("transformer.word_embeddings", "transformer.ln_f", "lm_head"),
        (*_PRE, *_bloom_like("self_attention", PER_GROUP)),
    ),
    "falcon-new-decoder": Family(
        "transformer.", "transformer.h.{}.",
        _outside("transformer.word_embeddings", "transformer.ln_f", "lm_head"),
        (*_norm("ln_attn", "attn_norm"), *_norm("ln_mlp", "mlp_norm"), *_bloom_like("self_attention", PER_GROUP)),
    ),
    "bloom": Family(
        "transformer.", "transformer.h.{}.",
        _outside("transformer.word_embeddings", "transformer.ln_f", "lm_head",
                 *_norm("transformer.word_embeddings_layernorm", "embed/norm")),
        (*_PRE, *_bloom_like("self_attention", PER_HEAD)),
    ),
    "mpt": Family(
        "transformer.", "transformer.blocks.{}.",
        _outside("transformer.wte", "transformer.norm_f", "lm_head",
                 _one("transformer.wpe.weight", "embed/positions/weight", "p", "d")),
        (
            *_norm("norm_1", "attn_norm"), *_norm("norm_2", "mlp_norm"),
            *_fused("attn.Wqkv", _QKV, "n e", "d"), *_linear("attn.out_proj", "attn/o_proj", "d", "h e"),
            *_linear("ffn.up_proj", "mlp/up", "f", "d"), *_linear("ffn.down_proj", "mlp/down", "d", "f"),
        ),
    ),
}  # fmt: skip


def _tensors(family: Family, base: bool, program: Program) -> tuple[ExpectedTensor, ...]:
    found: list[ExpectedTensor] = []
    names: dict[tuple[str, int], str] = {}  # declared parameter and layer -> the stored name that holds it first
    for group, layer, number, tensors in by_layer(program):
        held = {piece.local: piece for tensor in tensors for piece in pieces(tensor)}
        rules = family.outside if group is None else family.inside
        prefix = "" if group is None else family.layers.format(number)
        used: set[str] = set()
        taken: set[str] = set()
        for rule in rules:
            parts = [held[part] for part in rule.parts if part in held]
            if len(parts) != len(rule.parts) or rule.name in taken:
                continue
            taken.add(rule.name)
            used.update(rule.parts)
            name = prefix + rule.name
            if base and name.startswith(family.prefix):
                name = name.removeprefix(family.prefix)
            for part in parts:
                names.setdefault((part.declared.name, layer or 0), name)
            owner = names.get((parts[0].declared.storage, layer or 0), name) if len(parts) == 1 else name
            found.append(_expected(program, rule, name, owner, parts, group))
        for local, piece in held.items():
            if local not in used:
                name = f"{prefix}{local} (no name in this layout)"
                shape = (product(program, piece.axes, group),)
                found.append(ExpectedTensor(name, shape, piece.declared.dtype, piece.declared.trainable, name,
                                            (piece.declared.name,)))  # fmt: skip
    return tuple(found)


def _expected(
    program: Program, rule: Rule, name: str, owner: str, parts: list[Piece], group: int | None
) -> ExpectedTensor:
    first = parts[0].declared
    if rule.dims == ("*",):
        shape: tuple[int, ...] = (product(program, parts[0].axes, group),)
    else:
        shape = tuple(product(program, dim, group) for dim in rule.dims)
    declared = tuple(dict.fromkeys(part.declared.name for part in parts))
    linear = group is not None and rule.name.endswith(".weight") and len(shape) == 2
    return ExpectedTensor(name, shape, first.dtype, first.trainable, owner, declared, linear, rule.order)


LAYOUTS: Mapping[str, Callable[[Program], tuple[ExpectedTensor, ...]]] = {
    f"huggingface-{name}{suffix}": partial(_tensors, family, bool(suffix))
    for name, family in _FAMILIES.items()
    for suffix in ("", "-base")
}
