"""What each component appends to a program: its ops, tensors and typed counts, written out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from jaxcost.contracts.case import Case
from jaxcost.prediction import program
from jaxcost.prediction.program import Contraction, Op, Primitive, Program
from tests.prediction.family import a_norm, case_of, dense

STREAM, WIDE, PAIRS, ROWS = "b s d", "b s f", "b k g s t", "b k g s"


def built(phase: str = "training", options: dict[str, Any] | None = None, **keywords: Any) -> Program:
    given = {"batch": 2, **({"past": 5} if phase == "decode" else {"seq": 4}), **(options or {})}
    return program(case_of(dense(**keywords), phase, **given))


def primitive(of: Program, scope: str, kind: str = "") -> Primitive:
    (found,) = [op for op in of.ops if isinstance(op, Primitive) and op.scope == scope and kind in ("", op.kind)]
    return found


def product(of: Program, scope: str) -> Contraction:
    (found,) = [op for op in of.contractions if op.scope == scope]
    return found


def counts(*triples: tuple[str, int, str]) -> tuple[tuple[str, int, str], ...]:
    return triples


# Norms: y = x * r * scale, r = rsqrt(mean(x^2) + epsilon)

RMS = counts(("multiply", 1, STREAM), ("add", 1, STREAM), ("divide", 1, "b s"), ("add", 1, "b s"), ("rsqrt", 1, "b s"))
CENTRED = counts(
    ("add", 3, STREAM), ("multiply", 1, STREAM), ("divide", 2, "b s"), ("add", 1, "b s"), ("rsqrt", 1, "b s")
)


def test_a_norm_forward_and_backward() -> None:
    """Its scale's gradient is dy times the normalised input, summed over rows: two multiplies and an add."""
    rms = primitive(built(), "final_norm")
    assert rms.forward == (*RMS, ("multiply", 2, STREAM))
    data = (*RMS, ("multiply", 4, STREAM), ("add", 2, STREAM), ("divide", 1, "b s"))
    own = counts(("multiply", 2, STREAM), ("add", 1, STREAM))
    assert rms.backward == data + own
    layer = primitive(built(norm=a_norm("layer")), "final_norm")
    assert layer.forward == (*CENTRED, ("multiply", 2, STREAM), ("add", 1, STREAM))
    data = (*CENTRED, ("multiply", 4, STREAM), ("add", 2, STREAM), ("divide", 1, "b s"))
    assert layer.backward == (*data, ("add", 2, STREAM), ("divide", 1, "b s"), *own, ("add", 1, STREAM))
    assert layer.inputs[1:] == ("final_norm/scale", "final_norm/bias")
    offset = primitive(built(norm=a_norm(unit_offset=True)), "final_norm")
    assert offset.forward == (*RMS, ("add", 1, "d"), ("multiply", 2, STREAM))
    plain = primitive(built(norm=a_norm(scale=False)), "final_norm")
    assert plain.forward == (*RMS, ("multiply", 1, STREAM)) and plain.inputs[1:] == ()
    assert plain.backward == (*RMS, ("multiply", 3, STREAM), ("add", 2, STREAM), ("divide", 1, "b s"))


def test_the_first_unrolled_layer_makes_the_gradient_of_its_scale_alone() -> None:
    """Nothing below it trains: no gradient of its input, in the layers after it one. A loop is one program for all."""
    frozen = {"frozen": ["embed"], "layers": "unrolled"}
    of = built(options=frozen, L=3)
    own = counts(("multiply", 2, STREAM), ("add", 1, STREAM))
    norms = [op for op in of.ops if isinstance(op, Primitive) and op.scope == "group0/attn_norm"]
    assert [(op.first, op.repeat, op.segment, op.gradients) for op in norms] == [
        (0, 1, "group0", ("group0/attn_norm/scale",)),
        (1, 2, "group0#rest", ("group0/in#rest", "group0/attn_norm/scale")),
    ]
    assert norms[0].backward == own
    assert norms[1].backward == (*RMS, ("multiply", 4, STREAM), ("add", 2, STREAM), ("divide", 1, "b s"), *own)
    for options, gradients in (
        ({"frozen": ["embed"]}, ("group0/in", "group0/attn_norm/scale")),
        ({"frozen": ["embed", "group0"]}, ()),
        ({"frozen": ["embed", "group0"], "layers": "unrolled"}, ()),
        ({"layers": "unrolled"}, ("group0/in", "group0/attn_norm/scale")),
    ):
        assert primitive(built(options=options, L=3), "group0/attn_norm").gradients == gradients
    alone = built(options=frozen, L=1)
    assert {op.segment for op in alone.ops} == {"", "group0"}


# Attention


def test_projections_of_fused_storage_are_views_of_one_array() -> None:
    """Four query heads and two of keys and of values: eight heads in one array; gate and up are one of 2 x 12."""
    of = built(fused=True, qkv_bias=True, mlp_bias=True)
    for name, axes in (("q", "d h e"), ("k", "d k e"), ("v", "d k e")):
        view = of.tensors[f"group0/attn/{name}_proj/weight"]
        assert (view.role, view.axes, view.storage) == ("view", axes, "group0/attn/qkv/weight")
        assert of.tensors[f"group0/attn/{name}_proj/bias"].storage == "group0/attn/qkv/bias"
    whole = of.tensors["group0/attn/qkv/weight"]
    assert (whole.role, whole.axes, of.sizes.shape(whole.axes, 0)) == ("parameter", "d n e", (8, 8, 2))
    assert of.tensors["group0/mlp/gate/weight"].storage == of.tensors["group0/mlp/up/weight"].storage
    assert of.sizes.shape(of.tensors["group0/mlp/gate_up/weight"].axes, 0) == (8, 24)
    apart = built(qkv_bias=True)
    assert apart.tensors["group0/attn/q_proj/weight"].role == "parameter"
    assert "group0/attn/qkv/weight" not in apart.tensors


def test_a_cache_has_its_own_type() -> None:
    made = case_of(dense(), "decode", batch=2, past=5)
    data = made.to_data()
    data["state"]["kv_dtype"] = "fp32"
    of = program(Case.from_data(data))
    for leaf in ("keys", "values"):
        new, past = of.tensors[f"group0/attn/{leaf}"], of.tensors[f"group0/attn/past_{leaf}"]
        assert (new.role, new.dtype, new.axes) == ("cache", "fp32", "b t k e")
        assert (past.role, past.dtype, past.axes) == ("input", "fp32", "b t k e")
        write = next(op for op in of.ops if op.outputs == (new.name,))
        assert isinstance(write, Primitive) and write.kind == "cache_write" and write.inputs[1:] == (past.name,)
    assert of.tensors["group0/attn/q_proj/out"].dtype == "bf16"
    assert of.results == ("head/out", "group0/attn/keys", "group0/attn/values")


SOFTMAX = counts(
    ("multiply", 1, PAIRS), ("compare", 1, PAIRS), ("select", 1, PAIRS), ("max", 1, PAIRS), ("add", 2, PAIRS),
    ("exp", 1, PAIRS), ("divide", 1, PAIRS),
)  # fmt: skip


def test_a_softmax_forward_and_backward() -> None:
    of = primitive(built(), "group0/attn/softmax")
    assert of.forward == SOFTMAX and of.needs == of.outputs == ("group0/attn/softmax/out",)
    assert of.backward == counts(
        ("multiply", 1, PAIRS), ("multiply", 2, PAIRS), ("add", 2, PAIRS), ("select", 1, PAIRS)
    )
    windowed = primitive(built(windows=(2, 0)), "group0/attn/softmax")
    assert windowed.forward[1] == ("compare", 2, PAIRS)
    # Two blocks of two keys: a maximum, a sum and an output that are scaled once for each.
    blocks = primitive(built(options={"attention": "blockwise", "attention_block": 2}), "group0/attn/softmax")
    assert blocks.forward[len(SOFTMAX) :] == counts(
        ("max", 2, ROWS), ("add", 2, ROWS), ("exp", 2, ROWS), ("multiply", 2, ROWS), ("multiply", 2, f"{ROWS} e"),
        ("log", 1, ROWS), ("add", 1, ROWS),
    )  # fmt: skip


def test_a_cap_of_scores_and_of_logits() -> None:
    """c * tanh(x / c); scores are scaled on the way. dx = dy * (1 - (y / c)^2)."""
    of = built(attention={"score_softcap": 50.0}, logit_softcap=30.0)
    scores, logits = primitive(of, "group0/attn/softcap"), primitive(of, "head/softcap")
    full = "b s v"
    assert logits.forward == counts(("multiply", 1, full), ("divide", 1, full), ("tanh", 1, full))
    assert logits.backward == counts(("multiply", 2, full), ("divide", 1, full), ("add", 1, full))
    assert (logits.inputs, logits.outputs, logits.needs) == (
        ("head/out",),
        ("head/softcap/out",),
        ("head/softcap/out",),
    )
    assert of.tensors["head/softcap/out"].dtype == of.tensors["head/out"].dtype == "fp32"
    assert scores.forward == counts(("multiply", 2, PAIRS), ("divide", 1, PAIRS), ("tanh", 1, PAIRS))
    assert scores.backward == counts(("multiply", 3, PAIRS), ("divide", 1, PAIRS), ("add", 1, PAIRS))
    assert primitive(of, "loss").inputs == ("head/softcap/out", "tokens")
    assert primitive(of, "group0/attn/softmax").forward == SOFTMAX[1:]


# Dropout


@pytest.mark.parametrize("plan, role", [("materialised", "mask"), ("blockwise", "onchip")])
def test_masks_are_drawn_from_one_key(plan: str, role: str) -> None:
    """A number and a comparison each; the mask chooses and the rest is scaled. A kernel draws its own."""
    of = built(options={"dropout": True, "attention": plan}, dropout=0.1)
    places = {
        "embed/dropout_mask": (STREAM, "mask"), "group0/attn/softmax/dropout_mask": (PAIRS, role),
        "group0/attn/out_dropout_mask": (STREAM, "mask"), "group0/mlp/out_dropout_mask": (STREAM, "mask"),
    }  # fmt: skip
    draws = [op for op in of.ops if isinstance(op, Primitive) and op.kind == "dropout_mask"]
    assert {op.outputs[0]: (of.tensors[op.outputs[0]].axes, of.tensors[op.outputs[0]].role) for op in draws} == places
    for op in draws:
        axes = of.tensors[op.outputs[0]].axes
        assert (op.inputs, op.gradients, of.tensors[op.outputs[0]].dtype) == (("key",), (), "bool")
        assert op.forward == counts(("rng", 1, axes), ("compare", 1, axes)) and op.backward == ()
        (applied,) = [other for other in of.ops if op.outputs[0] in other.inputs]
        assert isinstance(applied, Primitive) and applied.kind == "dropout" and applied.needs == op.outputs
        assert applied.forward == applied.backward == counts(("multiply", 1, axes), ("select", 1, axes))
        assert applied.outputs == (op.outputs[0].removesuffix("_mask"),)
    key = of.tensors["key"]
    assert (key.role, key.dtype, key.axes, key.repeat) == ("input", "uint32", "", 2)
    assert "key" not in built(dropout=0.1).tensors


# The ends


def test_positions_are_added_to_the_embedding() -> None:
    of = primitive(built(positions=(6, 0)), "embed")
    assert (of.kind, of.inputs, of.outputs) == (
        "positions",
        ("embed/tokens/out", "embed/positions/out"),
        ("embed/sum",),
    )
    assert of.forward == of.backward == counts(("add", 1, STREAM))
    made = built(positions=(6, 0))
    assert made.tensors["embed/sum"].axes == STREAM and made.tensors["embed/positions/out"].axes == "s d"
    decoded = built("decode", positions=(6, 0))
    assert decoded.tensors["embed/positions/out"].axes == "d"
    assert next(op for op in decoded.ops if op.scope == "embed/positions").inputs[1] == "position"


def test_the_loss_counts() -> None:
    full, rows = "b s v", "b s"
    of = primitive(built(), "loss")
    assert of.forward == counts(
        ("max", 1, full), ("add", 2, full), ("exp", 1, full), ("log", 1, rows), ("add", 3, rows), ("gather", 1, rows),
        ("compare", 1, rows), ("select", 1, rows), ("divide", 1, ""),
    )  # fmt: skip
    assert of.backward == counts(("add", 2, full), ("exp", 1, full), ("compare", 1, full), ("multiply", 1, full))
    assert (of.inputs, of.needs, of.outputs) == (("head/out", "tokens"), ("head/out", "tokens"), ("loss/out",))


# The stream


def stream(of: Program) -> list[tuple[str, tuple[str, ...], str]]:
    """Scope, inputs (parameters left out) and output of the sums and norms of a layer."""
    kept: list[Op] = [
        op for op in of.ops if isinstance(op, Primitive) and op.group == 0
        and (op.kind == "residual" or op.kind.endswith("_norm"))
    ]  # fmt: skip
    return [(op.scope, tuple(x for x in op.inputs if not of.is_weight(x)), op.outputs[0]) for op in kept]


def test_where_norms_stand_on_the_stream() -> None:
    """Before a branch; after each sum; before and after a branch; one for two branches beside each other."""
    g, attn, mlp = "group0", "group0/attn/o_proj/out", "group0/mlp/down/out"
    mid, out = f"{g}/residual/mid", f"{g}/residual/out"
    first, second = f"{g}/attn_norm", f"{g}/mlp_norm"
    after, last = f"{g}/attn_post_norm", f"{g}/mlp_post_norm"
    assert stream(built()) == [
        (first, (f"{g}/in",), f"{first}/out"), (f"{g}/residual", (f"{g}/in", attn), mid),
        (second, (mid,), f"{second}/out"), (f"{g}/residual", (mid, mlp), out),
    ]  # fmt: skip
    post = built(residual="post")
    assert stream(post) == [
        (f"{g}/residual", (f"{g}/in", attn), mid), (after, (mid,), f"{after}/out"),
        (f"{g}/residual", (f"{after}/out", mlp), out), (last, (out,), f"{last}/out"),
    ]  # fmt: skip
    assert primitive(post, "final_norm").inputs[0] == f"{last}/out"
    assert primitive(post, g).inputs == ("embed/tokens/out", f"{last}/out")
    assert stream(built(residual="both")) == [
        (first, (f"{g}/in",), f"{first}/out"), (after, (attn,), f"{after}/out"),
        (f"{g}/residual", (f"{g}/in", f"{after}/out"), mid), (second, (mid,), f"{second}/out"),
        (last, (mlp,), f"{last}/out"), (f"{g}/residual", (mid, f"{last}/out"), out),
    ]  # fmt: skip
    assert stream(built(residual="parallel", shared=True)) == [
        (first, (f"{g}/in",), f"{first}/out"), (f"{g}/residual", (f"{g}/in", attn, mlp), out),
    ]  # fmt: skip
    (total,) = [op for op in built(residual="parallel").ops if isinstance(op, Primitive) and op.kind == "residual"]
    assert total.forward == total.backward == counts(("add", 2, STREAM))
