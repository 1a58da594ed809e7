"""On a mesh the step computes what it computes on one device; the explicit form also divides the work evenly."""

from __future__ import annotations

from functools import cache

import jax
import pytest

from jaxcost.observation.hlo import read_hlo
from jaxcost.observation.jaxpr import count_jaxpr
from jaxcost.reference import make_mesh, make_step
from tests.reference.small import ARCHITECTURES, LITTLE_EFFORT, arguments_of, difference, make_case

MESHES = {
    "fsdp8": {"fsdp": 8},
    "fsdp4tensor2": {"fsdp": 4, "tensor": 2},
    "data2fsdp2tensor2": {"data": 2, "fsdp": 2, "tensor": 2},
    "data2tensor4": {"data": 2, "tensor": 4},  # two K/V heads, each on two ranks
}
# Momentum: its update is proportional to the gradient, where Adam's first is the sign of it.
TRAINING = {
    "llama": {"batch": 8, "seq": 8, "optimizer": "momentum", "remat": "block"},
    "gpt2": {
        "batch": 16, "seq": 8, "optimizer": "momentum", "dropout": True, "accumulate": 2, "remat": "attention",
        "attention": "blockwise", "attention_block": 4,
    },
    "olmo": {"batch": 8, "seq": 8, "optimizer": "momentum", "remat": "block"},
    "neox": {"batch": 8, "seq": 8, "optimizer": "momentum"},
}  # fmt: skip
# Norms of queries and keys over all heads cross the shards of `tensor`; fused storage, of `neox`, has no such axis.
PLANS = [
    ("llama", "fsdp4tensor2", "explicit"),
    ("llama", "data2fsdp2tensor2", "auto"),
    ("llama", "data2tensor4", "explicit"),
    ("gpt2", "data2fsdp2tensor2", "explicit"),
    ("olmo", "data2fsdp2tensor2", "explicit"),
    ("neox", "fsdp8", "explicit"),
]
SERVING = {
    "prefill": {"phase": "prefill", "batch": 8, "seq": 8, "logits": "all"},
    "decode": {"phase": "decode", "batch": 8, "past": 7},
}


@cache
def whole(name, options):
    """Arguments and results of the step on one device."""
    case = make_case(ARCHITECTURES[name], **dict(options))
    step = make_step(case)
    arguments = arguments_of(case, step)
    expected = jax.device_get(jax.jit(step.function, compiler_options=LITTLE_EFFORT)(*arguments))
    return arguments, expected, count_jaxpr(step.trace().jaxpr)


def compiled_on(name, options, mesh, sharding):
    case = make_case(ARCHITECTURES[name], **options, mesh=mesh, sharding=sharding)
    step = make_step(case, make_mesh(case, jax.devices()))
    return step, step.trace().lower().compile(compiler_options=LITTLE_EFFORT)


def results(step, program, arguments):
    return jax.device_get(program(*jax.tree.map(jax.device_put, arguments, step.in_shardings)))


def flops(program):
    """Matmul FLOPs of one device."""
    module = program.runtime_executable().hlo_modules()[0].as_serialized_hlo_module_proto()
    return read_hlo(module, platform="cpu").flops.value


def scoped(count, *names):
    return sum(row.total.value for row in count.rows if row.scope.endswith(names))


@pytest.mark.parametrize(("name", "mesh", "sharding"), PLANS)
def test_training_equals_one_device(name, mesh, sharding):
    arguments, expected, count = whole(name, tuple(TRAINING[name].items()))
    step, program = compiled_on(name, TRAINING[name], MESHES[mesh], sharding)
    # Left alone, the partitioner repeats attention on several devices: why there is an explicit form, and a proof that
    # this equality can fail. Embedding projections have no axis over `tensor`, whose devices all compute them.
    # Ranks that share a K/V head all compute it.
    repeated = scoped(count, "project_in", "project_out") * (MESHES[mesh].get("tensor", 1) - 1)
    if mesh == "data2tensor4":
        repeated += scoped(count, "k_proj", "v_proj")
    everywhere = count.total.value + repeated
    assert (flops(program) * 8 == everywhere) == (sharding == "explicit")
    found = results(step, program, arguments)
    assert difference(found, expected) < 1e-5
    assert difference(results(step, program, (arguments[0], arguments[1][:, ::-1], *arguments[2:])), found) > 1e-4


@pytest.mark.parametrize(
    ("name", "phase", "mesh", "sharding"),
    [("qwen", "decode", "data2fsdp2tensor2", "explicit"), ("gpt2", "prefill", "data2fsdp2tensor2", "explicit"),
     ("olmo", "decode", "data2fsdp2tensor2", "explicit"), ("olmo", "prefill", "data2fsdp2tensor2", "auto"),
     ("qwen", "decode", "data2tensor4", "explicit")],
)  # fmt: skip
def test_serving_equals_one_device(name, phase, mesh, sharding):
    arguments, expected, _ = whole(name, tuple(SERVING[phase].items()))
    step, program = compiled_on(name, SERVING[phase], MESHES[mesh], sharding)
    assert difference(results(step, program, arguments), expected) < 1e-5
