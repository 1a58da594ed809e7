"""Audit every program of the zoo for a CPU and an H100, count it independently, and write the table of README.md.

python -m tests.zoo.table                  all programs (about ten minutes on two cores)
python -m tests.zoo.table vit resnet       these; the rest keeps its recorded results
python -m tests.zoo.table --render         README.md from results.json alone
"""

from __future__ import annotations

import json
import platform
import sys
import warnings
from importlib import metadata
from pathlib import Path
from typing import Any

from jaxcost.audits.audit import ALLOWED, audit
from jaxcost.contracts.errors import JaxcostError
from jaxcost.observation.pool import Pool

HERE = Path(__file__).parent
RESULTS = HERE / "results.json"
README = HERE / "README.md"
TARGETS = ("cpu", "h100")
START, END = "<!-- table -->", "<!-- end of table -->"


def measure(name: str, pool: Pool) -> dict[str, Any]:
    """Return the row of one program: the independent count, and what each audit says."""
    from tests.zoo.count import count
    from tests.zoo.programs import ZOO

    entry = ZOO[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        function, arguments = entry.build()
        counted = count(function, arguments)
        row: dict[str, Any] = {
            "network": entry.network, "package": f"{entry.package} {entry.version}", "framework": entry.framework,
            "executed": counted.total, "targets": {},
        }  # fmt: skip
        for target in TARGETS:
            try:
                document = audit(function, *arguments, target=target, pool=pool).to_dict()
            except JaxcostError as error:
                row["targets"][target] = {"error": str(error)[:300]}
                continue
            row["jaxpr"] = document["jaxpr"]["flops"]
            row["targets"][target] = outcome(document, counted.total)
    return row


def outcome(document: dict[str, Any], executed: int) -> dict[str, Any]:
    """Return the compiled count, the reasons of the audit by kind, and what they leave unexplained."""
    compiled = document["flops"]["total"]
    reasons: dict[str, int] = {}
    for row in document["jaxpr"]["differences"]:
        for reason in row["reasons"]:
            reasons[reason["kind"]] = reasons.get(reason["kind"], 0) + reason["flops"]
    return {
        "compiled": compiled, "reasons": dict(sorted(reasons.items())),
        "unexplained": compiled - executed - sum(reasons.values()),
        "moved": sum(1 for row in document["jaxpr"]["differences"] if row["unexplained"]),
        "unknowns": len(document["unknowns"]), "refused": document["program"]["refused"],
    }  # fmt: skip


def render(results: dict[str, Any]) -> str:
    """Return the table in Markdown."""
    lines = [
        f"Recorded {results['date']} with {results['versions']}.",
        "",
        "| program | network | package | executed | traced | compiled, CPU | compiled, H100 |",
        "|---|---|---|--:|--:|---|---|",
    ]
    for name, row in results["programs"].items():
        cells = [_cell(row["targets"].get(target)) for target in TARGETS]
        traced = "same" if row.get("jaxpr") == row["executed"] else _number(row.get("jaxpr"))
        lines.append(
            f"| `{name}` | {row['network']} | {row['package']} ({row['framework']}) | {_number(row['executed'])} "
            f"| {traced} | {cells[0]} | {cells[1]} |"
        )
    return "\n".join(lines)


def _number(value: int | None) -> str:
    return "unknown" if value is None else f"{value:,}"


def _cell(found: dict[str, Any] | None) -> str:
    if found is None:
        return "not run"
    if "error" in found:
        return f"no audit: {found['error'].splitlines()[0][:120]}"
    if not found["reasons"] and not found["unexplained"]:
        return "same"
    parts = [f"{kind.replace('_', ' ')} {flops:+,}" for kind, flops in found["reasons"].items()]
    verdict = "explained" if not found["unexplained"] else f"**unexplained {found['unexplained']:+,}**"
    return f"{_number(found['compiled'])}, {verdict}" + (f": {'; '.join(parts)}" if parts else "")


def main(arguments: list[str]) -> None:
    results: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {"programs": {}}
    if "--render" not in arguments:
        import datetime

        from tests.zoo.programs import ZOO

        programs = results["programs"]
        with Pool(size=1, allow=ALLOWED) as pool:
            for name in arguments or ZOO:
                print(name, flush=True)
                programs[name] = measure(name, pool)
                results["date"] = datetime.date.today().isoformat()
                versions = [f"{p} {metadata.version(p)}" for p in ("jax", "jaxlib", "jax-cuda13-plugin")]
                results["versions"] = f"Python {platform.python_version()}, {', '.join(versions)}"
                results["programs"] = {n: programs[n] for n in ZOO if n in programs}
                RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    text = README.read_text(encoding="utf-8")
    before, after = text.split(START)[0], text.split(END)[1]
    README.write_text(f"{before}{START}\n{render(results)}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
