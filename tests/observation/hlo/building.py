"""Modules for the reader's tests: compiled from tiny JAX programs, or made by hand for what XLA rarely writes."""

from __future__ import annotations

import glob
import tempfile
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax

from jaxcost.observation.hlo.schema import Proto, message
from jaxcost.observation.hlo.shapes import ELEMENT_TYPES

NUMBERS = {name: number for number, (name, _) in ELEMENT_TYPES.items()}

# An H100 as the CUDA compiler wants it described; only what it needs to choose its kernels.
H100 = """
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152 shared_memory_per_core: 233472
  threads_per_core_limit: 2048 core_count: 132 fpus_per_core: 128 block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535 block_dim_limit_z: 65535 memory_bandwidth: 3352320000000 l2_cache_size: 52428800
  clock_rate_ghz: 1.98 device_memory_size: 84942979072 shared_memory_per_block_optin: 232448
  cuda_compute_capability { major: 9 minor: 0 feature_extension: ACCELERATED_FEATURES }
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 10 }
runtime_version { major: 12 minor: 8 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""


def dump(fn: Callable[..., Any], *arguments: Any, options: Mapping[str, Any] | None = None) -> tuple[bytes, Any]:
    """(HloProto with buffer assignment, the compiled program) of `jit(fn)`, or of an already jitted function."""
    jitted = fn if hasattr(fn, "lower") else jax.jit(fn)
    with tempfile.TemporaryDirectory() as folder:
        where = {"xla_dump_to": folder, "xla_dump_hlo_as_proto": True, **(options or {})}
        compiled = jitted.lower(*arguments).compile(compiler_options=where)
        (path,) = glob.glob(f"{folder}/*after_optimizations.hlo.pb")
        with open(path, "rb") as file:
            return file.read(), compiled


def cuda_devices(count: int) -> Any:
    """Devices of a GPU that is not there."""
    from jax.experimental import topologies

    return topologies.get_topology_desc(
        platform="cuda", topology_name="gpu", topology=f"1x1x{count}", target_config=H100
    ).devices


def dump_cuda(fn: Callable[..., Any], *arguments: Any, **options: Any) -> bytes:
    """HloProto of `jit(fn)` for one H100."""
    sharding = jax.sharding.SingleDeviceSharding(cuda_devices(1)[0])
    placed = [jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=sharding) for a in arguments]
    return dump(fn, *placed, options=options)[0]


def array(*dims: int, dtype: str = "float32") -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(dims, dtype)


class Program:
    """A module written by hand: `computation()` opens one, `add()` appends an instruction and returns its id."""

    def __init__(self, name: str = "hand") -> None:
        self.proto = message("HloProto")
        self.module = self.proto.hlo_module
        self.module.name = name
        self.ids = iter(range(1, 1 << 30))
        self.open: Proto = None

    def computation(self, name: str, *, fusion: bool = False) -> int:
        self.open = self.module.computations.add(name=name, id=next(self.ids), is_fusion_computation=fusion)
        self.module.entry_computation_id = self.open.id
        return int(self.open.id)

    def add(
        self, opcode: str, shape: Any, operands: Iterable[int] = (), called: Iterable[int] = (), **rest: Any
    ) -> int:
        """`shape`: ('f32', 2, 3), or a list of such for a tuple. The last instruction added is the root."""
        made = self.open.instructions.add(id=next(self.ids), opcode=opcode)
        made.name = rest.pop("name", f"{opcode}.{made.id}")
        set_shape(made.shape, shape)
        made.operand_ids.extend(operands)
        made.called_computation_ids.extend(called)
        made.metadata.op_name = rest.pop("op_name", "")
        for key, value in rest.items():
            if isinstance(value, Mapping):
                fill(getattr(made, key), value)
            elif isinstance(value, list):
                getattr(made, key).extend(value)
            else:
                setattr(made, key, value)
        self.open.root_id = made.id
        return int(made.id)

    def constant(self, value: int, dtype: str = "s32") -> int:
        made = self.add("constant", (dtype,))
        getattr(self.open.instructions[-1].literal, f"{dtype}s").append(value)
        return made

    def bytes(self) -> bytes:
        return bytes(self.proto.SerializeToString())


def set_shape(proto: Proto, shape: Any) -> None:
    if isinstance(shape, list):
        proto.element_type = NUMBERS["tuple"]
        for element in shape:
            set_shape(proto.tuple_shapes.add(), element)
        return
    dtype, *dims = shape
    proto.element_type = NUMBERS[dtype]
    proto.dimensions.extend(dims)
    proto.layout.minor_to_major.extend(reversed(range(len(dims))))


def fill(proto: Proto, values: Mapping[str, Any]) -> None:
    """Set fields of a message from nested dicts and lists."""
    proto.SetInParent()
    for key, value in values.items():
        if isinstance(value, Mapping):
            fill(getattr(proto, key), value)
        elif isinstance(value, list) and value and isinstance(value[0], Mapping):
            for item in value:
                fill(getattr(proto, key).add(), item)
        elif isinstance(value, list):
            getattr(proto, key).extend(value)
        else:
            setattr(proto, key, value)


def loop(
    program: Program, start: int, step: int, bound: int, direction: str, *, per_trip: Callable[[Program], None]
) -> None:
    """Add body, condition and an entry whose loop counts from `start` by `step` while `direction` holds of `bound`."""
    body = program.computation("body")
    state = program.add("parameter", [("s32",)], name="state")
    counter = program.add("get-tuple-element", ("s32",), [state], tuple_index=0)
    per_trip(program)
    moved = program.add("add", ("s32",), [counter, program.constant(step)])
    program.add("tuple", [("s32",)], [moved])
    condition = program.computation("condition")
    state = program.add("parameter", [("s32",)], name="state")
    counter = program.add("get-tuple-element", ("s32",), [state], tuple_index=0)
    program.add("compare", ("pred",), [counter, program.constant(bound)], comparison_direction=direction)
    program.computation("entry")
    first = program.add("tuple", [("s32",)], [program.constant(start)])
    program.add("while", [("s32",)], [first], [body, condition], name="while.1")


def dot(program: Program, m: int, k: int, n: int, op_name: str = "jit(f)/dot_general") -> int:
    left = program.add("broadcast", ("f32", m, k), [program.constant(0)])
    right = program.add("broadcast", ("f32", k, n), [program.constant(0)])
    return program.add(
        "dot", ("f32", m, n), [left, right], op_name=op_name,
        dot_dimension_numbers={"lhs_contracting_dimensions": [1], "rhs_contracting_dimensions": [0]},
    )  # fmt: skip
