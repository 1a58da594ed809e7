"""A step ready to be compiled: the function, its abstract arguments with shardings, and what is donated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from jaxcost.contracts.case import Case
from jaxcost.reference.model import Decoder, abstract_model, init_model, parameter_tree
from jaxcost.reference.serving import abstract_caches, cache_shardings, make_decode_step, make_prefill_step
from jaxcost.reference.sharding import ACTIVATION, Layout
from jaxcost.reference.stack import dropout_acts
from jaxcost.reference.support import require_supported
from jaxcost.reference.training import abstract_state, init_state, make_training_step, state_shardings


@dataclass(frozen=True)
class Step:
    """One executable step of a case.

    `arguments` are trees of `jax.ShapeDtypeStruct`, with shardings where there is a mesh, so that the step lowers for
    devices that are not there. `donate` numbers the arguments whose buffers the results take over. `argument_names`
    are the names that entry parameters of the compiled module begin with.
    """

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    argument_names: tuple[str, ...]
    donate: tuple[int, ...]
    in_shardings: tuple[Any, ...] | None
    out_shardings: Any

    def jit(self) -> Any:
        """Return the jitted function."""
        if self.in_shardings is None:
            return jax.jit(self.function, donate_argnums=self.donate)
        return jax.jit(
            self.function, donate_argnums=self.donate, in_shardings=self.in_shardings, out_shardings=self.out_shardings
        )

    def trace(self) -> Any:
        """Return `jax.stages.Traced`: `.jaxpr`, `.lower()`."""
        return self.jit().trace(*self.arguments)


def make_step(case: Case, mesh: Mesh | None = None) -> Step:
    """Return the step of a case on a mesh (see `sharding.make_mesh`), or on the default device.

    Raises:
        RejectedError: where the network cannot execute the case (see `support`).
    """
    require_supported(case)
    layout = Layout(mesh, case.execution.sharding == "explicit", case.execution.sequence_parallel)
    function, named, donated, outputs = _PHASES[case.workload.phase](case, layout)
    names = tuple(named)
    arguments = tuple(abstract for abstract, _ in named.values())
    donate = tuple(names.index(name) for name in donated) if case.execution.donate else ()
    if mesh is None:
        return Step(function, arguments, names, donate, None, None)
    inputs = tuple(sharding for _, sharding in named.values())
    placed = jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), arguments, inputs)
    return Step(function, placed, names, donate, inputs, outputs)


# function, arguments by name with their shardings, names of donated arguments, shardings of the results
Parts = tuple[Callable[..., Any], dict[str, tuple[Any, Any]], tuple[str, ...], Any]


def _training(case: Case, layout: Layout) -> Parts:
    state, whole = state_shardings(case, layout), layout.of_spec(PartitionSpec())
    named = {"state": (abstract_state(case), state), "tokens": _tokens(case, layout)}
    if dropout_acts(case):
        named["key"] = (jax.ShapeDtypeStruct((2,), jnp.uint32), whole)
    return make_training_step(case, layout), named, ("state",), (state, whole)


def _prefill(case: Case, layout: Layout) -> Parts:
    named = {"parameters": _parameters(case, layout), "tokens": _tokens(case, layout)}
    rows = "s" if case.workload.logits == "all" else "r"
    outputs = (layout.named(f"b{rows}v", ACTIVATION), cache_shardings(case, layout))
    return make_prefill_step(case, layout), named, (), outputs


def _decode(case: Case, layout: Layout) -> Parts:
    caches = cache_shardings(case, layout)
    named = {
        "parameters": _parameters(case, layout),
        "caches": (abstract_caches(case), caches),
        "tokens": _tokens(case, layout),
        "position": (jax.ShapeDtypeStruct((), jnp.int32), layout.of_spec(PartitionSpec())),
    }
    return make_decode_step(case, layout), named, ("caches",), (layout.named("bsv", ACTIVATION), caches)


_PHASES = {"training": _training, "prefill": _prefill, "decode": _decode}


def _tokens(case: Case, layout: Layout) -> tuple[Any, Any]:
    shape = (case.workload.batch, case.workload.new_tokens)
    return jax.ShapeDtypeStruct(shape, jnp.int32), layout.named("bs", ACTIVATION)


def _parameters(case: Case, layout: Layout) -> tuple[Any, Any]:
    return abstract_model(case), jax.tree.map(lambda p: layout.parameter(p.axes), parameter_tree(case))


def random_arguments(case: Case, key: jax.Array) -> tuple[Any, ...]:
    """Return arguments of the step with random weights, caches and tokens, on the default device."""
    weights, ids, rows, drop = jax.random.split(key, 4)
    work = case.workload
    tokens = jax.random.randint(ids, (work.batch, work.new_tokens), 0, case.architecture.vocabulary_size, jnp.int32)
    model: Decoder = init_model(case, weights)
    if work.phase == "training":
        state = init_state(case, model)
        return (state, tokens, jax.random.bits(drop, (2,), jnp.uint32)) if dropout_acts(case) else (state, tokens)
    if work.phase == "prefill":
        return model, tokens
    caches = jax.tree.map(lambda x: jax.random.normal(rows, x.shape).astype(x.dtype), abstract_caches(case))
    return model, caches, tokens, jnp.int32(work.past_tokens)
