"""The values a result rests on, as the options that would give them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxcost.contracts.execution import Execution
from jaxcost.report.numbers import exact, flat


def case_values(case: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the values used, as (option, value), in the order of the command line's options."""
    work, run, state, convention = case["workload"], case["execution"], case["state"], case["convention"]
    mesh = ",".join(f"{axis['name']}={axis['size']}" for axis in run["mesh"]) or "one device"
    values = [
        ("phase", work["phase"]), ("batch", work["batch"]), ("seq", work["new_tokens"]), ("past", work["past_tokens"]),
        ("logits", work["logits"]), ("accumulate", work["accumulate"]), ("precision", state["name"]),
        ("optimizer", state["optimizer"]), ("remat", run["remat"]), ("attention", work["attention"]),
        ("layers", run["layers"]), ("mesh", mesh), ("zero", run["zero"]), ("sharding", run["sharding"]),
        ("pairs", convention["attention_pairs"]),
    ]  # fmt: skip
    if work["attention"] != "materialised":
        values.append(("attention-block", work["attention_block"]))
    if work["dropout"]:
        values.append(("dropout", "yes"))
    values += _ownership(run)
    if state["frozen"]:
        values.append(("freeze", ", ".join(state["frozen"])))
    if work["lengths"]:
        values.append(("lengths", f"{len(work['lengths'])} sequences, {sum(work['lengths']):,} tokens"))
    return [(name, exact(value)) for name, value in values]


def _ownership(run: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return the values of who owns what that differ from their defaults; case data without a field has its default."""
    default = Execution().to_data()

    def differs(path: str) -> Any:
        found: Any = run
        usual: Any = default
        for part in path.split("."):
            found, usual = found.get(part, usual[part]), usual[part]
        return None if found == usual else ",".join(map(str, found)) if isinstance(found, list | tuple) else found

    named = ((option, differs(path)) for option, path in _OWNERSHIP.items())
    return [(option, value) for option, value in named if value is not None]


_OWNERSHIP = {
    "vocabulary-multiple": "vocabulary_multiple", "head-multiple": "head_multiple", "remat-names": "remat_names",
    "fsdp-group": "fsdp.group", "reshard": "fsdp.reshard", "prefetch": "fsdp.prefetch",
    "sequence-parallel": "sequence_parallel", "context-method": "context_method",
    "pipeline-schedule": "pipeline.schedule", "pipeline-layers": "pipeline.layers",
    "pipeline-virtual": "pipeline.virtual", "embedding-stage": "pipeline.embedding_stage",
    "head-stage": "pipeline.head_stage", "gradient-sync": "gradient_sync", "offload": "offload",
}  # fmt: skip


def unknown_reasons(ledger: Mapping[str, Any]) -> dict[str, str]:
    """Return why each unknown total of a ledger is unknown; one reason for all is given once, for the ledger."""
    reasons = ledger.get("reasons", {})
    general = ledger.get("reason") or ledger["totals"].get("reason") or "no reason given"
    found = {}
    for name, value in flat({key: item for key, item in ledger["totals"].items() if key != "reason"}):
        missing = value is None or (isinstance(value, dict) and None in value.values())
        if missing:
            inside = [text for path, text in reasons.items() if path.startswith(f"{name}.")]
            inside += [value["reason"]] if isinstance(value, dict) and "reason" in value else []
            found[name] = str(reasons.get(name) or reasons.get(name.split(".")[0]) or next(iter(inside), general))
    if len(found) > 1 and len(set(found.values())) == 1:
        return {", ".join(found): next(iter(found.values()))}
    return found
