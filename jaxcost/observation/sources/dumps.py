"""An XLA dump directory (`--xla_dump_to`): which modules lie in it, and which file of each says most.

File names are all there is to go by, and they differ by platform, version and flag:

    module_0002.jit_f.cpu_after_optimizations.hlo.pb
    1699999999.module_0665.jit_f.sm_9.0a_gpu_after_optimizations.hlo.pb.gz     with a time stamp, compressed
    module_0004.jit_f.cl_933746096.after_optimizations.txt                     TPU, as text
    module_0004.jit_f.cl_933746096.oom_intermediate_module.hlo.pb              where the TPU compiler ran out of memory
    module_0001.jit_f.0012.simplification.after_x.before_y.hlo.pb              one pass; no module of its own

Only names are read here. A directory without modules is searched some folders down: runs of many hosts keep one each.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from jaxcost.contracts.errors import UnavailableError, reject
from jaxcost.observation.targets import Family

_STAGES = (
    "after_optimizations", "after_optimizations_after_buffer_assignment",
    "after_optimizations_before_buffer_assignment", "after_codegen", "oom_intermediate_module",
    "after_spmd_partitioner", "before_optimizations",
)  # fmt: skip
_FILE = re.compile(
    r"(?:(?P<stamp>[0-9]+)\.)?module_(?P<number>[0-9]+)\.(?P<name>.+?)"
    r"\.(?:(?P<device>cpu|(?P<chip>[a-z][A-Za-z0-9_.]*?_)?gpu)_|(?P<change>cl_[0-9]+)\.)?"
    rf"(?P<stage>{'|'.join(sorted(_STAGES, key=len, reverse=True))})"
    r"(?:\.execution_[0-9]+|\.[0-9]+)?\.(?P<form>hlo\.pb|txt)(?P<packed>\.gz)?"
)
_NUMBERED = re.compile(r"(?:[0-9]+\.)?module_[0-9]+\.")
_DEEPEST, _MOST_FILES = 3, 1_000_000
_HOW = "dump with XLA_FLAGS='--xla_dump_to=DIR --xla_dump_hlo_as_proto'"


@dataclass(frozen=True)
class DumpedModule:
    """One module of a dump, by the file that says most of it.

    `label` names it among the others: stamp, number and name. `platform` is None where no name tells. `assignment` and
    `device` are the text of its buffer assignment and the description of its GPU, where they lie beside it.
    """

    label: str
    name: str
    number: int
    stage: str
    path: Path
    bytes: int
    text: bool
    platform: Family | None
    assignment: Path | None = None
    device: Path | None = None

    @property
    def optimised(self) -> bool:
        """Whether the compiler was done with it."""
        return self.stage.startswith("after_") and self.stage != "after_spmd_partitioner"


def read_dump(folder: Path) -> list[DumpedModule]:
    """Return the modules of a dump directory, largest file first; those the compiler was not done with come last.

    Raises:
        UnavailableError: the directory does not exist.
        RejectedError: it cannot be read, or holds no module.
    """
    try:
        os.scandir(folder).close()
    except FileNotFoundError:
        raise UnavailableError(str(folder), "no such file or directory", "check the path") from None
    except OSError as error:
        raise reject(str(folder), None, f"cannot be read ({error.strerror})", "check its permissions") from None
    seen = 0
    others: set[str] = set()
    for depth in range(_DEEPEST + 1):
        found: dict[tuple[Path, str], list[tuple[re.Match[str], Path]]] = {}
        names: dict[Path, set[str]] = {}
        for path in _files(folder, depth):
            seen += 1
            if seen > _MOST_FILES:
                raise reject(str(folder), seen, f"holds more than {_MOST_FILES} files", "name a directory below it")
            names.setdefault(path.parent, set()).add(path.name)
            match = _FILE.fullmatch(path.name)
            if match is None:
                others.add(path.name)
                continue
            found.setdefault((path.parent, _label(match)), []).append((match, path))
        if found:
            modules = [_best(folder, key, files, names[key[0]]) for key, files in found.items()]
            return sorted(modules, key=lambda at: (not at.optimised, -at.bytes, at.label))
    raise reject(str(folder), None, _nothing(others), _HOW)


def dumped_file(path: Path) -> DumpedModule | None:
    """Return what the name of one file of a dump, and the files beside it, tell; None where it is named otherwise."""
    match = _FILE.fullmatch(path.name)
    if match is None:
        return None
    try:
        names = set(os.listdir(path.parent))
    except OSError:
        names = {path.name}
    return _best(path.parent, (path.parent, _label(match)), [(match, path)], names)


def choose(modules: Sequence[DumpedModule], wanted: str | None, where: str) -> tuple[DumpedModule, str]:
    """Return one module and how it was chosen: by name, label, number or file, else the largest.

    Raises:
        RejectedError: none of them is meant.
    """
    among = list(modules) if wanted is None else meant_by(modules, wanted, where)
    chosen = among[0]
    if len(among) == 1:
        return chosen, ""
    meant = "modules" if wanted is None else f"modules named {wanted}"
    return chosen, (
        f"the largest file of {len(among)} {meant} in the dump; --module chooses another, --all audits each"
    )


def meant_by(modules: Sequence[DumpedModule], wanted: str, where: str) -> list[DumpedModule]:
    """Return the modules of this name, label, number or file, in their order.

    Raises:
        RejectedError: there is none.
    """
    number = int(wanted) if wanted.isdecimal() and len(wanted) < 19 else None
    among = [at for at in modules if wanted in (at.name, at.label, at.path.name) or at.number == number]
    if not among:
        known = ", ".join(dict.fromkeys(at.name for at in modules[:200]))
        rule = f"no module of {where} has this name or number"
        raise reject("--module", wanted, rule, f"choose one of {known[:400]}")
    return among


def _label(match: re.Match[str]) -> str:
    return f"{match['stamp'] + '.' if match['stamp'] else ''}module_{match['number']}.{match['name']}"


def _files(folder: Path, depth: int) -> Iterator[Path]:
    """Files just so many folders down; links to folders are not followed, and what cannot be read is left out."""
    try:
        with os.scandir(folder) as entries:
            below = sorted(entries, key=lambda entry: entry.name)
    except OSError:
        return
    for entry in below:
        try:
            wanted = entry.is_dir(follow_symlinks=False) if depth else entry.is_file()
        except OSError:  # a link that leads to itself
            continue
        if wanted and depth:
            yield from _files(Path(entry.path), depth - 1)
        elif wanted:
            yield Path(entry.path)


def _best(
    folder: Path, key: tuple[Path, str], files: list[tuple[re.Match[str], Path]], names: set[str]
) -> DumpedModule:
    """The file that says most: the latest stage, and of that the proto, which has the buffer assignment."""
    parent, label = key
    match, path = min(files, key=lambda at: (_STAGES.index(at[0]["stage"]), at[0]["form"] != "hlo.pb", at[1].name))
    text = match["form"] == "txt"
    stem = path.name.removesuffix(".gz").removesuffix(f".{match['form']}")
    assignment = f"{stem}-buffer-assignment.txt"
    # Flags and descriptions are written without the time stamp.
    own = f"module_{match['number']}.{match['name']}"
    device = next((name for name in (f"{label}.gpu_target_config.pbtxt", f"{own}.gpu_target_config.pbtxt")
                   if name in names), None)  # fmt: skip
    inside = parent.relative_to(folder).as_posix()
    return DumpedModule(
        label if inside == "." else f"{inside}/{label}", match["name"], int(match["number"]), match["stage"], path,
        path.stat().st_size, text, _platform(files, own, names), parent / assignment if assignment in names else None,
        parent / device if device else None,
    )  # fmt: skip


def _platform(files: list[tuple[re.Match[str], Path]], own: str, names: set[str]) -> Family | None:
    for match, _ in files:
        if match["device"] == "cpu":
            return "cpu"
        if match["device"]:
            return "cuda"
        if match["change"]:
            return "tpu"
    if f"{own}.gpu_target_config.pbtxt" in names:
        return "cuda"
    # A TPU compiler that writes no change number says nothing else than that it is neither of the others.
    return "tpu" if any(match["stage"] == "after_optimizations" for match, _ in files) else None


def _nothing(others: set[str]) -> str:
    if not others:
        return "is empty"
    if any(name.endswith((".hlo.pb", ".txt", ".hlo.pb.gz")) and _NUMBERED.match(name) for name in others):
        return "holds modules between passes only, none at the end of the compiler"
    if any(name.endswith((".ll", ".ptx", ".o", ".cubin")) for name in others):
        return "holds code of kernels (.ll, .ptx) and no HLO module"
    return "holds no HLO module of an XLA dump"
