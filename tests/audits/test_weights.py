"""FLOPs by the argument that a product multiplies: layers that no scope names, gradients, what is by none."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

import jaxcost
from jaxcost.audits.tree import children_of
from jaxcost.audits.weights import BETWEEN, MOST_WORDS, NO_ARGUMENT, words_of


def array(*dims):
    return jax.ShapeDtypeStruct(dims, "float32")


STATE = {"blocks": [{"up": array(16, 64), "down": array(64, 16)} for _ in range(2)], "head": array(16, 32)}
STACKED = {"up": array(3, 16, 64), "down": array(3, 64, 16)}
UP = 2 * 8 * 16 * 64
HEAD = 2 * 8 * 16 * 32


def loss(state, x):
    for block in state["blocks"]:
        x = jnp.tanh(x @ block["up"]) @ block["down"]
    return jnp.sum(jnp.tanh(x @ state["head"]))


def step(state, x):
    return jax.tree.map(lambda w, g: w - 0.1 * g, state, jax.grad(loss)(state, x))


def scanned(state, x):
    def layer(x, w):
        return jnp.tanh(x @ w["up"]) @ w["down"], None

    return jnp.sum(jax.lax.scan(layer, x, state)[0])


def scanned_step(state, x):
    return jax.tree.map(lambda w, g: w - 0.1 * g, state, jax.grad(scanned)(state, x))


def scores(q, k, w):
    return jnp.tanh(jnp.tanh(q) @ jnp.tanh(k).T) + q @ k.T + q @ w


def tree_of(data):
    """Path -> FLOPs of each leaf; every sum holds."""
    nodes = data["attribution"]["weights"]
    names = []
    for number, node in enumerate(nodes):
        names.append(() if node["parent"] is None else (*names[node["parent"]], node["name"]))
        below = sum(nodes[i]["total"].get("flops", 0) for i in children_of(nodes)[number])
        assert node["total"].get("flops", 0) == below + node["own"].get("flops", 0)
    assert nodes[0]["total"]["flops"] == data["flops"]["total"]
    return {".".join(name): node["own"]["flops"] for name, node in zip(names, nodes, strict=True) if node["own"]}


CUDA = pytest.param("h100", marks=pytest.mark.cuda)


@pytest.mark.parametrize("target", ["cpu", CUDA])
def test_layers_without_scopes(pool, target):
    found = tree_of(jaxcost.audit(loss, STATE, array(8, 16), target=target, pool=pool).data)
    blocks = {f"state.blocks.{i}.{name}": UP for i in range(2) for name in ("up", "down")}
    assert found == {**blocks, "state.head": HEAD}


@pytest.mark.parametrize("target", ["cpu", CUDA])
def test_a_gradient_is_that_of_the_weight_it_updates(pool, target):
    """Forward, dX and dW; the first layer needs no dX."""
    data = jaxcost.audit(step, STATE, array(8, 16), target=target, pool=pool).data
    found = tree_of(data)
    assert found == {
        "state.blocks.0.up": 2 * UP, "state.blocks.0.down": 3 * UP, "state.blocks.1.up": 3 * UP,
        "state.blocks.1.down": 3 * UP, "state.head": 3 * HEAD,
    }  # fmt: skip
    assert {row["weight"] for row in data["flops"]["rows"]} == {
        "state['head']", *(f"state['blocks'][{i}]['{name}']" for i in range(2) for name in ("up", "down"))
    }  # fmt: skip


def test_a_gradient_that_is_only_returned_is_by_no_argument(pool):
    found = tree_of(jaxcost.audit(jax.grad(loss), STATE, array(8, 16), target="cpu", pool=pool).data)
    assert found[NO_ARGUMENT] == 3 * UP + HEAD and found["x"] == UP and found["state.blocks.1.up"] == 2 * UP


def test_stacked_layers_keep_the_names_of_their_stack(pool):
    found = tree_of(jaxcost.audit(scanned_step, STACKED, array(8, 16), target="cpu", pool=pool).data)
    assert found == {"state.up": 3 * 3 * UP, "state.down": 3 * 3 * UP}


def test_products_of_no_weight_and_of_two_arguments(pool):
    data = jaxcost.audit(scores, array(8, 16), array(24, 16), array(16, 24), target="cpu", pool=pool).data
    found = tree_of(data)
    product = 2 * 8 * 16 * 24
    assert found.pop(NO_ARGUMENT) == product
    assert sum(found.values()) == 2 * product and all(name.startswith(BETWEEN) for name in found)


def test_words_of_a_path():
    assert words_of("state[0]['blocks'][3]['up']['kernel'].value") == (
        "state", "0", "blocks", "3", "up", "kernel", "value",
    )  # fmt: skip
    assert len(words_of(".".join(map(str, range(99))))) == MOST_WORDS
    assert words_of("[]") == ("[]",)
