"""Work: the blocks' forward FLOPs, twice that backward, 6ND with its wrong neighbours, published training totals."""

from __future__ import annotations

from typing import Any

from jaxcost.verify.proofs.kinds import Derivations, one_layer, rows_of, summed
from jaxcost.verify.proofs.parameters import non_embedding, used_matrices
from jaxcost.verify.proofs.prove import Proof

PAIRWISE = ("scores", "values")
_REPLAYED = "classic, blocks replayed"
_SELECTIVE = "classic, attention replayed"
_FROZEN = "frozen below attention"


def _total(kind: str, path: str) -> Any:
    return lambda found: found.total(kind, path)


def _block(kind: str) -> Any:
    def derive(found: Derivations) -> Any:
        return one_layer(summed(rows_of(found.ledger(kind, "flops"), "group0", phase="forward")))

    return derive


def pairwise(kind: str, phase: str = "forward") -> Any:
    """Return the FLOPs of QK and PV of all layers."""

    def derive(found: Derivations) -> Any:
        rows = rows_of(found.ledger(kind, "flops"), "group0", phase=phase)
        return summed(row for row in rows if row.object in PAIRWISE)

    return derive


def _linear(kind: str) -> Any:
    return lambda found: _block(kind)(found) - one_layer(pairwise(kind)(found))


def _per_token(kind: str) -> Any:
    from jaxcost.prediction.symbols import symbol

    def derive(found: Derivations) -> Any:
        rows = symbol("B") * symbol("S")
        return sum(pairwise(kind, phase)(found) for phase in ("forward", "backward")) / rows

    return derive


def _over_linear(kind: str) -> Any:
    return lambda found: one_layer(pairwise(kind)(found)) / _linear(kind)(found)


_MEGATRON = "Narayanan et al. 2021, arXiv:2104.04473, "
_KORTHIKANTI = "Korthikanti et al. 2022, arXiv:2205.05198, "
_MODEL = ("flops.total",)
_USED = {"N": used_matrices("decoder"), "pairwise": pairwise("decoder")}

PROOFS = (
    Proof(
        "flops.classic_block", "a classic block takes 24BSd^2 + 4BS^2d FLOPs forward",
        ("flops.forward of group0",), "classic", _block("classic"), "24*B*S*d**2 + 4*B*S**2*d",
        _MEGATRON + "appendix; " + _KORTHIKANTI + "appendix A",
    ),
    Proof(
        "flops.running_block", "with H/4 K/V heads and a gated MLP of width 3.5d a block takes 26BSd^2 + 4BS^2d",
        ("flops.forward of group0",), "running", _block("running"), "26*B*S*d**2 + 4*B*S**2*d",
        "5BSd^2 of projections, 21BSd^2 of the MLP, 4BS^2d of the two pairwise products",
    ),
    Proof(
        "flops.pairwise_over_linear", "MHA, gated MLP of width 4d: pairwise over linear work is S/(8d)",
        ("flops.forward of group0",), "gated 4d", _over_linear("gated 4d"), "S/(8*d)",
        "4BS^2d over 8BSd^2 + 24BSd^2",
    ),
    Proof(
        "flops.backward", "where every gradient is needed, backward is twice forward",
        ("flops.backward", "flops.forward"), "decoder", _total("decoder", "flops.backward"), "2*forward",
        "dX = G W^T and dW = X^T G have the axes of Y = X W each",
        given={"forward": _total("decoder", "flops.forward")},
    ),
    Proof(
        "flops.backward.frozen",
        "with embedding and norm frozen the first layer's q, k and v need no dX: 2BSdE(H + 2K) below twice forward",
        ("flops.backward", "flops.forward"), _FROZEN, _total(_FROZEN, "flops.backward"), "2*forward",
        "the need flags of the first layer", given={"forward": _total(_FROZEN, "flops.forward")},
        difference="-2*B*S*d*E*(H + 2*K)",
        where="L > 1",
    ),
    Proof(
        "six_nd.closure", "forward and backward = 6 N D + 3 x pairwise; N the matrices a token meets, D = BS",
        ("flops.total", "parameters.unique, matrices"), "decoder", _total("decoder", "flops.total"),
        "6*N*B*S + 3*pairwise", "one multiply-add a weight and row forward, two backward", given=_USED,
    ),
    Proof(
        "six_nd.closure.expanded", "the same in sizes: 6BS(L(2dE(H + K) + 3dF) + Vd) + 12BLS^2HE",
        _MODEL, "decoder", _total("decoder", "flops.total"),
        "6*B*S*(L*(2*d*E*(H + K) + 3*d*F) + V*d) + 12*B*L*S**2*H*E", "the sum of the decoder's products",
    ),
    Proof(
        "six_nd.wrong.all_scalars",
        "6PD with all unique scalars misses pairwise work and counts the lookup's table and the norms",
        ("flops.total", "parameters.unique"), "decoder", _total("decoder", "flops.total"), "6*P*B*S",
        "a table of V rows is gathered from, not multiplied; scales are no matrices",
        given={"P": _total("decoder", "parameters.unique")},
        difference="12*B*L*S**2*H*E - 6*B*S*d*(V + 2*L + 1)",
    ),
    Proof(
        "six_nd.wrong.non_embedding", "6ND with Kaplan's N misses the head and pairwise work",
        ("flops.total", "parameters.unique of group0, matrices"), "decoder", _total("decoder", "flops.total"),
        "6*N*B*S", "Kaplan et al. 2020, arXiv:2001.08361, section 2.1", given={"N": non_embedding("decoder")},
        difference="6*B*S*V*d + 12*B*L*S**2*H*E",
    ),
    Proof(
        "six_nd.wrong.kaplan_context", "Kaplan's 2N + 2LSd a token has half of the pairwise work, and no head",
        ("flops.forward",), "classic", _total("classic", "flops.forward"), "(2*N + 2*L*S*d)*B*S",
        "Kaplan et al. 2020, arXiv:2001.08361, equation 2.2", given={"N": non_embedding("classic")},
        difference="2*B*L*S**2*d + 2*B*S*V*d",
    ),
    Proof(
        "palm.attention", "pairwise work of training is 12LHES FLOPs a token",
        ("flops.forward", "flops.backward"), "decoder", _per_token("decoder"), "12*L*H*E*S",
        "Chowdhery et al. 2022, arXiv:2204.02311, appendix B: 12LHQT",
    ),
    Proof(
        "megatron.equation_3", "a step with blocks replayed takes 96BSLh^2(1 + S/(6h) + V/(16Lh)), h = d",
        _MODEL, _REPLAYED, _total(_REPLAYED, "flops.total"), "96*B*S*L*d**2*(1 + S/(6*d) + V/(16*L*d))",
        _MEGATRON + "equation 3",
    ),
    Proof(
        "megatron.equation_3.expanded", "that is 4L(24BSh^2 + 4BS^2h) + 6BShV: the head is not replayed",
        _MODEL, _REPLAYED, _total(_REPLAYED, "flops.total"), "4*L*(24*B*S*d**2 + 4*B*S**2*d) + 6*B*S*d*V",
        _MEGATRON + "equation 3, multiplied out",
    ),
    Proof(
        "megatron.wrong.head_replayed", "8BShV for the head (a further 2BShV in a retelling) is one head too many",
        _MODEL, _REPLAYED, _total(_REPLAYED, "flops.total"), "4*L*(24*B*S*d**2 + 4*B*S**2*d) + 8*B*S*d*V",
        "a teaching article's transcription of equation 3", difference="-2*B*S*d*V",
    ),
    Proof(
        "megatron.wrong.four_forwards", "four times the forward pass replays the head too",
        ("flops.total", "flops.forward"), _REPLAYED, _total(_REPLAYED, "flops.total"), "4*forward",
        "the blind factor 4", given={"forward": _total(_REPLAYED, "flops.forward")}, difference="-2*B*S*d*V",
    ),
    Proof(
        "korthikanti.equation_7", "without replay a step takes 72BLSh^2(1 + S/(6h) + V/(12hL)), h = d",
        _MODEL, "classic", _total("classic", "flops.total"), "72*B*L*S*d**2*(1 + S/(6*d) + V/(12*d*L))",
        _KORTHIKANTI + "equation 7",
    ),
    Proof(
        "korthikanti.equation_8",
        "equation 8, 72BLSh^2(1 + S/(3h) + V/(12hL)), is above the ledger: one replay of QK and PV is 4BLS^2h, and it "
        "has 12BLS^2h",
        _MODEL, _SELECTIVE, _total(_SELECTIVE, "flops.total"), "72*B*L*S*d**2*(1 + S/(3*d) + V/(12*d*L))",
        _KORTHIKANTI + "equation 8", difference="-8*B*L*S**2*d",
    ),
    Proof(
        "korthikanti.equation_8.one_replay", "with one replay it reads 72BLSh^2(1 + 2S/(9h) + V/(12hL))",
        _MODEL, _SELECTIVE, _total(_SELECTIVE, "flops.total"), "72*B*L*S*d**2*(1 + 2*S/(9*d) + V/(12*d*L))",
        "equation 7 and one more forward pass of QK and PV",
    ),
    Proof(
        "korthikanti.equation_9",
        "equation 9 puts hardware over model FLOPs at 1 + S/(6h), of the leading term 72BLSh^2: three times the replay",
        ("flops.recompute",), _SELECTIVE, _total(_SELECTIVE, "flops.recompute"), "72*B*L*S*d**2*S/(6*d)",
        _KORTHIKANTI + "equation 9", difference="-8*B*L*S**2*d",
    ),
    Proof(
        "korthikanti.equation_9.one_replay", "one replay of QK and PV is S/(18h) of the leading term",
        ("flops.recompute",), _SELECTIVE, _total(_SELECTIVE, "flops.recompute"), "72*B*L*S*d**2*S/(18*d)",
        "4BLS^2h over 72BLSh^2",
    ),
)  # fmt: skip
