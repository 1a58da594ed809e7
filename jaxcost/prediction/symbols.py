"""Formulas: the same program and the same folds on sympy symbols.

Only this module imports sympy, inside its functions. Kinds of layer, ties, biases, dtypes and policies are the
case's; the extents become symbols: B batch, S new rows, T rows visible over a cache, R a number of logits rows, d
hidden, w columns of a narrower token table, V vocabulary, P position rows, and for each group of layers L, H, K, E, F
(layers, query heads, K/V heads, head width, MLP width; numbered where there are several groups). A sliding window is
W, with its place in the cycle where the cycle has several (W_0, W_1); the cycle itself is the case's. A formula is
thus true of every model of that kind, and two formulas are compared by expansion, not by samples.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from jaxcost.contracts.case import Case
from jaxcost.contracts.errors import reject
from jaxcost.contracts.execution import Execution
from jaxcost.prediction.ledgers import FOLDS
from jaxcost.prediction.program import Program, program
from jaxcost.prediction.sizes import Sizes

FORMULAS = (
    "parameters.unique",
    "parameters.bytes",
    "state.bytes",
    "flops.forward",
    "flops.forward_causal",
    "flops.backward",
    "flops.recompute",
    "flops.total",
    "activations.saved_bytes",
    "kv_cache.bytes",
    "kv_cache.bytes_per_token",
    "traffic.attention_bytes",
    "traffic.gemm_one_pass_bytes",
)


def symbol(name: str) -> Any:
    """Return the positive integer symbol of a name."""
    import sympy

    return sympy.Symbol(name, integer=True, positive=True)


def symbolic_sizes(case: Case, **relations: str) -> Sizes:
    """Return symbols for the sizes of a case; a relation such as `E="d/H"` or `F="4*d"` replaces a symbol.

    Raises:
        RejectedError: for ragged lengths, whose sums have no closed form, and for Adafactor, which factors by size.
    """
    import sympy

    if case.workload.lengths is not None:
        raise reject(
            "workload.lengths", "ragged", "sums over given lengths are numbers, not formulas", "leave lengths out"
        )
    if case.state.optimizer == "adafactor":
        raise reject(
            "state.optimizer", "adafactor", "which axes are factored depends on their sizes", "use another optimizer"
        )
    work, arch = case.workload, case.architecture
    suffixes = [""] if len(arch.groups) == 1 else [str(index) for index in range(len(arch.groups))]
    names = {name: symbol(name) for name in "BSTRVPdw"}
    names.update({f"{name}{suffix}": symbol(f"{name}{suffix}") for suffix in suffixes for name in "LHKEF"})
    cycles = tuple(_window_names(group.windows, suffix) for group, suffix in zip(arch.groups, suffixes, strict=True))
    names.update({name: symbol(name) for cycle in cycles for name in cycle if name})
    for name in relations:
        if name not in names:
            raise reject(name, relations[name], "no symbol of this case", f"use one of {', '.join(sorted(names))}")
    given = {name: sympy.sympify(text, locals=names) for name, text in relations.items()}

    def extent(name: str) -> Any:
        return given.get(name, names[name])

    decode = work.phase == "decode"
    new = sympy.Integer(1) if decode else extent("S")
    rows = {"all": new, "final": sympy.Integer(1)}.get(str(work.logits), extent("R"))
    values = {
        "b": extent("B"),
        "s": new,
        "t": extent("T") if work.continues else new,
        "r": rows,
        "d": extent("d"),
        "w": extent("w") if arch.embedding_width else extent("d"),
        "v": extent("V"),
        "p": extent("P"),
    }
    groups = tuple(
        {
            "h": extent(f"H{suffix}"),
            "k": extent(f"K{suffix}"),
            "g": extent(f"H{suffix}") / extent(f"K{suffix}"),
            "e": extent(f"E{suffix}"),
            "f": extent(f"F{suffix}"),
            "n": extent(f"H{suffix}") + 2 * extent(f"K{suffix}"),
            "u": 2 * extent(f"F{suffix}"),
        }
        for suffix in suffixes
    )
    windows = tuple(tuple(extent(name) if name else 0 for name in cycle) for cycle in cycles)
    return Sizes(values, groups, tuple(extent(f"L{suffix}") for suffix in suffixes), None, extent("V"), windows)


def _window_names(cycle: tuple[int, ...], suffix: str) -> tuple[str, ...]:
    """Return the symbol name of each window of a cycle, empty for full attention; equal windows share one symbol."""
    distinct = sorted({window for window in cycle if window})
    numbered = {
        window: f"W{suffix}_{place}" if len(distinct) > 1 else f"W{suffix}" for place, window in enumerate(distinct)
    }
    return tuple(numbered.get(window, "") for window in cycle)


def symbolic(case: Case, **relations: str) -> Program:
    """Return the program of a case on one device with symbols for its sizes (see `symbolic_sizes`)."""
    run = case.execution
    single = Execution(remat=run.remat, remat_names=run.remat_names, layers=run.layers, donate=run.donate)
    one = case.model_copy(update={"execution": single, "workload": case.workload.replaced(accumulate=1)})
    built = program(one, symbolic_sizes(case, **relations))
    return replace(built, case=one)


def formula(case: Case, path: str, **relations: str) -> Any:
    """Return the expanded expression of a total, for example `flops.forward`.

    Raises:
        KeyError: naming the path, where there is no such total.
    """
    return _expand(_total(symbolic(case, **relations), path))


def formulas(case: Case) -> dict[str, Any]:
    """Return the expanded expressions of `FORMULAS`."""
    built = symbolic(case)
    return {path: _expand(_total(built, path)) for path in FORMULAS}


def _total(built: Program, path: str) -> Any:
    ledger, _, name = path.partition(".")
    totals = FOLDS[ledger](built).totals if ledger in FOLDS else {}
    if name not in totals:
        raise KeyError(f"{path} is not a total of a prediction")
    return totals[name]


def _expand(value: Any) -> Any:
    import sympy

    return sympy.expand(sympy.sympify(value))


def equal(left: Any, right: Any) -> bool:
    """Return whether two expressions are the same polynomial or rational function, by expansion."""
    import sympy

    difference = sympy.expand(sympy.sympify(left) - sympy.sympify(right))
    return bool(difference == 0) or bool(sympy.expand(sympy.together(difference)) == 0)
