"""Formulas: the same program and the same folds on sympy symbols.

Only this module imports sympy, inside its functions. Kinds of layer, ties, biases, dtypes and policies are the
case's; the extents become symbols: B batch, S new rows, T rows visible over a cache, R a number of logits rows, d
hidden, w columns of a narrower token table, V vocabulary, P position rows, and for each group of layers L, H, K, E, F
(layers, query heads, K/V heads, head width, MLP width; numbered where there are several groups). A sliding window is
W, with its place in the cycle where the cycle has several (W_0, W_1); the cycle itself is the case's. A formula is
thus true of every model of that kind, and two formulas are compared by expansion, not by samples.

Mesh degrees may be symbols too, of a degree of at least two. What a fold then decides may not depend on their size: a
comparison that does is an error, never a guess. Shards are rounded up (`ceiling`); `divided` takes them as exact and
names what must divide what.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from jaxcost.contracts.case import Case
from jaxcost.contracts.errors import reject
from jaxcost.contracts.execution import Execution, MeshAxis
from jaxcost.prediction.forms import Call, Form
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


@cache
def _degree_class() -> Any:
    import sympy

    class Degree(sympy.Symbol):  # type: ignore[misc]  # sympy is untyped
        """The size of a mesh axis: a whole number above one, and no known power of two."""

        def __new__(cls, name: str) -> Any:
            return super().__new__(cls, name, integer=True, positive=True)

        def __gt__(self, other: Any) -> Any:
            return True if other in (0, 1) else super().__gt__(other)

        def __and__(self, other: Any) -> bool:
            return True  # n & (n - 1) is zero for powers of two alone

    return Degree


def degree(name: str) -> Any:
    """Return the symbol of a mesh degree of at least two."""
    return _degree_class()(name)


def symbolic(case: Case, mesh: Mapping[str, str] | None = None, /, **relations: str) -> Program:
    """Return the program of a case with symbols for its sizes (see `symbolic_sizes`).

    Args:
        case: what is declared; its own mesh plays no part.
        mesh: symbol of the degree of each mesh axis, one device by default. With one, the case's way to run on a mesh
            (ZeRO stage, groups, sequence parallelism) stays.
        relations: expressions in place of symbols.
    """
    run = case.execution
    if mesh:
        # A record does not validate symbols; the axes are what the folds ask for.
        axes = tuple(MeshAxis.model_construct(name=axis, size=degree(name)) for axis, name in mesh.items())
        execution = run.model_copy(update={"mesh": axes})
    else:
        execution = Execution(remat=run.remat, remat_names=run.remat_names, layers=run.layers, donate=run.donate)
    one = case.model_copy(update={"execution": execution, "workload": case.workload.replaced(accumulate=1)})
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


def divided(expression: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return an expression with every ceiling taken as exact, expanded, and the quotients that must be whole for it."""
    import sympy

    found: dict[Any, None] = {}

    def exact(argument: Any) -> Any:
        if not argument.as_numer_denom()[0].free_symbols:
            return sympy.ceiling(argument)  # a number divided by a degree is never whole
        found[argument] = None
        return argument

    return sympy.expand(sympy.sympify(expression).replace(sympy.ceiling, exact)), tuple(found)


def as_form(expression: Any) -> Form:
    """Return a sympy expression as a form, for writing.

    Raises:
        ValueError: for a function that forms do not have.
    """
    import sympy

    value = sympy.sympify(expression)
    if value.is_Rational:
        return Form.of(int(value)) if value.is_Integer else Form.of(int(value.p)) / Form.of(int(value.q))
    if value.is_Symbol:
        return Form.of(str(value))
    if value.is_Add or value.is_Mul:
        made = as_form(value.args[0])
        for part in value.args[1:]:
            made = made + as_form(part) if value.is_Add else made * as_form(part)
        return made
    if value.is_Pow and value.exp.is_Integer:
        made, base = Form.of(1), as_form(value.base)
        for _ in range(abs(int(value.exp))):
            made = made * base
        return made if value.exp > 0 else Form.of(1) / made
    name = _CALLS.get(type(value).__name__)
    if name is None:
        raise ValueError(f"no form of {type(value).__name__}")
    return Form.of(Call(name, tuple(as_form(argument) for argument in value.args)))


_CALLS = {"ceiling": "ceil", "floor": "floor", "Min": "min", "Max": "max", "Mod": "mod"}
