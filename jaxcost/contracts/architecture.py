"""What is counted: the graph of one decoder, as groups of identical layers plus what stands outside them.

Cost follows kinds of layer, not layers, so a stack is `repeat` times one `Layer`. Optional branches are either present
or named in `absent`: nothing is left out in silence, and anything trainable that is neither is refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from jaxcost.contracts.errors import Problem
from jaxcost.contracts.record import Name, Record, Size, outside_digest

OPTIONAL_BRANCHES = (
    "attention_bias",
    "mlp_bias",
    "norm_bias",
    "learned_positions",
    "rotary_positions",
    "experts",
    "adapters",
    "projectors",
    "extra_trainable",
)

Activation = Literal["silu", "gelu", "gelu_tanh", "relu"]


class Norm(Record):
    """A normalisation over the hidden axis: root mean square (no mean) or layer norm."""

    kind: Literal["rms", "layer"]
    epsilon: float
    scale: bool
    bias: bool

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
    """Rotary positions (Su et al. 2021, arXiv:2104.09864) on the first `dimensions` of each head."""

    theta: float
    dimensions: Size
    scaling: RotaryScaling | None = None


class Attention(Record):
    """Grouped-query attention with separate projections; `kv_heads == query_heads` is MHA, 1 is MQA."""

    query_heads: Size
    kv_heads: Size
    head_dim: Size
    query_bias: bool
    key_bias: bool
    value_bias: bool
    output_bias: bool
    rotary: Rotary | None = None
    decoupled_width: bool = False

    def problems(self) -> Iterable[Problem]:
        if self.query_heads % self.kv_heads:
            rule = f"must divide query_heads ({self.query_heads}); each K/V head serves a whole group of query heads"
            yield Problem("kv_heads", self.kv_heads, rule, "use a divisor, as in the released config")
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
    """A feed-forward block: `gated` has gate, up and down; `classic` has up and down."""

    form: Literal["gated", "classic"]
    width: Size
    activation: Activation
    bias: bool


class Layer(Record):
    """One pre-norm decoder layer: x + attn(norm(x)), then x + mlp(norm(x))."""

    residual: Literal["pre"]
    attention: Attention
    mlp: Mlp
    attention_norm: Norm
    mlp_norm: Norm


class LayerGroup(Record):
    """`repeat` identical layers in a row; the unit of scanning."""

    repeat: Size
    layer: Layer


class LearnedPositions(Record):
    """A learned position table added to the token embedding."""

    rows: Size


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
    """The learned graph of one decoder-only Transformer. Sizes are scalars; nothing here depends on a workload."""

    name: Name = outside_digest("unnamed")
    family: str = outside_digest("")
    huggingface_id: str = outside_digest("")
    source: str = outside_digest("")
    notes: str = outside_digest("")
    hidden_size: Size
    vocabulary_size: Size
    groups: tuple[LayerGroup, ...]
    final_norm: Norm
    tied: bool
    dropout: Dropout
    absent: tuple[str, ...]
    learned_positions: LearnedPositions | None = None

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
        norms = [norm for layer in layers for norm in (layer.attention_norm, layer.mlp_norm)] + [self.final_norm]
        present = {
            "attention_bias": any(layer.attention.has_bias for layer in layers),
            "mlp_bias": any(layer.mlp.bias for layer in layers),
            "norm_bias": any(norm.bias for norm in norms),
            "learned_positions": self.learned_positions is not None,
            "rotary_positions": any(layer.attention.rotary for layer in layers),
        }
        return frozenset(name for name, there in present.items() if there)

    @property
    def layer_count(self) -> int:
        """The number of layers over all groups."""
        return sum(group.repeat for group in self.groups)


def absences(present: Iterable[str]) -> tuple[str, ...]:
    """Return the `absent` entry that goes with the branches present, sorted."""
    return tuple(sorted(set(OPTIONAL_BRANCHES) - set(present)))
