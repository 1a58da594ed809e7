"""What counts as a parameter: case H17 of the collected bugs, ties, buffers, declarations."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxcost.contracts.errors import RejectedError
from jaxcost.observation.parameters import dtype_name, parameters_of, storage_bytes

KEY = jax.random.PRNGKey(0)


class Toy(eqx.Module):
    """Embedding(1000, 64), Linear(64, 64) with bias, a rotary table, a mask and a key: what H17 describes."""

    embed: eqx.nn.Embedding
    linear: eqx.nn.Linear
    inv_freq: jax.Array
    mask: jax.Array
    key: jax.Array

    def __init__(self) -> None:
        self.embed = eqx.nn.Embedding(1000, 64, key=KEY)
        self.linear = eqx.nn.Linear(64, 64, key=KEY)
        self.inv_freq = jnp.ones(32)
        self.mask = jnp.ones((128, 128), bool)
        self.key = KEY


class Marked(eqx.Module):
    weight: jax.Array
    inv_freq: jax.Array = eqx.field(metadata={"buffer": True})


class Tied(eqx.Module):
    shared: eqx.nn.Shared

    def __init__(self, transposed: bool = False) -> None:
        head = eqx.nn.Linear(*((1000, 64) if transposed else (64, 1000)), use_bias=False, key=KEY)
        pair = (eqx.nn.Embedding(1000, 64, key=KEY), head)
        read = (lambda p: p[0].weight.T) if transposed else (lambda p: p[0].weight)
        self.shared = eqx.nn.Shared(pair, lambda p: p[1].weight, read)


def test_buffers_named_by_the_caller_are_not_trainable():
    found = parameters_of(Toy(), buffers=["inv_freq"])
    assert (found.trainable, found.unique, found.named) == (68_160, 68_160, 68_160)
    assert any("inv_freq" in text for text in found.assumptions)
    assert any("mask" in text and "key" in text for text in found.assumptions)


def test_an_unnamed_rotary_table_is_counted_and_the_result_says_so():
    # is_inexact_array would give this number in silence.
    found = parameters_of(Toy())
    assert found.trainable == 68_192
    assert any("rotary tables" in text for text in found.assumptions)


def test_a_field_marked_as_buffer():
    found = parameters_of(Marked(jnp.ones((3, 4)), jnp.ones(32)))
    assert found.trainable == 12
    assert [leaf.kind for leaf in found.leaves] == ["parameter", "buffer"]


@pytest.mark.parametrize("transposed", [False, True])
def test_shared_is_one_storage_under_two_names(transposed):
    found = parameters_of(Tied(transposed))
    assert (found.unique, found.named) == (64_000, 128_000)
    assert {leaf.alias for leaf in found.leaves} == {"shared.0.weight"}


def test_one_array_in_two_leaves_is_one_storage_and_equal_values_are_two():
    weight = jnp.ones((1000, 64))
    assert parameters_of({"a": weight, "b": weight}).unique == 64_000
    assert parameters_of({"a": weight, "b": jnp.ones((1000, 64))}).unique == 128_000


def test_an_undeclared_trainable_is_refused_by_name():
    names = ["embed.weight", "linear.weight", "linear.bias"]
    assert parameters_of(Toy(), declared=names, buffers=["inv_freq"]).trainable == 68_160
    with pytest.raises(RejectedError) as error:
        parameters_of(Toy(), declared=names)
    assert [problem.path for problem in error.value.problems] == ["inv_freq"]


def test_every_problem_of_a_declaration_is_reported():
    with pytest.raises(RejectedError) as error:
        parameters_of(
            Toy(), declared={"embed.weight": ("v",), "linear.weight": ("d", "d"), "gone": ("d",)}, buffers=["nothing"]
        )
    assert {p.path for p in error.value.problems} == {"buffers", "embed.weight", "linear.bias", "inv_freq", "gone"}


def test_a_tied_name_is_covered_by_the_declaration_of_its_storage():
    assert parameters_of(Tied(), declared=["shared.0.weight"]).unique == 64_000


def test_axes_come_from_the_declaration():
    found = parameters_of({"w": jnp.ones((2, 3), jnp.bfloat16)}, declared={"w": ("v", "d")})
    (entry,) = found.to_dict()["entries"]
    assert entry["axes"] == [["v", 2], ["d", 3]]
    assert (entry["dtype"], entry["bytes"], entry["scalars"]) == ("bf16", 12, 6)


def test_abstract_modules_count_like_real_ones():
    assert parameters_of(eqx.filter_eval_shape(Toy), buffers=["inv_freq"]).trainable == 68_160


def test_numpy_arrays_and_integers_are_buffers():
    found = parameters_of({"n": np.ones(3, np.float32), "i": jnp.ones(3, jnp.int32), "w": jnp.ones(3)})
    assert found.trainable == 3


def test_frozen_wholes_and_empty_modules():
    found = parameters_of({"act": jax.nn.relu, "none": None})
    assert (found.unique, found.named, found.bytes) == (0, 0, 0)


def test_names_and_bytes_of_types():
    assert dtype_name(jnp.dtype("bfloat16")) == "bf16"
    assert storage_bytes(3, jnp.dtype("int4")) == 2
    assert storage_bytes(3, jnp.dtype("bfloat16")) == 6
    assert storage_bytes(2, jax.random.key(0).dtype) == 16
