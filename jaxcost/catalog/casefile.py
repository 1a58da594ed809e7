"""A case file: one model and the options of one case, in TOML or JSON.

    model = "toy-tied"              # or a path relative to this file, or a table [architecture] instead
    phase = "training"
    batch = 16
    seq = 4096
    remat = "block"
    mesh = { fsdp = 8 }

    [expected]
    "parameters.unique" = 1128

A MaxText .yml is a case file too: it says both the model and the step.

The option keys are those of `jaxcost.contracts.case.OPTION_NAMES`. `[liveness]` and `[expected]` here replace those of
the model's manifest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from jaxcost.catalog.manifest import YAML, Manifest, load, manifest_from_data, read_maxtext
from jaxcost.contracts.case import OPTION_NAMES
from jaxcost.contracts.errors import Problem, RejectedError, reject
from jaxcost.contracts.record import as_table, parse_file

_TABLES = ("model", "architecture", "liveness", "expected")


@dataclass(frozen=True)
class CaseFile:
    """What a case file says: its manifest (None where it names no model) and its options, not yet validated."""

    manifest: Manifest | None
    options: Mapping[str, Any]
    path: Path


def load_case_file(path: Path) -> CaseFile:
    """Read a case file.

    Raises:
        RejectedError: the file is missing or malformed, a key is unknown, or the model it names is not to be had.
    """
    if not path.exists():
        raise reject("case", str(path), "no such file", "check the path of --case")
    if not path.is_file():
        raise reject("case", str(path), "not a regular file", "name the .toml or .json file")
    where = path.name
    if path.suffix in YAML:
        found = read_maxtext(path)
        return CaseFile(Manifest(found.architecture, None, None, path, "maxtext_config"), found.options, path)
    data = as_table(parse_file(path), where)
    problems = [
        Problem(
            f"{where}.{key}", data[key], "not a key of a case file", f"the keys are {', '.join(_TABLES + OPTION_NAMES)}"
        )
        for key in data
        if key not in _TABLES and key not in OPTION_NAMES
    ]
    if "model" in data and "architecture" in data:
        rule = "a case has one model: both a name and an inline [architecture] are given"
        problems.append(Problem(f"{where}.model", data["model"], rule, "keep one of the two"))
    frozen = data.get("frozen", [])
    if not isinstance(frozen, list) or not all(isinstance(scope, str) and scope for scope in frozen):
        problems.append(
            Problem(f"{where}.frozen", frozen, "must be a list of component scopes", 'write frozen = ["embed"]')
        )
    manifest = None
    try:
        manifest = _manifest(data, path)
    except RejectedError as error:
        problems.extend(error.problems)
    if problems:
        raise RejectedError(problems)
    return CaseFile(manifest, {key: value for key, value in data.items() if key in OPTION_NAMES}, path)


def _manifest(data: Mapping[str, Any], path: Path) -> Manifest | None:
    own = {key: data[key] for key in ("liveness", "expected") if key in data}
    if "architecture" in data:
        architecture = data["architecture"]
        table = architecture if isinstance(architecture, dict) else {"architecture": architecture}
        return manifest_from_data({**table, **own}, path.name, path, "case_file")
    if "model" not in data:
        if own:
            names = " and ".join(own)
            raise reject(
                f"{path.name}.model", None, f"{names} belong to a model, and none is named", 'add model = "NAME"'
            )
        return None
    named = data["model"]
    if not isinstance(named, str):
        raise reject(f"{path.name}.model", named, "must be text", "write a catalogue name or a path in quotes")
    base = load(named, folder=path.parent)
    if not own:
        return base
    supplied = manifest_from_data({**base.architecture.to_data(), **own}, path.name, path, base.origin)
    return replace(
        base,
        liveness=supplied.liveness if "liveness" in own else base.liveness,
        expected=supplied.expected if "expected" in own else base.expected,
    )
