"""From what was read to the sections of an observation. Used alike after a compile and on a replay; imports no jax.

`hlo_sections` turns the reading of a module into `hlo`, `memory` and `collectives` (per device). `compiler_section`
sets the compiler's own numbers beside it and says of each what it means on that backend, since the same field name
means different things on three backends.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

from jaxcost.contracts.case import Case
from jaxcost.observation.hlo import Contraction, HloReading, Total, read_hlo
from jaxcost.observation.jaxpr import count_jaxpr
from jaxcost.observation.targets import Target

# The components of the reference network; `cache` is the write and read of the K/V cache.
COMPONENTS = (
    "embed", "tokens", "scale", "project_in", "positions", "norm", "attn_norm", "attn", "q_proj", "k_proj", "v_proj",
    "q_norm", "k_norm", "rotary", "cache", "kernel", "scores", "softcap", "softmax", "values", "o_proj",
    "attn_post_norm", "mlp_norm", "mlp", "gate", "up", "activation", "down", "mlp_post_norm", "residual", "final_norm",
    "head", "project_out", "loss", "optimizer",
)  # fmt: skip


# A source of this package, and not one of a checkout or a project of the same name.
_PACKAGE = re.compile(
    r"(?:.*/)(jaxcost/(?:audits|catalog|cli|contracts|observation|papers|planning|prediction|reconciliation|reference"
    r"|report|verify)/.+)"
)


def known_scopes(case: Case) -> frozenset[str]:
    """Return the names of a case's scope components: those of a layer, and one per group of layers."""
    return frozenset(COMPONENTS) | {f"group{index}" for index in range(len(case.architecture.groups))}


def short_path(path: str) -> str:
    """Return a source path without the directories of the machine: from the package on, or from site-packages on."""
    match = re.search(r"(?:.*/)?(?:site-packages|dist-packages)/(.+)", path) or _PACKAGE.search(path)
    if match:
        return match[1]
    return path.rsplit("/", 1)[-1] if path.startswith("/") else path


def target_section(target: Target) -> dict[str, Any]:
    """Return what a number per device depends on."""
    return {
        "text": target.text, "family": target.family, "chip": target.chip, "description": target.description,
        "device_count": target.device_count, "node_count": target.node_count, "slice_count": target.slice_count,
        "device_memory_bytes": target.device_memory_bytes, "device_memory_source": target.device_memory_source,
    }  # fmt: skip


def hlo_sections(
    hlo: bytes, target: Target, *, mesh: Mapping[str, int], scopes: frozenset[str] | None
) -> dict[str, dict[str, Any]]:
    """Read a module into the sections `hlo`, `memory` and `collectives`.

    Raises:
        RejectedError: the bytes are not one whole, consistent module.
    """
    islands = max(target.node_count, target.slice_count)
    per_island = target.device_count // islands if islands > 1 else None
    reading = read_hlo(hlo, platform=target.family, mesh=mesh or None, scopes=scopes, devices_per_node=per_island)
    return {"hlo": _hlo(reading), "memory": _memory(reading), "collectives": _collectives(reading)}


def jaxpr_section(jaxpr: Any, scopes: frozenset[str] | None = None, *, open_kernels: bool = False) -> dict[str, Any]:
    """Return the contractions of the program before any compiler changed it, over all devices.

    `open_kernels`: count Pallas kernels by their own program, and everything that is no contraction by kind.
    """
    count = count_jaxpr(jaxpr, scopes=scopes, open_kernels=open_kernels)
    values = Values()
    more = {
        "kernels": [{**plain(row, values), "flops": interval(row.flops)} for row in count.kernels],
        "operations": {kind: interval(total) for kind, total in count.operations.items()},
        "interval": interval(count.total),
        "intervals": [
            {"scope": scope, "phase": phase, "flops": interval(total)}
            for (scope, phase), total in sorted(count.by_place.items())
        ],
    }  # fmt: skip
    return {
        "flops": values(count.total, "flops"),
        "by_phase": {phase: values(total, phase) for phase, total in sorted(count.by_phase.items())},
        "by_scope_phase": [
            {"scope": scope, "phase": phase, "flops": values(total, f"{scope} {phase}")}
            for (scope, phase), total in sorted(count.by_place.items())
        ],
        "rows": [plain(row, values) for row in count.rows],
        "opaque": [plain(row, values) for row in count.opaque],
        "unknowns": list(count.unknowns),
        "reasons": values.reasons,
        **(more if open_kernels else {}),
    }


def interval(total: Total) -> int | dict[str, int] | None:
    """A total in JSON: its integer, the interval it lies in, or None where nothing bounds it."""
    if total.minimum is None or total.maximum is None:
        return None
    return total.minimum if total.value is not None else {"minimum": total.minimum, "maximum": total.maximum}


class Values:
    """Integers out of totals; what is none leaves its reason."""

    def __init__(self) -> None:
        self.reasons: dict[str, str] = {}

    def __call__(self, total: Total, name: str = "") -> int | None:
        if total.value is None and name:
            why = "branches of a conditional, or a loop whose trips are only bounded"
            between = f"between {total.minimum} and {total.maximum}: {why}"
            self.reasons[name] = total.reason or between
        return total.value


def _hlo(reading: HloReading) -> dict[str, Any]:
    values = Values()
    found = reading.contractions
    flops = values(found.total, "flops")
    places = [
        {"scope": scope, "phase": phase, "flops": values(total, f"{scope} {phase}")}
        for (scope, phase), total in sorted(found.by_place.items())
    ]
    rows = [plain(row, values) for row in found.rows]
    return {
        "module": reading.module,
        "device_count": reading.device_count,
        "flops": flops,
        "logical_flops": _logical(found.rows, values),
        "by_phase": {phase: values(total, phase) for phase, total in sorted(found.by_phase.items())},
        "by_scope_phase": places,
        "contractions": rows,
        "unattributed": _unattributed(rows),
        "strength_reduced": [plain(row, values) for row in found.strength_reduced],
        "strength_reduced_flops": values(found.strength_reduced_total, "strength_reduced_flops"),
        "opaque": [plain(row, values) for row in found.opaque],
        "loops": [plain(row, values) for row in reading.loops],
        "traffic": _traffic(reading, values),
        "xla_remat": list(reading.xla_remat),
        "arguments": [plain(row, values) for row in reading.arguments],
        "results": [plain(row, values) for row in reading.results],
        "result_table_bytes": reading.result_table_bytes,
        "unknowns": list(reading.unknowns),
        "reasons": values.reasons,
    }


def _logical(rows: Iterable[Contraction], values: Values) -> int | None:
    """FLOPs without what the compiler padded; None where one contraction's padding cannot be told."""
    total = 0
    for row in rows:
        times = row.executions.value
        if row.logical_flops is None or times is None:
            values.reasons["logical_flops"] = f"the padding of {row.name} cannot be told"
            return None
        total += row.logical_flops * times
    return total


def _unattributed(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Contractions in no component, by phase."""
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        if row["scope"]:
            continue
        entry = found.setdefault(row["phase"], {"phase": row["phase"], "flops": 0, "instructions": []})
        entry["instructions"].append(row["name"])
        whole = entry["flops"] is not None and row["total"] is not None
        entry["flops"] = entry["flops"] + row["total"] if whole else None
    return [found[phase] for phase in sorted(found)]


def _traffic(reading: HloReading, values: Values) -> dict[str, Any]:
    traffic = reading.traffic
    return {
        "read_bytes": values(traffic.total_read_bytes, "traffic.read_bytes"),
        "write_bytes": values(traffic.total_write_bytes, "traffic.write_bytes"),
        "on_chip_bytes": values(traffic.total_on_chip_bytes, "traffic.on_chip_bytes"),
        "padding_bytes": values(traffic.padding_bytes, "traffic.padding_bytes"),
        "workspace_bytes": values(traffic.workspace_bytes, "traffic.workspace_bytes"),
        "by_category": {
            name: {
                "read_bytes": values(traffic.read_bytes[name]),
                "write_bytes": values(traffic.write_bytes[name]),
                "on_chip_bytes": values(traffic.on_chip_bytes[name]),
            }
            for name in sorted(traffic.read_bytes)
        },
        "by_scope_phase": [
            {"scope": scope, "phase": phase, "bytes": values(total)}
            for (scope, phase), total in sorted(traffic.by_place.items())
        ],
        "moves": [plain(row, values) for row in traffic.moves],
    }


def _memory(reading: HloReading) -> dict[str, Any]:
    memory, values = reading.memory, Values()
    section = {
        field.name: plain(getattr(memory, field.name), values) for field in fields(memory) if field.name != "live"
    }
    return {**section, "at_peak": [plain(row, values) for row in memory.live]}


def _collectives(reading: HloReading) -> dict[str, Any]:
    values = Values()
    groups: dict[Any, int] = {}
    rows = []
    for found in reading.collectives.rows:
        row = plain(found, values)
        row["groups"] = groups.setdefault(found.groups, len(groups))
        rows.append(row)
    sums = []
    for (kind, axes), operand in reading.collectives.operand_bytes.items():
        result = reading.collectives.result_bytes[(kind, axes)]
        name = f"{kind} over {axes}"
        sums.append({
            "kind": kind, "axes": None if axes is None else list(axes),
            "operand_bytes": values(operand, name), "result_bytes": values(result, name),
            "count": sum(1 for row in reading.collectives.rows if (row.kind, row.axes) == (kind, axes)),
        })  # fmt: skip
    return {
        "by_kind_axes": sorted(sums, key=lambda row: (row["kind"], row["axes"] or [])),
        "rows": rows,
        "groups": [[list(group) for group in listed] for listed in groups],
        "clones": reading.collectives.clones,
        "reasons": values.reasons,
    }


def plain(value: Any, values: Values) -> Any:
    """A record as plain data: a total is its integer or None, a source path loses the machine's directories."""
    if isinstance(value, Total):
        return values(value)
    if isinstance(value, tuple | list):
        return [plain(item, values) for item in value]
    if isinstance(value, dict):
        return {str(key): plain(item, values) for key, item in value.items()}
    if not hasattr(value, "__dataclass_fields__"):
        return value
    # A field named for a word of the language has a trailing underscore here and none in JSON.
    row = {field.name.rstrip("_"): plain(getattr(value, field.name), values) for field in fields(value)}
    for name in ("source", "line"):
        if isinstance(row.get(name), str):
            row[name] = short_path(row[name])
    return row


# The compiler's own numbers ---------------------------------------------------------------------------------------

# field: (what it means, which of the bytes read from the buffer assignment it should equal, whether its name misleads)
_MEANINGS: Mapping[str, Mapping[str, tuple[str, str, bool]]] = {
    "argument_size_in_bytes": {
        "": ("arguments of one device, tiles padded", "argument_bytes", False),
    },
    "output_size_in_bytes": {
        "": ("results of one device, aliased ones too, and 8 bytes per leaf for their table", "output_bytes", False),
        "tpu": ("results of one device, aliased ones too, tiles padded", "output_bytes", False),
    },
    "alias_size_in_bytes": {
        "": ("results that take over the memory of an argument", "alias_bytes", False),
    },
    "temp_size_in_bytes": {
        "": ("temporaries as allocated, gaps included", "temp_bytes", False),
        "tpu": ("temporaries by a rule the compiler does not state; not those in device memory", "temp_bytes", True),
    },
    "peak_memory_in_bytes": {
        "cuda": ("live peak: arguments, results, constants, the fullest moment of the heap", "live_peak_bytes", False),
        "cpu": ("arguments, results and constants alone: the runtime drops the heap trace, no temporary is in it",
                "resident_bytes", True),
        "tpu": ("peak over all memory spaces: on-chip buffers count as if they lay in device memory",
                "all_spaces_peak_bytes", True),
    },
    "generated_code_size_in_bytes": {"": ("machine code; no tensor is in it", "", False)},
}  # fmt: skip

_COUNTERS = {
    "flops": ("flops", "contractions and elementwise operations; a loop's body counts once, a library call as nothing"),
    "bytes_accessed": ("bytes accessed", "operands and results of every instruction; a loop's body counts once"),
    "transcendentals": ("transcendentals", "exponentials, logarithms and the like; a loop's body counts once"),
}


def compiler_section(
    family: str,
    raw: Mapping[str, Any],
    sections: Mapping[str, Mapping[str, Any]],
) -> dict[str, Any]:
    """Return XLA's own counts and memory statistics, each with its meaning on this backend.

    Args:
        family: `cpu`, `cuda` or `tpu`.
        raw: `memory_analysis`, `cost_analysis` (a table, or None) and a `..._reason` for each.
        sections: what was read from the module: `hlo`, `memory`.

    A memory field has the verdict `exact` (equals what was read, and its name says what it is), `misleading` (its name
    says something else), `differs` (by `difference`), `uncompared`, or `absent`.
    """
    memory = dict(sections["memory"])
    if memory.get("required_bytes") is not None:
        memory["resident_bytes"] = memory["required_bytes"] - memory["temp_bytes"]
    return {
        "raw": dict(raw),
        "counters": {name: _counter(name, raw, sections["hlo"]) for name in _COUNTERS},
        "memory_analysis": {
            name: _memory_field(name, family, raw, memory)
            for name in sorted({*_MEANINGS, *(raw["memory_analysis"] or {})})
        },
    }


def _counter(name: str, raw: Mapping[str, Any], hlo: Mapping[str, Any]) -> dict[str, Any]:
    key, meaning = _COUNTERS[name]
    table = raw["cost_analysis"]
    value = None if table is None else table.get(key)
    reason = raw["cost_analysis_reason"] if table is None else ("" if value is not None else f"XLA gives no {key!r}")
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    row = {"value": value, "reason": reason, "meaning": meaning, "loops": len(hlo["loops"])}
    if name == "flops":
        counted = [row["flops"] for row in hlo["contractions"]]
        row["contractions_once_flops"] = None if None in counted else sum(counted)
    return row


def _memory_field(name: str, family: str, raw: Mapping[str, Any], memory: Mapping[str, Any]) -> dict[str, Any]:
    table = raw["memory_analysis"]
    value = None if table is None else table.get(name)
    if value is None:
        reason = raw["memory_analysis_reason"] or "the compiler gives no such field"
        return {"value": None, "reason": reason, "verdict": "absent"}
    meanings = _MEANINGS.get(name, {})
    meaning, compared, misleading = (
        meanings.get(family) or meanings.get("") or ("host memory; none is used here", "", False)
    )
    other = memory.get(compared) if compared else None
    row = {"value": value, "meaning": meaning, "compared_with": f"memory.{compared}" if compared else None}
    if other is None:
        return {**row, "difference": None, "verdict": "misleading" if misleading else "uncompared"}
    verdict = "exact" if value == other else "differs"
    # Where on-chip memory is not used, even the peak over all spaces is the peak.
    if misleading and not (compared == "all_spaces_peak_bytes" and value == memory.get("live_peak_bytes")):
        verdict = "misleading"
    return {**row, "difference": value - other, "verdict": verdict}
