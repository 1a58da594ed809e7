"""Proofs as text: by subject, what is claimed and whether it holds; of the wrong forms, by how much they miss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from rich.console import Console
from rich.text import Text

from jaxcost.report.console import table
from jaxcost.report.tables import line


def subject(proof: Mapping[str, Any]) -> str:
    """Return what a proof is about: the first part of its name."""
    return str(proof["name"]).partition(".")[0].replace("_", " ")


def claim(proof: Mapping[str, Any]) -> str:
    """Return the statement, with the stated error of a wrong form."""
    if proof["difference"] == "0":
        return str(proof["statement"])
    return f"{proof['statement']}. Ledger - form = {proof['difference']}"


def sentence(proofs: Sequence[Mapping[str, Any]]) -> str:
    """Return how many proofs hold."""
    held = sum(proof["status"] == "holds" for proof in proofs)
    wrong = sum(proof["difference"] != "0" for proof in proofs)
    return f"{held} of {len(proofs)} proofs hold for all sizes; {wrong} of them state by how much a form misses"


def show_proofs(out: Console, proofs: Sequence[Mapping[str, Any]]) -> None:
    """Print a table for each subject, the terms of sums that a source lists, and what is left of a proof that fails."""
    for title, members in groupby(proofs, key=subject):
        made = table("proof", "what is claimed", "source", "status", title=title)
        made.expand = True
        widths = {"proof": 34, "status": 6}
        for column in made.columns:
            column.width = widths.get(str(column.header))
            column.ratio = {"what is claimed": 5, "source": 4}.get(str(column.header))
        found = list(members)
        for proof in found:
            name = str(proof["name"]).partition(".")[2]
            made.add_row(
                name,
                claim(proof),
                proof["source"],
                Text(proof["status"], style="green" if proof["status"] == "holds" else "bold red"),
            )
        out.print(made)
        for proof in found:
            if proof.get("terms"):
                terms = ", ".join(f"{term['object']} {term['value']}" for term in proof["terms"])
                line(out, f"{proof['name']} sums {len(proof['terms'])} tensors, bytes of one layer: {terms}")
    for proof in proofs:
        if proof["status"] != "holds":
            left = proof.get("reason") or f"ledger - form - stated error = {proof['residual']}"
            line(out, f"{proof['name']}: {left}. The ledger gives {proof['ledger'] or 'nothing'}", style="bold red")
    line(out, sentence(proofs), style="bold")
