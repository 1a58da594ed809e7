"""Which format lies at a path. The format follows from what is there, never from a guess between two."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxcost.contracts.errors import RejectedError, UnavailableError, reject
from jaxcost.contracts.record import parse_json
from jaxcost.observation.checkpoint import index, leaves, orbax, safetensors
from jaxcost.observation.checkpoint.files import inside, opened, read_small
from jaxcost.observation.checkpoint.stored import Checkpoint

INDEX_SUFFIX = ".safetensors.index.json"
_FORMATS = "a .safetensors file or folder, an index.json of shards, an Orbax folder or a file of Equinox leaves"


def read_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """Return what a local checkpoint's headers say.

    Args:
        path: a .safetensors file, a folder of one or of shards with an index, the index itself, an Orbax checkpoint, or
            a file of Equinox leaves.

    Raises:
        UnavailableError: nothing exists there.
        RejectedError: it is no checkpoint of a known format, or breaks its format.
    """
    text = os.fspath(path)
    place = Path(text)
    try:
        there = place.exists()
    except (OSError, ValueError):
        there = False
    if not there:
        if "://" in text:
            raise reject("checkpoint", text, "only local paths are read", "download it first")
        raise UnavailableError(text, "the checkpoint does not exist", "check the path")
    try:
        return _read(place)
    except OSError as error:
        raise reject("checkpoint", text, f"cannot be read ({error.strerror})", "check its permissions") from None


def _read(place: Path) -> Checkpoint:
    if place.is_dir():
        return _folder(place)
    if place.name.endswith(INDEX_SUFFIX):
        return _sharded(place.parent, place.name)
    real = place.resolve()
    with opened(real, place.name) as (file, _):
        start = file.read(8)
    if place.suffix == ".safetensors":
        return _single(real, place.name, place.parent)
    if start.startswith((leaves.MAGIC, b"{")):
        stored, tensors, notes = leaves.read_leaves(real, place.name)
        return Checkpoint("equinox_leaves", place.name, tensors, (stored,), notes=notes, named=False)
    raise reject("checkpoint", place.name, "not a format that is known", f"name {_FORMATS}")


def _folder(folder: Path) -> Checkpoint:
    names = sorted(entry.name for entry in folder.iterdir())
    indices = [name for name in names if name.endswith(INDEX_SUFFIX)]
    files = [name for name in names if name.endswith(".safetensors")]
    if len(indices) > 1:
        raise reject("checkpoint", indices[:4], "the folder holds several indices", "name one of them")
    if indices:
        return _sharded(folder, indices[0])
    if len(files) == 1:
        return _single(inside(folder, files[0], "checkpoint"), files[0], folder)
    if files:
        raise reject(
            "checkpoint", files[:4], "several .safetensors files and no index says what each holds", "name one file"
        )
    if orbax.METADATA in names or any((folder / name / orbax.METADATA).is_file() for name in names):
        return _orbax(folder)
    raise reject("checkpoint", folder.name, "the folder holds no checkpoint of a known format", f"name {_FORMATS}")


def _single(real: Path, shown: str, folder: Path) -> Checkpoint:
    stored, tensors = safetensors.read_header(real, shown)
    return Checkpoint("safetensors", shown, tensors, (stored,), quantisation=_quantisation(folder))


def _sharded(folder: Path, name: str) -> Checkpoint:
    files, tensors, claims, notes = index.read_index(folder, name)
    shown = folder.resolve().name
    return Checkpoint("safetensors_sharded", shown, tensors, files, claims, _quantisation(folder), notes)


def _orbax(folder: Path) -> Checkpoint:
    item = orbax.find_item(folder, "checkpoint")
    files, tensors, notes = orbax.read_orbax(item, item.resolve().name)
    return Checkpoint("orbax", folder.resolve().name, tensors, files, notes=notes)


def _quantisation(folder: Path) -> Mapping[str, Any] | None:
    """Return the quantization_config of the config.json beside the tensors, None where none is declared."""
    if not (folder / "config.json").is_file():
        return None
    try:
        text = read_small(inside(folder, "config.json", "config.json"), "config.json", 1 << 24)
        data = parse_json(text, "config.json")
    except RejectedError:
        return None  # the catalogue refuses a bad config where it is the MODEL; here it only could have added evidence
    found = data.get("quantization_config") if isinstance(data, dict) else None
    return found if isinstance(found, dict) else None
