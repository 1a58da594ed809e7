from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from jaxcost.observation.hlo import Total, read_graph, read_hlo
from jaxcost.observation.hlo.flops import count_flops
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


# Library routines, kernels, what a compiler may do --------------------------------------------------------------------

M, SQUARE = array(3, 6, 4), array(3, 5, 5)


@pytest.mark.parametrize(
    "fn, arguments",
    [
        (jnp.linalg.cholesky, (SQUARE,)), (jax.lax.linalg.lu, (SQUARE,)), (jnp.linalg.qr, (M,)),
        (jnp.fft.rfft, (M,)), (jnp.fft.irfft, (M,)), (jnp.fft.fft2, (M,)),
        (jax.lax.linalg.householder_product, (array(6, 4), array(4))), (jax.lax.linalg.hessenberg, (SQUARE,)),
        (lambda a, b: jax.lax.linalg.triangular_solve(a, b, left_side=True), (SQUARE, array(3, 5, 2))),
        (lambda a, b: jax.lax.linalg.triangular_solve(a, b), (array(5, 5), array(2, 5))),
        (jnp.linalg.solve, (SQUARE, array(3, 5, 2))),
        (lambda a, b: a @ b, (array(4, 5, dtype="complex64"), array(5, 3, dtype="complex64"))),
    ],
)  # fmt: skip
def test_routines_count_as_the_compiled_ones_do(fn, arguments):
    reading, graph = read_graph(dump(fn, *arguments)[0], platform="cpu")
    found = count(fn, *arguments)
    assert found.total.value == count_flops(reading, graph).total and found.total.value
    assert found.unknowns == ()


@pytest.mark.parametrize("fn", [jnp.linalg.eigh, jnp.linalg.svd])
def test_what_iterates_is_named_and_not_counted(fn):
    found = count(fn, SQUARE)
    assert [row.flops for row in found.opaque] == [None] and "iterates" in found.unknowns[0]


def tiled(condition):
    """x @ w in tiles of 128 over a grid (i, j, k), where `condition` says whether a tile is multiplied."""
    from jax.experimental import pallas as pl

    def kernel(x, w, flag, out):
        @pl.when(condition(pl, flag))
        def _():
            out[...] += x[...] @ w[...]

    def fn(x, w, flag):
        return pl.pallas_call(
            kernel, grid=(4, 4, 2),
            in_specs=[
                pl.BlockSpec((128, 128), lambda i, j, k: (i, k)), pl.BlockSpec((128, 128), lambda i, j, k: (k, j)),
                pl.BlockSpec((1, 1), lambda i, j, k: (0, 0)),
            ],
            out_specs=pl.BlockSpec((128, 128), lambda i, j, k: (i, j)), out_shape=array(512, 512),
        )(x, w, flag)  # fmt: skip

    return fn, (array(512, 256), array(256, 512), array(1, 1, dtype="int32"))


@pytest.mark.parametrize(
    "condition, tiles",
    [
        (lambda pl, flag: pl.program_id(0) >= 0, (32, 32)),
        (lambda pl, flag: pl.program_id(0) >= pl.program_id(1), (20, 20)),  # the lower triangle of 4 x 4, twice
        (lambda pl, flag: pl.program_id(2) == pl.num_programs(2) - 1, (16, 16)),
        (lambda pl, flag: flag[0, 0] > 0, (0, 32)),
    ],
)
def test_a_kernel_counted_by_its_own_program(condition, tiles):
    fn, arguments = tiled(condition)
    once = 2 * 128**3
    found = count(fn, *arguments, open_kernels=True)
    assert found.total == Total(tiles[0] * once, tiles[1] * once) and found.opaque == () and found.unknowns == ()
    (kernel,) = found.kernels
    assert kernel.grid == (4, 4, 2) and kernel.flops == found.total
    assert count(fn, *arguments).rows == ()  # opaque unless opened


def test_a_solver_counts_once_whatever_its_transpose_holds():
    def fn(a, b):
        return jax.lax.custom_linear_solve(lambda v: a @ v, b, lambda _, b: a @ b, lambda _, b: a.T @ (a @ b))

    assert count(fn, array(5, 5), array(5)).total.value == 2 * 25


def test_what_is_dead_repeated_or_the_same_in_every_trip():
    x = array(16, 16)
    (dead, used) = count(jax.grad(lambda w, x: (x @ w).sum()), x, x).rows
    assert dead.dead and not used.dead
    first, again = count(lambda x, w: x @ w + jnp.tanh(x @ w), x, x).rows
    assert not first.repeats and again.repeats
    loop = count(lambda x, w: jax.lax.scan(lambda c, _: (c @ (w @ w), None), x, None, length=6)[0], x, x)
    assert [row.alike for row in loop.rows] == [6, 1]


def test_operations_by_kind():
    found = count(lambda x: jax.lax.scan(lambda c, _: (jnp.exp(c) + c, None), x, None, length=3)[0].sum(), array(4, 8))
    assert found.operations["exp"].value == 3 * 32
    assert found.operations["add"].value == 3 * 32 + 31
