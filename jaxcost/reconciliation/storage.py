"""What is stored: parameters tensor by tensor, state by role, and the bytes of the step's border.

A parameter row is exact only when name, axes, shape, type, trainability and storage identity agree; equal totals prove
none of these. Bytes at the border of a compiled step differ from the logical payload by what the buffer assignment
shows: padded tiles on TPU, a table of pointers to the results on CPU and CUDA.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from jaxcost.observation.observed import Observed
from jaxcost.prediction.ledgers import Prediction
from jaxcost.prediction.rows import Row as LedgerRow
from jaxcost.reconciliation import pipeline
from jaxcost.reconciliation.rows import Explanation, Finding, Interval, Row

GRADIENTS = "gradients live and die inside the step; they do not cross its border"


def parameter_rows(prediction: Prediction, observed: Observed) -> list[Row]:
    """Compare the parameter ledger with the Equinox traversal: totals, then one row per named tensor."""
    ledger, seen = prediction.ledgers["parameters"], observed.parameters
    totals = {"unique": "stored", "named": "named", "trainable": "trainable", "bytes": "bytes"}
    padding = ledger.totals["padding"]
    rows = []
    for name, total in totals.items():
        unit = "bytes" if name == "bytes" else "scalars"
        explanations: tuple[Explanation, ...] = ()
        predicted = ledger.totals[name]
        if padding and name in ("unique", "named", "trainable"):
            added = sum(row.fields["padding"] for row in ledger.rows if _counts(row, name))
            evidence = f"vocabulary_multiple = {prediction.case.execution.vocabulary_multiple}"
            explanations = (Explanation(added, "declared padding of the vocabulary rows", evidence),)
        rows.append(
            Row(f"parameters.{name}", "", "", unit, predicted, seen[name], explanations, f"ledger total {total}")
        )
    return rows + _tensor_rows(ledger.rows, seen["entries"])


def _counts(row: LedgerRow, total: str) -> bool:
    if total == "named":
        return True
    return not row.fields["alias"] and (total == "unique" or bool(row.fields["trainable"]))


def _tensor_rows(declared: Sequence[LedgerRow], entries: Sequence[Mapping[str, Any]]) -> list[Row]:
    names = {entry["name"]: _key(entry) for entry in entries}
    found: dict[str, list[Mapping[str, Any]]] = {}
    for entry in entries:
        if entry["kind"] == "parameter":
            found.setdefault(_key(entry), []).append(entry)
    rows = []
    for row in declared:
        seen = found.pop(row.object, [])
        differences = list(_differences(row, seen, names))
        count = sum(entry["scalars"] for entry in seen) if seen else 0
        expected = row.value + row.fields["padding"]
        rows.append(_tensor_row(row.object, expected, count, differences))
    for key, seen in found.items():
        count = sum(entry["scalars"] for entry in seen)
        rows.append(_tensor_row(key, 0, count, ["the network has a parameter that the program does not declare"]))
    return rows


def _tensor_row(name: str, predicted: int, seen: int, differences: Sequence[str]) -> Row:
    return Row(
        "tensor", name, "", "scalars", predicted, seen, reason="; ".join(differences), forced_open=bool(differences)
    )


def _key(entry: Mapping[str, Any]) -> str:
    return f"{entry['scope']}/{str(entry['name']).rsplit('.', 1)[-1]}"


def _differences(row: LedgerRow, seen: Sequence[Mapping[str, Any]], names: Mapping[str, str]) -> Iterable[str]:
    fields = row.fields
    if len(seen) != fields["copies"]:
        yield f"{len(seen)} arrays, declared {fields['copies']}"
    for entry in seen:
        if tuple(entry["shape"]) != tuple(fields["shape"]):
            yield f"{entry['name']} has shape {entry['shape']}, declared {list(fields['shape'])}"
        axes = None if entry["axes"] is None else " ".join(name for name, _ in entry["axes"])
        if axes is not None and axes != fields["axes"]:
            yield f"{entry['name']} has axes {axes}, declared {fields['axes']}"
        if entry["dtype"] != fields["dtype"]:
            yield f"{entry['name']} is {entry['dtype']}, declared {fields['dtype']}"
        if entry["trainable"] != fields["trainable"]:
            yield f"{entry['name']} trainable {entry['trainable']}, declared {fields['trainable']}"
        owner = names.get(entry["alias"], entry["alias"])
        if owner != fields["storage"] and fields["copies"] == 1:
            yield f"{entry['name']} is stored as {owner}, declared {fields['storage']}"


def state_rows(prediction: Prediction, observed: Observed) -> list[Row]:
    """Compare the state ledger, role by role, with the rows of a real train state (global bytes)."""
    declared = dict(prediction.ledgers["state"].totals["by_role"])
    seen = {role: found["bytes"] for role, found in observed.data["state"]["by_role"].items()}
    rows = []
    for role in sorted(set(declared) | set(seen)):
        if role in ("gradient", "gradient_copy"):
            rows.append(Row(f"state.{role}", "", "", "bytes", declared[role], None, reason=GRADIENTS))
        elif role == "step" and role not in declared:
            reason = "the policy lists no step counter; optax keeps one int32"
            rows.append(Row("state.step", "", "", "bytes", 0, seen[role], (Explanation(4, reason, "optimizer count"),)))
        elif role in declared:
            rows.append(Row(f"state.{role}", "", "", "bytes", declared[role], seen.get(role, 0)))
    if prediction.case.workload.phase == "decode":
        cache = sum(seen.get(role, 0) for role in ("cache_keys", "cache_values"))
        rows.append(
            Row("kv_cache.allocated_bytes", "", "", "bytes", prediction.value("kv_cache.allocated_bytes"), cache)
        )
    return rows


def memory_rows(prediction: Prediction, observed: Observed) -> list[Row]:
    """Compare the bytes of the step's border on one device, and list those that are not predicted."""
    memory, totals = observed.memory, prediction.ledgers["device"].totals
    arguments, results = observed.data["hlo"]["arguments"], observed.data["hlo"]["results"]
    padding = [item for item in arguments if item["bytes"] != item["logical_bytes"]]
    different = (*_passed_by(observed), *pipeline.ends(prediction, observed))
    explained = list(different)
    if padding:
        explained.append(Explanation(_padding(padding), "tiles padded by the layout of the compiler", _tiles(padding)))
    rows = [
        Row("argument_bytes", "", "", "bytes", totals["argument_bytes"], memory["argument_bytes"], tuple(explained))
    ]
    explained = list(pipeline.ends(prediction, observed))
    padded = [item for item in results if item["bytes"] != item["logical_bytes"]]
    if padded:
        explained.append(Explanation(_padding(padded), "tiles padded by the layout of the compiler", _tiles(padded)))
    table = observed.data["hlo"]["result_table_bytes"]
    if table:
        evidence = f"the result is a tuple of {len(results)} arrays"
        explained.append(Explanation(table, "the table of pointers to the results", evidence))
    rows.append(Row("output_bytes", "", "", "bytes", totals["output_bytes"], memory["output_bytes"], tuple(explained)))
    rows.append(_alias_row(prediction, observed, padding, different))
    limit = observed.data["target"]["device_memory_bytes"]
    if limit is not None and memory["required_bytes"] is not None:
        source = observed.data["target"]["device_memory_source"]
        rows.append(
            Row(
                "fits",
                "",
                "",
                "bytes",
                Interval(0, limit, None),
                memory["required_bytes"],
                reason=f"device memory: {source}",
            )
        )
    return rows


def device_rows(observed: Observed) -> list[Row]:
    """Return what came of a program that exceeds its device: the compiler's refusal, and XLA's own rematerialisation.

    The second compile is another program; what it recomputes stands by itself and never in the first ledger.
    """
    rows = []
    if observed.status == "refused":
        reason = f"the compiler refused the program: {observed.reason}"
        rows.append(Row("accepted", "", "", "programs", 1, 0, reason=reason, forced_open=True))
    second = (observed.data["rematerialisation"] or {}).get("second_compile")
    if second:
        reason = (
            f"a second compile with XLA's own rematerialisation on, {second['status']}; of no ledger of this program"
        )
        excess, needed = second["excess_flops"], second["required_bytes"]
        rows.append(Row("xla_rematerialisation.excess_flops", "", "", "FLOPs", None, excess, reason=reason))
        rows.append(Row("xla_rematerialisation.required_bytes", "", "", "bytes", None, needed, reason=reason))
    return rows


def _passed_by(observed: Observed) -> tuple[Explanation, ...]:
    """Explain the state that a compiled program does not take: jit drops an argument that nothing in it uses, and a
    step that returns it unchanged hands it on outside the program.
    """
    taken = {_path(item["path"]) for item in observed.data["hlo"]["arguments"]}
    rows = [row for row in observed.data["state"]["rows"] if _row_path(row) not in taken]
    if not rows or not all(row["donated"] for row in rows):
        return ()
    names = ", ".join(_row_path(row) for row in rows[:4]) + (f" and {len(rows) - 4} more" if len(rows) > 4 else "")
    reason = "arguments that nothing uses pass the program by"
    return (Explanation(-sum(row["device_bytes"] for row in rows), reason, f"no arguments of the module: {names}"),)


def _path(path: str) -> str:
    """Write the path of a module's argument as state rows do: `state.optimizer[0].v` is `optimizer.0.v`."""
    return path.removeprefix("state.").replace("[", ".").replace("]", "").lstrip(".")


def _row_path(row: Mapping[str, Any]) -> str:
    return ".".join(filter(None, (str(row["argument"]), str(row["name"]))))


def _alias_row(
    prediction: Prediction, observed: Observed, padding: Sequence[Mapping[str, Any]], different: tuple[Explanation, ...]
) -> Row:
    """Bytes of donated arguments that results reuse: the train state in training, the cache in decode."""
    expected = donated_bytes(prediction)
    kept = {row["argument"] for row in observed.data["state"]["rows"] if row["donated"]}
    own = [
        item
        for item in padding
        if item["path"].split(".", 1)[0].split("[", 1)[0] in kept | ({"state"} if kept else set())
    ]
    explained = different if expected else ()
    if own and expected:
        explained += (Explanation(_padding(own), "tiles padded by the layout of the compiler", _tiles(own)),)
    return Row("alias_bytes", "", "", "bytes", expected, observed.memory["alias_bytes"], explained)


def donated_bytes(prediction: Prediction) -> int:
    """Return the bytes of the arguments that results take the place of: the train state, or the cache in decode."""
    if not prediction.case.execution.donate:
        return 0
    training = prediction.case.workload.phase == "training"
    return sum(
        row.per_device
        for row in prediction.ledgers["device"].rows
        if row.phase == "argument"
        and (row.fields["role"] != "input" if training else row.object.rsplit("/past_", 1)[-1] in ("keys", "values"))
    )


def _padding(items: Iterable[Mapping[str, Any]]) -> int:
    return sum(item["bytes"] - item["logical_bytes"] for item in items)


def _tiles(items: Sequence[Mapping[str, Any]], most: int = 4) -> str:
    worst = sorted(items, key=lambda item: item["logical_bytes"] - item["bytes"])[:most]
    shown = ", ".join(f"{item['shape']} takes {item['bytes']} bytes" for item in worst)
    return f"{len(items)} arrays: {shown}"


def memory_findings(observed: Observed) -> list[Finding]:
    """Return what happened where XLA recomputes or the program exceeds the device, and what was assumed about
    parameters.
    """
    found = [Finding("assumption", text) for text in observed.parameters.get("assumptions", [])]
    section = observed.data["rematerialisation"] or {}
    for refusal in (section.get("refusal"), (section.get("second_compile") or {}).get("refusal")):
        if refusal:
            found.append(Finding("refused", f"the compiler refused the program: {refusal['text']}"))
    second = section.get("second_compile")
    if second:
        device, needed = section.get("device_memory_bytes"), second["required_bytes"]
        silent = second["status"] == "compiled" and second["remat_instructions"]
        text = (
            f"with XLA's own rematerialisation on, the compile was {second['status']}"
            f"{', in silence' if silent else ''}: {second['remat_instructions']} instructions recomputed, "
            f"{second['excess_flops']} FLOPs more, {needed} bytes required"
        )
        if device is not None and needed is not None and needed > device:
            text += f", still above the device's {device}"
        found.append(Finding("xla rematerialisation", text, tuple(second["names"])))
    return found
