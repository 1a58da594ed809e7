from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from jaxcost.observation.hlo import Total, read_hlo
from jaxcost.observation.jaxpr import count_jaxpr
from tests.observation.hlo.building import array, dump


def model(ws, x, *, checkpoint=False):
    def layer(c, w):
        with jax.named_scope("group0"):
            with jax.named_scope("up"):
                h = jnp.tanh(c @ w)
            with jax.named_scope("down"):
                return h @ w.T, None

    body = jax.checkpoint(layer) if checkpoint else layer
    with jax.named_scope("head"):
        return jnp.sum(jax.lax.scan(body, x, ws)[0] @ ws[0])


W, X = array(5, 32, 64), array(8, 32)
ONCE = 2 * 8 * 32 * 64


def count(fn, *arguments, **options):
    return count_jaxpr(jax.make_jaxpr(fn)(*arguments), **options)


def test_scopes_phases_and_trips():
    found = count(jax.grad(lambda w, x: model(w, x, checkpoint=True)), W, X, scopes=frozenset({"group0", "up", "down"}))
    places = {key: total.value for key, total in found.by_place.items()}
    assert places[("group0/up", "forward")] == places[("group0/up", "replay")] == 5 * ONCE
    assert places[("group0/up", "backward")] == places[("group0/down", "backward")] == 10 * ONCE
    assert ("group0/down", "replay") not in places  # the block's last product is dead in its replay
    assert found.unknowns == ()


@pytest.mark.parametrize("fn", [model, jax.grad(model), jax.grad(lambda w, x: model(w, x, checkpoint=True), (0, 1))])
def test_the_jaxpr_and_the_compiled_program_agree(fn):
    found = count(jax.value_and_grad(model) if fn is model else fn, W, X)
    compiled = read_hlo(dump(jax.value_and_grad(model) if fn is model else fn, W, X)[0], platform="cpu")
    assert found.by_phase["replay" if "replay" in found.by_phase else "backward"].value
    assert abs(found.total.value - compiled.flops.value) <= ONCE  # XLA drops the dead head product of a bare gradient


def test_loops_and_branches():
    def dynamic(n, x, w):
        return jax.lax.fori_loop(0, n, lambda i, c: c @ w, x)

    found = count(dynamic, array(dtype="int32"), X, array(32, 32))
    assert found.total.value is None and "no static trip count" in found.unknowns[0]

    def branch(p, x, w):
        return jax.lax.cond(p, lambda x: x @ w @ w, lambda x: x @ w, x)

    once = 2 * 8 * 32 * 32
    found = count(branch, array(dtype="bool"), X, array(32, 32))
    assert found.total == Total(once, 2 * once)
    assert sorted(r.executions.maximum for r in found.rows) == [1, 1, 1]


def test_convolution_ragged_and_shard_map():
    def conv(x, w):
        return jax.lax.conv_general_dilated(x, w, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    x, w = array(2, 9, 9, 4), array(3, 3, 4, 8)
    program = jax.jit(conv).lower(x, w).compiler_ir("hlo").as_serialized_hlo_module_proto()
    assert count(conv, x, w).total == read_hlo(program, platform="cpu").flops
    ragged = count(jax.lax.ragged_dot, array(64, 32), array(4, 32, 16), array(4, dtype="int32"))
    assert ragged.total.value == 2 * 64 * 32 * 16
    mesh = Mesh(np.array(jax.devices()[:4]), ("i",))
    sharded = jax.shard_map(lambda x, w: x @ w, mesh=mesh, in_specs=(P("i"), P()), out_specs=P("i"))
    assert count(sharded, array(16, 32), array(32, 8)).total.value == 2 * 16 * 32 * 8


def test_a_kernel_is_opaque_not_zero():
    from jax.experimental import pallas as pl

    def kernel(x, w, out):
        out[...] = x[...] @ w[...]

    def fn(x, w):
        cost = pl.CostEstimate(flops=1024, transcendentals=0, bytes_accessed=0)
        return pl.pallas_call(kernel, out_shape=array(8, 8), cost_estimate=cost)(x, w)

    found = count(fn, array(8, 8), array(8, 8))
    assert found.rows == () and found.total.value == 0
    assert [(r.flops, r.declared) for r in found.opaque] == [(None, 1024)]
    assert "not counted" in found.unknowns[0]


def test_only_jaxprs():
    with pytest.raises(TypeError, match="jaxpr"):
        count_jaxpr(3)
