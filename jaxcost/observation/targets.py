"""Targets: what a program is compiled for, written as one word.

    cpu  cpu:8                          virtual CPU devices of this machine
    h100  h100:8  h100:4x8              NVIDIA: devices, or nodes x devices of a node
    tpu-v5e  tpu-v5e:2x4                TPU: the chips of a slice, one number per dimension of its torus
    tpu-v5e:16x16*2                     ... and the number of slices

The grammar is closed and every number is checked here, before anything reaches a compiler: a GPU description of
another platform does not raise there, it crashes the process. No jax is imported; whether a compiler is installed is
read from package metadata. The chips and the sources of their numbers are in `chips.toml`.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from importlib import metadata, resources
from typing import Any, Literal

from jaxcost.contracts.errors import UnavailableError, reject

Family = Literal["cpu", "cuda", "tpu"]

# As far as ahead-of-time topologies were tried (TPU, GPU); a CPU device costs memory and threads of this machine.
LARGEST_DEVICE_COUNT: Mapping[Family, int] = {"cpu": 1024, "cuda": 4096, "tpu": 32768}

# The versions this package was tried with; the same cap stands in pyproject.toml.
SUPPORTED_JAX = ((0, 10, 2), (0, 12))
SUPPORTED_TEXT = ">=0.10.2,<0.12"

_FORM = re.compile(
    r"(?P<chip>[a-z0-9]+(?:-[a-z0-9]+)*)(?::(?P<shape>[0-9]{1,6}(?:x[0-9]{1,6})*)(?:\*(?P<slices>[0-9]{1,6}))?)?"
)

# The fields of GpuDeviceInfoProto that differ between chips, beside the compute capability.
_CHIP_FIELDS = (
    "core_count", "fpus_per_core", "threads_per_core_limit", "shared_memory_per_core", "shared_memory_per_block_optin",
    "l2_cache_size", "memory_bandwidth", "device_memory_size", "clock_rate_ghz",
)  # fmt: skip

# Chips one would reasonably name, and why they cannot be compiled for.
_KNOWN_TO_FAIL = {
    "v100": "sm_70 is no longer supported by the compiler in jax-cuda13-plugin",
    "p100": "sm_60 is no longer supported by the compiler in jax-cuda13-plugin",
    **dict.fromkeys(
        ("mi200", "mi250", "mi300", "mi300x", "mi325x", "mi350", "mi350x", "mi355x"),
        "the ROCm plugin compiles only where an AMD GPU is present, and the CUDA one crashes on an AMD description",
    ),
}


@dataclass(frozen=True)
class Target:
    """A compilation target, whole and checked.

    `text` is canonical (`h100` becomes `h100:1`), so equal targets have equal texts. `device_count` counts JAX
    devices over all slices; `node_count` counts hosts of an NVIDIA target (1 elsewhere). `device_memory_bytes` is what
    the compiler may fill on one device, None where the device states no limit; `device_memory_source` says where the
    number comes from, or why there is none.
    """

    text: str
    family: Family
    chip: str
    description: str
    device_count: int
    node_count: int
    slice_count: int
    chip_shape: tuple[int, ...]
    device_memory_bytes: int | None
    device_memory_source: str
    topology_name: str
    topology_options: tuple[tuple[str, Any], ...]

    def topology_arguments(self) -> dict[str, Any]:
        """Return the keyword arguments of `jax.experimental.topologies.get_topology_desc`; CPU targets have none."""
        return {"platform": self.family, "topology_name": self.topology_name, **dict(self.topology_options)}


@dataclass(frozen=True)
class Available:
    """The compiler of a target is installed; `versions` names its packages."""

    versions: Mapping[str, str]


@dataclass(frozen=True)
class Unavailable:
    """The compiler of a target is missing or too old or new; `remedy` is the command that adds it."""

    reason: str
    remedy: str


@cache
def _tables() -> dict[str, Any]:
    text = resources.files("jaxcost.observation").joinpath("chips.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def chip_names() -> tuple[str, ...]:
    """Return the names a target may begin with."""
    tables = _tables()
    return ("cpu", *tables["cuda"]["chips"], *(f"tpu-{name}" for name in tables["tpu"]["chips"]))


def parse_target(text: object, where: str = "target") -> Target:
    """Return the target that `text` names.

    Raises:
        RejectedError: where the text breaks the grammar, names an unknown chip or an impossible shape.
    """
    match = _FORM.fullmatch(text) if isinstance(text, str) and len(text) <= 80 else None
    if match is None:
        rule = "not of the form CHIP[:SHAPE[*SLICES]], in lower case"
        raise reject(where, text, rule, "write e.g. cpu:8, h100:4x8 or tpu-v5e:2x4")
    text, chip, slices = match[0], match["chip"], match["slices"]
    shape = tuple(int(part) for part in match["shape"].split("x")) if match["shape"] else None
    if chip not in chip_names():
        if chip in _KNOWN_TO_FAIL:
            raise reject(where, text, _KNOWN_TO_FAIL[chip], f"choose one of {', '.join(chip_names())}")
        raise reject(where, text, f"{chip} is not a chip known here", f"choose one of {', '.join(chip_names())}")
    if 0 in (shape or ()) or (slices and int(slices) == 0):
        raise reject(where, text, "a shape has no zero", f"write {chip} for the smallest shape")
    if slices and not chip.startswith("tpu-"):
        raise reject(where, text, "only TPU targets have slices", f"write {chip}:NODESxDEVICES or {chip}:DEVICES")
    if chip == "cpu":
        target = _cpu_target(text, shape or (1,), where)
    elif chip.startswith("tpu-"):
        target = _tpu_target(text, chip, shape, int(slices or 1), where)
    else:
        target = _cuda_target(text, chip, shape or (1,), where)
    largest = LARGEST_DEVICE_COUNT[target.family]
    if target.device_count > largest:
        raise reject(where, text, f"{target.device_count} devices, more than {largest}", "write a smaller shape")
    return target


def _cpu_target(text: str, shape: tuple[int, ...], where: str) -> Target:
    if len(shape) != 1:
        raise reject(where, text, "a CPU target is one number of devices", f"write cpu:{math.prod(shape)}")
    return Target(
        text=f"cpu:{shape[0]}", family="cpu", chip="cpu", description="CPU devices of this machine",
        device_count=shape[0], node_count=1, slice_count=1, chip_shape=shape,
        device_memory_bytes=None, device_memory_source="XLA states no memory limit for the CPU",
        topology_name="", topology_options=(),
    )  # fmt: skip


def _cuda_target(text: str, chip: str, shape: tuple[int, ...], where: str) -> Target:
    if len(shape) > 2:
        raise reject(where, text, "an NVIDIA shape is DEVICES or NODESxDEVICES", f"write {chip}:{math.prod(shape)}")
    row = _tables()["cuda"]["chips"][chip]
    nodes, devices = shape if len(shape) == 2 else (1, shape[0])
    return Target(
        text=f"{chip}:{nodes}x{devices}" if nodes > 1 else f"{chip}:{devices}",
        family="cuda", chip=chip, description=row["description"],
        device_count=nodes * devices, node_count=nodes, slice_count=1, chip_shape=(nodes, devices),
        device_memory_bytes=row["device_memory_size"],
        device_memory_source=f"device_memory_size of openxla/xla target_config/specs/{row['spec']}.txtpb",
        topology_name="",
        # partitions x nodes x devices of a node
        topology_options=(("target_config", gpu_description(chip)), ("topology", f"1x{nodes}x{devices}")),
    )  # fmt: skip


def _tpu_target(text: str, chip: str, shape: tuple[int, ...] | None, slices: int, where: str) -> Target:
    row = _tables()["tpu"]["chips"][chip.removeprefix("tpu-")]
    shape = shape or (1,) * row["dimensions"]
    if len(shape) != row["dimensions"]:
        example = "x".join(["2", "2", "4"][: row["dimensions"]])
        raise reject(
            where, text, f"a slice of {chip} has {row['dimensions']} dimensions", f"write e.g. {chip}:{example}"
        )
    options: list[tuple[str, Any]] = []
    # libtpu assumes hosts of 2x2x1 chips and refuses what they do not tile; a host of one chip makes the rest.
    if shape[0] % 2 or shape[1] % 2:
        options.append(("chips_per_host_bounds", (1, 1, 1)))
    if "chip_config_name" in row:
        options.append(("chip_config_name", row["chip_config_name"]))
    if slices > 1:
        options.append(("num_slices", slices))
    name = "x".join(map(str, shape))
    return Target(
        text=f"{chip}:{name}*{slices}" if slices > 1 else f"{chip}:{name}",
        family="tpu", chip=chip, description=row["description"],
        device_count=math.prod(shape) * row["devices_per_chip"] * slices,
        node_count=1, slice_count=slices, chip_shape=shape,
        device_memory_bytes=math.floor(Fraction(row["usable_gib"]) * 2**30),
        device_memory_source=f"HBM per JAX device as the TPU compiler prints it: {row['usable_gib']} GiB",
        topology_name=f"{row['topology']}:{name}", topology_options=tuple(options),
    )  # fmt: skip


def gpu_description(chip: str) -> str:
    """Return the text-format GpuTargetConfigProto of an NVIDIA chip of the table."""
    tables = _tables()["cuda"]
    row = tables["chips"][chip]
    fields = dict(tables["common"])
    fields |= {name: row[name] for name in _CHIP_FIELDS}
    major, minor = row["compute_capability"]
    capability = f"{{ major: {major} minor: {minor} feature_extension: {row['feature_extension']} }}"
    lines = [f"  {name}: {value}" for name, value in fields.items()]
    # The library versions are those the descriptions were tried with; the plugin refuses a description without them.
    return "\n".join([
        "gpu_device_info {", *lines, f"  cuda_compute_capability {capability}", "}", 'platform_name: "CUDA"',
        "dnn_version_info { major: 9 minor: 10 }", "runtime_version { major: 12 minor: 8 }",
        f'device_description_str: "{row["description"]}"', "",
    ])  # fmt: skip


def chip_of_description(text: str) -> str | None:
    """Return the NVIDIA chip of the table that the text of a GpuTargetConfigProto describes, None where none or several
    fit.

    Its name decides. A driver may call a chip otherwise than the table does: then compute capability, number of cores
    and memory (which drivers state a few percent apart) do.
    """
    name = re.search(r'\b(?:device_description_str|name): "([^"]*)"', text)
    numbers = {
        field: int(found[1]) if (found := re.search(rf"\b{field}: ([0-9]{{1,18}})\b", text)) else 0
        for field in ("major", "minor", "core_count", "device_memory_size")
    }
    alike = []
    for chip, row in _tables()["cuda"]["chips"].items():
        if name is not None and row["description"] == name[1]:
            return str(chip)
        near = abs(numbers["device_memory_size"] - row["device_memory_size"]) * 20 <= row["device_memory_size"]
        same = [numbers["major"], numbers["minor"]] == row["compute_capability"]
        if same and near and numbers["core_count"] == row["core_count"]:
            alike.append(str(chip))
    return alike[0] if len(alike) == 1 else None


def availability(target: Target | Family) -> Available | Unavailable:
    """Say whether the compiler of a target is installed, from package metadata alone."""
    family = target.family if isinstance(target, Target) else target
    versions: dict[str, str] = {}
    for package in ("jax", "jaxlib"):
        version = _version(package)
        if version is None or not _supported(version):
            reason = f"{package} is {version or 'not installed'}, supported are {SUPPORTED_TEXT}"
            return Unavailable(reason, f'pip install "jax{SUPPORTED_TEXT}"')
        versions[package] = version
    jaxlib = versions["jaxlib"]
    if family == "cuda":
        packages = ("jax-cuda13-plugin", "jax-cuda13-pjrt")
        remedy = "pip install " + " ".join(f'"{package}=={jaxlib}"' for package in packages)
        for package in packages:
            version = _version(package)
            if version is None:
                return Unavailable(f"{package} is not installed", remedy)
            if _numbers(version) != _numbers(jaxlib):
                return Unavailable(f"{package} {version} is not used by jaxlib {jaxlib}", remedy)
            versions[package] = version
    if family == "tpu":
        version = _version("libtpu")
        if version is None:
            return Unavailable("libtpu is not installed", f'pip install "jax[tpu]=={versions["jax"]}"')
        versions["libtpu"] = version
    return Available(versions)


def require(target: Target) -> Available:
    """Return the compiler's versions.

    Raises:
        UnavailableError: where the compiler of `target` is not installed.
    """
    found = availability(target)
    if isinstance(found, Unavailable):
        raise UnavailableError(target.text, found.reason, found.remedy)
    return found


def targets_table() -> list[dict[str, Any]]:
    """Return one row per chip: name, family, description, an example, device memory, and whether it compiles here."""
    return list(_rows())


def _rows() -> Iterator[dict[str, Any]]:
    for name in chip_names():
        smallest = parse_target(name)
        found = availability(smallest)
        yield {
            "name": name,
            "family": smallest.family,
            "description": smallest.description,
            "smallest": smallest.text,
            "example": _example(smallest),
            "smallest_device_count": smallest.device_count,
            "device_memory_bytes": smallest.device_memory_bytes,
            "device_memory_source": smallest.device_memory_source,
            "available": isinstance(found, Available),
            "versions": dict(found.versions) if isinstance(found, Available) else {},
            "reason": None if isinstance(found, Available) else found.reason,
            "remedy": None if isinstance(found, Available) else found.remedy,
        }


def _example(target: Target) -> str:
    if target.family == "tpu":
        return f"{target.chip}:{'2x4' if len(target.chip_shape) == 2 else '2x2x4'}"
    return f"{target.chip}:8"


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _numbers(version: str) -> tuple[int, ...]:
    """Return the dotted prefix of a version; the compilers compare the same prefix."""
    match = re.match(r"[0-9]+(?:\.[0-9]+)*", version)
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def _supported(version: str) -> bool:
    return SUPPORTED_JAX[0] <= _numbers(version) < SUPPORTED_JAX[1]
