"""A small program compiled with `--xla_dump_to`, in a worker: what a run of somebody's leaves behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from jaxcost.observation.pool import request_for
from jaxcost.observation.targets import Unavailable, availability, parse_target
from jaxcost.observation.worker import task

TASK = "tests.observation.sources.dumping:dump"
ROWS, WIDTH = 64, 256
FLOPS = 2 * ROWS * WIDTH * WIDTH  # of `step`, on one device; `init` has none

TARGETS = [
    "cpu:1",
    pytest.param("h100:1", marks=pytest.mark.cuda),
    pytest.param("tpu-v5e:1x1", marks=pytest.mark.tpu),
]
PROTO = {"xla_dump_hlo_as_proto": True}


def write_dump(pool, target, folder, options):
    """Dump `init` and `step` for a target into a folder; skip where its compiler is not installed."""
    parsed = parse_target(target)
    found = availability(parsed)
    if isinstance(found, Unavailable):
        pytest.skip(f"{found.reason}: {found.remedy}")
    pool.value(request_for(parsed, TASK, {"target": target, "folder": str(folder), "options": options}))
    return Path(folder)


@task
def dump(payload):
    """Compile two programs into `folder`: `step`, which donates its weights, and a smaller `init`."""
    import jax
    import jax.numpy as jnp

    from jaxcost.observation.compiling import make_mesh

    target = parse_target(payload["target"])
    mesh = make_mesh(target, {"data": target.device_count})
    options = {"xla_dump_to": payload["folder"], **payload["options"]}

    def shape(*sizes, axis=None):
        spec = jax.sharding.PartitionSpec(*([axis] if axis else []))
        return jax.ShapeDtypeStruct(sizes, jnp.float32, sharding=jax.sharding.NamedSharding(mesh, spec))

    def init(scale):
        return jnp.ones((WIDTH, WIDTH)) * scale

    def step(weights, x):
        y = jnp.tanh(x @ weights)
        return weights - 0.1 * y.mean(0), jnp.where(jnp.isnan(y), 0, y)

    jax.jit(init).lower(shape()).compile(compiler_options=options)
    rows = shape(ROWS * target.device_count, WIDTH, axis="data")
    jax.jit(step, donate_argnums=0).lower(shape(WIDTH, WIDTH), rows).compile(compiler_options=options)
