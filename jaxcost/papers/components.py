"""Jaxcost's side of every translation: named parts of the ledgers, on integers or on symbols.

Each name is a sum over rows of a fold of `jaxcost.prediction`; no formula of a paper stands here. A difference row such
as "norms are left out" is `-norm_scalars`, and what that is in closed form the same fold says on symbols.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any

from jaxcost.prediction.activations import saved
from jaxcost.prediction.flops import flops
from jaxcost.prediction.ownership import ownership
from jaxcost.prediction.parameters import Entry, entries
from jaxcost.prediction.program import Program
from jaxcost.prediction.rows import Row
from jaxcost.prediction.state import state

# Symbols of one uniform stack, as `prediction.symbols` names them.
SYMBOLS: dict[str, str] = {
    "B": "global sequences of a step", "S": "new rows of a sequence", "d": "hidden width", "V": "vocabulary rows",
    "P": "rows of the learned position table", "L": "layers", "H": "query heads", "K": "K/V heads",
    "E": "width of a head", "F": "width of the MLP",
}  # fmt: skip


class Components(Mapping[str, Any]):
    """The names of `COMPONENTS` and `SYMBOLS` over one program; each is computed when first asked for.

    Raises:
        KeyError: a name that is neither; a symbol of a layer where the stack is not uniform.
    """

    def __init__(self, program: Program):
        self.program = program
        self._found: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._found:
            self._found[name] = COMPONENTS[name](self) if name in COMPONENTS else self._symbol(name)
        return self._found[name]

    def __iter__(self) -> Iterator[str]:
        return iter((*COMPONENTS, *SYMBOLS))

    def __len__(self) -> int:
        return len(COMPONENTS) + len(SYMBOLS)

    def _symbol(self, name: str) -> Any:
        sizes = self.program.sizes
        if name not in SYMBOLS:
            raise KeyError(name)
        if name in "BSdVP":
            return sizes.released("v") if name == "V" else sizes.axis(name.lower())
        if len(sizes.repeats) != 1:
            raise KeyError(f"{name}: the stack has {len(sizes.repeats)} kinds of layer")
        return sizes.repeats[0] if name == "L" else sizes.axis(name.lower(), 0)

    @cached_property
    def unique(self) -> tuple[Entry, ...]:
        """The stored parameters, each once."""
        return tuple(item for item in entries(self.program) if not item.is_alias)

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """The rows of the FLOPs ledger."""
        return flops(self.program).rows

    def scalars(self, keep: Callable[[Entry], bool]) -> Any:
        """Return the scalars of the stored parameters that `keep` chooses."""
        return sum((item.scalars for item in self.unique if keep(item)), 0)

    def flops(self, phase: str, keep: Callable[[Row], bool] = lambda row: True) -> Any:
        """Return the FLOPs of the rows of a phase that `keep` chooses."""
        return sum((row.value for row in self.rows if row.phase == phase and keep(row)), 0)

    def saved(self, policy: str | None, device: bool = False) -> Any:
        """Return the bytes that one layer saves under a policy, of all devices together or on the worst one."""
        kept = [row for row in saved(self.program, policy) if row.region == "block"]
        total = sum((row.per_device if device else row.value for row in kept), 0)
        repeats = sum(self.program.sizes.repeats[1:], self.program.sizes.repeats[0])
        return _over(total, repeats)


def _over(total: Any, count: Any) -> Any:
    from jaxcost.papers.expression import expression

    return expression("total/count").value({"total": total, "count": count})


def _leaf(*names: str) -> Callable[[Row], bool]:
    return lambda row: row.object in names


def _projection_bias(item: Entry) -> bool:
    return item.name.endswith("/bias") and "norm" not in item.scope


def _norm(item: Entry) -> bool:
    return "norm" in item.scope


def _matrix(item: Entry) -> bool:
    return item.name.endswith("/weight") and item.scope.startswith("group")


def _per(name: str, phase: str) -> Callable[[Components], Any]:
    return lambda c: c.flops(phase, _leaf(name))


def _staged(components: Components, stage: str) -> Any:
    """Bytes of state on the worst device under a ZeRO stage; on one device every stage is the same."""
    totals = ownership(components.program).totals
    return totals["by_zero_stage"].get(stage, totals["persistent_bytes"])


_PAIRWISE = ("scores", "values")
_MLP = ("up", "gate", "down")
COMPONENTS: dict[str, Callable[[Components], Any]] = {
    "rows": lambda c: c.program.sizes.product("b s"),
    # parameters
    "parameters": lambda c: c.scalars(lambda item: True),
    "embedding_scalars": lambda c: c.scalars(lambda item: item.scope == "embed/tokens"),
    "position_scalars": lambda c: c.scalars(lambda item: item.scope == "embed/positions"),
    "head_scalars": lambda c: c.scalars(lambda item: item.scope == "head"),
    "norm_scalars": lambda c: c.scalars(_norm),
    "final_norm_scalars": lambda c: c.scalars(lambda item: item.scope == "final_norm"),
    "bias_scalars": lambda c: c.scalars(_projection_bias),
    "matrix_scalars": lambda c: c.scalars(_matrix),
    "qkv_scalars": lambda c: c.scalars(lambda i: i.name.endswith(("q_proj/weight", "k_proj/weight", "v_proj/weight",
                                                                  "attn/qkv/weight"))),
    "output_scalars": lambda c: c.scalars(lambda item: item.name.endswith("o_proj/weight")),
    "mlp_scalars": lambda c: c.scalars(lambda item: _matrix(item) and "/mlp" in item.scope),
    # forward FLOPs
    "forward": lambda c: c.flops("forward"),
    "qkv_forward": lambda c: c.flops("forward", _leaf("q_proj", "k_proj", "v_proj")),
    "scores_forward": _per("scores", "forward"),
    "values_forward": _per("values", "forward"),
    "pairwise_forward": lambda c: c.flops("forward", _leaf(*_PAIRWISE)),
    "output_forward": _per("o_proj", "forward"),
    "mlp_forward": lambda c: c.flops("forward", _leaf(*_MLP)),
    "head_forward": _per("head", "forward"),
    "block_forward": lambda c: c.flops("forward", lambda row: row.region == "block"),
    # training FLOPs
    "backward": lambda c: c.flops("backward"),
    "replay": lambda c: c.flops("replay"),
    "training": lambda c: c.flops("forward") + c.flops("backward"),
    "executed": lambda c: c.flops("forward") + c.flops("backward") + c.flops("replay"),
    "pairwise_training": lambda c: c.flops("forward", _leaf(*_PAIRWISE)) + c.flops("backward", _leaf(*_PAIRWISE)),
    "head_training": lambda c: c.flops("forward", _leaf("head")) + c.flops("backward", _leaf("head")),
    # activations, of one layer
    "saved_layer": lambda c: c.saved("none"),
    "saved_layer_selective": lambda c: c.saved("selective"),
    "saved_layer_full": lambda c: c.saved("block"),
    "saved_layer_on_device": lambda c: c.saved("none", device=True),
    "saved_layer_selective_on_device": lambda c: c.saved("selective", device=True),
    "saved_layer_full_on_device": lambda c: c.saved("block", device=True),
    # and before and after the layers
    "saved_outside": lambda c: sum((row.value for row in saved(c.program, None) if row.region == "outside"), 0),
    # state
    "state": lambda c: state(c.program).totals["bytes"],
    "state_on_device_0": lambda c: _staged(c, "0"),
    "state_on_device_1": lambda c: _staged(c, "1"),
    "state_on_device_2": lambda c: _staged(c, "2"),
    "state_on_device_3": lambda c: _staged(c, "3"),
}  # fmt: skip
