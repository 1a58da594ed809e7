"""Movement: ring volumes, K/V intensity, legal pairs, one-pass products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jaxcost.prediction.rows import Row
from jaxcost.prediction.symbols import symbol
from jaxcost.verify.proofs.kinds import Derivations, rows_of, summed
from jaxcost.verify.proofs.prove import Proof
from jaxcost.verify.proofs.work import pairwise

_FSDP = "n fsdp ranks"
_DATA = "n data ranks"
_QUERY = "group0/attn/q_proj"


def _sends(kind: str, which: Callable[[Row], bool]) -> Any:
    def derive(found: Derivations) -> Any:
        rows = [row for row in found.ledger(kind, "collectives").rows if which(row)]
        return sum((row.fields["ring_send_bytes"] * row.fields["times"] for row in rows), 0)

    return derive


def _payload(kind: str, which: Callable[[Row], bool]) -> Any:
    return lambda found: summed(row for row in found.ledger(kind, "collectives").rows if which(row))


def _is(name: str) -> Callable[[Row], bool]:
    """Return whether a row is a collective of a kind, of arrays: the mean loss is one number, which no ring splits."""
    return lambda row: row.fields["kind"] == name and row.object != "loss/out"


def _of_block_matrices(row: Row) -> bool:
    return row.scope.startswith("group0/") and row.object.removeprefix("d ").endswith("/weight")


def _block_matrices(kind: str) -> Any:
    """Return the bytes of the blocks' matrices in bf16: two a scalar."""

    def derive(found: Derivations) -> Any:
        rows = rows_of(found.ledger(kind, "parameters"), "group0")
        return 2 * summed(row for row in rows if row.object.endswith("/weight"))

    return derive


def _ring(kind: str, name: str, closed: str, words: str) -> Proof:
    return Proof(
        f"ring.{name.replace('-', '_')}",
        f"around a ring of n, each rank sends {words} of the payload Q of an {name}"
        if name[0] == "a"
        else f"around a ring of n, each rank sends {words} of the payload Q of a {name}",
        ("collectives.ring_send_bytes", "collectives.payload_bytes"),
        kind,
        _sends(kind, _is(name)),
        closed,
        "Thakur, Rabenseifner, Gropp 2005, sections 3 and 4",
        given={"Q": _payload(kind, _is(name))},
        where="a rank's piece of every array is equally large",
    )


def _intensity(kind: str) -> Any:
    """Return the pairwise FLOPs of a decode step over the bytes of the cache, read once."""
    return lambda found: pairwise(kind)(found) / found.total(kind, "kv_cache.bytes")


def _legal_share(kind: str) -> Any:
    """Return legal over rectangular pairwise FLOPs."""

    def derive(found: Derivations) -> Any:
        rectangular = pairwise(kind)(found)
        less = found.total(kind, "flops.forward") - found.total(kind, "flops.forward_causal")
        return (rectangular - less) / rectangular

    return derive


def _windowed_pairs(found: Derivations) -> Any:
    """Return the legal pairs of one sequence and layer where the window is no longer than the sequence."""
    share = _legal_share("windowed prefill")(found)
    rows, window = symbol("S"), symbol("W")
    return _within_window(share * rows**2, rows, window)


def _within_window(value: Any, rows: Any, window: Any) -> Any:
    import sympy

    beyond = sympy.Symbol("beyond", integer=True, nonnegative=True)
    return sympy.expand(sympy.expand(value).subs(rows, window + beyond)).subs(beyond, rows - window)


def _sliding_sum(found: Derivations) -> Any:
    """Return the keys that S queries see, added one query at a time: p + 1 of the first W, then W each."""
    import sympy

    place = sympy.Symbol("p", integer=True)
    first = sympy.summation(place + 1, (place, 0, symbol("W") - 1))
    return first + symbol("W") * (symbol("S") - symbol("W"))


def _one_pass(kind: str) -> Any:
    """Return FLOPs over bytes of the query projection, operands read once and the result written once."""

    def derive(found: Derivations) -> Any:
        work = summed(rows_of(found.ledger(kind, "flops"), _QUERY, phase="forward"))
        return work / summed(rows_of(found.ledger(kind, "traffic"), _QUERY, phase="forward"))

    return derive


def _cube(found: Derivations) -> Any:
    """Return the same where rows, inputs and outputs are equally many."""
    equal = {symbol("B"): 1, symbol("S"): symbol("d"), symbol("E"): symbol("d") / symbol("H")}
    return _one_pass("prefill")(found).subs(equal)


def _one_row(found: Derivations) -> Any:
    """Return the limit of a decode step's intensity, one sequence, as the matrix grows."""
    import sympy

    single = _one_pass("decode")(found).subs({symbol("B"): 1, symbol("E"): symbol("d") / symbol("H")})
    return sympy.limit(single, symbol("d"), sympy.oo)


_KV = ("flops.forward of QK and PV", "kv_cache.bytes")
_PAIRS = ("flops.forward_causal", "flops.forward")
_ONE_PASS = ("flops.forward of q_proj", "traffic.gemm_one_pass_bytes of q_proj")

PROOFS = (
    _ring(_FSDP, "all-gather", "(n - 1)/n*Q", "(n - 1)/n"),
    _ring(_FSDP, "reduce-scatter", "(n - 1)/n*Q", "(n - 1)/n"),
    _ring(_DATA, "all-reduce", "2*(n - 1)/n*Q", "2(n - 1)/n"),
    Proof(
        "ring.fsdp_sweep", "FSDP with resharding sends 3(n - 1)/n of the blocks' matrices: two gathers and a scatter",
        ("collectives.ring_send_bytes of group0, matrices", "parameters.unique of group0, matrices"), _FSDP,
        _sends(_FSDP, _of_block_matrices), "3*(n - 1)/n*Q", "Zhao et al. 2023, arXiv:2304.11277, section 3",
        given={"Q": _block_matrices(_FSDP)}, where="n divides d",
    ),
    Proof(
        "ring.data_parallel", "replicas send 2(n - 1)/n of them: one all-reduce of their gradients",
        ("collectives.ring_send_bytes of group0, matrices", "parameters.unique of group0, matrices"), _DATA,
        _sends(_DATA, _of_block_matrices), "2*(n - 1)/n*Q", "a reduce-scatter and an all-gather",
        given={"Q": _block_matrices(_DATA)}, where="n divides every matrix",
    ),
    Proof(
        "kv_intensity.gqa", "one query row does H/K FLOPs for each byte of a bf16 cache read once; T cancels",
        _KV, "decode", _intensity("decode"), "H/K", "4BHTE FLOPs over 4BKTE bytes a layer",
    ),
    Proof("kv_intensity.mha", "with K = H it is 1", _KV, "decode, MHA", _intensity("decode, MHA"), "1", "K = H"),
    Proof("kv_intensity.mqa", "with one K/V head it is H", _KV, "decode, MQA", _intensity("decode, MQA"), "H", "K = 1"),
    Proof(
        "pairs.legal", "a causal mask leaves (S + 1)/(2S) of the pairs of S rows",
        _PAIRS, "prefill of all rows", _legal_share("prefill of all rows"), "(S + 1)/(2*S)", "S(S + 1)/2 of S^2 pairs",
    ),
    Proof(
        "pairs.legal.past", "of S rows over a cache, T visible, it leaves (2T - S + 1)/(2T)",
        _PAIRS, "prefill over a cache", _legal_share("prefill over a cache"), "(2*T - S + 1)/(2*T)",
        "S(T - S) + S(S + 1)/2 of ST pairs",
    ),
    Proof(
        "pairs.legal.decode", "of one new row it leaves all",
        _PAIRS, "decode", _legal_share("decode"), "1", "the last row sees every key",
    ),
    Proof(
        "pairs.window", "a window of W keys leaves SW - W(W - 1)/2 pairs",
        _PAIRS, "windowed prefill", _windowed_pairs, "S*W - W*(W - 1)/2", "W keys a row, less what the first lack",
        where="W <= S",
    ),
    Proof(
        "pairs.window.sum", "that is the sum over rows p of min(p + 1, W)",
        _PAIRS, "windowed prefill", _windowed_pairs, "sliding", "Beltagy et al. 2020, arXiv:2004.05150, section 3.1",
        given={"sliding": _sliding_sum}, where="W <= S",
    ),
    Proof(
        "gemm.one_pass", "a bf16 product of M x k by k x N does 2MkN/(2(Mk + kN + MN)) FLOPs a byte, read once",
        _ONE_PASS, "prefill", _one_pass("prefill"),
        "2*(B*S)*d*(H*E)/(2*((B*S)*d + d*(H*E) + (B*S)*(H*E)))", "M = BS, k = d, N = HE of the query projection",
    ),
    Proof(
        "gemm.one_pass.cube", "of three equal extents M it is M/3",
        _ONE_PASS, "prefill", _cube, "d/3", "2M^3 over 6M^2 bytes", where="BS = d = HE",
    ),
    Proof(
        "gemm.one_pass.one_row", "of one row it tends to 1 FLOP a byte as the matrix grows",
        _ONE_PASS, "decode", _one_row, "1", "2/b with b = 2 bytes", where="B = 1, HE = d",
    ),
)  # fmt: skip
