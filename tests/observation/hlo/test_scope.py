from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from jaxcost.observation.hlo import read_hlo
from jaxcost.observation.hlo.schema import message
from jaxcost.observation.hlo.scope import Place, names_of, place, scope_parts
from tests.observation.hlo.building import array, dump

KNOWN = frozenset({"group0", "attn", "q_proj", "mlp", "down", "head", "loss", "optimizer"})


@pytest.mark.parametrize(
    "name, expected",
    [
        ("jit(f)/dot_general", ("", "forward")),
        ("jit(step)/jvp(group0)/attn/q_proj/bsd,dhk->bshk/dot_general", ("group0/attn/q_proj", "forward")),
        ("jit(step)/transpose(jvp(group0))/attn/q_proj/dot_general", ("group0/attn/q_proj", "backward")),
        ("jit(step)/transpose(jvp())/while/body/closed_call/checkpoint/rematted_computation/group0/mlp/down/dot_general",
         ("group0/mlp/down", "replay")),
        ("jit(step)/transpose(jvp(group0))/attn/jvp(group0)/attn/checkpoint/rematted_computation/q_proj/dot_general",
         ("group0/attn/q_proj", "replay")),
        ("jit(step)/transpose(jvp(group0))/attn/replay/q_proj/dot_general", ("group0/attn/q_proj", "replay")),
        ("jit(step)/transpose(jvp(group0))/while/body/attn/q_proj/attn/q_proj/checkpoint/bsd,dhe->bshe/dot_general",
         ("group0/attn/q_proj", "backward")),
        # A checkpoint around a group, and one around a component in it: both enter their scope twice.
        ("jit(step)/transpose(jvp(group0))/jvp(group0)/checkpoint/attn/q_proj/attn/q_proj/checkpoint/dot_general",
         ("group0/attn/q_proj", "backward")),
        ("jit(step)/transpose(jvp(group0))/attn/jvp(group0)/attn/jvp(group0)/attn/q_proj/dot_general",
         ("group0/attn/q_proj", "backward")),
        ("jit(step)/optimizer/jit(clip)/mul", ("optimizer", "optimizer")),
        ("jit(step)/jvp(loss)/jit(take_along_axis)/gather", ("loss", "forward")),
        ("jit(step)/vmap(jvp(head))/cond/branch_1_fun/dot_general", ("head", "forward")),
    ],
)  # fmt: skip
def test_places(name, expected):
    assert place(name, KNOWN) == Place(*expected)
    assert place(name, None) == Place(*expected)


def test_foreign_names_are_kept_or_dropped():
    name = "jit(f)/jvp(Encoder)/eqx.nn.Linear/group0/dot_general"
    assert place(name, None).scope == "Encoder/eqx.nn.Linear/group0"
    assert place(name, KNOWN).scope == "group0"


def test_combined_names():
    name = "jit(s)/transpose(jvp())/while/body/group0/(mlp/down/dot_general:attn/q_proj/bsd,dhk->bshk/dot_general)"
    assert len(names_of(name)) == 2
    assert place(name, KNOWN) == Place("group0", "backward", exact=False)
    mixed = "jit(step)/(transpose(jvp(head))/dot_general:jvp(loss)/reduce_sum)"
    assert place(mixed, KNOWN) == Place("", "mixed", exact=False)


def test_scopes_as_names_or_paths():
    assert scope_parts({"group0/attn/q_proj", "head"}) == {"group0", "attn", "q_proj", "head"}
    assert scope_parts(None) is None


def test_a_custom_derivative_and_a_checkpoint_come_out_right():
    @jax.custom_vjp
    def product(x, w):
        with jax.named_scope("scores"):
            return x @ w

    def backward(saved, g):
        x, w = saved
        with jax.named_scope("replay"), jax.named_scope("scores"):
            again = jnp.sin(x) @ w
        with jax.named_scope("scores"):
            return (g * again) @ w.T, x.T @ g

    product.defvjp(lambda x, w: (product(x, w), (x, w)), backward)

    def loss(w, x):
        with jax.named_scope("attn"):
            x = jnp.tanh(product(x, w))
            x = jax.checkpoint(lambda x: jnp.tanh(x @ w))(x)
        return jnp.sum(x)

    data, _ = dump(jax.grad(loss, (0, 1)), array(16, 16), array(4, 16))
    once = 2 * 4 * 16 * 16
    found = {key: total.value for key, total in read_hlo(data, platform="cpu").contractions.by_place.items()}
    assert found == {
        ("attn/scores", "forward"): once,
        ("attn/scores", "replay"): once,
        ("attn/scores", "backward"): 2 * once,
        ("attn", "replay"): once,  # its forward is dead: only the gradient is asked for
        ("attn", "backward"): 2 * once,
    }


def test_a_dot_that_lost_its_name_is_placed_by_its_neighbours():
    # With one row per batch XLA's CPU backend rewrites these products and drops their names.
    def attention(x, wq, wk, wo):
        with jax.named_scope("group0"), jax.named_scope("attn"):
            with jax.named_scope("q_proj"):
                q = jnp.einsum("bsd,dhk->bshk", x, wq)
            with jax.named_scope("k_proj"):
                k = jnp.einsum("bsd,dhk->bshk", x, wk)
            with jax.named_scope("scores"):
                s = jnp.einsum("bqhk,bshk->bhqs", q, k)
            with jax.named_scope("softmax"):
                p = jax.nn.softmax(s)
            with jax.named_scope("values"):
                return jnp.einsum("bhqs,bshk->bqhk", p, k)

    x, w = array(1, 64, 32), array(32, 2, 16)
    data, _ = dump(attention, x, w, w, w)
    rows = read_hlo(data, platform="cpu").contractions.rows
    assert all(row.scope.startswith("group0/attn") for row in rows)
    lost = [row for row in rows if not row.op_name]
    assert lost and not any(row.scope_exact for row in lost), rows


def test_a_dot_that_lost_its_name_is_placed_by_its_weight():
    def loss(params, x):
        with jax.named_scope("group0"):
            with jax.named_scope("norm"):
                x = jnp.tanh(x)
            with jax.named_scope("mlp"), jax.named_scope("down"):
                return x @ params["mlp"]["down"]

    data, _ = dump(loss, {"mlp": {"down": array(16, 32)}}, array(8, 16))
    proto = message("HloProto")
    proto.ParseFromString(data)
    for computation in proto.hlo_module.computations:
        for at in computation.instructions:
            if at.metadata.op_name.endswith("down/dot_general"):
                at.metadata.op_name = ""
    data = proto.SerializeToString()
    (row,) = read_hlo(data, platform="cpu", scopes=frozenset({"group0", "norm", "mlp", "down"})).contractions.rows
    assert (row.op_name, row.scope, row.scope_exact) == ("", "group0/mlp/down", True)
    (row,) = read_hlo(data, platform="cpu", scopes=frozenset({"group0", "norm"})).contractions.rows
    assert (row.scope, row.scope_exact) == ("group0/norm", False)


@pytest.mark.parametrize("call", ["closed_call", "eval_jaxpr", "program_order"])
def test_what_jax_calls_the_body_of_a_loop_is_no_scope(call):
    """`closed_call` until jax 0.10, `eval_jaxpr` from 0.11 on."""
    assert place(f"jit(f)/group0/while/body/{call}/attn/dot_general").scope == "group0/attn"
