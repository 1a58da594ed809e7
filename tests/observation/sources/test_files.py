"""A file to a program: what a dump of each compiler says of itself, as proto and as text, packed and damaged."""

from __future__ import annotations

import gzip
import lzma

import jax
import jax.numpy as jnp
import pytest

from jaxcost.contracts.errors import RejectedError, UnavailableError
from jaxcost.observation.hlo import read_hlo
from jaxcost.observation.hlo.packing import unpacked
from jaxcost.observation.hlo.schema import parse
from jaxcost.observation.pool import Pool
from jaxcost.observation.private import proto_of_text
from jaxcost.observation.sources.assignment_text import with_assignment
from jaxcost.observation.sources.dumps import read_dump
from jaxcost.observation.sources.files import mesh_axes, module_facts, platform_of, read_program
from jaxcost.observation.targets import chip_of_description, gpu_description, parse_target
from tests.observation.hlo.building import array

from .dumping import FLOPS, PROTO, TARGETS, TASK, write_dump


@pytest.fixture(scope="module")
def dumps(tmp_path_factory):
    """dumps(target, proto) -> the folder of a dump, written once."""
    made = {}
    with Pool(size=1, allow=(TASK.partition(":")[0],), timeout_seconds=300) as pool:

        def get(target, proto=True):
            if (target, proto) not in made:
                folder = tmp_path_factory.mktemp("dump")
                made[target, proto] = write_dump(pool, target, folder, PROTO if proto else {})
            return made[target, proto]

        yield get


def module_of(folder, name="jit_step"):
    return next(at for at in read_dump(folder) if at.name == name)


def program_of(module, **options):
    device, assignment = module.device, module.assignment
    return read_program(
        module.path, device=device and str(device), assignment=assignment and str(assignment), **options
    )


@pytest.mark.parametrize("target", TARGETS)
def test_a_module_says_whose_it_is_and_over_which_mesh(dumps, target):
    module = module_of(dumps(target))
    program = program_of(module)
    family = parse_target(target).family
    assert (program.origin, program.name, program.platform) == ("proto", "step", family) and not program.notes
    assert module.platform == family and program.mesh == {"data": 1}
    # Only of a GPU lies a description beside the module.
    assert (program.target.text if program.target else None) == (target if family == "cuda" else None)
    reading = read_hlo(program.hlo, platform=program.platform)
    assert reading.flops.value == FLOPS and reading.memory.alias_bytes == 4 * 256 * 256
    init = program_of(module_of(dumps(target), "jit_init"))
    assert read_hlo(init.hlo, platform=init.platform).flops.value == 0


@pytest.mark.parametrize("target", TARGETS)
def test_a_dump_as_text_gives_the_memory_of_the_dump_as_proto(dumps, target):
    proto, text = program_of(module_of(dumps(target))), program_of(module_of(dumps(target, proto=False)))
    assert text.origin == "text" and text.platform == proto.platform and text.mesh == proto.mesh
    (note,) = text.notes
    assert "live peak" in note
    one, other = (read_hlo(p.hlo, platform=p.platform).memory for p in (proto, text))
    names = ("argument_bytes", "output_bytes", "alias_bytes", "constant_bytes", "temp_bytes", "required_bytes")
    assert {n: getattr(one, n) for n in names} == {n: getattr(other, n) for n in names}
    made = parse(text.hlo)[1].buffer_allocations
    for allocation, expected in zip(made, parse(proto.hlo)[1].buffer_allocations, strict=True):
        for assigned in expected.assigned:
            assigned.DiscardUnknownFields()
        assert _plain(allocation) == _plain(expected)


def _plain(allocation):
    lines = str(allocation).splitlines()
    return sorted(line for line in lines if "element_type" not in line)


def test_a_text_of_another_module_is_refused_and_leaves_memory_unknown(dumps, tmp_path):
    module = module_of(dumps("cpu:1", proto=False))
    other = module_of(dumps("cpu:1", proto=False), "jit_init").assignment.read_text()
    hlo = proto_of_text(module.path.read_text())
    for text, rule in (
        (other, "no such instruction"), ("", "must open"), ("BufferAssignment:\n", "no allocation"),
        ("BufferAssignment:\nallocation 0: size x:\n", "another form"),
    ):  # fmt: skip
        with pytest.raises(RejectedError, match=rule):
            with_assignment(hlo, text, "assignment.txt")
        path = tmp_path / "assignment.txt"
        path.write_text(text)
        program = read_program(module.path, assignment=str(path))
        assert rule in program.notes[0] and read_hlo(program.hlo, platform="cpu").memory.required_bytes is None


@pytest.mark.parametrize("target", TARGETS)
def test_one_byte_less_of_an_allocation_is_one_byte_less_required(dumps, target):
    module = module_of(dumps(target, proto=False))
    hlo, text = proto_of_text(module.path.read_text()), module.assignment.read_text()
    family = parse_target(target).family

    def required(assignment):
        return read_hlo(with_assignment(hlo, assignment, "a.txt"), platform=family).memory.required_bytes

    changed = text.replace("size 262144, parameter 0", "size 262143, parameter 0")
    assert changed != text and required(text) - required(changed) == 1


def test_packed_files_are_unpacked_and_damaged_ones_refused(dumps, tmp_path):
    path = module_of(dumps("cpu:1")).path
    data = path.read_bytes()
    for name, packed in (("a.gz", gzip.compress(data)), ("a.xz", lzma.compress(data))):
        (tmp_path / name).write_bytes(packed)
        assert read_program(tmp_path / name).hlo == data
        for damaged in (packed[:-9], packed[:40], packed[:2] + packed[9:]):
            with pytest.raises(RejectedError):
                unpacked(damaged, name) and read_program(_write(tmp_path / "b", damaged))
    for damaged in (b"", b"\x00", data[: len(data) // 2], b"HloModule", b"HloModule x\n\nENTRY {", b"{}", b"\xff" * 99):
        with pytest.raises(RejectedError):
            read_program(_write(tmp_path / "b", damaged))


def _write(path, data):
    path.write_bytes(data)
    return path


def test_bombs_end_at_the_limit(monkeypatch, tmp_path):
    monkeypatch.setattr("jaxcost.observation.hlo.packing.MAX_UNPACKED_BYTES", 10_000)
    for pack in (gzip.compress, lzma.compress):
        with pytest.raises(RejectedError, match="at most 10000 bytes"):
            unpacked(pack(bytes(1_000_000)), "bomb")
        assert unpacked(pack(bytes(9_000)), "small") == bytes(9_000)
    with pytest.raises(RejectedError, match="at most 10000 bytes"):
        unpacked(gzip.compress(bytes(6_000)) * 2, "bomb in two parts")
    with pytest.raises(RejectedError, match="at most 10000 bytes"):
        unpacked(gzip.compress(b"") * 600, "parts that hold nothing")


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress])
def test_packed_parts_are_one_whole_and_nothing_else_follows(pack):
    assert unpacked(pack(b"one") + bytes(8), "padded") == b"one"
    if pack is gzip.compress:
        assert unpacked(pack(b"one") + pack(b"two") + bytes(8), "parts") == b"onetwo"
    else:
        with pytest.raises(RejectedError, match="must be whole"):
            unpacked(pack(b"one") + pack(b"two"), "two streams")
    with pytest.raises(RejectedError, match="must be whole"):
        unpacked(pack(b"one") + b"two", "followed")
    with pytest.raises(RejectedError, match="must be whole"):
        unpacked(pack(b"one") + pack(b"two")[:-4], "cut")


def test_a_snapshot_is_read_by_the_module_in_it(dumps, tmp_path):
    hlo = module_of(dumps("cpu:1")).path.read_bytes()
    size, length = bytearray(), len(hlo)
    while length > 0x7F:
        size.append(length & 0x7F | 0x80)
        length >>= 7
    wrapped = b"\x0a" + bytes([*size, length]) + hlo + b"\x22\x03cpu"
    assert read_program(_write(tmp_path / "snapshot.pb", wrapped)).hlo == hlo
    with pytest.raises(RejectedError):
        read_program(_write(tmp_path / "snapshot.pb", wrapped[: len(wrapped) // 2]))


@pytest.mark.parametrize("cut", [1, 2, 100, 0.5, 0.99])
def test_a_module_that_lost_its_end_is_refused_and_never_taken_for_a_snapshot(dumps, tmp_path, cut):
    data = module_of(dumps("cpu:1")).path.read_bytes()
    assigned = len(data) - len(parse(data)[0].SerializeToString())
    lost = cut if cut >= 1 else int(cut * assigned)
    assert 0 < lost < assigned
    with pytest.raises(RejectedError):
        read_program(_write(tmp_path / "cut.hlo.pb", data[:-lost]))


def test_a_missing_file_is_unavailable_and_a_folder_rejected(tmp_path):
    with pytest.raises(UnavailableError):
        read_program(tmp_path / "none")
    with pytest.raises(RejectedError, match="no plain file"):
        read_program(tmp_path)


def test_platform_and_target_must_be_those_of_the_module(dumps):
    module = module_of(dumps("cpu:1"))
    for options in ({"platform": "cuda"}, {"target": "h100:1"}, {"target": "cpu:2"}):
        with pytest.raises(RejectedError, match="the module") as caught:
            program_of(module, **options)
        assert [problem.path for problem in caught.value.problems] == list(options)
    with pytest.raises(RejectedError, match="of that platform"):
        program_of(module, platform="cpu", target="h100:1")
    assert program_of(module, target="cpu:1").target.text == "cpu:1"


def test_what_tells_a_platform_is_written_by_one_compiler_alone():
    assert platform_of(b'{"operation_queue_id":"0"}') == "cuda"
    assert platform_of(b'"flag_configs" and "operation_queue_id"') is None
    assert platform_of(b"plain") is None


def test_before_the_end_of_the_compiler_a_module_says_so(dumps, tmp_path):
    before = next(dumps("cpu:1").glob("*jit_step.before_optimizations.hlo.pb"))
    program = read_program(before)
    assert program.platform == "cpu" and any("not scheduled" in note for note in program.notes)
    assert any("--platform" in note for note in program.notes)
    assert not module_facts(program.hlo).scheduled
    assert not any("--platform" in note for note in read_program(before, platform="tpu").notes)


@pytest.mark.parametrize(
    ("text", "devices", "axes"),
    [
        ('{mesh = #sdy.mesh<["data"=2, "model"=4]>}', 8, {"data": 2, "model": 4}),
        ('{mesh = #sdy.mesh<["data"=2, "model"=4]>}', 4, {}),
        ('{mesh = #sdy.mesh<["a"=8]>, mesh_0 = #sdy.mesh<["b"=2]>}', 8, {"a": 8}),
        ('{mesh = #sdy.mesh<["a"=8]>, mesh_0 = #sdy.mesh<["b"=8]>}', 8, {}),
        ('{mesh = #sdy.mesh<["a"=4], device_ids=[3, 2, 1, 0]>}', 4, {"a": 4}),
        ("{maximal = #sdy.mesh<[], device_ids=[0]>}", 1, {}),
        ("", 1, {}),
    ],
)
def test_the_mesh_of_a_module_is_the_one_over_all_its_devices(text, devices, axes):
    assert mesh_axes(text, devices) == axes


def test_a_gpu_is_known_by_its_name_or_by_its_numbers():
    text = gpu_description("h200")
    assert chip_of_description(text) == "h200"
    renamed = text.replace("NVIDIA H200 141GB HBM3e", "NVIDIA H200")
    assert renamed != text and chip_of_description(renamed) == "h200"
    assert chip_of_description(renamed.replace("core_count: 132", "core_count: 131")) is None
    assert chip_of_description("") is None


def test_the_devices_of_a_text_are_those_of_its_first_line(tmp_path):
    path = tmp_path / "eight.txt"
    path.write_text(EIGHT)
    program = read_program(path)
    assert module_facts(program.hlo).device_count == 8 and module_facts(program.hlo).counted
    path.write_text(EIGHT.replace(", num_partitions=8", ""))
    assert module_facts(read_program(path).hlo).device_count == 1
    path.write_text(EIGHT.replace("num_partitions=8", f"num_partitions={10**8}"))
    with pytest.raises(RejectedError, match="devices"):
        read_hlo(read_program(path).hlo, platform="cpu")


EIGHT = """HloModule f, entry_computation_layout={(f32[4]{0})->f32[4]{0}}, num_partitions=8

ENTRY main {
  p = f32[4]{0} parameter(0)
  ROOT r = f32[4]{0} negate(p)
}
"""


def test_a_mesh_by_which_arguments_are_sharded_is_the_modules_own():
    """As jax 0.11 writes it, where earlier ones left an attribute."""

    def facts(*meshes, ids=()):
        proto, _ = parse(proto_of_text(EIGHT))
        proto.device_assignment.computation_count = 8
        for axes in meshes:
            mesh = proto.spmd_parameters_shardings.add().named_sharding.mesh
            for name, size in axes:
                mesh.axes.add(name=name, size=size)
            mesh.device_ids.extend(ids)
        return module_facts(proto.SerializeToString()).mesh

    two, other = (("data", 2), ("model", 4)), (("x", 8),)
    assert facts(two, two) == {"data": 2, "model": 4}
    assert facts(two, other) == {}  # which of both, nothing says
    assert facts((("data", 2),)) == {}  # not over all devices
    assert facts(two, ids=range(8)) == {}


def test_the_text_of_an_assignment_is_read_where_loops_join_values(tmp_path):
    """What a loop carries stands as `<12 while.3{0} (phi) @0>`."""

    def step(ws, x):
        return jax.lax.scan(lambda c, w: (jnp.tanh(c @ w), c), x, ws)

    both = {"xla_dump_to": str(tmp_path), "xla_dump_hlo_as_proto": True, "xla_dump_hlo_as_text": True}
    jax.jit(jax.grad(lambda ws, x: step(ws, x)[0].sum())).lower(array(8, 64, 64), array(16, 64)).compile(both)
    (assignment,) = tmp_path.glob("*after_optimizations-buffer-assignment.txt")
    assert "(phi)" in assignment.read_text(), "no need of this test any more"
    (proto,), (text,) = (tmp_path.glob(f"*cpu_after_optimizations.{end}") for end in ("hlo.pb", "txt"))
    one, other = (
        read_hlo(program.hlo, platform="cpu").memory
        for program in (read_program(proto), read_program(text, assignment=str(assignment)))
    )
    assert other.required_bytes == one.required_bytes and other.temp_bytes == one.temp_bytes
    assert other.live_peak_bytes is None
