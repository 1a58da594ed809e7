"""Predicted moments beside the fullest events of a compiled step, by stretch of the schedule.

    python benchmarks/peak/compare_moments.py FOLDER LIST

Errors are shares of the observed live peak, so that a moment that never is the fullest weighs little.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from cases import key, parsed
from moments import stretches

PHASES = ("forward", "loss", "backward", "after")


def observed(folder: Path, command: str) -> tuple[dict[str, int], int] | None:
    """Return the fullest live bytes by phase of the schedule, and the live peak."""
    name = key(command)
    path = folder / f"{name}.hlo"
    if not path.exists():
        return None
    cache = folder / f"{name}.phases.json"
    if cache.exists():
        data = json.loads(cache.read_text(encoding="utf-8"))
        return data["phases"], data["live"]
    found, resident = stretches(path.read_bytes())
    base = sum(size for size, _, _ in resident)
    sums = dict.fromkeys(PHASES, 0)
    phase = "forward"
    for stretch in found:
        if "forward" in stretch.name:
            phase = "forward"
        elif "backward" in stretch.name:
            phase = "backward"
        elif phase == "forward" and any("jvp(head)" in op or "jvp(final_norm)" in op for _, _, _, op in stretch.live):
            phase = "loss"
        elif phase == "backward":
            phase = "after"
        sums[phase] = max(sums[phase], base + stretch.bytes)
    live = base + max((stretch.bytes for stretch in found), default=0)
    cache.write_text(json.dumps({"phases": sums, "live": live}), encoding="utf-8")
    return sums, live


def main() -> None:
    from jaxcost.prediction.peak import Unpredicted, predict_peak
    from jaxcost.prediction.program import program

    folder = Path(sys.argv[1])
    errors: list[tuple[float, str]] = []
    widths: list[float] = []
    covered = 0
    for command in Path(sys.argv[2]).read_text(encoding="utf-8").splitlines():
        if not command.strip() or command.startswith("#"):
            continue
        seen = observed(folder, command)
        if seen is None:
            continue
        sums, live = seen
        case, target = parsed(command)
        found = predict_peak(program(case), "tpu" if target.startswith("tpu") else "cuda")
        if isinstance(found, Unpredicted):
            print(f"{command}\n    unpredicted: {found.reason}")
            continue
        error = found.expected / live - 1
        errors.append((abs(error), command))
        best = dict.fromkeys(PHASES, 0)
        for moment in found.moments:
            best[moment.phase] = max(best[moment.phase], moment.bytes.expected)
        inside = "in " if found.lower <= live <= found.upper else "OUT"
        covered += inside == "in "
        width = (found.upper - found.lower) / found.expected
        widths.append(width)
        mark = "  " if abs(error) < 0.01 else "! " if abs(error) < 0.03 else "!!"
        print(f"{mark}{error:+7.2%} {inside} {width:5.1%} {found.at:22} {command}")
        parts = [f"{phase} {sums[phase] / 1e9:.3f} {(best[phase] - sums[phase]) / live:+.2%}" for phase in PHASES]
        print("      " + "  ".join(parts))
    errors.sort()
    if widths:
        print(f"intervals: {covered} of {len(widths)} contain, median width {sorted(widths)[len(widths) // 2]:.1%}")
    if errors:
        values = [value for value, _ in errors]
        print(f"{len(values)} cases: median {values[len(values) // 2]:.2%}, "
              f"p90 {values[int(0.9 * len(values))]:.2%}, worst {values[-1]:.2%}")  # fmt: skip


if __name__ == "__main__":
    main()
