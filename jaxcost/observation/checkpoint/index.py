"""Sharded safetensors: `model.safetensors.index.json` says which file holds which tensor.

The index and the headers must agree exactly: every tensor lies in the file that the index names and in no other, and
no file holds a tensor that the index does not name.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jaxcost.contracts.errors import Problem, RejectedError, reject
from jaxcost.contracts.record import LARGEST_SIZE, parse_json
from jaxcost.observation.checkpoint.files import inside, read_small
from jaxcost.observation.checkpoint.safetensors import MAXIMUM_HEADER_BYTES, MAXIMUM_PROBLEMS, read_header
from jaxcost.observation.checkpoint.stored import StoredFile, StoredTensor

CLAIMS = ("total_size", "total_parameters")  # bytes and scalars, as transformers writes them


def read_index(
    folder: Path, name: str
) -> tuple[tuple[StoredFile, ...], tuple[StoredTensor, ...], dict[str, int], tuple[str, ...]]:
    """Return the files (the index first), the tensors in the order of the index, its claims, and notes.

    Raises:
        RejectedError: the index is malformed, names a file outside its folder or one that is missing, or disagrees
            with the headers.
    """
    path = inside(folder, name, "index")
    text = read_small(path, name, MAXIMUM_HEADER_BYTES)
    data = parse_json(text, name)
    remedy = "the index is damaged, or belongs to another checkpoint"
    if not isinstance(data, dict) or not isinstance(data.get("weight_map"), dict) or set(data) - _TOP:
        raise reject(name, _shape(data), "must be an object of weight_map and, if wanted, metadata", remedy)
    places = data["weight_map"]
    if not places:
        raise reject(f"{name}.weight_map", {}, "names no tensor", remedy)
    claims, problems = _claims(data.get("metadata", {}), f"{name}.metadata")
    real: dict[str, Path] = {}
    for tensor, file in places.items():
        # Most tensors name a file that was already looked up; a value that is no text may be unhashable.
        if isinstance(file, str) and file in real:
            continue
        try:
            found = inside(folder, file, f"{name}.weight_map.{tensor}")
            if not file.endswith(".safetensors"):
                raise reject(f"{name}.weight_map.{tensor}", file, "is no .safetensors file", remedy)
            real[file] = found
        except RejectedError as error:
            problems += error.problems
        if len(problems) > MAXIMUM_PROBLEMS:
            break
    if len(set(real.values())) != len(real):
        problems.append(Problem(f"{name}.weight_map", sorted(real)[:4], "two names are links to one file", remedy))
    if problems:
        raise RejectedError(problems[:MAXIMUM_PROBLEMS])
    files, tensors = _headers(real, places, name, remedy)
    held = tuple(sorted(p.name for p in folder.glob("*.safetensors") if p.name not in real))
    notes = (f"not in the index, so not read: {', '.join(held[:8])}",) if held else ()
    return (StoredFile(name, len(text)), *files), tensors, claims, notes


_TOP = {"weight_map", "metadata"}


def _headers(
    real: dict[str, Path], places: dict[str, str], name: str, remedy: str
) -> tuple[list[StoredFile], tuple[StoredTensor, ...]]:
    files, found, problems = [], {}, []
    for file in sorted(real):
        stored, tensors = read_header(real[file], file)
        files.append(stored)
        for tensor in tensors:
            if places.get(tensor.name) != file:
                said = f"the index places it in {places[tensor.name]}" if tensor.name in places else "not in the index"
                problems.append(Problem(f"{file}.{tensor.name}", file, said, remedy))
            else:
                found[tensor.name] = tensor
    for missing in sorted(places.keys() - found.keys()):
        rule = "the file does not hold this tensor, though the index says so"
        problems.append(Problem(f"{name}.weight_map.{missing}", places[missing], rule, remedy))
    if problems:
        raise RejectedError(problems[:MAXIMUM_PROBLEMS])
    return files, tuple(found[tensor] for tensor in places)


def _claims(metadata: object, where: str) -> tuple[dict[str, int], list[Problem]]:
    if not isinstance(metadata, dict):
        return {}, [Problem(where, type(metadata).__name__, "must be an object", "the index is damaged")]
    claims, problems = {}, []
    for key in CLAIMS:
        value: Any = metadata.get(key)
        if value is None:
            continue
        # transformers has written whole numbers with a decimal point; those are exact below 2**53.
        if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= LARGEST_SIZE:
            problems.append(Problem(f"{where}.{key}", value, "must be a whole number", "the index is damaged"))
        else:
            claims[key] = value
    return claims, problems


def _shape(data: object) -> object:
    return sorted(data)[:8] if isinstance(data, dict) else type(data).__name__
