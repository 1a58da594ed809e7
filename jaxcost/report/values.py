"""The values a result rests on, as the options that would give them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
    if run["vocabulary_multiple"] != 1:
        values.append(("vocabulary-multiple", run["vocabulary_multiple"]))
    if state["frozen"]:
        values.append(("freeze", ", ".join(state["frozen"])))
    if work["lengths"]:
        values.append(("lengths", f"{len(work['lengths'])} sequences, {sum(work['lengths']):,} tokens"))
    return [(name, exact(value)) for name, value in values]


def unknown_reasons(ledger: Mapping[str, Any]) -> dict[str, str]:
    """Return why each unknown total of a ledger is unknown; one reason for all is given once, for the ledger."""
    reasons = ledger.get("reasons", {})
    general = ledger.get("reason") or ledger["totals"].get("reason") or "no reason given"
    found = {}
    for name, value in flat({key: item for key, item in ledger["totals"].items() if key != "reason"}):
        missing = value is None or (isinstance(value, dict) and None in value.values())
        if missing:
            inside = (text for path, text in reasons.items() if path.startswith(f"{name}."))
            found[name] = str(reasons.get(name) or reasons.get(name.split(".")[0]) or next(inside, general))
    if len(found) > 1 and len(set(found.values())) == 1:
        return {", ".join(found): next(iter(found.values()))}
    return found
