"""What is counted: the graph of one decoder, as groups of identical layers plus what stands outside them.

Cost follows kinds of layer, not layers, so a stack is `repeat` times one `Layer`. Optional branches are either present
or named in `absent`: nothing is left out in silence, and anything trainable that is neither is refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from pydantic import Field

from jaxcost.contracts.errors import Problem
from jaxcost.contracts.record import Extent, Name, Record, Size, outside_digest

OPTIONAL_BRANCHES = (
    "attention_bias",
    "mlp_bias",
    "norm_bias",
    "learned_positions",
    "rotary_positions",
    "qk_norm",
    "embedding_norm",
    "embedding_projection",
    "experts",
    "adapters",
    "projectors",
    "extra_trainable",
)

Activation = Literal["silu", "gelu", "gelu_tanh", "relu"]
Residual = Literal["pre", "post", "post_branch", "both", "parallel"]
# For each residual form: the norms it must have and those it may have; all others are refused.
RESIDUAL_NORMS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "pre": (("attention_norm", "mlp_norm"), ()),
    "post": (("attention_post_norm", "mlp_post_norm"), ()),
    "post_branch": (("attention_post_norm", "mlp_post_norm"), ()),
    "both": (("attention_norm", "mlp_norm", "attention_post_norm", "mlp_post_norm"), ()),
    "parallel": (("attention_norm",), ("mlp_norm",)),
}


class Norm(Record):
    """A normalisation over the hidden axis: root mean square (no mean) or layer norm.

    `unit_offset` multiplies by one plus the learned scale (Gemma).
    """

    kind: Literal["rms", "layer"]
    epsilon: float
    scale: bool
    bias: bool
    unit_offset: bool = False

    def problems(self) -> Iterable[Problem]:
        if self.epsilon <= 0:
            yield Problem("epsilon", self.epsilon, "must be positive", "copy it from the released config")
        if self.bias and not self.scale:
            yield Problem(
                "bias", True, "a bias without a learned scale is not a known norm", "set scale = true or bias = false"
            )


class RotaryScaling(Record):
    """Llama-3 frequency scaling of rotary positions."""

    kind: Literal["llama3"]
    factor: float
    low_frequency_factor: float
    high_frequency_factor: float
    original_positions: Size


class Rotary(Record):
    """Rotary positions (Su et al. 2021, arXiv:2104.09864) on the first `dimensions` of each head.

    `interleaved` turns neighbouring coordinates; otherwise coordinate i turns with i + dimensions / 2.
    """

    theta: float
    dimensions: Size
    scaling: RotaryScaling | None = None
    interleaved: bool = False

    def problems(self) -> Iterable[Problem]:
        if self.theta <= 0:
            yield Problem("theta", self.theta, "must be positive", "copy it from the released config")


class QkNorm(Record):
    """Norms of queries and keys before rotation, over each head (Qwen3) or over the packed width (OLMo-2)."""

    over: Literal["head", "width"]
    norm: Norm


class Attention(Record):
    """Grouped-query attention; `kv_heads == query_heads` is MHA, 1 is MQA.

    `storage` fused keeps the weights of q, k and v (and their biases) in one array, cut along the heads axis: queries,
    then keys, then values. `scale` multiplies the scores, 1 / sqrt(head_dim) when left out; `score_softcap` c bounds
    them to c tanh(s / c); `alibi` adds the linear biases of Press et al. 2021 (arXiv:2108.12409).
    """

    query_heads: Size
    kv_heads: Size
    head_dim: Size
    query_bias: bool
    key_bias: bool
    value_bias: bool
    output_bias: bool
    rotary: Rotary | None = None
    decoupled_width: bool = False
    qk_norm: QkNorm | None = None
    alibi: bool = False
    scale: float | None = None
    score_softcap: float | None = None
    storage: Literal["separate", "fused"] = "separate"

    def problems(self) -> Iterable[Problem]:
        if self.query_heads % self.kv_heads:
            rule = f"must divide query_heads ({self.query_heads}); each K/V head serves a whole group of query heads"
            yield Problem("kv_heads", self.kv_heads, rule, "use a divisor, as in the released config")
        if self.storage == "fused" and len({self.query_bias, self.key_bias, self.value_bias}) > 1:
            rule = "one fused array has biases for queries, keys and values alike"
            yield Problem("storage", "fused", rule, "give all three a bias or none, or use separate")
        if self.scale is not None and self.scale <= 0:
            yield Problem("scale", self.scale, "must be positive", "leave scale out for 1 / sqrt(head_dim)")
        if self.score_softcap is not None and self.score_softcap <= 0:
            yield Problem("score_softcap", self.score_softcap, "must be positive", "leave it out for no cap")
        if self.rotary and (self.rotary.dimensions > self.head_dim or self.rotary.dimensions % 2):
            rule = f"must be even and at most head_dim ({self.head_dim})"
            yield Problem(
                "rotary.dimensions", self.rotary.dimensions, rule, "rotary positions turn pairs of coordinates"
            )

    @property
    def has_bias(self) -> bool:
        """Whether any projection carries a bias vector."""
        return self.query_bias or self.key_bias or self.value_bias or self.output_bias


class Mlp(Record):
    """A feed-forward block: `gated` has gate, up and down; `classic` has up and down.

    `storage` fused keeps gate and up in one array, cut along the width: gate, then up.
    """

    form: Literal["gated", "classic"]
    width: Size
    activation: Activation
    bias: bool
    storage: Literal["separate", "fused"] = "separate"

    def problems(self) -> Iterable[Problem]:
        if self.storage == "fused" and self.form == "classic":
            yield Problem("storage", "fused", "a classic MLP has no gate to fuse with", "use separate")


class Layer(Record):
    """One decoder layer, by where its norms stand.

    - `pre`: x + f(norm(x)), for attention and then the MLP;
    - `post`: norm(x + f(x)), the original Transformer;
    - `post_branch`: x + norm(f(x)) (OLMo-2);
    - `both`: x + norm'(f(norm(x))) (Gemma-2);
    - `parallel`: x + attn(norm(x)) + mlp(norm'(x)); without `mlp_norm` both branches share the first norm.
    """

    residual: Residual
    attention: Attention
    mlp: Mlp
    attention_norm: Norm | None = None
    mlp_norm: Norm | None = None
    attention_post_norm: Norm | None = None
    mlp_post_norm: Norm | None = None

    def problems(self) -> Iterable[Problem]:
        required, allowed = RESIDUAL_NORMS[self.residual]
        for name in ("attention_norm", "mlp_norm", "attention_post_norm", "mlp_post_norm"):
            there = getattr(self, name) is not None
            if name in required and not there:
                rule = f"the residual form {self.residual} needs this norm"
                yield Problem(name, None, rule, "declare the norm, or correct residual")
            elif there and name not in required + allowed:
                rule = f"the residual form {self.residual} has no such norm"
                yield Problem(name, "present", rule, "remove the norm, or correct residual")

    @property
    def norms(self) -> tuple[Norm, ...]:
        """The norms over the hidden axis this layer has."""
        found = (self.attention_norm, self.mlp_norm, self.attention_post_norm, self.mlp_post_norm)
        return tuple(norm for norm in found if norm is not None)


class LayerGroup(Record):
    """`repeat` identical layers in a row; the unit of scanning.

    `windows` is the cycle of sliding windows along the layers, 0 for full attention: (4096, 0) alternates. A window w
    lets a query see itself and the w - 1 rows before it. Empty means full attention everywhere.
    """

    repeat: Size
    layer: Layer
    windows: tuple[Extent, ...] = ()

    def problems(self) -> Iterable[Problem]:
        if self.windows and not any(self.windows):
            yield Problem(
                "windows", list(self.windows), "full attention everywhere is the empty cycle", "leave windows out"
            )

    def window(self, layer: int) -> int:
        """Return the window of a layer of the group, 0 for full attention."""
        return self.windows[layer % len(self.windows)] if self.windows else 0


class LearnedPositions(Record):
    """A learned position table added to the token embedding; position p reads row p + `offset`."""

    rows: Size
    offset: Extent = 0


class Dropout(Record):
    """Dropout rates of the released graph; they act in training when the workload asks for dropout."""

    embedding: float
    attention: float
    residual: float

    def problems(self) -> Iterable[Problem]:
        for name in ("embedding", "attention", "residual"):
            if not 0 <= getattr(self, name) < 1:
                yield Problem(name, getattr(self, name), "a rate lies in [0, 1)", "write 0.0 for no dropout")


class Architecture(Record):
    """The learned graph of one decoder-only Transformer. Sizes are scalars; nothing here depends on a workload.

    `embedding_width` differs from `hidden_size` where unbiased projections lead from the token table into the layers
    and from the last layer to the head (OPT-350M). `embedding_scale` multiplies the embedded tokens; `logit_softcap`
    c bounds the logits to c tanh(z / c).
    """

    name: Name = outside_digest("unnamed")
    family: str = outside_digest("")
    huggingface_id: str = outside_digest("")
    source: str = outside_digest("")
    notes: str = outside_digest("")
    hidden_size: Size
    vocabulary_size: Size
    groups: tuple[LayerGroup, ...]
    final_norm: Norm | None = None
    tied: bool
    dropout: Dropout
    absent: tuple[str, ...] = Field(json_schema_extra={"outside_digest": True})
    learned_positions: LearnedPositions | None = None
    sinusoidal_positions: bool = False
    embedding_width: Size | None = None
    embedding_norm: Norm | None = None
    embedding_scale: float | None = None
    logit_softcap: float | None = None

    def problems(self) -> Iterable[Problem]:
        if not self.groups:
            yield Problem(
                "groups", [], "at least one group of layers is needed", "declare [[groups]] with repeat and layer"
            )
        for index, group in enumerate(self.groups):
            attention = group.layer.attention
            width = attention.query_heads * attention.head_dim
            if width != self.hidden_size and not attention.decoupled_width:
                rule = f"query_heads * head_dim = {width} differs from hidden_size = {self.hidden_size}"
                remedy = "correct the sizes, or declare decoupled_width = true where the released model has it"
                yield Problem(f"groups.{index}.layer.attention.decoupled_width", False, rule, remedy)
            if width == self.hidden_size and attention.decoupled_width:
                rule = "declared decoupled although query_heads * head_dim equals hidden_size"
                yield Problem(f"groups.{index}.layer.attention.decoupled_width", True, rule, "set it to false")
        if self.embedding_width == self.hidden_size:
            rule = "equals hidden_size, so there is nothing to project"
            yield Problem("embedding_width", self.embedding_width, rule, "leave embedding_width out")
        if self.sinusoidal_positions and self.learned_positions:
            yield Problem("sinusoidal_positions", True, "positions are learned or sinusoidal, not both", "keep one")
        yield from self._absence_problems()

    def _absence_problems(self) -> Iterable[Problem]:
        present = self.branches
        for name in sorted(set(self.absent)):
            if name not in OPTIONAL_BRANCHES:
                rule = f"not an optional branch; the branches are {', '.join(OPTIONAL_BRANCHES)}"
                yield Problem("absent", name, rule, "remove it or correct its spelling")
            elif name in present:
                yield Problem(
                    "absent", name, "declared absent although the manifest contains it", "remove one of the two"
                )
        if len(set(self.absent)) != len(self.absent):
            yield Problem("absent", list(self.absent), "an entry appears twice", "name each absent branch once")
        if tuple(sorted(self.absent)) != self.absent:
            yield Problem(
                "absent", list(self.absent), "must be sorted, so that equal graphs have equal digests", "sort the list"
            )
        for name in OPTIONAL_BRANCHES:
            if name not in present and name not in self.absent:
                rule = f"the branch {name!r} is neither present nor declared absent"
                yield Problem("absent", list(self.absent), rule, f"add {name!r} to absent, or declare the branch")

    @property
    def branches(self) -> frozenset[str]:
        """The optional branches this graph contains."""
        layers = [group.layer for group in self.groups]
        norms = [norm for layer in layers for norm in layer.norms]
        norms += [norm for norm in (self.final_norm, self.embedding_norm) if norm is not None]
        norms += [layer.attention.qk_norm.norm for layer in layers if layer.attention.qk_norm]
        present = {
            "attention_bias": any(layer.attention.has_bias for layer in layers),
            "mlp_bias": any(layer.mlp.bias for layer in layers),
            "norm_bias": any(norm.bias for norm in norms),
            "learned_positions": self.learned_positions is not None,
            "rotary_positions": any(layer.attention.rotary for layer in layers),
            "qk_norm": any(layer.attention.qk_norm for layer in layers),
            "embedding_norm": self.embedding_norm is not None,
            "embedding_projection": self.embedding_width is not None,
        }
        return frozenset(name for name, there in present.items() if there)

    @property
    def table_width(self) -> int:
        """Columns of the token table and rows of the head: `embedding_width`, or `hidden_size` where it is left out."""
        return self.embedding_width or self.hidden_size

    @property
    def layer_count(self) -> int:
        """The number of layers over all groups."""
        return sum(group.repeat for group in self.groups)


def absences(present: Iterable[str]) -> tuple[str, ...]:
    """Return the `absent` entry that goes with the branches present, sorted."""
    return tuple(sorted(set(OPTIONAL_BRANCHES) - set(present)))
