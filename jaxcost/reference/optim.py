"""Optimizers, as optax gives them, and the copies of the parameters a precision policy keeps.

The optimizer acts on `basis(policy, parameters)`: the fp32 master copy where the policy has one, else the parameters,
seen in the type of the moments. Its state is exactly `optimizer.init(basis)`.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import optax
from jax.sharding import PartitionSpec

from jaxcost.contracts.state import StatePolicy
from jaxcost.reference.layers import JAX_DTYPES
from jaxcost.reference.sharding import Layout

LEARNING_RATE = 1e-3


def make_optimizer(policy: StatePolicy) -> optax.GradientTransformation:
    """Return the optax optimizer of a policy, with a constant learning rate (so no schedule adds a counter)."""
    return {
        "adam": lambda: optax.adam(LEARNING_RATE),
        "adamw": lambda: optax.adamw(LEARNING_RATE),
        "sgd": lambda: optax.sgd(LEARNING_RATE),
        "momentum": lambda: optax.sgd(LEARNING_RATE, momentum=0.9),
        "lion": lambda: optax.lion(LEARNING_RATE),
        "adafactor": lambda: optax.adafactor(LEARNING_RATE),
    }[policy.optimizer]()


def gradient_dtype(policy: StatePolicy) -> Any:
    """Return the type in which gradients are kept and accumulated."""
    stored = policy.object("gradient")
    return JAX_DTYPES[stored.dtype if stored else policy.parameter_dtype]


def update_dtype(policy: StatePolicy) -> Any:
    """Return the type in which the optimizer works: that of its master copy or first moment, else the parameters'."""
    kept = policy.object("master") or policy.object("first_moment")
    return JAX_DTYPES[kept.dtype if kept else policy.parameter_dtype]


def cast(tree: Any, dtype: Any) -> Any:
    """Return a tree of arrays in another type."""
    return jax.tree.map(lambda x: x.astype(dtype), tree)


def update(
    optimizer: optax.GradientTransformation,
    policy: StatePolicy,
    gradients: Any,
    state: Any,
    parameters: Any,
    master: Any,
) -> tuple[Any, Any, Any]:
    """Return (parameters, master, optimizer state) after one step; trees of trainable arrays."""
    dtype = update_dtype(policy)
    basis = cast(parameters, dtype) if master is None else master
    updates, state = optimizer.update(cast(gradients, dtype), state, basis)
    basis = optax.apply_updates(basis, updates)
    return cast(basis, JAX_DTYPES[policy.parameter_dtype]), None if master is None else basis, state


def state_shardings(state: Any, parameters: Any, layout: Layout) -> Any:
    """Return the shardings of an optimizer state: a moment is sharded like its parameter, anything else replicated.

    `parameters` holds a `Parameter` record per trainable array. A state leaf belongs to the parameter whose pytree path
    ends its own. Adafactor's factors lack one of the two largest axes: rows the largest, columns the second.
    """
    known = dict(jax.tree_util.tree_flatten_with_path(parameters)[0])

    def sharding(path: tuple[Any, ...], leaf: Any) -> Any:
        owner = next((known[path[i:]] for i in range(len(path)) if path[i:] in known), None)
        if owner is None:
            return layout.of_spec(PartitionSpec())
        spec = layout.parameter_spec(owner.axes)
        if leaf.shape == owner.shape:
            return layout.of_spec(spec)
        if len(leaf.shape) == len(owner.shape) - 1:
            order = np.argsort(owner.shape)
            gone = int(order[-1] if any(getattr(key, "name", "") == "v_row" for key in path) else order[-2])
            return layout.of_spec(PartitionSpec(*spec[:gone], *spec[gone + 1 :]))
        return layout.of_spec(PartitionSpec())

    return jax.tree_util.tree_map_with_path(sharding, state)
