"""One layer: where its norms and additions stand around attention and the feed-forward block."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxcost.contracts.architecture import Layer
from jaxcost.prediction.components.attention import attention
from jaxcost.prediction.components.mlp import mlp
from jaxcost.prediction.components.norm import norm
from jaxcost.prediction.program import Count

if TYPE_CHECKING:
    from jaxcost.prediction.builder import Builder


def layer(b: Builder, spec: Layer, x: str, caches: list[str]) -> str:
    """Append a layer on x [b, s, d] and return what it hands on; the forms are those of `Layer`."""
    if spec.residual == "parallel":
        normed = norm(b, f"{b.prefix}/attn_norm", spec.attention_norm, x)
        other = norm(b, f"{b.prefix}/mlp_norm", spec.mlp_norm, x) if spec.mlp_norm else normed
        return add(b, (x, attention(b, spec.attention, normed, caches), mlp(b, spec.mlp, other)), "out")
    after = spec.residual == "post"
    update = attention(b, spec.attention, norm(b, f"{b.prefix}/attn_norm", spec.attention_norm, x), caches)
    x = _join(b, x, update, "mid", "attn_post_norm", spec, after)
    update = mlp(b, spec.mlp, norm(b, f"{b.prefix}/mlp_norm", spec.mlp_norm, x))
    return _join(b, x, update, "out", "mlp_post_norm", spec, after)


def _join(b: Builder, x: str, update: str, leaf: str, name: str, spec: Layer, after: bool) -> str:
    """Add an update to the stream, with the norm that follows the branch: of the update, or of the sum."""
    scope = f"{b.prefix}/{name}"
    post = spec.attention_post_norm if leaf == "mid" else spec.mlp_post_norm
    if after:
        return norm(b, scope, post, add(b, (x, update), leaf))
    return add(b, (x, norm(b, scope, post, update)), leaf)


def output(prefix: str, spec: Layer) -> str:
    """Return the name of the tensor a layer hands on."""
    return f"{prefix}/mlp_post_norm/out" if spec.residual == "post" else f"{prefix}/residual/out"


def add(b: Builder, terms: tuple[str, ...], leaf: str) -> str:
    """Append a sum [b, s, d]; `leaf` is `mid` after attention and `out` at the layer's end."""
    scope = f"{b.prefix}/residual"
    out = b.tensor(f"{scope}/{leaf}", "b s d", scope=scope)
    adds = (Count("add", len(terms) - 1, "b s d"),)
    b.primitive("residual", scope, terms, (out,), adds, adds)
    return out
