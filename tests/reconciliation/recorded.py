"""Recorded observations, whole or with one thing changed: in the document, or in the module it is read from."""

from __future__ import annotations

import copy
import functools
import hashlib
import json
import lzma
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from jaxcost.contracts.case import Case
from jaxcost.data import room
from jaxcost.observation.hlo.schema import Proto, parse
from jaxcost.observation.observed import Observed
from jaxcost.observation.record import read_record, records
from jaxcost.prediction.ledgers import Prediction, predict
from jaxcost.reconciliation.report import reconcile
from jaxcost.reconciliation.rows import Report, Row

EXPECTED = Path(__file__).with_name("expected.json")
NAMES = tuple(sorted(path.stem for path in records(room("hlo_dumps"))))


def named(start: str, **mesh: int) -> str:
    """The one record whose name starts so, of those with this mesh where one is given; its digest follows the case and
    is not written down in tests.
    """
    found = [name for name in NAMES if name.startswith(start) and (not mesh or _mesh(name) == mesh)]
    (only,) = found
    return only


def _mesh(name: str) -> dict[str, int]:
    content = json.loads((room("hlo_dumps") / f"{name}.json").read_text(encoding="utf-8"))
    return {axis["name"]: axis["size"] for axis in content["observed"]["case"]["execution"]["mesh"]}


@functools.cache
def _read(name: str) -> Observed:
    return read_record(room("hlo_dumps") / f"{name}.json")


@functools.cache
def prediction(name: str) -> Prediction:
    return predict(Case.from_data(_read(name).data["case"]))


def observed(name: str, change: Callable[[dict[str, Any]], object] | None = None) -> Observed:
    """The observation of a record; `change` edits its document."""
    document = copy.deepcopy(dict(_read(name).data))
    if change is not None:
        change(document)
    return Observed(document)


def report(name: str, change: Callable[[dict[str, Any]], object] | None = None) -> Report:
    return reconcile(prediction(name), observed(name, change))


def with_module(name: str, folder: Path, edit: Callable[[Proto], object], within: Path | None = None) -> Observed:
    """A record whose compiled module was edited, read again from its files, digests made good."""
    source = (within or room("hlo_dumps")) / f"{name}.json"
    content = json.loads(source.read_text(encoding="utf-8"))
    module, assignment = parse(lzma.decompress(source.with_suffix(".hlo.xz").read_bytes()))
    edit(module)
    from jaxcost.observation.hlo.schema import message

    whole = message("HloProto")
    whole.hlo_module.CopyFrom(module)
    if assignment is not None:
        whole.buffer_assignment.CopyFrom(assignment)
    data = whole.SerializeToString(deterministic=True)
    content["module"]["sha256"] = hashlib.sha256(data).hexdigest()
    rest = {key: value for key, value in content.items() if key != "sha256"}
    spelled = json.dumps(rest, sort_keys=True, separators=(",", ":")).encode()
    content["sha256"] = hashlib.sha256(spelled).hexdigest()
    (folder / source.with_suffix(".hlo.xz").name).write_bytes(lzma.compress(data, preset=0))
    path = folder / source.name
    path.write_text(json.dumps(content), encoding="utf-8")
    return read_record(path)


def products(module: Proto) -> Iterator[tuple[Proto, Proto]]:
    """(computation, instruction) of every matrix product of a module."""
    for computation in module.computations:
        for instruction in computation.instructions:
            library = instruction.custom_call_target.startswith("__cublas")
            if instruction.opcode in ("dot", "convolution") or library:
                yield computation, instruction


def row_of(found: Report, key: str) -> Row:
    row = found.row(key)
    assert row is not None, f"no row {key}"
    return row


def table(found: Report) -> dict[str, list[Any]]:
    """What a report says of each row: its status and residual."""
    return {row.key: [row.status, row.residual] for row in found.rows}


def write() -> None:
    """Write the expected table: python -m tests.reconciliation.recorded --write."""
    tables = {name: table(report(name)) for name in NAMES}
    lines = [
        f" {json.dumps(name)}: {{\n"
        + ",\n".join(f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in rows.items())
        + "\n }"
        for name, rows in tables.items()
    ]
    EXPECTED.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    import sys

    if sys.argv[1:] != ["--write"]:
        sys.exit("nothing is written without --write: a changed expectation is a changed claim")
    write()
