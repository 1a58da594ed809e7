"""Predicted beside compiled over a matrix: `results-matrix-1.json` and its table in README.md.

    python benchmarks/peak/results.py matrix-1 FOLDER...

The folders hold what `cases.py` left for the list. Errors are (expected - observed) / observed of the live peak,
arguments included. Every case of the list appears, also one that was refused, failed, or is not predicted. A case that
was compared once keeps its row: it was predicted by the policy that is named in it, before it was compiled.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cases import key, lines, parsed

FOLDER = Path(__file__).parent


def kind_of(command: str) -> str:
    """Return the row of the summary that a case belongs to."""
    case, target = parsed(command)
    family = "TPU" if target.startswith("tpu") else "H100"
    if case.workload.phase != "training":
        return f"{family} {case.workload.phase}"
    if case.execution.layers == "unrolled":
        return f"{family} training, unrolled"
    return f"{family} training, scanned, {case.workload.attention}"


def row(folders: Sequence[Path], command: str) -> dict[str, Any]:
    """Return one result."""
    from jaxcost.observation.hlo.reading import read_hlo
    from jaxcost.observation.sections import known_scopes
    from jaxcost.prediction.peak import Unpredicted, predict_peak
    from jaxcost.prediction.program import program

    case, target = parsed(command)
    family = "tpu" if target.startswith("tpu") else "cuda"
    folder = next((room for room in folders if (room / f"{key(command)}.json").exists()), folders[0])
    path = folder / f"{key(command)}.json"
    left = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"status": "not compiled"}
    found: dict[str, Any] = {
        "command": command, "kind": kind_of(command), "case_digest": case.digest, "status": left["status"],
        "reason": left.get("reason", ""), "module_digest": left.get("module_digest"),
        "versions": left.get("versions"), "options": left.get("options"), "observed": None, "predicted": None,
    }  # fmt: skip
    hlo = folder / f"{key(command)}.hlo"
    if hlo.exists():
        memory = read_hlo(hlo.read_bytes(), platform=family, scopes=known_scopes(case)).memory  # type: ignore[arg-type]
        found["observed"] = {
            "live_peak_bytes": memory.live_peak_bytes, "required_bytes": memory.required_bytes,
            "argument_bytes": memory.argument_bytes, "by_class": memory.by_class_at_peak,
        }  # fmt: skip
    peak = predict_peak(program(case), family)
    if isinstance(peak, Unpredicted):
        found["predicted"] = {"reason": peak.reason}
    else:
        found["predicted"] = {
            "policy": peak.policy, "lower": peak.lower, "expected": peak.expected, "upper": peak.upper,
            "at": peak.at, "by_class": peak.by_class, "open": peak.is_open,
        }  # fmt: skip
    if found["observed"] and "expected" in found["predicted"]:
        live = found["observed"]["live_peak_bytes"]
        found["error"] = round(found["predicted"]["expected"] / live - 1, 6)
        found["inside"] = found["predicted"]["lower"] <= live <= found["predicted"]["upper"]
    return found


def share(values: Sequence[float], part: float) -> float:
    """Return the smallest value that at least `part` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -(-int(part * 1000) * len(ordered) // 1000) - 1))]


def summary(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return the summary table."""
    names = list(dict.fromkeys(item["kind"] for item in rows))
    groups = [(name, [item for item in rows if item["kind"] == name]) for name in names]
    scanned = [item for item in rows if "scanned" in item["kind"]]
    groups += [("H100 training, scanned, all", [item for item in scanned if item["kind"].startswith("H100")])]
    groups += [("TPU training, scanned, all", [item for item in scanned if item["kind"].startswith("TPU")])]
    groups += [("all that is predicted", list(rows))]
    out = [
        "| kind | cases | compared | median | 90th | 95th | worst | intervals contain | median width | open |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, group in groups:
        if not group:
            continue
        seen = [item for item in group if "error" in item]
        if not seen:
            out.append(f"| {name} | {len(group)} | 0 | | | | | | | |")
            continue
        errors = [abs(item["error"]) for item in seen]
        widths = [(i["predicted"]["upper"] - i["predicted"]["lower"]) / i["predicted"]["expected"] for i in seen]
        inside, opened = sum(item["inside"] for item in seen), sum(item["predicted"]["open"] for item in seen)
        parts = " | ".join(f"{share(errors, part):.2%}" for part in (0.5, 0.9, 0.95, 1.0))
        width = f"{inside} of {len(seen)} | {share(widths, 0.5):.1%} | {opened}"
        out.append(f"| {name} | {len(group)} | {len(seen)} | {parts} | {width} |")
    return out


def table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return one line a case."""
    out = ["| case | observed GB | expected GB | interval GB | error | peak expected at |", "|---|---|---|---|---|---|"]
    for item in rows:
        seen, said = item["observed"], item["predicted"]
        live = f"{seen['live_peak_bytes'] / 1e9:.3f}" if seen else item["status"]
        if "expected" not in said:
            out.append(f"| `{item['command']}` | {live} | | | | not predicted: {said['reason']} |")
            continue
        span = f"{said['lower'] / 1e9:.3f} to {said['upper'] / 1e9:.3f}"
        error = f"{item['error']:+.2%}{'' if item['inside'] else ', outside'}" if "error" in item else ""
        out.append(f"| `{item['command']}` | {live} | {said['expected'] / 1e9:.3f} | {span} | {error} | {said['at']} |")
    return out


def main(name: str, folders: Sequence[Path]) -> None:
    store = FOLDER / f"results-{name}.json"
    known = {item["command"]: item for item in json.loads(store.read_text(encoding="utf-8"))} if store.exists() else {}
    rows = []
    for command in lines(FOLDER / f"{name}.txt"):
        kept = known.get(command)
        rows.append(kept if kept and "error" in kept else row(folders, command))
    store.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    page = FOLDER / "README.md"
    text = page.read_text(encoding="utf-8")
    start, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    before, after = text[: text.index(start)], text[text.index(end) :]
    made = "\n".join([start, *summary(rows), "", "Case by case:", "", *table(rows), ""])
    page.write_text(before + made + after, encoding="utf-8")
    print("\n".join(summary(rows)))


if __name__ == "__main__":
    main(sys.argv[1], [Path(word) for word in sys.argv[2:]])
