"""Orbax checkpoints: the tree from `_METADATA`, shape and type of each array from its zarr metadata.

Orbax (0.11 and newer) keeps arrays as zarr, each in a folder of its own or all in one OCDBT store. Both are reached as
a key-value store; the one key read per array is its `.zarray` (or `zarr.json`), never a chunk. Tensorstore parses the
store, so this runs in a worker.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxcost.contracts.errors import Problem, RejectedError, reject
from jaxcost.contracts.record import LARGEST_SIZE, parse_json
from jaxcost.observation.checkpoint.files import inside, no_way_out, read_small
from jaxcost.observation.checkpoint.stored import StoredFile, StoredTensor
from jaxcost.observation.worker import task

METADATA = "_METADATA"
MAXIMUM_METADATA_BYTES = 100_000_000
READING_SECONDS = 120.0
_ZARR2 = {
    "f8": "fp64", "f4": "fp32", "f2": "fp16", "i8": "int64", "i4": "int32", "i2": "int16", "i1": "int8",
    "u8": "uint64", "u4": "uint32", "u2": "uint16", "u1": "uint8", "b1": "bool", "c8": "complex64",
}  # fmt: skip
_NAMED = {
    "bfloat16": ("bf16", 16), "float8_e4m3fn": ("fp8_e4m3", 8), "float8_e5m2": ("fp8_e5m2", 8), "int4": ("int4", 8),
    "float64": ("fp64", 64), "float32": ("fp32", 32), "float16": ("fp16", 16), "bool": ("bool", 8),
    **{f"{sign}int{bits}": (f"{sign}int{bits}", bits) for sign in ("", "u") for bits in (8, 16, 32, 64)},
}  # fmt: skip
_SKIPPED = ("None",)  # value types of leaves that hold no array


def find_item(folder: Path, where: str) -> Path:
    """Return the folder that holds `_METADATA`: this one, or the only one of its items that does.

    Raises:
        RejectedError: it was never finished, no item holds one, or several do.
    """
    if ".orbax-checkpoint-tmp" in folder.name:
        raise reject(where, folder.name, "was being written when its writer stopped", "name a finished checkpoint")
    if (folder / METADATA).is_file():
        return folder
    items = sorted(item for item in folder.iterdir() if not item.is_symlink() and (item / METADATA).is_file())
    if len(items) == 1:
        return items[0]
    if items:
        names = ", ".join(item.name for item in items[:8])
        raise reject(where, folder.name, f"holds several items: {names}", "name one of them")
    raise reject(where, folder.name, f"holds no {METADATA}", "name the folder of one saved tree")


def read_orbax(folder: Path, shown: str) -> tuple[tuple[StoredFile, ...], tuple[StoredTensor, ...], tuple[str, ...]]:
    """Return the checkpoint as one stored thing, its arrays under their tree paths joined by dots, and notes.

    Raises:
        RejectedError: metadata is missing or malformed, or the folder has a link out of itself.
        WorkerError: tensorstore is missing or failed for another reason than the store.
    """
    from jaxcost.observation.pool import Pool, Request, WorkerFailure

    file_bytes = no_way_out(folder, shown)
    tree, options = _tree(folder, shown)
    payload = {"folder": str(folder.resolve()), "names": list(tree), "ocdbt": options["use_ocdbt"]}
    request = Request("jaxcost.observation.checkpoint.orbax:zarr_metadata", payload, timeout_seconds=READING_SECONDS)
    with Pool(size=1) as pool:
        reply = pool.call(request)
    if isinstance(reply, WorkerFailure):
        if reply.kind in ("crashed", "timed_out", "memory_exceeded"):
            raise reject(
                shown, reply.kind, "reading the store's metadata ended the reader", "the checkpoint is damaged"
            )
        reply.throw()
    found = reply.value
    tensors = tuple(_tensor(name, found[name], shown) for name in tree)
    notes = (f"sizes on disk are those of {'one OCDBT store' if options['use_ocdbt'] else 'zarr folders'}, compressed",)
    return (StoredFile(shown, file_bytes),), tensors, notes


@task
def zarr_metadata(payload: Mapping[str, Any]) -> dict[str, str | None]:
    """Return for each array name the text of its zarr metadata, None where there is none."""
    import tensorstore

    base = f"file://{payload['folder']}/"
    spec = {"driver": "ocdbt", "base": base} if payload["ocdbt"] else base
    found: dict[str, str | None] = dict.fromkeys(payload["names"])
    try:
        store = tensorstore.KvStore.open(spec).result()
        pending = {(name, key): store.read(f"{name}/{key}") for name in found for key in (".zarray", "zarr.json")}
        for (name, _), future in pending.items():
            value = future.result().value
            if value:
                found[name] = bytes(value[:MAXIMUM_METADATA_BYTES]).decode("utf-8", "replace")
    except (ValueError, OSError, NotImplementedError) as error:  # what tensorstore raises for a store it cannot decode
        text = str(error).replace(f"{payload['folder']}/", "")[:300]
        raise reject(
            Path(payload["folder"]).name, text, "the store cannot be read", "the checkpoint is damaged"
        ) from None
    return found


def _tree(folder: Path, shown: str) -> tuple[dict[str, None], dict[str, bool]]:
    where = f"{shown}/{METADATA}"
    data = parse_json(read_small(inside(folder, METADATA, shown), where, MAXIMUM_METADATA_BYTES), where)
    tree = data.get("tree_metadata") if isinstance(data, dict) else None
    if not isinstance(tree, dict):
        raise reject(where, type(data).__name__, "must hold tree_metadata", "this is no Orbax checkpoint of a tree")
    options = {name: data.get(name, False) for name in ("use_ocdbt", "use_zarr3")}
    problems = [
        Problem(f"{where}.{name}", value, "must be true or false", "the metadata is damaged")
        for name, value in options.items()
        if not isinstance(value, bool)
    ]
    names: dict[str, None] = {}
    for key, entry in tree.items():
        try:
            path = [str(part["key"]) for part in entry["key_metadata"]]
            kind = entry["value_metadata"]["value_type"]
        except (TypeError, KeyError):
            problems.append(Problem(f"{where}.{key}", None, "gives no path and type", "the metadata is damaged"))
            continue
        name = ".".join(path)
        if not path or any(not part or "/" in part or not part.isprintable() for part in path) or name in names:
            problems.append(Problem(f"{where}.{key}", name, "is no path, or given twice", "the metadata is damaged"))
        elif kind not in _SKIPPED:
            names[name] = None
    if problems:
        raise RejectedError(problems[:20])
    return names, options


def _tensor(name: str, text: str | None, shown: str) -> StoredTensor:
    where = f"{shown}.{name}"
    if text is None:
        raise reject(where, None, "the tree names it, and no array is stored so", "the checkpoint is damaged")
    data = parse_json(text, where)
    shape = data.get("shape") if isinstance(data, dict) else None
    if not isinstance(shape, list) or not all(type(n) is int and 0 <= n <= LARGEST_SIZE for n in shape):
        raise reject(where, json.dumps(shape)[:80], "the zarr metadata gives no shape", "the checkpoint is damaged")
    found = data.get("dtype", data.get("data_type"))
    dtype, bits = _dtype(found)
    if not bits:
        raise reject(where, found, "not an array type that is known", "convert the array, or report it")
    return StoredTensor(name, tuple(shape), dtype, math.prod(shape) * bits // 8, shown, name)


def _dtype(found: object) -> tuple[str, int]:
    if isinstance(found, str) and found in _NAMED:
        return _NAMED[found]
    code = re.fullmatch(r"[<>|]([a-z])([0-9]{1,2})", found) if isinstance(found, str) else None
    if code and code[1] + code[2] in _ZARR2:
        return _ZARR2[code[1] + code[2]], 8 * int(code[2])
    return "", 0
