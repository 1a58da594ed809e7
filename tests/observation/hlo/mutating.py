"""Damaged modules by the thousand: seeded, so that a failure is found again by its number.

Half know the wire format only (bits, cuts, repeats), half know the schema and break one meaning at a time: ids, cycles,
sizes, enums, depth, loops, groups, traces, configurations.
"""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from jaxcost.observation.hlo.opcodes import KNOWN_OPCODES
from jaxcost.observation.hlo.schema import Proto, message
from tests.observation.hlo.building import Program, dot, loop

EXTREME = (0, 1, -1, 2, 3, 7, 127, 255, 2**16, 2**31 - 1, -(2**31), 2**31, 2**40, 2**62, 2**63 - 1, -(2**63))
_INT = {"int32": 32, "uint32": 32, "int64": 64, "uint64": 64}


class Mutant(NamedTuple):
    """One input: its number, what was done, how it is given, and its bytes."""

    number: int
    kind: str
    form: str
    platform: str
    data: bytes


def mutants(seeds: Sequence[bytes], texts: Sequence[str], numbers: range) -> Iterator[Mutant]:
    """Inputs number `numbers`; each depends on its number alone. One in ten is packed, two in ten are text."""
    for number in numbers:
        rng = random.Random(number)
        platform = rng.choice(("cpu", "cuda", "tpu"))
        if number % 10 in (3, 7) and texts:
            kind = rng.choice(TEXT)
            yield Mutant(number, kind.__name__, "text", platform, kind(rng, rng.choice(texts)))
            continue
        seed = rng.choice(seeds)
        if rng.random() < 0.45:
            kind = rng.choice(BYTES)
            name, data = kind.__name__, kind(rng, seed)
        else:
            kind = rng.choice(MEANING) if rng.random() < 0.97 else rng.choice(HEAVY)
            proto = message("HloProto", seed)
            made = kind(rng, proto)
            name, data = kind.__name__, (proto if made is None else made).SerializeToString()
        if number % 10 == 5:
            packed = gzip.compress(data, 1)
            data = rng.choice((packed, packed, flip(rng, packed), packed[: rng.randrange(len(packed))], packed * 2))
            yield Mutant(number, name, "gzip", platform, data)
        else:
            yield Mutant(number, name, "proto", platform, data)


# Bytes --------------------------------------------------------------------------------------------------------------


def flip(rng: random.Random, data: bytes) -> bytes:
    made = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4, 16))):
        made[rng.randrange(len(made))] ^= 1 << rng.randrange(8)
    return bytes(made)


def cut(rng: random.Random, data: bytes) -> bytes:
    return data[: rng.randrange(len(data))]


def remove(rng: random.Random, data: bytes) -> bytes:
    at = rng.randrange(len(data))
    return data[:at] + data[at + rng.choice((1, 2, 8, 200)) :]


def repeat(rng: random.Random, data: bytes) -> bytes:
    at, size = rng.randrange(len(data)), rng.choice((1, 2, 8, 200, 5000))
    return data[: at + size] + data[at:]


def noise(rng: random.Random, data: bytes) -> bytes:
    at = rng.randrange(len(data))
    return data[:at] + rng.randbytes(rng.choice((1, 2, 8, 64))) + data[at + rng.choice((0, 1, 8, 64)) :]


def twice(rng: random.Random, data: bytes) -> bytes:
    return data + data


BYTES = (flip, flip, flip, cut, remove, repeat, noise, twice)


# Meanings -----------------------------------------------------------------------------------------------------------


def instructions(proto: Proto) -> list[Proto]:
    return [i for c in proto.hlo_module.computations for i in c.instructions]


def messages(proto: Proto) -> list[Proto]:
    """Every message inside `proto`."""
    found, stack = [], [proto]
    while stack:
        here = stack.pop()
        found.append(here)
        for field, value in here.ListFields():
            if field.message_type is not None:
                stack += value if field.is_repeated else (value,)
    return found


def any_field(rng: random.Random, proto: Proto) -> None:
    """Any field of any message gets another value, is emptied, or is doubled."""
    everything = messages(proto)
    for _ in range(rng.choice((1, 1, 2, 5))):
        here = rng.choice(everything)
        present = [field for field, _ in here.ListFields()]
        field = rng.choice(present if present and rng.random() < 0.7 else here.DESCRIPTOR.fields)
        kind = rng.random()
        if kind < 0.15:
            here.ClearField(field.name)
        elif field.message_type is not None:
            if field.is_repeated:
                listed = getattr(here, field.name)
                if len(listed):
                    listed.add().CopyFrom(rng.choice(list(listed)))
                else:
                    listed.add()
            else:
                getattr(here, field.name).SetInParent()
        else:
            put(rng, here, field)


def put(rng: random.Random, here: Proto, field: Any) -> None:
    value = extreme(rng, field)
    if not field.is_repeated:
        setattr(here, field.name, value)
        return
    listed = getattr(here, field.name)
    if len(listed) and rng.random() < 0.7:
        listed[rng.randrange(len(listed))] = value
    else:
        listed.extend([value] * rng.choice((1, 1, 3, 40)))


def extreme(rng: random.Random, field: Any) -> Any:
    name = {field.TYPE_INT32: "int32", field.TYPE_UINT32: "uint32", field.TYPE_INT64: "int64",
            field.TYPE_UINT64: "uint64"}.get(field.type)  # fmt: skip
    if name is not None:
        signed = name.startswith("int")
        low, high = (-(2 ** (_INT[name] - 1)), 2 ** (_INT[name] - 1)) if signed else (0, 2 ** _INT[name])
        return rng.choice([v for v in EXTREME if low <= v < high])
    if field.type == field.TYPE_BOOL:
        return rng.random() < 0.5
    if field.type in (field.TYPE_FLOAT, field.TYPE_DOUBLE):
        return rng.choice((0.0, -1.0, float("inf"), float("nan"), 1e30))
    text = rng.choice(("", "x", "%", "a" * 5000, "\x00", "é" * 9, "while", "region_0.1", "jit(f)/" * 300, "<b>&\"'"))
    return text.encode() if field.type == field.TYPE_BYTES else text


def swap_ids(rng: random.Random, proto: Proto) -> None:
    a, b = rng.choice(instructions(proto)), rng.choice(instructions(proto))
    a.id, b.id = b.id, a.id


def same_id(rng: random.Random, proto: Proto) -> None:
    rng.choice(instructions(proto)).id = rng.choice(instructions(proto)).id


def no_id(rng: random.Random, proto: Proto) -> None:
    rng.choice(instructions(proto)).ClearField(rng.choice(("id", "name", "opcode", "shape", "metadata")))


def rewire(rng: random.Random, proto: Proto) -> None:
    """Operands from anywhere: later ones, its own, other computations' or none."""
    at = rng.choice([i for i in instructions(proto) if i.operand_ids] or instructions(proto))
    every = [i.id for i in instructions(proto)]
    at.operand_ids[:] = [rng.choice((*rng.sample(every, min(3, len(every))), at.id, -1, 2**62))
                         for _ in range(rng.choice((0, 1, len(at.operand_ids), 50)))]  # fmt: skip


def rewire_within(rng: random.Random, proto: Proto) -> None:
    """Operands of the wrong shapes, in the right order."""
    computation = rng.choice(proto.hlo_module.computations)
    for number, at in enumerate(computation.instructions):
        if number and at.operand_ids and rng.random() < 0.3:
            before = [i.id for i in computation.instructions[:number]]
            at.operand_ids[:] = [rng.choice(before) for _ in at.operand_ids]


def call_cycle(rng: random.Random, proto: Proto) -> None:
    calling = [i for i in instructions(proto) if i.called_computation_ids] or instructions(proto)
    at = rng.choice(calling)
    at.called_computation_ids[:] = [
        rng.choice(proto.hlo_module.computations).id for _ in range(rng.choice((0, 1, 2, 9)))
    ]


def shuffled(rng: random.Random, proto: Proto) -> None:
    computations = proto.hlo_module.computations
    listed = [message("HloComputationProto", c.SerializeToString()) for c in computations]
    rng.shuffle(listed)
    del computations[:]
    computations.extend(listed)


def another_opcode(rng: random.Random, proto: Proto) -> None:
    for _ in range(rng.choice((1, 1, 3, 20))):
        rng.choice(instructions(proto)).opcode = rng.choice((*sorted(KNOWN_OPCODES), "", "frobnicate"))


def another_shape(rng: random.Random, proto: Proto) -> None:
    every = instructions(proto)
    for _ in range(rng.choice((1, 1, 3, 20))):
        rng.choice(every).shape.CopyFrom(rng.choice(every).shape)


def absurd_dims(rng: random.Random, proto: Proto) -> None:
    shapes = [m for m in messages(proto) if m.DESCRIPTOR.name == "ShapeProto" and m.element_type != 13]
    shape = rng.choice(shapes)
    shape.dimensions[:] = [rng.choice(EXTREME) for _ in range(rng.choice((1, 2, 4, 8, 300)))]
    shape.layout.minor_to_major[:] = rng.choice((list(range(len(shape.dimensions))), [], [2**62], [0, 0]))


def absurd_layout(rng: random.Random, proto: Proto) -> None:
    for shape in rng.sample(
        shapes := [m for m in messages(proto) if m.DESCRIPTOR.name == "LayoutProto"], min(3, len(shapes))
    ):
        tile = shape.tiles.add()
        tile.dimensions.extend(rng.choice(EXTREME) for _ in range(rng.choice((1, 2, 60))))
        shape.element_size_in_bits = rng.choice(EXTREME)
        shape.tail_padding_alignment_in_elements = rng.choice(EXTREME)


def nested_shape(rng: random.Random, proto: Proto) -> Proto:
    """Tuples in tuples: too deep for the reader, or for protobuf itself."""
    shape = rng.choice(instructions(proto)).shape
    for _ in range(rng.choice((10, 17, 90))):
        inner = message("ShapeProto", shape.SerializeToString())
        shape.Clear()
        shape.element_type = 13
        shape.tuple_shapes.add().CopyFrom(inner)
    return proto


def wide_tuple(rng: random.Random, proto: Proto) -> None:
    shape = rng.choice(instructions(proto)).shape
    inner = message("ShapeProto", shape.SerializeToString())
    shape.Clear()
    shape.element_type = 13
    for _ in range(20_000):
        shape.tuple_shapes.add().CopyFrom(inner)


def far_parameter(rng: random.Random, proto: Proto) -> None:
    at = rng.choice([i for i in instructions(proto) if i.opcode == "parameter"] or instructions(proto))
    at.parameter_number = rng.choice((2**40, 1, 2**31, -1, -(2**63)))


def configuration(rng: random.Random, proto: Proto) -> None:
    """Backend configurations: deep, long, of the wrong types, absurd trip counts."""
    digits = "9" * 10**6
    made = rng.choice((
        b'{"a":' * 100_000 + b"1" + b"}" * 100_000, b"[" * 100_000,
        b'{"known_trip_count":{"n":' + digits.encode() + b"}}",
        b'{"known_trip_count":{"n":"' + digits.encode() + b'"}}', b'{"known_trip_count":[]}',
        b'{"known_trip_count":{}}',
        b'{"known_trip_count":{"n":"-5"}}', b'{"known_trip_count":{"n":null}}', b'{"known_trip_count":{"n":1e999}}',
        b'{"known_trip_count":{"n":"9223372036854775807"}}', b'{"known_trip_count":{"n":true}}',
        b'{"known_trip_count":"5","known_init_step":7,"known_induction_variable":[1]}',
        b'{"known_init_step":{"init":"x","step":[]},"known_induction_variable":{"tuple_index":"999999"}}',
        b'{"gemm_backend_config":[1]}', b'{"gemm_backend_config":{"dot_dimension_numbers":7}}',
        b'{"gemm_backend_config":{"dot_dimension_numbers":{"lhs_contracting_dimensions":["a",null,99]}}}',
        b'{"cudnn_fmha_backend_config":{"intermediate_tensor_shape":{"dimensions":["x"]}}}',
        b'{"cudnn_fmha_backend_config":7}', b'{"cudnn_conv_backend_config":"x"}', b'{"custom_call_config":[]}',
        b'{"custom_call_config":{"cost_estimate":{"flops":"' + digits.encode() + b'"}}}',
        b'{"custom_call_config":{"cost_estimate":{"flops":-1,"bytes_accessed":"x"}}}',
        b'{"custom_call_config":{"cost_estimate":5,"body":"AAAA"}}',
        b'{"window_config":{"kernel_window_bounds":["x"]}}',
        b"\xff\xfe{", b"{}", b"{" + b'"k":1,' * 10_000 + b'"z":{}}', json.dumps({"flag_configs": [None, {}]}).encode(),
    ))  # fmt: skip
    whiles = [i for i in instructions(proto) if i.opcode in ("while", "custom-call", "fusion")]
    for at in rng.sample(whiles, min(len(whiles), 3)) or [rng.choice(instructions(proto))]:
        at.backend_config = made


def custom_call(rng: random.Random, proto: Proto) -> None:
    at = rng.choice([i for i in instructions(proto) if i.opcode not in ("parameter", "while")])
    at.opcode = "custom-call"
    at.custom_call_target = rng.choice((
        "__cublas$gemm", "__cublas$lt$matmul", "__cublas$lt$matmul$f8", "__cudnn$convForward", "__cudnn$fmhaSoftmax",
        "__cudnn$fmhaSoftmaxBackward", "tpu_custom_call", "__gpu$xla.gpu.triton", "lapack_spotrf_ffi", "cusolver_getrf",
        "TopK", "AsyncCollectiveStart", "x" * 9000, "Qr", "ducc_fft", "cu_threefry2x32", "__onednn$matmul",
    ))  # fmt: skip
    if rng.random() < 0.5:
        configuration(rng, proto)


def groups(rng: random.Random, proto: Proto) -> None:
    """A collective whose groups are absurd."""
    at = rng.choice([i for i in instructions(proto) if i.operand_ids] or instructions(proto))
    at.opcode = rng.choice(("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute", "send"))
    kind = rng.randrange(6)
    if kind == 0:
        at.replica_groups.add().replica_ids.extend(range(rng.choice((3, 300_000))))
    elif kind == 1:
        iota = at.iota_collective_device_list
        iota.num_replica_groups, iota.num_devices_per_group = rng.choice(EXTREME), rng.choice(EXTREME)
        iota.iota_reshape_dims.extend(rng.choice(EXTREME) for _ in range(rng.choice((1, 3, 200))))
        iota.iota_transpose_perm.extend(rng.choice((0, 1, 2, -1, 2**30)) for _ in range(rng.choice((0, 3))))
    elif kind == 2:
        mesh = at.mesh_axes_replica_group_list
        for number in range(rng.choice((1, 3, 200))):
            mesh.mesh.axes.add(name=rng.choice(("a", "", f"axis_{number}")), size=rng.choice((1, 1, 2, *EXTREME)))
        mesh.mesh.device_ids.extend(rng.choice(EXTREME) for _ in range(rng.choice((0, 0, 8))))
        for _ in range(rng.choice((0, 1, 5))):
            reference = mesh.axes.add(mesh_axis_index=rng.choice(EXTREME))
            if rng.random() < 0.3:
                reference.sub_axis_info.pre_size, reference.sub_axis_info.size = (
                    rng.choice(EXTREME),
                    rng.choice(EXTREME),
                )
    elif kind == 3:
        for _ in range(rng.choice((1, 50_000))):
            at.source_target_pairs.add(source=rng.choice(EXTREME), target=rng.choice(EXTREME))
    elif kind == 4:
        for _ in range(rng.choice((2, 20_000))):
            at.replica_groups.add().replica_ids.extend((0, 1))
    else:
        assignment = proto.hlo_module.device_assignment
        assignment.replica_count, assignment.computation_count = (
            rng.choice((2**31 - 1, -1, 4)),
            rng.choice((2**31 - 1, 3)),
        )
        for _ in range(rng.choice((0, 2))):
            assignment.computation_devices.add().replica_device_ids.extend(rng.choice(EXTREME) for _ in range(2))
        at.channel_id = rng.choice(EXTREME)


def trace(rng: random.Random, proto: Proto) -> None:
    """Heap traces: long, doubled, out of order, sharing without end."""
    assignment = proto.buffer_assignment
    made = rng.choice(list(assignment.heap_simulator_traces) or [assignment.heap_simulator_traces.add()])
    buffers = [b.id for b in assignment.logical_buffers] or [0]
    kind = rng.randrange(4)
    if kind == 0:
        events = list(made.events)
        rng.shuffle(events)
        copied = [message("HeapEvent", e.SerializeToString()) for e in events]
        del made.events[:]
        made.events.extend(copied)
    elif kind == 1:
        one = rng.choice(buffers)
        for _ in range(30_000):
            made.events.add(kind=0, buffer_id=one)
            made.events.add(kind=1, buffer_id=one)
    elif kind == 2:
        for buffer in buffers:
            made.events.add(kind=2, buffer_id=buffer, share_with_canonical_id=rng.choice(buffers))
    else:
        for _ in range(rng.choice((1, 10))):
            made.events.add(kind=rng.choice((0, 1, 2, 3, -1)), buffer_id=rng.choice((*buffers, -1, 2**62)))


def allocations(rng: random.Random, proto: Proto) -> None:
    assignment = proto.buffer_assignment
    listed = list(assignment.buffer_allocations) or [assignment.buffer_allocations.add()]
    for _ in range(rng.choice((1, 3))):
        at = rng.choice(listed)
        name = rng.choice([f.name for f in at.DESCRIPTOR.fields if f.message_type is None])
        put(rng, at, at.DESCRIPTOR.fields_by_name[name])
    if rng.random() < 0.3:
        rng.choice(list(assignment.logical_buffers) or [assignment.logical_buffers.add()]).size = rng.choice(EXTREME)


def deep_calls(rng: random.Random, proto: Proto) -> Proto:
    """Computations that call one another, many deep, or twice each: 2^depth executions."""
    depth, times = rng.choice(((30, 2), (60, 2), (400, 1), (3000, 1), (90, 1), (12, 3)))
    kind = rng.choice(("call", "fusion", "while", "conditional"))
    counted = b'{"known_trip_count":{"n":"9223372036854775807"}}'
    return nested_calls(kind, depth, times, lambda: rng.choice((b"", counted)), fused=depth).proto


def nested_calls(kind: str, depth: int, times: int, config: Callable[[], bytes] = bytes, *, fused: int = 0) -> Program:
    """A computation that calls the next one `times` over, and so on. Of fusions the innermost `fused` are marked so."""
    program = Program()
    inner = program.computation("leaf", fusion=kind == "fusion")
    state = program.add("parameter", [("s32",)])
    if kind == "while":
        test = program.computation("test")
        program.add("parameter", [("s32",)])
        program.add("constant", ("pred",))
    for level in range(depth):
        outer = program.computation(f"level.{level}", fusion=kind == "fusion" and level < fused)
        state = program.add("parameter", [("s32",)])
        for _ in range(times):
            called = [inner, test] if kind == "while" else [inner]
            operands = [state, state] if kind == "conditional" else [state]
            state = program.add(kind, [("s32",)], operands, called, backend_config=config())
        inner = outer
    return program


def deep_values(rng: random.Random, proto: Proto) -> Proto:
    """A value added to itself again and again, or a long chain of moves, tuples and elements."""
    program = Program()
    program.computation("entry")
    at = program.add("parameter", ("f32", 4))
    kind = rng.randrange(4)
    for _ in range(rng.choice((200, 3000))):
        if kind == 0:
            at = program.add("add", ("f32", 4), [at, at])
        elif kind == 1:
            at = program.add(rng.choice(("copy", "bitcast", "convert", "reshape")), ("f32", 4), [at])
        elif kind == 2:
            pair = program.add("tuple", [("f32", 4), ("f32", 4)], [at, at])
            at = program.add("get-tuple-element", ("f32", 4), [pair], tuple_index=1)
        else:
            at = program.add("all-reduce", ("f32", 4), [at], channel_id=1)
    if kind == 0:
        other = program.add("broadcast", ("f32", 4), [at])
        program.add("dot", ("f32",), [at, other], dot_dimension_numbers={
            "lhs_contracting_dimensions": [0], "rhs_contracting_dimensions": [0]})  # fmt: skip
    return program.proto


def absurd_loop(rng: random.Random, proto: Proto) -> Proto:
    program = Program()
    start, step, bound = rng.choice(EXTREME), rng.choice(EXTREME), rng.choice(EXTREME)
    clip = [max(-(2**31), min(2**31 - 1, value)) for value in (start, step, bound)]
    loop(program, *clip, rng.choice(("LT", "LE", "GT", "GE", "EQ", "NE", "", "XX")),
         per_trip=lambda p: dot(p, rng.choice((2, 2**20)), rng.choice((3, 2**31)), 5))  # fmt: skip
    return program.proto


def dot_numbers(rng: random.Random, proto: Proto) -> None:
    at = rng.choice([i for i in instructions(proto) if len(i.operand_ids) == 2] or instructions(proto))
    at.opcode = rng.choice(("dot", "convolution", "ragged-dot", "fft", "triangular-solve", "scaled-dot", "cholesky"))
    numbers = at.dot_dimension_numbers
    for name in ("lhs_contracting_dimensions", "rhs_contracting_dimensions", "lhs_batch_dimensions"):
        getattr(numbers, name).extend(rng.choice((0, 1, 5, -1, 2**62)) for _ in range(rng.choice((0, 1, 2))))
    if rng.random() < 0.5:
        for _ in range(rng.choice((1, 2, 9))):
            window = at.window.dimensions.add()
            for field in window.DESCRIPTOR.fields:
                if field.name != "window_reversal":
                    setattr(window, field.name, rng.choice(EXTREME))
        at.feature_group_count, at.batch_group_count = rng.choice(EXTREME), rng.choice(EXTREME)
        for field in at.convolution_dimension_numbers.DESCRIPTOR.fields:
            put(rng, at.convolution_dimension_numbers, field)
    at.fft_length.extend(rng.choice(EXTREME) for _ in range(rng.choice((0, 1, 3))))


def long_names(rng: random.Random, proto: Proto) -> None:
    at = rng.choice(instructions(proto))
    at.name = rng.choice(("n" * 10**6, "", "a/b\n\x1b[31m", "<script>"))
    at.metadata.op_name = rng.choice(("jit(f)/" + "transpose(" * 30_000, "/" * 10**5, "((((", ")" * 9999, "x" * 10**6,
                                      "jvp(" * 5000 + ")" * 5000))  # fmt: skip
    at.metadata.stack_frame_id = rng.choice((2**31 - 1, -1, 1))


def frames(rng: random.Random, proto: Proto) -> None:
    """Stack frames that are their own parents."""
    index = proto.hlo_module.stack_frame_index
    index.file_names.append("f.py")
    index.function_names.append("f")
    index.file_locations.add(file_name_id=rng.choice((1, 9)), function_name_id=rng.choice((1, -1)), line=3)
    for number in range(rng.choice((1, 5000))):
        index.stack_frames.add(
            file_location_id=rng.choice((1, 7)), parent_frame_id=rng.choice((number + 1, number + 2, 1))
        )
    for at in instructions(proto):
        at.metadata.stack_frame_id = rng.choice((1, 2, len(index.stack_frames)))


def nested_sharding(rng: random.Random, proto: Proto) -> Proto:
    """Deeper than protobuf goes, by the wire alone."""
    raw = b""
    for _ in range(rng.choice((20, 95, 5000))):
        raw = b"\x2a" + varint(len(raw)) + raw
    carrier = message("HloProto", proto.SerializeToString())
    at = carrier.hlo_module.computations[-1].instructions.add()
    data = at.SerializeToString() + b"\xc2\x02" + varint(len(raw)) + raw
    try:
        at.MergeFromString(data)
    except Exception:  # noqa: BLE001  protobuf's own limit: then the bytes are put there unread
        whole = (
            carrier.hlo_module.SerializeToString()
            + b"\x1a"
            + varint(len(data) + 8)
            + b"\x12"
            + varint(len(data))
            + data
        )
        return _Raw(b"\x0a" + varint(len(whole)) + whole)
    return carrier


class _Raw:
    def __init__(self, data: bytes) -> None:
        self.data = data

    def SerializeToString(self) -> bytes:
        return self.data


def varint(value: int) -> bytes:
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


def schedule(rng: random.Random, proto: Proto) -> None:
    every = [i.id for i in instructions(proto)]
    sequences = proto.hlo_module.schedule.sequences
    entry = rng.choice(list(sequences)) if len(sequences) else sequences.add()
    entry.value.instruction_ids.extend(rng.choice((*every, -1, 2**60)) for _ in range(rng.choice((1, 20))))
    entry.key = rng.choice((entry.key, 0, rng.choice(proto.hlo_module.computations).id))


def aliases(rng: random.Random, proto: Proto) -> None:
    module = proto.hlo_module
    for _ in range(rng.choice((1, 5))):
        one = module.input_output_alias.entries.add(
            parameter_number=rng.choice(EXTREME), kind=rng.choice((0, 1, 2, 9, -4))
        )
        one.output_shape_index.extend(rng.choice(EXTREME) for _ in range(rng.choice((0, 1, 30))))
        one.parameter_shape_index.extend(rng.choice(EXTREME) for _ in range(rng.choice((0, 1, 30))))
        module.buffer_donor.entries.add(parameter_number=rng.choice(EXTREME))


MEANING: tuple[Callable[[random.Random, Proto], Any], ...] = (
    any_field, any_field, any_field, any_field, any_field, any_field, swap_ids, same_id, no_id, rewire, rewire_within,
    rewire_within, call_cycle, shuffled, another_opcode, another_opcode, another_shape, another_shape, absurd_dims,
    absurd_layout, nested_shape, far_parameter, configuration, configuration, custom_call, custom_call,
    groups, groups, trace, allocations, absurd_loop, dot_numbers, dot_numbers, long_names,
    frames, nested_sharding, schedule, aliases,
)  # fmt: skip
HEAVY: tuple[Callable[[random.Random, Proto], Any], ...] = (deep_calls, deep_values, wide_tuple)  # seconds, not moments


# Text ---------------------------------------------------------------------------------------------------------------


def text_flip(rng: random.Random, text: str) -> bytes:
    return flip(rng, text.encode())


def text_cut(rng: random.Random, text: str) -> bytes:
    return text[: rng.randrange(len(text))].encode() + rng.choice((b"", b"\n}\n"))


def text_lines(rng: random.Random, text: str) -> bytes:
    """Lines gone, doubled or swapped."""
    lines = text.split("\n")
    for _ in range(rng.choice((1, 2, 6))):
        at, other = rng.randrange(len(lines)), rng.randrange(len(lines))
        kind = rng.randrange(3)
        if kind == 0:
            lines[at], lines[other] = lines[other], lines[at]
        elif kind == 1:
            lines.insert(at, lines[other])
        elif len(lines) > 2:
            del lines[at]
    return "\n".join(lines).encode()


def text_numbers(rng: random.Random, text: str) -> bytes:
    """Some digits become absurd numbers."""
    at = [i for i, c in enumerate(text) if c.isdigit()]
    made = list(text)
    for i in rng.sample(at, min(len(at), rng.choice((1, 1, 3, 20)))):
        made[i] = rng.choice(("0", "1", "-1", "7", "99", "999999999999", "9" * 40, "9" * 5000))
    return "".join(made).encode()


def text_words(rng: random.Random, text: str) -> bytes:
    words = (
        "add",
        "dot",
        "while",
        "fusion",
        "f32",
        "bf16",
        "pred",
        "s4",
        "token",
        "u8",
        "tuple",
        "parameter",
        "{",
        "}",
        "(",
        ")",
        ",",
        "=",
        "[",
        "]",
        "{1,0}",
        "ENTRY",
        "ROOT",
        "channel_id=1",
        "sharding={replicated}",
        "constant",
    )
    made = text
    for _ in range(rng.choice((1, 2, 5))):
        old, new = rng.choice(words), rng.choice(words)
        made = made.replace(old, new, rng.choice((1, 1, 3)))
    return made.encode()


def text_deep(rng: random.Random, text: str) -> bytes:
    deep = rng.choice((50, 50, 50, 3000))
    shape = "(" * deep + "f32[]" + ")" * deep
    return f"HloModule deep\n\nENTRY e {{\n  ROOT p = {shape} parameter(0)\n}}\n".encode()


TEXT: tuple[Callable[[random.Random, str], bytes], ...] = (
    text_flip, text_flip, text_cut, text_lines, text_lines, text_numbers, text_words, text_deep,
)  # fmt: skip
