"""The kinds of case that proofs are about, with symbols for their sizes: built once a run, folded when asked for.

A kind fixes the graph (which projections, which biases, which norms), the relations between widths that its source
assumes, and how a step is run. Sizes stay free.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from jaxcost.contracts.architecture import (
    Architecture,
    Attention,
    Dropout,
    Layer,
    LayerGroup,
    LearnedPositions,
    Mlp,
    Norm,
    Rotary,
    absences,
)
from jaxcost.contracts.case import Case, build_case
from jaxcost.prediction.activations import saved
from jaxcost.prediction.ledgers import FOLDS
from jaxcost.prediction.program import Program
from jaxcost.prediction.rows import Ledger, Row
from jaxcost.prediction.symbols import symbol, symbolic

CLASSIC_WIDTHS = {"E": "d/H", "K": "H", "F": "4*d"}
RUNNING_WIDTHS = {"E": "d/H", "K": "H/4", "F": "7*d/2"}


def _architecture(
    *, classic: bool, tied: bool = False, positions: int = 0, final_norm: bool = True, windows: tuple[int, ...] = ()
) -> Architecture:
    """Return a small decoder: classic (biases, GELU, layer norms) or gated (no biases, SiLU, RMS norms, rotary)."""
    norm = Norm(kind="layer" if classic else "rms", epsilon=1e-5, scale=True, bias=classic)
    attention = Attention(
        query_heads=4, kv_heads=4 if classic else 2, head_dim=2, query_bias=classic, key_bias=classic,
        value_bias=classic, output_bias=classic, rotary=None if classic else Rotary(theta=1e4, dimensions=2),
    )  # fmt: skip
    mlp = Mlp(form="classic" if classic else "gated", width=32, activation="gelu" if classic else "silu", bias=classic)
    layer = Layer(residual="pre", attention=attention, mlp=mlp, attention_norm=norm, mlp_norm=norm)
    there = {
        "attention_bias": classic, "mlp_bias": classic, "norm_bias": classic, "learned_positions": bool(positions),
        "rotary_positions": not classic,
    }  # fmt: skip
    return Architecture(
        hidden_size=8, vocabulary_size=16, groups=(LayerGroup(repeat=4, layer=layer, windows=windows),), tied=tied,
        final_norm=norm if final_norm else None, dropout=Dropout(embedding=0.0, attention=0.1, residual=0.1),
        absent=absences(name for name, present in there.items() if present),
        learned_positions=LearnedPositions(rows=positions) if positions else None,
    )  # fmt: skip


@dataclass(frozen=True)
class Kind:
    """One kind: what it is in words, its case, the symbols of its mesh degrees, and the relations between widths."""

    words: str
    case: Callable[[], Case]
    mesh: Mapping[str, str] = field(default_factory=dict)
    relations: Mapping[str, str] = field(default_factory=dict)


def _train(architecture: Mapping[str, Any], **options: Any) -> Callable[[], Case]:
    return lambda: build_case(_architecture(**architecture), {"phase": "training", "batch": 4, "seq": 8, **options})


def _prefill(past: int = 0, windows: tuple[int, ...] = (), **options: Any) -> Callable[[], Case]:
    def case() -> Case:
        fresh = build_case(_architecture(classic=False, windows=windows), {"phase": "prefill", "seq": 8, **options})
        return fresh.replaced(workload=fresh.workload.replaced(past_tokens=past)) if past else fresh

    return case


def _decode(**options: Any) -> Callable[[], Case]:
    return lambda: build_case(_architecture(classic=False), {"phase": "decode", "past": 7, **options})


_CLASSIC: dict[str, Any] = {"classic": True, "final_norm": False}
_GATED: dict[str, Any] = {"classic": False}
_TENSOR: dict[str, Any] = {"mesh": [{"name": "tensor", "size": 2}], "dropout": True, "precision": "bf16"}
_SEQUENCE: dict[str, Any] = {**_TENSOR, "sequence_parallel": True}
_DATA: dict[str, Any] = {"mesh": [{"name": "data", "size": 2}]}

KINDS: dict[str, Kind] = {
    "classic": Kind(
        "classic training step: MHA with biases, two-matrix MLP of width 4d with biases, two layer norms a block, "
        "untied tables, no final norm, no positions",
        _train(_CLASSIC, precision="bf16", dropout=True), relations=CLASSIC_WIDTHS,
    ),
    "classic, blocks replayed": Kind(
        "the classic step, each block run again for its backward pass", _train(_CLASSIC, remat="block"),
        relations=CLASSIC_WIDTHS,
    ),
    "classic, attention replayed": Kind(
        "the classic step, QK and PV run again", _train(_CLASSIC, remat="attention"), relations=CLASSIC_WIDTHS
    ),
    "gpt": Kind(
        "GPT: the classic block, one table for tokens and logits, a learned position for each of S rows, no final norm",
        _train({**_CLASSIC, "tied": True, "positions": 8}), relations={**CLASSIC_WIDTHS, "P": "S"},
    ),
    "running": Kind(
        "grouped-query attention with H/4 K/V heads, gated MLP of width 3.5d, RMS norms, no biases",
        _train(_GATED), relations=RUNNING_WIDTHS,
    ),
    "decoder": Kind("grouped-query attention, gated MLP, RMS norms, no biases, untied, any widths", _train(_GATED)),
    "tied decoder": Kind("the decoder with one table for tokens and logits", _train({**_GATED, "tied": True})),
    "frozen below attention": Kind(
        "the decoder, layers unrolled, its embedding and the norms before attention frozen",
        _train(_GATED, frozen=["embed", "group0/attn_norm"], layers="unrolled"),
    ),
    "gated 4d": Kind(
        "MHA, gated MLP of width 4d, no biases", _train(_GATED), relations={"E": "d/H", "K": "H", "F": "4*d"}
    ),
    "classic on t tensor ranks": Kind(
        "the classic step, heads and MLP width over t ranks", _train(_CLASSIC, **_TENSOR), {"tensor": "t"},
        CLASSIC_WIDTHS,
    ),
    "classic, rows on t tensor ranks too": Kind(
        "the classic step on t tensor ranks, the rows between tensor-parallel regions split over them too",
        _train(_CLASSIC, **_SEQUENCE), {"tensor": "t"}, CLASSIC_WIDTHS,
    ),
    "20 bytes on n data ranks": Kind(
        "the decoder under the policy a16_six_object on n data ranks",
        _train(_GATED, precision="a16_six_object", **_DATA), {"data": "n"},
    ),
    "16 bytes on n data ranks": Kind(
        "the decoder under the policy bf16_master_adam on n data ranks",
        _train(_GATED, precision="bf16_master_adam", **_DATA), {"data": "n"},
    ),
    "n data ranks": Kind(
        "the decoder in bf16 on n data ranks, gradients reduced", _train(_GATED, precision="bf16", **_DATA),
        {"data": "n"},
    ),
    "n fsdp ranks": Kind(
        "the decoder in bf16 on n fsdp ranks, each matrix gathered where it is used",
        _train(_GATED, precision="bf16", mesh=[{"name": "fsdp", "size": 2}]), {"fsdp": "n"},
    ),
    "prefill": Kind("prefill of S rows, logits of the last", _prefill()),
    "prefill of all rows": Kind("prefill of S rows, logits of each", _prefill(logits="all")),
    "prefill over a cache": Kind("S new rows over a cache, T visible", _prefill(past=8)),
    "windowed prefill": Kind(
        "prefill of S rows, every layer with a sliding window of W keys", _prefill(windows=(4,))
    ),
    "decode": Kind("one row a sequence over a bf16 cache, T visible", _decode()),
    "decode, MHA": Kind("decode with as many K/V heads as query heads", _decode(), relations={"K": "H"}),
    "decode, MQA": Kind("decode with one K/V head", _decode(), relations={"K": "1"}),
}  # fmt: skip


class Derivations:
    """Programs and ledgers of the kinds, each built once."""

    def __init__(self) -> None:
        self._programs: dict[str, Program] = {}
        self._ledgers: dict[tuple[str, str], Ledger] = {}

    def program(self, kind: str) -> Program:
        """Return the program of a kind on symbols."""
        if kind not in self._programs:
            found = KINDS[kind]
            self._programs[kind] = symbolic(found.case(), found.mesh, **found.relations)
        return self._programs[kind]

    def ledger(self, kind: str, name: str) -> Ledger:
        """Return a ledger of a kind."""
        if (kind, name) not in self._ledgers:
            self._ledgers[kind, name] = FOLDS[name](self.program(kind))
        return self._ledgers[kind, name]

    def total(self, kind: str, path: str) -> Any:
        """Return a total by its path, as in `flops.forward`."""
        ledger, _, rest = path.partition(".")
        found: Any = self.ledger(kind, ledger).totals
        for part in rest.split("."):
            found = found[part]
        return found

    def saved(self, kind: str, remat: str | None = None) -> tuple[Row, ...]:
        """Return the saved-tensor rows of one block, under the kind's own policy or another."""
        return tuple(row for row in saved(self.program(kind), remat) if row.region == "block")


def rows_of(ledger: Ledger, scope: str = "", **where: str) -> list[Row]:
    """Return the rows at or below a scope whose attributes equal `where`."""
    return [
        row
        for row in ledger.rows
        if (not scope or row.scope == scope or row.scope.startswith(f"{scope}/"))
        and all(getattr(row, name) == value for name, value in where.items())
    ]


def summed(rows: Iterable[Row]) -> Any:
    """Return the sum of the rows' values."""
    return sum((row.value for row in rows), 0)


def one_layer(value: Any) -> Any:
    """Return a value of all layers divided by their number."""
    return value / symbol("L")
