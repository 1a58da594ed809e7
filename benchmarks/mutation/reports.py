"""What the results come to: shares with Clopper-Pearson intervals, and each survivor with its reason."""

from __future__ import annotations

import collections
import datetime
import json
import os
import platform
import subprocess
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

from mutants import ROOMS, ROOT, Mutant

HERE = Path(__file__).resolve().parent
AIM = 0.92
OUTCOMES = ("killed", "timeout", "survived", "no_tests")
PACKAGES = ("jaxcost", "mutmut", "libcst", "coverage", "pytest", "hypothesis", "jax", "jaxlib", "numpy", "protobuf")
TITLES = {
    "folds": "the folds, all mutants",
    "first": "first sample, of all else",
    "second": "second sample, drawn after the tests were written",
}


def interval(killed: int, total: int) -> tuple[float, float]:
    """Return the 95% Clopper-Pearson interval of a share."""
    from statsmodels.stats.proportion import proportion_confint

    low, high = proportion_confint(killed, total, alpha=0.05, method="beta")
    return float(low), float(high)


def _tally(entries: list[dict[str, Any]], equivalent: set[str]) -> dict[str, Any]:
    count = collections.Counter(entry["outcome"] for entry in entries)
    killed, total = count["killed"] + count["timeout"], len(entries)
    same = sum(entry["name"] in equivalent and entry["outcome"] in ("survived", "no_tests") for entry in entries)
    found: dict[str, Any] = {"total": total, **{name: count[name] for name in OUTCOMES}, "equivalent": same}
    if total:
        found["share_killed"] = round(killed / total, 4)
        found["interval_95"] = [round(end, 4) for end in interval(killed, total)]
    return found


def summary(chosen: dict[str, list[Mutant]], found: dict[str, dict[str, Any]], state: Path) -> dict[str, Any]:
    """Return the document: counts by part, room and module, intervals, and every survivor."""
    reasons = tomllib.loads((HERE / "survivors.toml").read_text(encoding="utf-8")).get("survivor", [])
    known = {entry["name"]: entry for entry in reasons}
    equivalent = {name for name, entry in known.items() if entry["equivalent"]}
    parts: dict[str, Any] = {}
    survivors = []
    for part, members in chosen.items():
        entries = [found[at.name] for at in members if at.name in found and found[at.name]["outcome"] in OUTCOMES]
        keyed = "module" if part == "folds" else "room"
        groups = sorted(
            {entry[keyed] for entry in entries}, key=lambda at: (list(ROOMS).index(at) if at in ROOMS else 0, at)
        )
        parts[part] = {
            "drawn": len(members), "measured": len(entries), **_tally(entries, equivalent),
            f"by_{keyed}": {
                at: _tally([entry for entry in entries if entry[keyed] == at], equivalent) for at in groups
            },
        }  # fmt: skip
        for entry in entries:
            if entry["outcome"] in ("survived", "no_tests"):
                reason = known.get(entry["name"], {}).get("reason", "")
                fields = ("name", "module", "line", "operator", "before", "after", "outcome")
                survivors.append({"part": part, **{name: entry[name] for name in fields}, "reason": reason})
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return {
        "question": "Which changes of the package do its tests notice?",
        "aim": AIM,
        "population": json.loads((state / "population.json").read_text(encoding="utf-8")),
        "parts": parts,
        "survivors": survivors,
        "commit": commit.strip(),
        "versions": {"python": platform.python_version(), **{name: metadata.version(name) for name in PACKAGES}},
        "hardware": {"cores": os.cpu_count(), "machine": platform.machine(), "system": platform.system()},
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "repeat_with": "python benchmarks/mutation/run.py measure; python benchmarks/mutation/run.py report --write",
    }


def table(document: dict[str, Any]) -> str:
    """Return the shares as a Markdown table."""
    lines = ["| mutants of | run | killed | never ended | survived | no test | share killed | 95% interval |"]
    lines.append("|---|---:|---:|---:|---:|---:|---:|---|")

    def line(name: str, tally: dict[str, Any]) -> None:
        low, high = tally["interval_95"]
        counts = " | ".join(str(tally[outcome]) for outcome in OUTCOMES)
        lines.append(
            f"| {name} | {tally['total']} | {counts} | {tally['share_killed']:.1%} | {low:.1%} to {high:.1%} |"
        )

    for part, tally in document["parts"].items():
        if tally["total"]:
            missing = (
                f": {tally['measured']} of {tally['drawn']} run so far" if tally["measured"] < tally["drawn"] else ""
            )
            line(f"**{TITLES[part]}{missing}**", tally)
            for name, of in (tally.get("by_room") or tally.get("by_module") or {}).items():
                line(f"`{name.removeprefix('jaxcost/prediction/')}`", of)
    return "\n".join(lines)


def report(chosen: dict[str, list[Mutant]], found: dict[str, dict[str, Any]], state: Path, write: bool) -> None:
    """Print the table and what survived; `write` keeps both."""
    document = summary(chosen, found, state)
    print(table(document))
    for part, tally in document["parts"].items():
        if tally["measured"] < tally["drawn"]:
            print(f"{part}: {tally['drawn'] - tally['measured']} of {tally['drawn']} not measured yet")
    if not write:
        for entry in document["survivors"]:
            print(
                f"{entry['module']}:{entry['line']} {entry['before'][:70]} => {entry['after'][:70]} {entry['reason']}"
            )
        return
    (HERE / "results.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    page = (HERE / "README.md").read_text(encoding="utf-8")
    start, end = "<!-- table -->\n", "<!-- end of table -->"
    head, rest = page.split(start)
    (HERE / "README.md").write_text(f"{head}{start}{table(document)}\n{end}{rest.split(end)[1]}", encoding="utf-8")
