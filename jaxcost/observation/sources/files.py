"""A file to a program: HLO as proto or text, packed or not. Runs inside a worker, with its limits."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TypeAlias

from jaxcost.contracts.errors import RejectedError, UnavailableError, reject
from jaxcost.observation.hlo.packing import unpacked
from jaxcost.observation.hlo.schema import MAX_PROTO_BYTES, Proto, message, outline, split
from jaxcost.observation.hlo.text import device_counts, is_text, module_text
from jaxcost.observation.private import proto_of_text
from jaxcost.observation.sources.assignment_text import with_assignment
from jaxcost.observation.sources.program import Program
from jaxcost.observation.targets import Family, Target, chip_of_description, parse_target

_NOT_HLO = "give an HLO module: *after_optimizations.hlo.pb of --xla_dump_to with --xla_dump_hlo_as_proto, or its text"

# What only the compiler of one platform writes into a module: keys of its own configurations, names of its own calls.
_MARKS: Mapping[Family, tuple[bytes, ...]] = {
    "cpu": (b'"outer_dimension_partitions"', b"__ynn_fusion", b"__onednn$", b"python_cpu_callback"),
    "cuda": (b'"operation_queue_id"', b"__cublas$", b"__cudnn$", b"__triton", b"__gpu$", b"python_gpu_callback"),
    "tpu": (b'"flag_configs"', b"tpu_custom_call", b'"scoped_memory_configs"', b"AllocateBuffer$tpu"),
}
# Numbers of an HloSnapshot: module, arguments, result, platform. (openxla/xla, xla/service/hlo.proto)
_SNAPSHOT = frozenset({1, 2, 3, 4})
_BYTES_FIELD = 2  # the wire type of strings and messages
_Axes: TypeAlias = tuple[tuple[str, int], ...]
_MESH = re.compile(r"#sdy\.mesh<\[([^\]]*)\]")
_AXIS = re.compile(r'"((?:[^"\\]|\\.)*)"\s*=\s*([0-9]{1,9})')


@dataclass(frozen=True)
class ModuleFacts:
    """What a module says of itself before it is read: `mesh` by Shardy, `scheduled` after optimisation.

    `counted`: whether it states its devices; `device_count` is 1 where it does not.
    """

    name: str
    device_count: int
    counted: bool
    platform: Family | None
    mesh: Mapping[str, int]
    scheduled: bool


def read_program(
    path: str | Path,
    *,
    platform: Family | None = None,
    target: str | None = None,
    name: str = "",
    origin: str = "",
    notes: Sequence[str] = (),
    assignment: str | None = None,
    device: str | None = None,
) -> Program:
    """Return the program of one file.

    Args:
        path: HloProto, HloModuleProto, HloSnapshot or HLO text, packed by gzip or xz or not.
        platform: whose compiler wrote it; None reads it from the module.
        target: the device it is of; gives the platform.
        name, origin, notes: of the program.
        assignment: the text of its buffer assignment, where the module is text.
        device: the description of its GPU.

    Raises:
        RejectedError: the file cannot be read, holds no HLO module, or is of another platform or number of devices than
            the target.
        UnavailableError: it does not exist.
    """
    path, said = Path(path), list(notes)
    data = _bytes(path)
    if not data:
        raise reject(path.name, None, "is empty", _NOT_HLO)
    data = unpacked(data, path.name)
    text = is_text(data)
    hlo = _from_text(data, path.name) if text else _inner(data)
    if text and assignment is not None:
        hlo = _assigned(hlo, Path(assignment), said)
    facts = module_facts(hlo)
    found = parse_target(target) if target else None
    family = _family(facts, platform, found, said)
    if found is None and device is not None and family == "cuda":
        found = _of_description(Path(device), facts.device_count, said)
    if found is not None and found.device_count != facts.device_count:
        rule = f"the module is for {facts.device_count} device{'s' * (facts.device_count > 1)}"
        raise reject("target", found.text, rule, "name a target of as many devices")
    if not facts.scheduled:
        said.append(
            "the module is not scheduled: it is from before the end of the compiler, its memory is not planned and its "
            "FLOPs may be others than those that run"
        )
    return Program(
        origin=origin or ("text" if text else "proto"), name=name or facts.name.removeprefix("jit_") or path.name,
        hlo=hlo, platform=family, target=found, mesh=facts.mesh, notes=tuple(said),
    )  # fmt: skip


def module_facts(hlo: bytes) -> ModuleFacts:
    """Return what a module says of itself.

    Raises:
        RejectedError: the bytes are no HLO module.
    """
    module = outline(hlo)
    assigned = module.device_assignment
    devices = max(1, assigned.replica_count) * max(1, assigned.computation_count)
    attributes = {entry.key: entry.value for entry in module.frontend_attributes.map}
    return ModuleFacts(
        module.name, devices, module.HasField("device_assignment"), platform_of(hlo),
        mesh_axes(attributes.get("xla.sdy.meshes", ""), devices, _meshes_of_shardings(module)),
        module.HasField("schedule"),
    )  # fmt: skip


def platform_of(hlo: bytes) -> Family | None:
    """Return whose compiler wrote a module, by what only that one writes; None where nothing or several tell."""
    found = [family for family, marks in _MARKS.items() if any(mark in hlo for mark in marks)]
    return found[0] if len(found) == 1 else None


def mesh_axes(text: str, devices: int, more: Iterable[_Axes] = ()) -> dict[str, int]:
    """Return the axes of the one mesh over all devices in Shardy's `{mesh = #sdy.mesh<["data"=2, "model"=4]>}`, and
    among `more`; {} where there is none or several.
    """
    meshes = [tuple((name, int(size)) for name, size in _AXIS.findall(body)) for body in _MESH.findall(text)]
    whole = {axes for axes in (*meshes, *more) if axes and prod(size for _, size in axes) == devices}
    return dict(next(iter(whole))) if len(whole) == 1 else {}


def _meshes_of_shardings(module: Proto) -> list[_Axes]:
    """The meshes by which arguments and results are sharded, as jax 0.11 writes them. One that orders its devices by
    itself is left out: its axes would name other devices.
    """
    listed = [*module.spmd_parameters_shardings, module.spmd_output_sharding]
    every = [inner for one in listed for inner in (one, *one.tuple_shardings)]
    meshes = [one.named_sharding.mesh for one in every]
    return [
        tuple((axis.name, axis.size) for axis in mesh.axes)
        for mesh in meshes
        if not mesh.device_ids and not mesh.HasField("iota_transform")
    ]


def _family(facts: ModuleFacts, platform: Family | None, target: Target | None, said: list[str]) -> Family:
    if target is not None and platform is not None and target.family != platform:
        raise reject("target", target.text, f"the module is of {platform}", "name a target of that platform")
    named = target.family if target is not None else platform
    if named is not None and facts.platform not in (None, named):
        what, value = ("target", target.text) if target is not None else ("platform", named)
        rule = f"the module was written by the compiler for {facts.platform}"
        raise reject(what, value, rule, f"leave the {what} out, or name one of {facts.platform}")
    if named is None and facts.platform is None:
        said.append("nothing in the module tells its platform: it is read as one of cpu; --platform names another")
    return named or facts.platform or "cpu"


def _of_description(path: Path, devices: int, said: list[str]) -> Target | None:
    """The target of a GpuTargetConfigProto's text, where it is a chip known here."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")[: 2**16]
    except OSError:
        return None
    chip = chip_of_description(text)
    if chip is None:
        said.append("the GPU described beside the module is none of the targets known here: no device limit is known")
        return None
    try:
        return parse_target(f"{chip}:{devices}")
    except RejectedError:
        return None


def _assigned(hlo: bytes, path: Path, said: list[str]) -> bytes:
    try:
        whole = with_assignment(hlo, _bytes(path).decode("utf-8", errors="replace"), path.name)
    except RejectedError as error:
        problem = error.problems[0]
        said.append(f"its buffer assignment, {path.name}, cannot be read: {problem.rule} ({problem.value})")
        return hlo
    said.append(
        "its buffer assignment is text, which has no moments of the heap: the live peak needs a dump as proto "
        "(--xla_dump_hlo_as_proto)"
    )
    return whole


def _from_text(data: bytes, name: str) -> bytes:
    text = module_text(data, name)
    devices = message("HloProto")
    assignment = devices.hlo_module.device_assignment
    assignment.replica_count, assignment.computation_count = device_counts(text)
    more: bytes = devices.SerializeToString()
    try:
        return proto_of_text(text) + more  # one after the other: both, merged
    except (ValueError, RuntimeError) as error:
        line = next((line.strip() for line in str(error).splitlines() if line.strip()), "no reason given")
        raise reject(name, line[:200], "the text is no HLO module that this XLA reads", _NOT_HLO) from None


def _inner(data: bytes) -> bytes:
    """The HloProto of an HloSnapshot, whose first field it is; other bytes as they are.

    A snapshot is told by being whole and by holding a module two levels down: an HloProto that lost its end, whose
    first field is a module, is none.
    """
    try:
        split(data)
    except RejectedError:
        fields = _fields(data)
        if fields and [number for number, _ in fields].count(1) == 1 and {number for number, _ in fields} <= _SNAPSHOT:
            inner = dict(fields)[1]
            module = dict(_fields(inner)).get(1, b"")
            with suppress(RejectedError):
                split(module)
                return inner
    return data


def _fields(data: bytes) -> list[tuple[int, bytes]]:
    """The fields of a message that has only strings and messages, by number; [] where it is not whole."""
    found, at = [], 0
    while at < len(data):
        tag, at = _varint(data, at)
        size, at = _varint(data, at)
        if tag < 0 or size < 0 or tag & 7 != _BYTES_FIELD or at + size > len(data):
            return []
        found.append((tag >> 3, data[at : at + size]))
        at += size
    return found


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number and where it ends; -1 where there is none."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            break
        value |= (data[at] & 0x7F) << shift
        at += 1
        if data[at - 1] < 0x80:
            return value, at
    return -1, at


def _bytes(path: Path) -> bytes:
    try:
        if not path.is_file() and path.exists():
            raise reject(str(path), None, "is no plain file", _NOT_HLO)
        if path.stat().st_size > MAX_PROTO_BYTES:
            raise reject(str(path), path.stat().st_size, f"at most {MAX_PROTO_BYTES} bytes", "give one HLO module")
        return path.read_bytes()
    except FileNotFoundError:
        raise UnavailableError(str(path), "no such file", "check the path") from None
    except OSError as error:
        raise reject(str(path), None, f"cannot be read ({error.strerror})", "check its permissions") from None
