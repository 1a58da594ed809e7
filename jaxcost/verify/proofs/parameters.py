"""Parameters and state: 12d^2 + 13d, Megatron's equation 2, Kaplan's N, K/V heads, ties, ZeRO."""

from __future__ import annotations

from typing import Any

from jaxcost.prediction.symbols import symbol
from jaxcost.verify.proofs.kinds import Derivations, one_layer, rows_of, summed
from jaxcost.verify.proofs.prove import Proof


def _block(kind: str, matrices: bool = False) -> Any:
    def derive(found: Derivations) -> Any:
        rows = rows_of(found.ledger(kind, "parameters"), "group0")
        return one_layer(summed(row for row in rows if not matrices or row.object.endswith("/weight")))

    return derive


def _unique(kind: str) -> Any:
    return lambda found: found.total(kind, "parameters.unique")


def non_embedding(kind: str) -> Any:
    """Return the matrices of the blocks: what Kaplan's N counts."""
    return lambda found: symbol("L") * _block(kind, matrices=True)(found)


def used_matrices(kind: str) -> Any:
    """Return the scalars of the matrices that a token is multiplied with: those of the blocks, and the head's."""

    def derive(found: Derivations) -> Any:
        head = rows_of(found.ledger(kind, "parameters"), "head")
        return non_embedding(kind)(found) + summed(row for row in head if row.object.endswith("/weight"))

    return derive


def _more_kv_heads(found: Derivations) -> Any:
    """Return what X more K/V heads a layer add to the parameters."""
    unique, heads = found.total("decoder", "parameters.unique"), symbol("K")
    return unique.subs(heads, heads + symbol("X")) - unique


def _ties(found: Derivations) -> Any:
    return found.total("tied decoder", "parameters.named") - found.total("tied decoder", "parameters.unique")


def _zero(kind: str, stage: int) -> Any:
    return lambda found: found.total(kind, f"ownership.by_zero_stage.{stage}")


_COST = "transformer cost model, "
_ZERO = "Rajbhandari et al. 2020, arXiv:1910.02054, section 5"
_SIX = "20 bytes on n data ranks"
_SIXTEEN = "16 bytes on n data ranks"


def _stage(stage: int, kind: str, closed: str, words: str, source: str) -> Proof:
    policy = "20" if kind == _SIX else "16"
    return Proof(
        f"zero.stage_{stage}.{policy}_bytes",
        f"ZeRO {stage} leaves {words} bytes on each of n ranks, P scalars",
        (f"ownership.by_zero_stage.{stage}", "parameters.unique"),
        kind,
        _zero(kind, stage),
        closed,
        source,
        given={"P": _unique(kind)},
        where="a shard of every array is equally large" if stage else "",
    )


PROOFS = (
    Proof(
        "parameters.classic_block", "a classic block has 12d^2 + 13d scalars",
        ("parameters.unique of group0",), "classic", _block("classic"), "12*d**2 + 13*d",
        "the standard dense teaching case; Narayanan et al. 2021, arXiv:2104.04473, section 5.1",
    ),
    Proof(
        "parameters.classic_model", "L classic blocks and two tables have L(12d^2 + 13d) + 2Vd scalars",
        ("parameters.unique",), "classic", _unique("classic"), "L*(12*d**2 + 13*d) + 2*V*d",
        "the standard dense teaching case, input table and head apart",
    ),
    Proof(
        "parameters.running_block", "with H/4 K/V heads and a gated MLP of width 3.5d a block's matrices have 13d^2",
        ("parameters.unique of group0, matrices",), "running", _block("running", matrices=True), "13*d**2",
        "2d^2(1 + 1/4) of attention and 3 x 3.5d^2 of the MLP; two norms (2d) apart",
    ),
    Proof(
        "parameters.megatron_equation_2", "GPT has 12Lh^2(1 + 13/(12h) + (V + S)/(12Lh)) scalars, h = d",
        ("parameters.unique",), "gpt", _unique("gpt"), "12*L*d**2*(1 + 13/(12*d) + (V + S)/(12*L*d))",
        "Narayanan et al. 2021, arXiv:2104.04473, equation 2",
    ),
    Proof(
        "parameters.kaplan_n", "the matrices of classic blocks are 2dL(2a + F), a = HE: Kaplan's N",
        ("parameters.unique of group0, matrices",), "classic", non_embedding("classic"), "2*d*L*(2*d + 4*d)",
        "Kaplan et al. 2020, arXiv:2001.08361, equation 2.1 and Table 1, with a = d and F = 4d",
    ),
    Proof(
        "parameters.kv_heads", "X more K/V heads a layer add 2LdEX scalars",
        ("parameters.unique",), "decoder", _more_kv_heads, "2*L*d*E*X",
        "the widths of K and V are K E; Q and O keep theirs",
    ),
    Proof(
        "parameters.tie", "a tied head is named once more and stored no more: named - unique = Vd",
        ("parameters.named", "parameters.unique"), "tied decoder", _ties, "V*d", "one storage, two names",
    ),
    _stage(0, _SIX, "20*P", "20P", "replicated: 2 + 6 + 12 bytes of weights, gradients and optimizer state a scalar"),
    _stage(1, _SIX, "8*P + 12*P/n", "8P + 12P/n", _ZERO + " (P_os), with 8 bytes replicated and 12 split"),
    _stage(2, _SIX, "2*P + 18*P/n", "2P + 18P/n", _ZERO + " (P_os+g), with 2 bytes replicated and 18 split"),
    _stage(3, _SIX, "20*P/n", "20P/n", _ZERO + " (P_os+g+p), everything split"),
    _stage(0, _SIXTEEN, "16*P", "16P", "Rajbhandari et al. 2020, arXiv:1910.02054, section 3.1: 2 + 2 + K, K = 12"),
    _stage(1, _SIXTEEN, "4*P + 12*P/n", "4P + 12P/n", _ZERO + ".1"),
    _stage(2, _SIXTEEN, "2*P + 14*P/n", "2P + 14P/n", _ZERO + ".2"),
    _stage(3, _SIXTEEN, "16*P/n", "16P/n", _ZERO + ".3"),
)  # fmt: skip
