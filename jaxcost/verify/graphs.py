"""Strategies over architectures: every component of the dense family, mixed freely.

Legal by construction: the hidden width is drawn before the heads that share it out, every size as a multiple of the
degree that must divide it, and what excludes something else (fused storage and a tensor axis, a projection no wider
than the layers) is not drawn beside it. A residual form brings the norms it needs and draws those it may have.
"""

from __future__ import annotations

from typing import Any, Literal

from hypothesis import strategies as st

from jaxcost.contracts.architecture import (
    RESIDUAL_NORMS,
    Architecture,
    Attention,
    Dropout,
    Layer,
    LayerGroup,
    LearnedPositions,
    Mlp,
    Norm,
    QkNorm,
    Residual,
    Rotary,
    RotaryScaling,
    absences,
)

NO_DROPOUT = Dropout(embedding=0.0, attention=0.0, residual=0.0)
FORMS: tuple[Residual, ...] = ("pre", "pre", "post", "post_branch", "both", "parallel")
# Biases of queries, keys, values and output.
BIASES = ((0, 0, 0, 0), (0, 0, 0, 0), (1, 1, 1, 0), (1, 1, 1, 1), (0, 0, 0, 1), (1, 0, 0, 0), (0, 1, 0, 1))


def divisors(number: int) -> list[int]:
    """Return the divisors of a small positive integer, ascending."""
    return [d for d in range(1, number + 1) if number % d == 0]


def seldom(value: st.SearchStrategy[Any], one_in: int = 3) -> st.SearchStrategy[Any]:
    """Draw the value once in `one_in`, otherwise None."""
    return st.integers(1, one_in).flatmap(lambda n: value if n == one_in else st.none())


def norms() -> st.SearchStrategy[Norm]:
    """Root-mean-square and layer norms, with and without scale (or one plus the scale) and bias."""
    parts = st.sampled_from(
        [(True, False, False), (True, True, False), (False, False, False), (True, False, True), (True, True, True)]
    )
    return st.builds(
        lambda kind, epsilon, of: Norm(kind=kind, epsilon=epsilon, scale=of[0], bias=of[1], unit_offset=of[2]),
        st.sampled_from(("rms", "layer")), st.sampled_from((1e-5, 1e-6)), parts,
    )  # fmt: skip


def rotaries(head_dim: int) -> st.SearchStrategy[Rotary | None]:
    """No rotary positions, or rotary on an even part of the head: halves or neighbours, with and without scaling."""
    if head_dim < 2:
        return st.none()
    scaling = RotaryScaling(
        kind="llama3", factor=8.0, low_frequency_factor=1.0, high_frequency_factor=4.0, original_positions=8192
    )
    some = st.builds(
        Rotary,
        theta=st.sampled_from((10000.0, 500000.0)),
        dimensions=st.sampled_from([*range(2, min(head_dim, 16) + 1, 2), head_dim - head_dim % 2]),
        scaling=st.sampled_from((None, scaling)),
        interleaved=st.booleans(),
    )
    return st.one_of(st.none(), some)


@st.composite
def attentions(draw: st.DrawFn, hidden: int, tensor: int, largest: int, smallest: int = 1) -> Attention:
    """MHA, GQA and MQA over a hidden width; the head product equals it, or the attention is declared decoupled."""
    if draw(st.integers(0, 3)) == 0:
        query_heads = tensor * draw(st.integers(1, largest))
        head_dim = draw(st.integers(smallest, largest))
    else:
        query_heads = draw(
            st.sampled_from([d for d in divisors(hidden) if d % tensor == 0 and hidden // d >= smallest])
        )
        head_dim = hidden // query_heads
    kv_heads = draw(st.sampled_from([d for d in divisors(query_heads) if d % tensor == 0 or tensor % d == 0]))
    fused = tensor == 1 and draw(st.integers(0, 3)) == 0
    biases = draw(st.sampled_from([b for b in BIASES if not fused or b[0] == b[1] == b[2]]))
    qk_norm = st.builds(QkNorm, over=st.sampled_from(("head", "width")), norm=norms())
    return Attention(
        query_heads=query_heads, kv_heads=kv_heads, head_dim=head_dim, decoupled_width=query_heads * head_dim != hidden,
        query_bias=bool(biases[0]), key_bias=bool(biases[1]), value_bias=bool(biases[2]), output_bias=bool(biases[3]),
        rotary=draw(rotaries(head_dim)), qk_norm=draw(seldom(qk_norm)), alibi=draw(st.integers(0, 3)) == 0,
        scale=draw(seldom(st.sampled_from((0.25, 1.0)), 4)), score_softcap=draw(seldom(st.just(50.0), 4)),
        storage="fused" if fused else "separate",
    )  # fmt: skip


@st.composite
def mlps(draw: st.DrawFn, tensor: int, largest: int, smallest: int = 1) -> Mlp:
    """Gated and classic blocks, with and without bias, of any width that `tensor` divides."""
    form: Literal["gated", "classic"] = draw(st.sampled_from(("gated", "classic")))
    fused = form == "gated" and tensor == 1 and draw(st.integers(0, 2)) == 0
    return Mlp(
        form=form,
        width=tensor * draw(st.integers(smallest, 2 * largest)),
        activation=draw(st.sampled_from(("silu", "gelu", "gelu_tanh", "relu"))),
        bias=draw(st.booleans()),
        storage="fused" if fused else "separate",
    )


@st.composite
def layers_of(draw: st.DrawFn, hidden: int, tensor: int, largest: int, smallest: int = 1) -> Layer:
    """Layers of every residual form, with the norms it needs and some that it may have."""
    residual = draw(st.sampled_from(FORMS))
    needed, allowed = RESIDUAL_NORMS[residual]
    chosen = {name: draw(norms()) for name in needed}
    chosen |= {name: draw(norms()) for name in allowed if draw(st.booleans())}
    return Layer(
        residual=residual,
        attention=draw(attentions(hidden, tensor, largest, smallest)),
        mlp=draw(mlps(tensor, largest, smallest)),
        **chosen,
    )


def window_cycles(longest: int) -> st.SearchStrategy[tuple[int, ...]]:
    """Cycles of one to three windows, 0 among them; the empty cycle for full attention."""
    some = st.lists(st.sampled_from((0, *range(1, longest + 2))), min_size=1, max_size=3).map(tuple)
    return st.one_of(st.just(()), st.just(()), some.map(lambda cycle: cycle if any(cycle) else ()))


@st.composite
def architectures(
    draw: st.DrawFn,
    *,
    tensor: int = 1,
    fsdp: int = 1,
    largest: int = 12,
    smallest: int = 1,
    layers: int = 4,
    positions: int = 16,
) -> Architecture:
    """Decoder stacks of one to three groups.

    Args:
        tensor, fsdp: degrees that must divide heads and widths, and the hidden width.
        largest: scale of the free factors of every size; sizes stay below about `largest` x `tensor` x `fsdp`.
        smallest: the least extent of an axis that some product sums over.
        layers: the largest repeat of a group.
        positions: rows of positions the workload reads; windows are drawn around them.
    """
    hidden = tensor * fsdp * draw(st.one_of(st.integers(smallest, largest), st.sampled_from((8, 12))))
    groups = []
    for _ in range(draw(st.sampled_from((1, 1, 2, 3)))):
        layer = draw(layers_of(hidden, tensor, largest, smallest))
        windows = draw(window_cycles(positions))
        groups.append(LayerGroup(repeat=draw(st.integers(1, layers)), layer=layer, windows=windows))
    rates = st.sampled_from((0.0, 0.1, 0.25))
    table = draw(st.sampled_from(("none", "none", "learned", "offset", "sinusoidal")))
    learned = LearnedPositions(rows=positions + draw(st.sampled_from((2, 5))), offset=2 if table == "offset" else 0)
    width = draw(seldom(st.integers(smallest, largest), 4))
    parts: dict[str, Any] = {
        "hidden_size": hidden,
        "vocabulary_size": draw(st.integers(2, 4 * largest)),
        "groups": tuple(groups),
        "final_norm": draw(norms()) if draw(st.integers(0, 3)) else None,
        "tied": draw(st.booleans()),
        "dropout": draw(
            st.one_of(st.just(NO_DROPOUT), st.builds(Dropout, embedding=rates, attention=rates, residual=rates))
        ),
        "learned_positions": learned if table in ("learned", "offset") else None,
        "sinusoidal_positions": table == "sinusoidal",
        "embedding_width": None if width == hidden else width,
        "embedding_norm": draw(seldom(norms(), 4)),
        "embedding_scale": draw(seldom(st.sampled_from((0.5, 8.0)), 4)),
        "logit_softcap": draw(seldom(st.just(30.0), 4)),
    }
    return build_architecture(**parts)


def build_architecture(**parts: Any) -> Architecture:
    """Return an architecture whose `absent` entry follows from its parts; `parts` are the other fields."""
    draft = Architecture.model_construct(**parts)
    return Architecture(**{**parts, "absent": absences(draft.branches)})


def altered(architecture: Architecture, **changes: Any) -> Architecture:
    """Return an architecture with fields changed and `absent` brought in line.

    Raises:
        RejectedError: the changed graph is not a legal one.
    """
    draft = architecture.model_copy(update=changes)
    return architecture.replaced(**{**changes, "absent": absences(draft.branches)})
