"""An independent count of multiply-adds: the traced program is run, and tells how often each contraction executed.

The program is rewritten into one that does the same and carries a vector of counters: each dot or convolution adds one
to its own counter when it is executed, in a loop or a branch as anywhere else. The rewritten program is then run on the
CPU. What one execution of a contraction costs is measured as well: with every input one, each output is the number of
products summed into it, so the sum of the outputs is the number of multiply-adds (padding contributes zeros, not ones).
No formula over shapes, no derived trip count and no compiled module takes part.

    counted = count(step, arguments)
    counted.total                         2 x multiply-adds of everything executed, and Fourier transforms
    counted.rows                          one per contraction of the program: primitive, shapes, times, multiply-adds

A dead contraction, whose result reaches no output, is executed by no compiler: `live` removes it first. Contractions of
sums too long for a float32 to count are refused, and so is every primitive that holds a program with contractions which
this file does not know how to enter. A complex multiply-add is four real ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

BILINEAR = frozenset({"dot_general", "conv_general_dilated"})
# Primitives that hold a program to be entered once, and the name of the parameter that holds it.
ONCE = {
    "jit": "jaxpr", "pjit": "jaxpr", "closed_call": "call_jaxpr", "core_call": "call_jaxpr", "remat2": "jaxpr",
    "checkpoint": "jaxpr", "custom_jvp_call": "call_jaxpr", "custom_vjp_call": "call_jaxpr",
    "custom_vjp_call_jaxpr": "fun_jaxpr", "custom_lin": "call_jaxpr",
}  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One contraction of the program: how often it ran and the multiply-adds of one run."""

    primitive: str
    shapes: str
    scope: str
    executions: int
    multiply_adds: int

    @property
    def flops(self) -> int:
        return 2 * self.executions * self.multiply_adds


@dataclass(frozen=True)
class Counted:
    """What a program executed. `transforms` are the Fourier transforms that ran: (kind, lengths, number of them)."""

    rows: tuple[Row, ...]
    transforms: tuple[tuple[str, tuple[int, ...], int], ...]

    @property
    def flops(self) -> int:
        """FLOPs of dots and convolutions, one multiply-add being two."""
        return sum(row.flops for row in self.rows)

    @property
    def total(self) -> int:
        """The same with Fourier transforms at 5 N log2 N, half of that between real and complex data."""
        return self.flops + sum(
            number
            * round(5 * math.prod(lengths) * math.log2(math.prod(lengths)) / (1 if kind in ("FFT", "IFFT") else 2))
            for kind, lengths, number in self.transforms
        )


def count(
    function: Callable[..., Any],
    arguments: Sequence[Any],
    *,
    live: bool = True,
    padding_counts: bool = False,
    seed: int = 0,
) -> Counted:
    """Run `function` on arguments of the shapes given and return what it executed.

    Abstract arguments get values: integers zero, floats small random numbers. Neither changes a count unless the
    program decides by value how often to loop. `padding_counts` pads the input of a convolution with ones instead of
    zeros, as the usual published figures have it: every position of the kernel counts at every output.
    """
    leaves, tree = jax.tree.flatten(tuple(arguments))
    is_array = [isinstance(leaf, jax.ShapeDtypeStruct | jax.Array | np.ndarray) for leaf in leaves]
    given = [
        jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf, array in zip(leaves, is_array, strict=True) if array
    ]

    def flat(*arrays: Any) -> Any:
        rest = iter(arrays)
        filled = [next(rest) if array else leaf for leaf, array in zip(leaves, is_array, strict=True)]
        return [x for x in jax.tree.leaves(function(*jax.tree.unflatten(tree, filled))) if _is_value(x)]

    closed = jax.make_jaxpr(flat)(*given)
    jaxpr = prune(closed.jaxpr) if live else closed.jaxpr
    found: dict[int, tuple[Any, str]] = {}
    _number(jaxpr, found, "")
    index = {name: place for place, name in enumerate(found)}

    def run(constants: Any, values: Any) -> Any:
        # The outputs are kept: without them there would be nothing to execute.
        return _evaluate(jaxpr, constants, values, jnp.zeros(len(found), jnp.int32), index)

    random = np.random.default_rng(seed)
    values = [_value(aval, random) for aval in given]
    _, counters = _compiled(run, closed.consts, values)(closed.consts, values)
    executed = list(zip(found.values(), np.asarray(counters).tolist(), strict=True))
    transforms = []
    for (eqn, _), times in executed:
        if eqn.primitive.name == "fft":
            lengths = tuple(eqn.params["fft_lengths"])
            batch = eqn.invars[0].aval.shape[: -len(lengths)]
            transforms.append((jax.lax.FftType(eqn.params["fft_type"]).name, lengths, times * math.prod(batch)))
    bilinear = [((eqn, scope), times) for (eqn, scope), times in executed if eqn.primitive.name != "fft"]
    costs = _multiply_adds([eqn for (eqn, _), _ in bilinear], padding_counts)
    rows = [
        Row(eqn.primitive.name, " ".join(_text(v.aval) for v in (*eqn.invars, *eqn.outvars)), scope, times, cost)
        for ((eqn, scope), times), cost in zip(bilinear, costs, strict=True)
    ]
    return Counted(tuple(rows), tuple(transforms))


def _compiled(function: Callable[..., Any], *arguments: Any) -> Any:
    """Compiled with little effort: the numbers matter, not the speed."""
    options = {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}
    return jax.jit(function).lower(*arguments).compile(compiler_options=options)


def _text(aval: Any) -> str:
    return f"{aval.dtype}[{','.join(map(str, aval.shape))}]"


def _is_value(x: Any) -> bool:
    return isinstance(x, jax.Array | np.ndarray | jax.core.Tracer)


def _value(aval: jax.ShapeDtypeStruct, random: np.random.Generator) -> Any:
    if jnp.issubdtype(aval.dtype, jax.dtypes.prng_key):
        return jax.random.split(jax.random.key(7), aval.shape) if aval.shape else jax.random.key(7)
    if jnp.issubdtype(aval.dtype, jnp.floating):
        return (0.1 + 0.01 * random.standard_normal(aval.shape)).astype(aval.dtype)
    return np.zeros(aval.shape, aval.dtype)


# --- what one execution costs ---------------------------------------------------------------------------------------


def _multiply_adds(equations: Sequence[Any], padding_counts: bool) -> list[int]:
    """Multiply-adds of one execution of each equation; a complex one is four real ones."""
    keys = [(e.primitive, *(tuple(v.aval.shape) for v in e.invars), tuple(sorted(e.params.items()))) for e in equations]
    distinct = dict.fromkeys(keys, 0)
    convolutions = [key for key in distinct if key[0].name != "dot_general"]

    def convolve(pairs: Any) -> Any:
        return [_convolved(key, *pair, padding_counts) for key, pair in zip(convolutions, pairs, strict=True)]

    ones = [(np.ones(key[1], np.float32), np.ones(key[2], np.float32)) for key in convolutions]
    for key, outputs in zip(convolutions, _compiled(convolve, ones)(ones) if ones else (), strict=True):
        if outputs.size and float(outputs.max()) >= 2**24:
            raise ValueError("more products in one sum than a float32 counts exactly")
        distinct[key] = int(np.asarray(outputs).astype(np.int64).sum())
    for key in distinct.keys() - set(convolutions):
        distinct[key] = _dot(key[1], key[2], dict(key[3])["dimension_numbers"])
    factors = [4 if jnp.issubdtype(e.outvars[0].aval.dtype, jnp.complexfloating) else 1 for e in equations]
    return [factor * distinct[key] for factor, key in zip(factors, keys, strict=True)]


def _convolved(key: Any, left: Any, right: Any, padding_counts: bool) -> Any:
    given = dict(key[3]) | {"preferred_element_type": None, "precision": None}
    if padding_counts:
        if set(given["lhs_dilation"]) != {1}:
            raise ValueError("zeros between the elements of an input are no padding")
        spatial = given["dimension_numbers"].lhs_spec[2:]
        edges = [(0, 0)] * left.ndim
        for axis, edge in zip(spatial, given["padding"], strict=True):
            edges[axis] = edge
        left = jnp.pad(left, edges, constant_values=1)
        given["padding"] = ((0, 0),) * len(spatial)
    return key[0].bind(left, right, **given)


def _dot(left: tuple[int, ...], right: tuple[int, ...], dimension_numbers: Any) -> int:
    """Ones times ones by numpy, which needs no compile: a label for each axis."""
    (left_contracted, right_contracted), (left_batch, right_batch) = dimension_numbers
    left_labels, right_labels = list(range(len(left))), [len(left) + axis for axis in range(len(right))]
    for mine, theirs in zip((*left_contracted, *left_batch), (*right_contracted, *right_batch), strict=True):
        right_labels[theirs] = left_labels[mine]
    kept = dict.fromkeys((*left_labels, *right_labels))
    gone = {left_labels[axis] for axis in left_contracted}
    result = [label for label in kept if label not in gone]
    return int(np.einsum(np.ones(left), left_labels, np.ones(right), right_labels, result, optimize=True).sum())


# --- running with counters ------------------------------------------------------------------------------------------


def _counted(eqn: Any) -> bool:
    return eqn.primitive.name in BILINEAR or eqn.primitive.name == "fft"


def _inner(jaxpr: Any) -> tuple[Any, list[Any]]:
    return (jaxpr.jaxpr, list(jaxpr.consts)) if isinstance(jaxpr, core.ClosedJaxpr) else (jaxpr, [])


def _programs(eqn: Any) -> list[Any]:
    """The programs inside an equation, in the order in which they are numbered."""
    name, params = eqn.primitive.name, eqn.params
    if name in ONCE:
        return [params[ONCE[name]]]
    if name == "scan":
        return [params["jaxpr"]]
    if name == "while":
        return [params["cond_jaxpr"], params["body_jaxpr"]]
    if name == "cond":
        return list(params["branches"])
    held = list(core.jaxprs_in_params(params)) if hasattr(core, "jaxprs_in_params") else _search(params)
    if any(_contracts(_inner(program)[0]) for program in held):
        raise NotImplementedError(f"{name} holds a program with contractions and is not known here")
    return []


def _search(params: Any) -> list[Any]:
    found: list[Any] = []
    for value in params.values():
        for item in value if isinstance(value, tuple | list) else (value,):
            if isinstance(item, core.ClosedJaxpr | core.Jaxpr):
                found.append(item)
    return found


def _contracts(jaxpr: Any) -> bool:
    return any(_counted(eqn) or any(_contracts(_inner(p)[0]) for p in _search(eqn.params)) for eqn in jaxpr.eqns)


def _number(jaxpr: Any, found: dict[int, tuple[Any, str]], scope: str) -> None:
    """Give every contraction its place; a program called from two places is one, and counts for both."""
    for eqn in jaxpr.eqns:
        here = "/".join(part for part in (scope, str(eqn.source_info.name_stack)) if part)
        if _counted(eqn):
            found.setdefault(id(eqn), (eqn, here))
        for program in _programs(eqn):
            _number(_inner(program)[0], found, here)


def _evaluate(jaxpr: Any, constants: Any, values: Any, counters: Any, index: dict[int, int]) -> tuple[list[Any], Any]:
    known: dict[Any, Any] = {}

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, core.Literal) else known[atom]

    known.update(zip(jaxpr.constvars, constants, strict=True))
    known.update(zip(jaxpr.invars, values, strict=True))
    for eqn in jaxpr.eqns:
        inputs = [read(atom) for atom in eqn.invars]
        outputs, counters = _step(eqn, inputs, counters, index)
        for variable, value in zip(eqn.outvars, outputs, strict=True):
            if type(variable).__name__ != "DropVar":
                known[variable] = value
    return [read(atom) for atom in jaxpr.outvars], counters


def _step(eqn: Any, inputs: list[Any], counters: Any, index: dict[int, int]) -> tuple[list[Any], Any]:
    name, params = eqn.primitive.name, eqn.params
    if name in ONCE:
        program, constants = _inner(params[ONCE[name]])
        return _evaluate(program, constants, inputs, counters, index)
    if name == "scan":
        return _scan(params, inputs, counters, index)
    if name == "while":
        return _while(params, inputs, counters, index)
    if name == "cond":
        which, *rest = inputs

        def branch(closed: Any) -> Callable[..., Any]:
            program, constants = _inner(closed)
            return lambda counters, *values: _evaluate(program, constants, values, counters, index)

        return jax.lax.switch(which, [branch(closed) for closed in params["branches"]], counters, *rest)
    if _counted(eqn):
        counters = counters.at[index[id(eqn)]].add(1)
    with eqn.ctx.manager:
        outputs = eqn.primitive.bind(*inputs, **eqn.primitive.get_bind_params(params))
    return (list(outputs) if eqn.primitive.multiple_results else [outputs]), counters


def _scan(params: Any, inputs: list[Any], counters: Any, index: dict[int, int]) -> tuple[list[Any], Any]:
    program, constants = _inner(params["jaxpr"])
    fixed, carried = params["num_consts"], params["num_consts"] + params["num_carry"]

    def body(carry: Any, xs: Any) -> Any:
        counters, state = carry
        outputs, counters = _evaluate(program, constants, [*inputs[:fixed], *state, *xs], counters, index)
        return (counters, outputs[: params["num_carry"]]), outputs[params["num_carry"] :]

    (counters, state), stacked = jax.lax.scan(
        body, (counters, inputs[fixed:carried]), inputs[carried:], length=params["length"], reverse=params["reverse"]
    )
    return [*state, *stacked], counters


def _while(params: Any, inputs: list[Any], counters: Any, index: dict[int, int]) -> tuple[list[Any], Any]:
    condition, condition_constants = _inner(params["cond_jaxpr"])
    if _contracts(condition):
        raise NotImplementedError("a loop whose condition holds a contraction")
    program, constants = _inner(params["body_jaxpr"])
    first, second = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]

    def proceed(carry: Any) -> Any:
        (answer,), _ = _evaluate(condition, condition_constants, [*inputs[:first], *carry[1]], carry[0], index)
        return answer

    def body(carry: Any) -> Any:
        outputs, counters = _evaluate(program, constants, [*inputs[first:second], *carry[1]], carry[0], index)
        return counters, outputs

    counters, state = jax.lax.while_loop(proceed, body, (counters, inputs[second:]))
    return list(state), counters


# --- what is dead ---------------------------------------------------------------------------------------------------


def prune(jaxpr: Any) -> Any:
    """Return the program without the equations that no output depends on, inside loops and calls as well.

    jax does the same when it lowers a program for its compiler.
    """
    from jax.interpreters import partial_eval

    pruned, _ = partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars), instantiate=True)
    return pruned
