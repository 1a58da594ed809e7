"""Rows of a train state: roles from optax's field names, bytes from shapes and shardings."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxcost.observation.live_state import by_role, live_state, same_arrays

PARAMETERS = {"w": jnp.ones((256, 128)), "count": jnp.ones(3)}
SCALARS = 256 * 128 + 3


@pytest.mark.parametrize(
    ("optimizer", "roles"),
    [
        (optax.adam(1e-3), {"step": 1, "first_moment": SCALARS, "second_moment": SCALARS}),
        (optax.adamw(1e-3), {"step": 1, "first_moment": SCALARS, "second_moment": SCALARS}),
        (optax.lion(1e-3), {"step": 1, "first_moment": SCALARS}),
        (optax.sgd(1e-3, momentum=0.9), {"first_moment": SCALARS}),
        (optax.sgd(1e-3), {}),
    ],
)
def test_roles_of_optax_states(optimizer, roles):
    found = by_role(live_state({"optimizer": optimizer.init(PARAMETERS)}))
    assert {role: total["scalars"] for role, total in found.items()} == roles


def test_a_parameter_called_like_a_field_keeps_its_moment():
    rows = live_state({"parameters": PARAMETERS, "optimizer": optax.adam(1e-3).init(PARAMETERS)})
    named = {(row.role, row.parameter) for row in rows}
    assert {("first_moment", "count"), ("second_moment", "count"), ("parameter", "count")} <= named


def test_adafactor_keeps_placeholders_of_one_element():
    rows = live_state({"optimizer": optax.adafactor(1e-3).init(PARAMETERS)})
    shapes = {(row.role, row.parameter): row.shape for row in rows}
    assert shapes[("second_moment_row", "w")] == (128,)
    assert shapes[("second_moment_column", "w")] == (256,)
    assert shapes[("second_moment", "w")] == (1,)
    assert shapes[("second_moment", "count")] == (3,)


def test_bytes_of_a_shard():
    mesh = Mesh(np.array(jax.devices("cpu")[:4]), ("fsdp",))
    leaf = jax.ShapeDtypeStruct((8, 4), jnp.bfloat16, sharding=NamedSharding(mesh, PartitionSpec("fsdp")))
    (row,) = live_state({"parameters": {"w": leaf}})
    assert (row.bytes, row.device_bytes, row.devices, row.sharding) == (64, 16, 4, "P('fsdp')")
    assert row.device_shape == (2, 4)


def test_an_abstract_state_equals_the_real_one():
    init = optax.adam(1e-3).init
    assert same_arrays(jax.eval_shape(init, PARAMETERS), init(PARAMETERS)) == ""


def test_a_wrong_type_or_shape_in_the_state_is_seen():
    init = optax.adam(1e-3).init
    wrong = init({"w": jnp.ones((256, 128), jnp.bfloat16), "count": PARAMETERS["count"]})
    assert "mu" in same_arrays(jax.eval_shape(init, PARAMETERS), wrong)
    assert same_arrays(jax.eval_shape(init, PARAMETERS), init({"w": PARAMETERS["w"]})) != ""
