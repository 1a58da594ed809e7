"""Tasks that do what a worker must survive; the tests allow this module by name."""

import ctypes
import os
import tempfile
import time

from jaxcost.contracts.errors import reject
from jaxcost.observation.worker import task


@task
def crash(payload):
    ctypes.string_at(0)


@task
def leave(payload):
    os._exit(payload)


@task
def sleep(seconds):
    with open(os.path.join(tempfile.gettempdir(), "left-behind"), "w") as file:
        file.write("x")
    time.sleep(seconds)
    return seconds


@task
def hold_memory(size):
    held = bytearray(size)
    time.sleep(60)
    return len(held)


@task
def print_and_return(payload):
    print("to standard output")
    os.write(1, b'{"value": "forged"}\n')
    return payload


@task
def refuse(payload):
    raise reject("case.batch", payload, "must be positive", "write 1")


@task
def divide(payload):
    return 1 / payload


@task
def return_a_set(payload):
    return {1, 2}


@task
def environment(payload):
    return {"pid": os.getpid(), "temporary": tempfile.gettempdir(), **{name: os.environ.get(name) for name in payload}}


def not_a_task(payload):
    return payload


@task
def compile_toy(payload):
    """Lower the gradient of a small scan over the target's mesh and compile it."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import NamedSharding, PartitionSpec

    from jaxcost.observation.compiling import compile_lowered, make_mesh
    from jaxcost.observation.targets import parse_target

    target = parse_target(payload["target"])
    mesh = make_mesh(target, payload["mesh"])
    axis = mesh.axis_names[0]
    width, rows, layers = payload.get("width", 64), payload.get("rows", 64), 3

    def loss(weights, x):
        for weight in weights:
            a = x @ weight
            x = x + jnp.tanh(a) * jax.nn.sigmoid(a)
        return jnp.square(x).sum()

    whole, split = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec(axis))
    weights = [jax.ShapeDtypeStruct((width, width), jnp.bfloat16, sharding=whole)] * payload.get("layers", layers)
    x = jax.ShapeDtypeStruct((rows, width), jnp.bfloat16, sharding=split)
    lowered = jax.jit(jax.grad(loss)).lower(weights, x)
    result = compile_lowered(lowered, target, **payload.get("options", {})).to_data()
    return {**result, "left": os.listdir(tempfile.gettempdir())}
