"""Small programs for the tests of audits, and the task that compiles one in a worker.

`compile_program` is called by name through a pool; `program_of` turns its reply into a `Program`.
"""

from __future__ import annotations

import pytest

from jaxcost.observation.pool import request_for
from jaxcost.observation.sources import Lowered, Program
from jaxcost.observation.targets import Unavailable, availability, parse_target
from jaxcost.observation.worker import task

TASK = "tests.audits.compiled_programs:compile_program"


def scan_step(kind, rows=8, width=64, depth=12):
    """`tanh(x @ w)` over the layers of `ws`: the sum, its gradient, or that of a rematerialised body."""
    import jax
    import jax.numpy as jnp

    def body(x, w):
        return jnp.tanh(x @ w), None

    def loss(x, ws):
        layer = jax.checkpoint(body) if kind == "remat" else body
        if kind == "unrolled":
            for w in ws:
                x, _ = layer(x, w)
            return x.sum()
        return jax.lax.scan(layer, x, ws)[0].sum()

    fn = loss if kind in ("forward", "unrolled") else jax.grad(loss, argnums=(0, 1))
    return fn, (array(rows, width), array(depth, width, width)), {}


def dense(n, k=73, m=256, dtype="float32"):
    return (lambda x, w, b: x @ w + b), (array(n, k, dtype=dtype), array(k, m, dtype=dtype), array(m, dtype=dtype)), {}


def runtime_bound():
    import jax

    return (lambda x, n: jax.lax.fori_loop(0, n, lambda _, y: y @ x, x)), (array(32, 32), array(dtype="int32")), {}


def branches():
    import jax
    import jax.numpy as jnp

    def fn(x, chosen):
        return jax.lax.cond(chosen > 0, lambda y: y @ y @ y, jnp.exp, x)

    return fn, (array(16, 16), array(dtype="int32")), {}


def donated():
    return (lambda p, g: p - 0.1 * g), (array(1024, 1024), array(1024, 1024)), {"donate_argnums": 0}


def solve():
    import jax.numpy as jnp

    return (lambda a: jnp.linalg.cholesky(a @ a.T)), (array(16, 16),), {}


def pallas(estimate=True):
    """A Mosaic product of 512 x 512 x 512 in four steps of 128 rows."""
    import jax
    from jax.experimental import pallas as pl

    def kernel(x, w, out):
        out[...] = jax.numpy.dot(x[...], w[...], preferred_element_type="float32")

    cost = pl.CostEstimate(flops=2 * 512**3, transcendentals=0, bytes_accessed=3 * 4 * 512**2) if estimate else None
    call = pl.pallas_call(
        kernel, grid=(4,), out_shape=jax.ShapeDtypeStruct((512, 512), "float32"), cost_estimate=cost,
        in_specs=[pl.BlockSpec((128, 512), lambda i: (i, 0)), pl.BlockSpec((512, 512), lambda i: (0, 0))],
        out_specs=pl.BlockSpec((128, 512), lambda i: (i, 0)),
    )  # fmt: skip
    return call, (array(512, 512), array(512, 512)), {}


def product_over(x_spec, w_spec):
    """A product whose contracted dimension is sharded; the result is wanted whole (mesh axes a, b)."""

    def make(mesh):
        out = sharding(mesh)
        x, w = array(64, 512, sharding=sharding(mesh, *x_spec)), array(512, 128, sharding=sharding(mesh, *w_spec))
        return (lambda x, w: x @ w), (x, w), {"out_shardings": out}

    return make


def fsdp_layers(remat):
    """Six layers whose weights are gathered where they are used, and the gradient of the weights."""

    def make(mesh):
        import jax
        import jax.numpy as jnp

        def layer(x, w):
            whole = jax.lax.with_sharding_constraint(w, sharding(mesh))
            return jnp.tanh(x @ whole), None

        def loss(ws, x):
            return jax.lax.scan(jax.checkpoint(layer) if remat else layer, x, ws)[0].sum()

        ws, x = array(6, 256, 256, sharding=sharding(mesh, None, "d")), array(64, 256, sharding=sharding(mesh, "d"))
        return jax.grad(loss), (ws, x), {"out_shardings": sharding(mesh, None, "d")}

    return make


def manual(body, dims, dtype="float32", spec=None, out=None):
    """`shard_map` of a body over every axis of the mesh; the first dimension is cut along all of them."""

    def make(mesh):
        import jax
        from jax.sharding import PartitionSpec

        names = tuple(mesh.axis_names)
        cut = PartitionSpec(names)
        fn = jax.shard_map(
            lambda x: body(x, names), mesh=mesh, in_specs=spec or cut, out_specs=out if out is not None else cut,
            check_vma=False,
        )  # fmt: skip
        return fn, (array(*dims, dtype=dtype, sharding=sharding(mesh, *(spec or cut))),), {}

    return make


def psum(x, names):
    import jax

    return jax.lax.psum(x, names)


def psum_scatter(x, names):
    import jax

    return jax.lax.psum_scatter(x, names, scatter_dimension=1, tiled=True)


def all_to_all(x, names):
    import jax

    return jax.lax.all_to_all(x, names, split_axis=1, concat_axis=1, tiled=True)


def shift(x, names):
    import jax

    size = jax.lax.axis_size(names[0])
    return jax.lax.ppermute(x, names[0], [(i, (i + 1) % size) for i in range(size)])


def subgroups(x, names):
    import jax

    return jax.lax.psum(x, names[0], axis_index_groups=[[0, 1, 2, 3], [4, 5, 6, 7]])


def gather(x, names):
    import jax

    return jax.lax.all_gather(x, names, axis=1, tiled=True)


def two_gathers(x, names):
    import jax

    return jax.lax.all_gather(x, names, axis=1, tiled=True), jax.lax.all_gather(x * 2, names, axis=1, tiled=True)


def maybe(x, names):
    import jax

    return jax.lax.cond(x[0, 0] > 0, lambda y: jax.lax.psum(y, names), lambda y: y * 2, x)


def until(x, names):
    import jax

    return jax.lax.while_loop(lambda y: y[0, 0] < 9.0, lambda y: jax.lax.psum(y, names), x)


def ragged(x, names):
    import jax
    import jax.numpy as jnp

    size = jax.lax.axis_size(names[0])
    ones = jnp.arange(size, dtype=jnp.int32)
    each = jnp.ones_like(ones)
    return jax.lax.ragged_all_to_all(x, jnp.zeros_like(x), ones, each, ones, each, axis_name=names[0])


def broadcast(x, names):
    import jax

    return jax.lax.pbroadcast(x, names[0], 0)


PROGRAMS = {
    "forward": lambda mesh: scan_step("forward"),
    "unrolled": lambda mesh: scan_step("unrolled"),
    "grad": lambda mesh: scan_step("grad"),
    "remat": lambda mesh: scan_step("remat"),
    "wide": lambda mesh: scan_step("forward", 256, 512),
    "dense1": lambda mesh: dense(1),
    "dense2": lambda mesh: dense(2),
    "dense9": lambda mesh: dense(9),
    "square": lambda mesh: dense(2048, 2048, 2048, "bfloat16"),
    "runtime": lambda mesh: runtime_bound(),
    "branches": lambda mesh: branches(),
    "donated": lambda mesh: donated(),
    "solve": lambda mesh: solve(),
    "pallas": lambda mesh: pallas(),
    "pallas_silent": lambda mesh: pallas(False),
    "over_a": product_over((None, "a"), ("a",)),
    "over_b": product_over((None, "b"), ("b",)),
    "over_ba": product_over(("b", "a"), ("a",)),
    "fsdp": fsdp_layers(False),
    "fsdp_remat": fsdp_layers(True),
    "psum_bf16": manual(psum, (8192,), "bfloat16"),
    "psum_f32": manual(psum, (8192,)),
    "scatter": manual(psum_scatter, (64, 64)),
    "scatter_bf16": manual(psum_scatter, (64, 64), "bfloat16"),
    "exchange": manual(all_to_all, (64, 64)),
    "shift": manual(shift, (64, 64)),
    "subgroups": manual(subgroups, (64, 64)),
    "gather": manual(gather, (64, 64)),
    "maybe": manual(maybe, (64, 64)),
    "until": manual(until, (64, 64)),
    "ragged": manual(ragged, (64, 64)),
    "broadcast": manual(broadcast, (64, 64)),
}


def array(*dims, dtype="float32", **more):
    import jax

    return jax.ShapeDtypeStruct(dims, dtype, **more)


def sharding(mesh, *spec):
    from jax.sharding import NamedSharding, PartitionSpec

    return NamedSharding(mesh, PartitionSpec(*spec))


@task
def compile_program(payload):
    """Lower a program of `PROGRAMS` over the target's mesh and compile it; the reply holds a Program's data."""
    import jax

    from jaxcost.observation.compiling import Compiled, compile_lowered, make_mesh

    target = parse_target(payload["target"])
    mesh = make_mesh(target, payload["mesh"])
    fn, arguments, options = PROGRAMS[payload["program"]](mesh)
    if not payload["mesh"]:
        single = jax.sharding.SingleDeviceSharding(mesh.devices.flat[0])
        arguments = tuple(jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=single) for a in arguments)
    lowered = jax.jit(fn, **options).lower(*arguments)
    made = compile_lowered(lowered, target, dump=payload.get("dump", True))
    described = Lowered(
        payload["program"], target.family, target.device_count, (), (), (), dict(payload["mesh"]), None
    )  # fmt: skip
    compiled = isinstance(made, Compiled)
    return Program(
        "function", payload["program"], made.modules.optimised, target.family, target, described,
        memory_analysis=made.memory_analysis if compiled else None,
        memory_analysis_reason=made.memory_analysis_reason if compiled else "the compiler refused the program",
        cost_analysis=made.cost_analysis if compiled else None,
        cost_analysis_reason=made.cost_analysis_reason if compiled else "the compiler refused the program",
        refused="" if compiled else made.text, environment=made.environment,
    ).to_data()  # fmt: skip


@task
def read_text(payload):
    """The HloProto of a module printed as text."""
    from jaxcost.observation import private

    return private.proto_of_text(payload["text"])


def compile_for(pool, program, target, mesh=None, **more):
    """Return the `Program`; skips where the target's compiler is missing."""
    parsed = parse_target(target)
    found = availability(parsed)
    if isinstance(found, Unavailable):
        pytest.skip(f"{found.reason}: {found.remedy}")
    payload = {"program": program, "target": target, "mesh": mesh or {}, **more}
    return Program.from_data(pool.value(request_for(parsed, TASK, payload)))
