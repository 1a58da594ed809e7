"""Run a notebook's cells in one plain interpreter and keep what they show; no jupyter is needed.

    python notebooks/run.py notebooks/first_report.ipynb            run, and say which outputs differ
    python notebooks/run.py notebooks/first_report.ipynb --write    run, and store the outputs

A cell shows what it prints, and the value of its last expression as SVG, HTML or text, as in a notebook.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # a checkout that is not installed works too


def executed(notebook: dict[str, Any]) -> dict[str, Any]:
    """Return the notebook with fresh outputs.

    Raises:
        Exception: whatever a cell raises.
    """
    names: dict[str, Any] = {"__name__": "__main__"}
    cells, count = [], 0
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            count += 1
            cell = {**cell, "execution_count": count, "outputs": _outputs("".join(cell["source"]), names, count)}
        cells.append(cell)
    return {**notebook, "cells": cells}


def _outputs(source: str, names: dict[str, Any], count: int) -> list[dict[str, Any]]:
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    value, printed = None, io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, f"cell {count}", "exec"), names)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), f"cell {count}", "eval"), names)
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        outputs.append({"output_type": "stream", "name": "stdout", "text": _lines(printed.getvalue())})
    if value is not None:
        data = {"text/plain": _lines(repr(value))}
        for kind, method in (("image/svg+xml", "_repr_svg_"), ("text/html", "_repr_html_")):
            if hasattr(value, method):
                data = {kind: _lines(getattr(value, method)()), "text/plain": [f"<{type(value).__name__}>"]}
                break
        outputs.append({"output_type": "execute_result", "execution_count": count, "metadata": {}, "data": data})
    return outputs


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def differences(stored: dict[str, Any], fresh: dict[str, Any]) -> list[str]:
    """Return the code cells, by number, whose outputs are not the stored ones."""
    pairs = zip(stored["cells"], fresh["cells"], strict=True)
    return [
        f"cell {new['execution_count']}: {''.join(new['source']).splitlines()[0]}"
        for old, new in pairs
        if new["cell_type"] == "code" and old["outputs"] != new["outputs"]
    ]


def main(path: Path, write: bool) -> int:
    """Run one notebook; 1 where outputs differ and are not written."""
    stored = json.loads(path.read_text(encoding="utf-8"))
    fresh = executed(stored)
    different = differences(stored, fresh)
    if write:
        path.write_text(json.dumps(fresh, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print("\n".join(different) if different else "every output is the stored one")
    return int(bool(different) and not write)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), "--write" in sys.argv[2:]))
