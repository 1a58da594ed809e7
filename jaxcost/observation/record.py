"""Recorded evidence: what a compiler said once, small enough to commit, replayed without a compiler.

A record is two files side by side:

    NAME.json     case, target, versions, flags, digests, command, date; parameters, state, jaxpr; XLA's own numbers
    NAME.hlo.xz   the optimised module with its buffer assignment, less what no reader reads, LZMA-compressed

Nothing that is read from the module is stored: a replay reads the module again, so it tests the reading code and not a
copy of its results. Both files are covered by digests, and what does not match them is refused. The same observation,
command and date give the same bytes.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import lzma
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxcost.contracts.case import Case
from jaxcost.contracts.errors import Problem, RejectedError, UnavailableError, reject
from jaxcost.contracts.mesh import program_mesh
from jaxcost.contracts.record import as_table, parse_json, read_text
from jaxcost.observation.hlo.schema import parse, schema
from jaxcost.observation.observed import Observed
from jaxcost.observation.pool import Pool, Request
from jaxcost.observation.sections import compiler_section, hlo_sections, known_scopes, short_path
from jaxcost.observation.targets import parse_target
from jaxcost.observation.worker import task

SCHEMA = "jaxcost.record.v1"
LARGEST_MODULE_BYTES = 256 * 2**20  # of an unpacked module; the largest met is 5 MB
_LINE = 400  # the longest table of a record that stands on one line
_REMEDY = "record it again: jaxcost verify --record DIR"
_TIMINGS = ("lowering_seconds", "compile_seconds", "reading_seconds")
_FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME}]
_READ_AGAIN = ("hlo", "memory", "collectives")


def strip_module(hlo: bytes) -> bytes:
    """Return an HloProto without the fields that no reader reads, and without directories of the recording machine.

    Raises:
        RejectedError: `hlo` is no HLO module.
    """
    module, assignment = parse(hlo)
    whole = schema("kept").classes["HloProto"]()
    whole.hlo_module.MergeFromString(module.SerializeToString())
    if assignment is not None:
        whole.buffer_assignment.MergeFromString(assignment.SerializeToString())
    whole.DiscardUnknownFields()
    names = whole.hlo_module.stack_frame_index.file_names
    names[:] = [short_path(name) for name in names]
    data: bytes = whole.SerializeToString(deterministic=True)
    return data


def record_name(observed: Observed) -> str:
    """Return the file name of a record: architecture, phase, target, and the start of the case's digest."""
    case = observed.data["case"]
    parts = (case["architecture"]["name"], case["workload"]["phase"], observed.target, observed.case_digest[:8])
    return re.sub(r"[^A-Za-z0-9._-]+", "-", "_".join(parts))


def write_record(
    directory: Path | str, observed: Observed, hlo: bytes, *, command: Sequence[str] = (), date: str | None = None
) -> Path:
    """Write a record and return the path of its JSON file.

    Args:
        directory: made where it does not exist.
        observed: an observation of this process or a worker, not a failed one.
        hlo: the optimised module `observed` was read from.
        command: what was run to make it.
        date: ISO date; today where None.

    Raises:
        RejectedError: the observation failed, or `hlo` is not its module.
    """
    if observed.status == "failed":
        raise reject("observed.status", "failed", f"nothing was observed: {observed.reason}", "record what compiles")
    digest = hashlib.sha256(hlo).hexdigest()
    if digest != observed.data["environment"]["module_digest"]:
        raise reject("hlo", digest, "not the module of this observation", "pass the one it was read from")
    stripped = strip_module(hlo)
    name = record_name(observed)
    data = {key: value for key, value in observed.to_dict().items() if key not in _READ_AGAIN}
    data["environment"] = {key: value for key, value in data["environment"].items() if key not in _TIMINGS}
    data["rematerialisation"] = _without_timings(data["rematerialisation"])
    content = {
        "schema": SCHEMA,
        "date": date or datetime.datetime.now(datetime.UTC).date().isoformat(),
        "command": list(command),
        "module": {
            "file": f"{name}.hlo.xz",
            "sha256": hashlib.sha256(stripped).hexdigest(),
            "bytes": len(stripped),
            "recorded_bytes": len(hlo),
            "unknowns": [text for text in observed.data["hlo"]["unknowns"] if str(text).startswith("field ")],
        },
        "observed": data,
    }
    content["sha256"] = _digest(content)
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    # The module first: a JSON file that is there has its module.
    _replace(folder / f"{name}.hlo.xz", lzma.compress(stripped, format=lzma.FORMAT_XZ, filters=_FILTERS))
    path = folder / f"{name}.json"
    _replace(path, (_spelled(content) + "\n").encode())
    return path


def read_record(path: Path | str, *, pool: Pool | None = None) -> Observed:
    """Return the observation of a record; its module is read again, by this version's reader.

    Args:
        path: the JSON file; its module lies beside it.
        pool: read in a worker, with its limits of time and memory; None reads here.

    Raises:
        UnavailableError: one of the two files is missing.
        RejectedError: the record is damaged, was altered, or is of a case this version declares differently.
    """
    path = Path(path)
    _must_exist(path)
    if pool is not None:
        request = Request("jaxcost.observation.record:read_record_data", {"path": str(path.resolve())}, label=path.name)
        return Observed.from_dict(pool.value(request))
    content = as_table(parse_json(read_text(path), path.name), path.name)
    if content.get("schema") != SCHEMA:
        raise reject(f"{path.name}.schema", content.get("schema"), f"must be {SCHEMA}", _REMEDY)
    if content.get("sha256") != _digest(content):
        raise reject(f"{path.name}.sha256", content.get("sha256"), "the content does not have this digest", _REMEDY)
    module, data = content.get("module"), content.get("observed")
    if not isinstance(module, dict) or not isinstance(data, dict):
        raise reject(path.name, sorted(content), "module and observed are expected", _REMEDY)
    hlo = _read_module(path, module)
    case = Case.from_data(data.get("case"), f"{path.name}.observed.case")
    if case.digest != data.get("case_digest"):
        rule = "this version declares the case otherwise than the one that recorded it"
        raise reject(f"{path.name}.observed.case_digest", data.get("case_digest"), rule, _REMEDY)
    target = parse_target(_text(data.get("target"), "text"), f"{path.name}.observed.target.text")
    environment, compiler = _table(data, "environment"), _raw_numbers(_table(_table(data, "compiler"), "raw"))
    sections = hlo_sections(hlo, target, mesh=program_mesh(case), scopes=known_scopes(case))
    sections["hlo"]["unknowns"] = sorted({*sections["hlo"]["unknowns"], *module.get("unknowns", ())})
    return Observed.from_dict({
        **data, **sections, "origin": "record", "environment": {**environment, **dict.fromkeys(_TIMINGS)},
        "compiler": compiler_section(target.family, compiler, sections),
    })  # fmt: skip


@task
def read_record_data(payload: Mapping[str, str]) -> dict[str, Any]:
    """Read the record at `payload["path"]` in a worker."""
    return read_record(payload["path"]).to_dict()


def find_record(directory: Path | str, case_digest: str, target: str) -> Path:
    """Return the record of a case on a target in a directory of records.

    Raises:
        UnavailableError: there is none.
    """
    folder = Path(directory)
    target = re.sub(r"[^A-Za-z0-9._-]+", "-", target)
    found = sorted(folder.glob(f"*_{target}_{case_digest[:8]}.json"))
    if not found:
        reason = f"no record of this case for {target} in {folder}"
        raise UnavailableError(f"record {case_digest[:8]}", reason, "record it first: jaxcost verify --record DIR")
    return found[0]


def records(directory: Path | str) -> list[Path]:
    """Return the records of a directory, sorted by name. Other JSON files may lie beside them.

    Raises:
        UnavailableError: the directory does not exist.
        RejectedError: half of a record is missing, so that a replay would pass over it in silence.
    """
    folder = Path(directory)
    if not folder.is_dir():
        raise UnavailableError(str(folder), "no such directory of records", "check the path")
    modules = {path.name.removesuffix(".hlo.xz") for path in folder.glob("*.hlo.xz")}
    whole = [path for path in folder.glob("*.json") if path.stem in modules]
    lone = [path.name for path in folder.glob("*.json") if path.stem not in modules and _is_record(path)]
    lone += [f"{name}.hlo.xz" for name in modules - {path.stem for path in whole}]
    if lone:
        rule = "the other half of the record is missing; NAME.json and NAME.hlo.xz belong together"
        raise RejectedError([Problem(str(folder / name), None, rule, _REMEDY) for name in sorted(lone)])
    return sorted(whole)


def _is_record(path: Path) -> bool:
    return path.is_file() and path.stat().st_size < LARGEST_MODULE_BYTES and b'"jaxcost.record.' in path.read_bytes()


def _read_module(path: Path, module: Mapping[str, Any]) -> bytes:
    name, where = _text(module, "file"), f"{path.name}.module.file"
    if Path(name).name != name or not name.endswith(".hlo.xz"):
        raise reject(where, name, "a plain file name ending in .hlo.xz, beside the record", _REMEDY)
    file = path.with_name(name)
    _must_exist(file)
    decoder = lzma.LZMADecompressor(format=lzma.FORMAT_XZ, memlimit=512 * 2**20)
    try:
        stripped = decoder.decompress(file.read_bytes(), LARGEST_MODULE_BYTES)
    except lzma.LZMAError as error:
        raise reject(name, "module", f"not whole LZMA data ({error})", _REMEDY) from None
    if not decoder.eof or decoder.unused_data:
        raise reject(name, "module", "truncated, too large, or with bytes after its end", _REMEDY)
    if hashlib.sha256(stripped).hexdigest() != module.get("sha256"):
        raise reject(name, "module", "the unpacked module does not have the recorded digest", _REMEDY)
    return stripped


def _must_exist(path: Path) -> None:
    if not path.exists():
        raise UnavailableError(str(path), "no such record", "check the path, or record it: jaxcost verify --record DIR")


def _text(table: object, key: str) -> str:
    value = table.get(key) if isinstance(table, Mapping) else None
    if not isinstance(value, str):
        raise reject(key, value, "text is expected", _REMEDY)
    return value


def _table(table: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = table.get(key)
    if not isinstance(value, dict):
        raise reject(f"observed.{key}", type(value).__name__, "an object is expected", _REMEDY)
    return value


def _raw_numbers(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """The compiler's numbers as recorded: two tables of numbers, or None with a reason."""
    for name in ("memory_analysis", "cost_analysis"):
        table, reason = raw.get(name), raw.get(f"{name}_reason")
        numbers = isinstance(table, dict) and all(type(value) in (int, float) for value in table.values())
        if not isinstance(reason, str) or not (numbers or (table is None and reason)):
            rule = "a table of numbers, or null with a reason beside it"
            raise reject(f"observed.compiler.raw.{name}", type(table).__name__, rule, _REMEDY)
    return raw


def _digest(content: Mapping[str, Any]) -> str:
    rest = {key: value for key, value in content.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _spelled(value: Any, indent: str = "") -> str:
    """Return JSON that a reviewer can read and a diff can show: a table or list that fits on a line stands on one."""
    flat = json.dumps(value, sort_keys=True, ensure_ascii=True, separators=(",", ": "))
    deep = isinstance(value, dict | list) and value and len(flat) > _LINE
    if not deep:
        return flat
    inner = indent + " "
    if isinstance(value, dict):
        parts = [f"{json.dumps(key)}: {_spelled(item, inner)}" for key, item in sorted(value.items())]
        opening, closing = "{", "}"
    else:
        parts = [_spelled(item, inner) for item in value]
        opening, closing = "[", "]"
    return f"{opening}\n{inner}" + f",\n{inner}".join(parts) + f"\n{indent}{closing}"


def _without_timings(section: Any) -> Any:
    if isinstance(section, dict):
        return {key: _without_timings(value) for key, value in section.items() if not key.endswith("_seconds")}
    return section


def _replace(path: Path, data: bytes) -> None:
    """Write whole or not at all."""
    part = path.with_name(path.name + ".part")
    part.write_bytes(data)
    os.replace(part, path)
