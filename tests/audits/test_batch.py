"""Where the batch of a program goes: by hand through each kind of instruction, and in compiled programs."""

import jax
import jax.numpy as jnp
import pytest

from jaxcost.audits.batch import Batch
from jaxcost.observation.hlo import read_graph
from tests.observation.hlo.building import Program, array, dump


def traced(function, *arguments, data=0, size=8):
    _, graph = read_graph(dump(function, *arguments)[0], platform="cpu", general=True)
    module = graph.module
    return module, Batch(module, size, [module.entry.parameters[data]])


RESULTS = {
    "elementwise": (lambda x: jnp.tanh(x) + 1, (8, 16, 8), 1),
    "product": (lambda x: x @ jnp.ones((8, 4)), (8, 16, 8), 1),
    "summed": (lambda x: jnp.einsum("bsd,bse->de", x, jnp.sin(x)), (8, 16, 8), 0),
    "reduced": (lambda x: x.sum(0), (8, 16, 8), 0),
    "merged": (lambda x: jnp.sin(x).reshape(128, 8), (8, 16, 8), 1),
    "merged and split": (lambda x: jnp.sort(x.reshape(128, 8), 1).reshape(8, 16, 8)[:, :3], (8, 16, 8), 1),
    "turned": (lambda x: jnp.sin(x).transpose(2, 0, 1).reshape(8, 128), (8, 16, 8), 1),
    "against itself": (lambda x: x @ x.T, (8, 16), 2),
    "looked up": (lambda x: jnp.ones((32, 8)).at[0, 0].set(x[0, 0])[x.astype(int)], (8, 16), 1),
    "one example": (lambda x: jnp.sin(x[3]), (8, 16), 0),
    "a loop over examples": (lambda x: jax.lax.scan(lambda c, r: (c + r, None), jnp.zeros(16), x)[0], (8, 16), 0),
    "a stack": (lambda x: jax.lax.scan(lambda c, _: (jnp.sin(c), c), x, None, length=4)[1], (8, 16), 1),
    "chosen": (lambda x: jax.lax.cond(x[0, 0] > 0, jnp.sin, jnp.cos, x), (8, 16), 1),
}


@pytest.mark.parametrize("name", RESULTS)
def test_the_batch_in_a_result(name):
    function, dims, times = RESULTS[name]
    module, batch = traced(function, array(*dims))
    assert batch.times(module.entry.root) == times and batch.whole
    assert not batch.undecided(module.entry.root)


def test_a_weights_gradient_holds_no_batch_though_it_has_its_size():
    """Weight [8, 8], data [8, 8]: sizes tell nothing."""

    def step(w, x):
        return jax.grad(lambda w: (jnp.tanh(x @ w) ** 2).sum())(w), jnp.tanh(x @ w)

    module, batch = traced(step, array(8, 8), array(8, 8), data=1)
    root = module.entry.root
    assert [batch.times(root, (n,)) for n in (0, 1)] == [0, 1]


def test_what_is_not_known_is_undecided_and_so_is_what_follows():
    program = Program()
    program.computation("entry")
    x = program.add("parameter", ("f32", 8, 4), op_name="x")
    w = program.add("parameter", ("f32", 8, 4), op_name="w", parameter_number=1)
    called = program.add("custom-call", ("f32", 8, 4), [x], custom_call_target="theirs")
    after = program.add("tanh", ("f32", 8, 4), [called])
    alone = program.add("tanh", ("f32", 8, 4), [w])
    program.add("subtract", ("f32", 8, 4), [after, alone])
    _, graph = read_graph(program.bytes(), platform="cpu", general=True)
    module = graph.module
    batch = Batch(module, 8, [module.entry.parameters[0]])
    undecided = {at: batch.undecided(module.instructions[at]) for at in (x, called, after, alone)}
    assert undecided == {x: False, called: True, after: True, alone: False}
