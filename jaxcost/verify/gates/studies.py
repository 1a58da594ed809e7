"""Checks on what is built over the ledgers: published contracts, sensitivities, closed forms proved for all sizes."""

from __future__ import annotations

from itertools import combinations

from jaxcost.papers.contract import AXES, KINDS, NumericComparison
from jaxcost.papers.expression import expression
from jaxcost.papers.registry import COMPOSITE, REQUIRED
from jaxcost.verify.gates.common import CHECKS, Check, Items, equal, holds
from jaxcost.verify.gates.package import Package, is_refused

# Sentences about special cases rest on proofs over symbols: check to names of proofs.
PROOFS: dict[str, tuple[str, ...]] = {
    "proofs.parameters": ("parameters.classic_block", "parameters.classic_model"),
    "proofs.blocks": ("flops.classic_block", "flops.running_block"),
    "proofs.activations": ("korthikanti.layer", "korthikanti.attention", "korthikanti.mlp", "korthikanti.norms"),
}


@holds("papers.contracts", "every required contract is there, all ten axes said, and no two alike", "package")
def _contracts(package: Package) -> Items:
    for name in REQUIRED:
        yield "" if name in package.registry else f"the contract {name} is missing"
    for name, contract in package.registry.items():
        silent = [axis for axis in AXES if not getattr(contract.axes, axis).strip()]
        yield f"{name} says nothing of {silent}" if silent else ""
    for one, other in combinations(package.registry.values(), 2):
        yield f"{one.name} and {other.name} have the same axes" if one.axes == other.axes else ""


@holds("papers.sources", "every contract, quantity and table names where in its source it was read", "package")
def _sources(package: Package) -> Items:
    for name, contract in package.registry.items():
        source = contract.source
        yield "" if source.citation and source.url and source.locators else f"{name}: no source"
        for item in contract.quantities:
            yield "" if item.equation.strip() else f"{name}.{item.name}: no equation"
        for table in contract.tables:
            yield "" if table.locator.strip() else f"{name}.{table.name}: no locator"


@holds(
    "papers.composite",
    "a composite source is bound part by part, and what it adds to a part is a named difference",
    "package",
)
def _composite(package: Package) -> Items:
    for name, contract in package.registry.items():
        yield "" if (contract.kind == "composite") == (name in COMPOSITE) else f"{name} is {contract.kind}"
        if contract.kind != "composite":
            continue
        parts = {part.name: part.inherits for part in contract.subsections}
        for part, inherits in parts.items():
            yield "" if inherits in package.registry else f"{name}.{part} inherits from nothing here"
        for item in contract.quantities:
            yield "" if item.subsection in parts else f"{name}.{item.name} stands in no part"
        megatron = [item for item in contract.quantities if parts.get(item.subsection) == "megatron" and item.kind]
        said = any(item.differences for item in megatron)
        yield "" if said else f"{name}: the term it adds to Megatron's total is no difference"


@holds("papers.symbols", "every symbol of a published form has its translation", "package")
def _symbols(package: Package) -> Items:
    for name, contract in package.registry.items():
        known = {symbol.paper for symbol in contract.symbols if symbol.jaxcost}
        for item in contract.quantities:
            unknown = [symbol for symbol in expression(item.formula).names if symbol not in known]
            yield f"{name}.{item.name}: {unknown} are not translated" if unknown else ""


@holds(
    "papers.denominators", "model FLOPs replay nothing; what replays is hardware FLOPs, a kind of its own", "package"
)
def _denominators(package: Package) -> Items:
    for name, contract in package.registry.items():
        for item in contract.quantities:
            if item.kind in ("model_flops", "hardware_flops"):
                right = (item.remat == "none") == (item.kind == "model_flops")
                yield "" if right else f"{name}.{item.name}: {item.kind} under remat {item.remat}"


@holds(
    "papers.closed", "comparison is closed, opens for one target manifest only, and keeps bytes from FLOPs", "package"
)
def _closed(package: Package) -> Items:
    for name, contract in package.registry.items():
        yield f"{name} is open to comparison" if contract.numeric_comparison.allowed else ""
        for item in contract.quantities:
            if item.kind is not None:
                yield equal(f"{name}.{item.name}, unit", item.unit, KINDS[item.kind])
    whole = {"allowed": True, "normalized_to_common_manifest": True, "target_case_id": "0" * 64}
    for lacking in ("normalized_to_common_manifest", "target_case_id"):
        given = {key: value for key, value in whole.items() if key != lacking}
        refused = is_refused(lambda given=given: package.comparison(given))
        yield "" if refused else f"comparison opens without {lacking}"
    yield "comparison never opens" if is_refused(lambda: NumericComparison.from_data(whole)) else ""


@holds(
    "papers.tables",
    "every printed figure is reproduced, explained within its print, or said to be out of reach",
    "package",
)
def _tables(package: Package) -> Items:
    for name, found in package.reproductions.items():
        for cell in (*found.cells, *found.peaks):
            right = cell.status in ("exact", "explained", "bounded") or (cell.status == "unmeasured" and cell.reason)
            yield "" if right else f"{name} {cell.table} {cell.row} {cell.column}: {cell.status}"


@holds(
    "sensitivity.one_field",
    "a case of a sensitivity moves one declared field and what it owns; the base stays",
    "package",
)
def _one_field(package: Package) -> Items:
    found = package.sensitivity
    yield "" if found.cases else "nothing is varied"
    yield equal("the digest of the base afterwards", found.digest, package.case().digest)
    for item in found.cases:
        own = item.scenario.fields[0]
        stray = [leaf.path for leaf in item.scenario.moved if not own.is_owner(leaf.path)]
        right = len(item.scenario.fields) == 1 and bool(item.scenario.moved) and not stray
        yield "" if right else f"{item.scenario.name}: {len(item.scenario.fields)} fields, {stray} moved too"
    refused = is_refused(lambda: package.vary(sets=[{"batch": 2, "seq": 8}]))
    yield "" if refused else "a case of two fields passes"


@holds("sensitivity.vectors", "what moves several fields is called a vector, and lists each", "package")
def _vectors(package: Package) -> Items:
    found = package.vector
    yield "" if found.vectors else "no vector comes out"
    for item in found.vectors:
        listed = item.to_dict().get("fields", ())
        right = item.is_vector and len(item.scenario.fields) > 1 and len(item.alone) == len(item.scenario.fields)
        yield "" if right and len(listed) == len(item.scenario.fields) else f"{item.scenario.name}: no vector"
    refused = is_refused(lambda: package.vary(vectors=[{"batch": 2}]))
    yield "" if refused else "one field passes as a vector"


def _proof(name: str) -> Check:
    def run(package: Package) -> Items:
        for wanted in PROOFS[name]:
            yield equal(f"the proof {wanted}", package.proved(wanted), "holds")

    return Check(name, f"{', '.join(PROOFS[name])} hold for all sizes", "package", run)


CHECKS |= {name: _proof(name) for name in PROOFS}
