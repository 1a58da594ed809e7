"""Every check of the publish gates fails on a fault that no other check notices.

The fault is in what the check looks at: a row without its type, a total that is not the sum of its rows, a null without
a reason. `test_every_check_has_a_fault` keeps the table whole. The walks recount totals that the closures sum up, so
those may notice their faults too; each is listed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from jaxcost.catalog import load
from jaxcost.contracts.case import Case
from jaxcost.contracts.observation import Observation
from jaxcost.contracts.workload import Workload
from jaxcost.prediction.ledgers import Prediction
from jaxcost.prediction.rows import Ledger, Row
from jaxcost.prediction.sizes import AXIS_FIELDS
from jaxcost.reconciliation.rows import Report
from jaxcost.verify.failures.common import with_totals
from jaxcost.verify.failures.subjects import decode, prefill, train
from jaxcost.verify.gates import CHECKS, Package, Subject, holdings, items, subject
from jaxcost.verify.gates.subjects import PLANS, planned, title

Fault = Callable[[pytest.MonkeyPatch], Any]
Where = Callable[[Row], bool]


def anything(row: Row) -> bool:
    return True


@cache
def base(name: str) -> Subject:
    """A sound subject."""
    cases: dict[str, Callable[[], Case]] = {
        "training": train,
        "prefill": prefill,
        "decode": decode,
        "mesh": lambda: planned(load("toy-tied").architecture, PLANS[3]),
        "prefill on data": lambda: prefill(batch=2, mesh={"data": 2}),
        "prefill on tensor": lambda: prefill(mesh={"tensor": 2}),
        "prefill on context": lambda: prefill(mesh={"context": 2}),
        "data": lambda: train(batch=4, mesh={"data": 2}),
        "tied": lambda: build_tied(),
    }
    case = cases[name]()
    return subject(title(case), case)


def build_tied() -> Case:
    return train(load("toy-tied").architecture)


def with_prediction(name: str, prediction: Prediction) -> Subject:
    return replace(base(name), prediction=prediction)


def with_ledger(name: str, ledger: str, **changes: Any) -> Subject:
    found = base(name).prediction
    return with_prediction(
        name, replace(found, ledgers={**found.ledgers, ledger: replace(found.ledgers[ledger], **changes)})
    )


def row_changed(
    name: str, ledger: str, change: Callable[[Row], Row], where: Where = anything, every: bool = False
) -> Fault:
    """Return the fault that changes one row of a ledger (the first that fits, or all)."""

    def fault(patch: pytest.MonkeyPatch) -> Subject:
        rows = list(base(name).prediction.ledgers[ledger].rows)
        chosen = [index for index, row in enumerate(rows) if where(row)]
        assert chosen, f"no row of {ledger} fits"
        for index in chosen if every else chosen[:1]:
            rows[index] = change(rows[index])
        return with_ledger(name, ledger, rows=tuple(rows))

    return fault


def set_to(name: str, ledger: str, where: Where = anything, every: bool = False, **values: Any) -> Fault:
    """Set attributes of a row."""
    return row_changed(name, ledger, lambda row: replace(row, **values), where, every)


def field_set(name: str, ledger: str, where: Where = anything, **values: Any) -> Fault:
    """Set fields of a row; a callable is given the field's value."""

    def change(row: Row) -> Row:
        found = {key: value(row.fields[key]) if callable(value) else value for key, value in values.items()}
        return replace(row, fields={**row.fields, **found})

    return row_changed(name, ledger, change, where)


def field_gone(name: str, ledger: str, field: str, where: Where = anything) -> Fault:
    """Take a field out of a row."""
    return row_changed(
        name, ledger, lambda row: replace(row, fields={k: v for k, v in row.fields.items() if k != field}), where
    )


def total_set(name: str, ledger: str, **values: Any) -> Fault:
    """Set totals; a callable is given the total's value."""

    def fault(patch: pytest.MonkeyPatch) -> Subject:
        found = base(name).prediction
        old = copy.deepcopy(found.ledgers[ledger].totals)
        new = {key: value(old[key]) if callable(value) else value for key, value in values.items()}
        return with_prediction(name, with_totals(found, ledger, **new))

    return fault


def more(value: int) -> int:
    return value + 1


def inside(key: str, change: Callable[[Any], Any] = more) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda table: {**table, key: change(table[key])}


def larger(row: Row) -> Row:
    return replace(row, value=row.value + 2, per_device=row.per_device + 2)


def is_pairwise(row: Row) -> bool:
    return "pairs" in row.fields


def is_saved(row: Row) -> bool:
    return "needed_by" in row.fields


def is_slice(row: Row) -> bool:
    return "weight_shard_bytes" in row.fields


def of_role(role: str) -> Where:
    return lambda row: row.fields.get("role") == role


def of_kind(kind: str) -> Where:
    return lambda row: row.fields.get("kind") == kind


def attention(row: Row) -> bool:
    return row.fields.get("schedule") != "one pass"


def attention_backward(row: Row) -> bool:
    return attention(row) and row.phase == "backward"


def without_vocabulary(row: Row) -> bool:
    return "v" not in row.fields["axes"]


def halved(table: dict[str, int]) -> dict[str, int]:
    return {label: value // 2 for label, value in table.items()}


def unread(patch: pytest.MonkeyPatch) -> Subject:
    """The reasons of a ledger are lost."""
    return with_ledger("training", "activations", reasons={})


def twice(patch: pytest.MonkeyPatch) -> Subject:
    rows = base("mesh").prediction.ledgers["ownership"].rows
    return with_ledger("mesh", "ownership", rows=(*rows, next(row for row in rows if is_slice(row))))


def renamed_vocabulary(row: Row) -> Row:
    def other(text: str) -> str:
        return " ".join("w" if part == "v" else part for part in text.split())

    fields = {("w" if name == "v" else name): value for name, value in row.fields.items()}
    matrix = {name: other(axes) for name, axes in row.fields["matrix"].items()}
    return replace(row, fields={**fields, "contraction": other(row.fields["contraction"]), "matrix": matrix})


def same_storage(patch: pytest.MonkeyPatch) -> Subject:
    rows = list(base("training").prediction.ledgers["activations"].rows)
    first, second = [index for index, row in enumerate(rows) if is_saved(row) and row.region == "block"][:2]
    rows[second] = replace(rows[second], object=rows[first].object)
    return with_ledger("training", "activations", rows=tuple(rows))


def a_state_that_knows_the_mesh(patch: pytest.MonkeyPatch) -> Subject:
    def doubled(program: Any) -> Ledger:
        found = base("mesh").prediction.ledgers["state"]
        return replace(found, rows=tuple(replace(row, value=2 * row.value) for row in found.rows))

    patch.setattr(holdings, "state", doubled)
    return base("mesh")


def sent_by_one_device(patch: pytest.MonkeyPatch) -> Subject:
    row = next(row for row in base("mesh").prediction.ledgers["collectives"].rows if of_kind("all-reduce")(row))
    row = replace(row, fields={**row.fields, "axis": "tensor_heads"})
    totals = {
        "payload_bytes": row.value, "by_kind": {"all-reduce": row.value}, "by_axis": {"tensor_heads": row.value},
        "ring_send_bytes": row.fields["ring_send_bytes"] * row.fields["times"],
    }  # fmt: skip
    return with_ledger("training", "collectives", rows=(row,), totals=totals)


def too_often(patch: pytest.MonkeyPatch) -> Subject:
    ledger = base("mesh").prediction.ledgers["collectives"]
    row = ledger.rows[0]
    rows = (replace(row, fields={**row.fields, "times": row.fields["times"] + 1}), *ledger.rows[1:])
    ring = ledger.totals["ring_send_bytes"] + row.fields["ring_send_bytes"]
    return with_ledger("mesh", "collectives", rows=rows, totals={**ledger.totals, "ring_send_bytes": ring})


def document(change: Callable[[dict[str, Any]], object]) -> Fault:
    """Change the published document alone."""

    def fault(patch: pytest.MonkeyPatch) -> Subject:
        made = replace(base("training"))
        data = copy.deepcopy(made.document)
        change(data)
        made.__dict__["document"] = data
        return made

    return fault


def thawed(patch: pytest.MonkeyPatch) -> Subject:
    patch.setitem(Workload.model_config, "frozen", False)
    return base("training")


ANOTHER = {"fp32": "int32"}
CASE_FAULTS: dict[str, Fault] = {
    "row.object": set_to("mesh", "collectives", object=" "),
    "row.unit": set_to("mesh", "collectives", unit="GB"),
    "row.convention": set_to("mesh", "collectives", convention=""),
    "row.omitted": set_to("mesh", "collectives", omitted=""),
    "row.evidence": set_to("mesh", "collectives", evidence="locally_measured"),
    "row.phase": set_to("mesh", "device", phase="sometime"),
    "row.exact": row_changed("mesh", "collectives", lambda row: replace(row, value=float(row.value))),
    "row.fields": field_set("mesh", "collectives", extra=object()),
    "row.apart": twice,
    "null.reason": unread,
    "bytes.dtype": field_gone("mesh", "ownership", "dtype", is_slice),
    "bytes.copies": field_gone("mesh", "ownership", "copies", is_slice),
    "bytes.placement": field_gone("mesh", "ownership", "placement", is_slice),
    "bytes.lifetime": field_gone("mesh", "ownership", "created", is_slice),
    "parameters.recount": field_set("training", "parameters", shape=lambda shape: (shape[0] + 1, *shape[1:])),
    "state.recount": field_set("training", "state", of_role("parameter"), scalars=more),
    "flops.recount": field_set("prefill", "flops", lambda row: row.object == "q_proj", rows=more),
    "primitives.recount": field_set("prefill", "primitives", layers=more),
    "saved.recount": field_set("training", "activations", is_saved, elements=more),
    "traffic.recount": field_set("training", "traffic", elements=more),
    "collectives.recount": field_set("mesh", "collectives", elements=lambda count: 2 * count),
    "device.recount": field_set("training", "device", elements=more),
    "parameters.closure": total_set("mesh", "parameters", bytes=more),
    "flops.closure": total_set("training", "flops", per_device=more),
    "primitives.closure": total_set("training", "primitives", by_phase=inside("forward", inside("add"))),
    "saved.closure": total_set("training", "activations", saved_bytes_per_device=more),
    "traffic.closure": total_set("training", "traffic", gemm_backward_bytes=more),
    "collectives.closure": total_set("mesh", "collectives", ring_send_bytes=more),
    "axes.listed": field_set("training", "traffic", without_vocabulary, axes=lambda axes: f"{axes} v"),
    "flops.axes": field_gone("prefill", "flops", "b", is_pairwise),
    "flops.matrix": field_set("training", "flops", matrix=inside("k", lambda axes: "")),
    "flops.pairs": field_set("training", "flops", is_pairwise, pairs="legal"),
    "flops.heads": field_set("training", "flops", is_pairwise, h=1),
    "flops.logits": row_changed("prefill on data", "flops", renamed_vocabulary, lambda row: "v" in row.fields),
    "flops.gradients": field_set("training", "flops", lambda row: row.part == "dx", gradient_of=""),
    "replay.named": field_gone("mesh", "primitives", "cause", lambda row: row.phase == "replay"),
    "replay.only_in_training": set_to("prefill on tensor", "collectives", phase="backward"),
    "primitives.terms": field_set("training", "primitives", op=""),
    "primitives.families": set_to(
        "training", "primitives", lambda row: row.scope == "final_norm", every=True, scope="elsewhere"
    ),
    "update.apart": field_set("training", "primitives", lambda row: row.phase == "optimizer", per="step"),
    "parameters.axes": field_set("training", "parameters", shape=lambda shape: (*shape, 1)),
    "parameters.aliases": field_set("tied", "parameters", lambda row: row.fields["alias"], storage="head/weight"),
    "state.declared": field_set("training", "state", of_role("parameter"), dtype=ANOTHER.get),
    "state.roles": field_set("training", "state", owner=""),
    "state.populations": field_set("training", "state", of_role("gradient"), basis="loaded"),
    "state.lifecycle": total_set("training", "state", resident_bytes=inside("after_load")),
    "state.moments": field_set("training", "state", of_role("second_moment"), count="row"),
    "state.checkpoint": total_set("training", "state", checkpoint_bytes=more),
    "state.global": a_state_that_knows_the_mesh,
    "saved.needed_by": field_set("training", "activations", is_saved, needed_by=("nobody",), last_use="nobody"),
    "saved.lifetime": field_set("training", "activations", is_saved, last_use=""),
    "saved.unique": same_storage,
    "peak.cut": field_set("training", "activations", lambda row: "alive" in row.fields, alive={"one": 1}),
    "peak.not_supplied": total_set("training", "activations", peak_bytes=0),
    "kv.extents": field_set("decode", "kv_cache", past_rows=more),
    "kv.apart": field_set("decode", "kv_cache", multiplicity=1),
    "traffic.boundary": field_set("training", "traffic", boundary=""),
    "traffic.direction": field_set("training", "traffic", attention, direction="both"),
    "traffic.schedule": field_set("training", "traffic", attention_backward, schedule="some"),
    "traffic.one_pass": field_set(
        "training", "traffic", lambda row: not attention(row) and row.fields["direction"] == "write", direction="read"
    ),
    "device.scopes": set_to("training", "device", per_device=None),
    "ownership.scopes": total_set("mesh", "device", peak_bytes={}),
    "ownership.divided": field_set("mesh", "ownership", of_role("parameter"), replicated_over={}),
    "ownership.shares": field_set("mesh", "ownership", of_role("parameter"), divided=halved),
    "ownership.fsdp": total_set("mesh", "ownership", fsdp=inside("prefetch")),
    "ownership.tensor": field_set("mesh", "ownership", lambda row: bool(row.fields.get("collective")), collective=""),
    "ownership.axes": total_set("prefill on context", "ownership", context=lambda table: {}),
    "collectives.named": field_set("mesh", "collectives", of_kind("all-reduce"), participants=1),
    "collectives.trips": too_often,
    "collectives.ends": field_set("mesh", "collectives", input_bytes=more),
    "collectives.reasons": field_set("mesh", "collectives", made_by=""),
    "collectives.only_on_a_mesh": sent_by_one_device,
    "case.records": document(lambda data: data["case"].update(digest="0" * 64)),
    "case.absences": document(lambda data: data["case"]["architecture"].pop("learned_positions")),
    "case.frozen": thawed,
    "walk.parameters_equal_the_walk": total_set("mesh", "parameters", unique=more),
    "walk.parameters_ignore_the_workload": total_set("training", "parameters", unique=more),
    "walk.state_equals_the_walk": total_set("training", "state", by_role=inside("parameter")),
    "walk.forward_equals_the_walk": total_set("decode", "flops", forward=more),
    "walk.training_is_six_n_d": total_set("training", "flops", backward=more),
    "walk.backward_counts_gradients_needed": set_to("training", "flops", lambda row: row.part == "dx", part="dw"),
    "walk.kv_heads_leave_pairwise_work": row_changed("decode", "flops", larger, is_pairwise),
    "walk.logits_rows_scale_the_head": row_changed("prefill", "flops", larger, lambda row: row.object == "head"),
    "walk.cache_equals_the_walk": total_set("decode", "kv_cache", bytes=more),
    "walk.attention_moves_eight_payloads": total_set("prefill", "traffic", attention_bytes=more),
    "walk.one_pass_keeps_all_operands": total_set("prefill", "traffic", gemm_one_pass_bytes=more),
    "walk.owned_state_equals_the_walk": total_set("mesh", "ownership", persistent_bytes=more),
    "walk.gathered_groups_equal_the_walk": total_set("mesh", "ownership", fsdp=inside("gathered_at_once_bytes")),
    "walk.partial_sums_keep_their_extent": total_set("mesh", "ownership", tensor=inside("largest_partial_bytes")),
    "walk.one_gradient_is_reduced": total_set("data", "collectives", payload_bytes=0),
}  # fmt: skip


class Compares(Package):
    """A package whose comparison is replaced."""

    def __init__(self, wrong: Callable[[Package, Observation], Report | None]):
        self.wrong = wrong

    def compare(self, observation: Observation) -> Report:
        return self.wrong(self, observation) or super().compare(observation)


@cache
def sound() -> Package:
    found = Package()
    for name in CHECKS:
        if CHECKS[name].over == "package":
            list(items(CHECKS[name], found))  # reads everything once
    return found


def package_with(found: Package | None = None, **parts: Any) -> Package:
    """A package that shares what the sound one has read, but for some parts."""
    made = found or Package()
    made.__dict__.update({**sound().__dict__, **made.__dict__, **parts})
    return made


def compares(wrong: Callable[[Package, Observation], Report | None]) -> Fault:
    return lambda patch: package_with(Compares(wrong))


def only_sums(package: Package, seen: Observation) -> Report | None:
    plain = seen.tensors is not None and seen.evidence_class == "synthetic_contract_test"
    return Package().compare(package.observation()) if plain else None


def unexplained(package: Package, seen: Observation) -> Report | None:
    if not any(counter.explanations for counter in seen.counters):
        return None
    bare = tuple(counter.model_copy(update={"explanations": ()}) for counter in seen.counters)
    return Package().compare(seen.model_copy(update={"counters": bare}))


def rewritten(package: Package, seen: Observation) -> Report | None:
    if not seen.counters or seen.counters[0].value != 1 or seen.counters[0].visibility != "made up":
        return None
    other = seen.counters[0].model_copy(update={"value": 2})
    return Package().compare(seen.model_copy(update={"counters": (other,)}))


def unseen(package: Package, seen: Observation) -> Report | None:
    if not seen.counters or seen.counters[0].visibility != "only this":
        return None
    return replace(Package().compare(seen), environment={})


def zero_for_nothing(package: Package, seen: Observation) -> Report | None:
    nothing = not seen.counters and seen.tensors is None
    return Package().compare(package.observation()) if nothing else None


class Trusting(Package):
    """Takes any claim for granted."""

    def observation(self, **claims: Any) -> Observation:
        return (
            super().observation()
            if claims.get("evidence_class") == "locally_measured"
            else super().observation(**claims)
        )


class Guessing(Package):
    """Predicts what is no case."""

    def predict(self, case: Case) -> Prediction:
        return super().predict(case if isinstance(case, Case) else self.case())


class Rounding(Package):
    """Gives another total for one policy."""

    def predict(self, case: Case) -> Prediction:
        found = super().predict(case)
        return with_totals(found, "state", bytes_per_parameter=16) if case.state.name == "a16_six_object" else found


class Unproved(Package):
    """Finds one proof failing."""

    def __init__(self, name: str):
        self.name = name

    def proved(self, name: str) -> str:
        return "fails" if name == self.name else super().proved(name)


def reports(change: Callable[[Any], Any], counter: str) -> Fault:
    def fault(patch: pytest.MonkeyPatch) -> Package:
        first, *rest = sound().reports
        rows = [change(row) if row.counter == counter else row for row in first.rows]
        return package_with(reports=(replace(first, rows=tuple(row for row in rows if row)), *rest))

    return fault


def contract(name: str, change: Callable[[Any], Any]) -> Fault:
    return lambda patch: package_with(registry={**sound().registry, name: change(sound().registry[name])})


def quantities(**changes: Any) -> Callable[[Any], Any]:
    def change(found: Any) -> Any:
        first, *rest = found.quantities
        return found.model_copy(update={"quantities": (first.model_copy(update=changes), *rest)})

    return change


def pages(text: str) -> Fault:
    readme = Path(__file__).resolve().parents[2] / "README.md"
    return lambda patch: package_with(pages={readme: text})


def silent(patch: pytest.MonkeyPatch) -> Package:
    documents = copy.deepcopy(sound().documents)
    documents["compare"]["columns"][0]["predicted"].update(flops=None)
    return package_with(documents=documents)


def uncovered(patch: pytest.MonkeyPatch) -> Package:
    patch.setattr(Workload.model_fields["attention_block"], "json_schema_extra", {"outside_digest": True})
    return package_with()


def misnamed(patch: pytest.MonkeyPatch) -> Package:
    patch.setitem(AXIS_FIELDS, "b", ())
    return package_with()


def missed(patch: pytest.MonkeyPatch) -> Package:
    first, *rest = sound().failures
    return package_with(failures=(replace(first, status="missed"), *rest))


def peeking(patch: pytest.MonkeyPatch) -> Package:
    return package_with(imports={**sound().imports, "prediction": {*sound().imports["prediction"], "jax"}})


def misprinted(patch: pytest.MonkeyPatch) -> Package:
    found = sound().reproductions["zero"]
    cells = (replace(found.cells[0], status="open"), *found.cells[1:])
    return package_with(reproductions={**sound().reproductions, "zero": replace(found, cells=cells)})


def two_at_once(patch: pytest.MonkeyPatch) -> Package:
    found = sound().sensitivity
    first, *rest = found.cases
    both = replace(first.scenario, moved=(*first.scenario.moved, *rest[1].scenario.moved))
    return package_with(sensitivity=replace(found, cases=(replace(first, scenario=both), *rest)))


PACKAGE_FAULTS: dict[str, Fault] = {
    "witnesses.apart": peeking,
    "failures.complete": missed,
    "statuses.known": reports(lambda row: replace(row, reason=""), "live_peak_bytes"),
    "schema.compared": compares(only_sums),
    "residuals.close": compares(unexplained),
    "residuals.leave_both_sides": compares(rewritten),
    "counters.visible": compares(unseen),
    "evidence.claims": lambda patch: package_with(Trusting()),
    "evidence.unmeasured": compares(zero_for_nothing),
    "recorded.parameters": reports(lambda row: replace(row, observation=row.observation + 1), "parameters.unique"),
    "recorded.state": reports(lambda row: replace(row, observation=row.observation + 1), "state.first_moment"),
    "recorded.memory": reports(lambda row: None, "fragmentation_bytes"),
    "documents.nulls": silent,
    "commands.fail": lambda patch: package_with(Guessing()),
    "digest.covers": uncovered,
    "axes.declared": misnamed,
    "policies.sums": lambda patch: package_with(Rounding()),
    "pages.links": pages("See [nowhere](docs/nowhere.md)."),
    "pages.pictures": pages("![](README.md)"),
    "pages.delimiters": pages("```\nopen"),
    "papers.contracts": lambda patch: package_with(
        registry={name: found for name, found in sound().registry.items() if name != "palm"}
    ),
    "papers.sources": contract("palm", quantities(equation=" ")),
    "papers.composite": contract("kaplan", lambda found: found.model_copy(update={"kind": "composite"})),
    "papers.symbols": contract("palm", lambda found: found.model_copy(update={"symbols": ()})),
    "papers.denominators": contract("palm", quantities(remat="block")),
    "papers.closed": contract(
        "palm",
        lambda found: found.model_copy(
            update={"numeric_comparison": found.numeric_comparison.model_copy(update={"allowed": True})}
        ),
    ),
    "papers.tables": misprinted,
    "sensitivity.one_field": two_at_once,
    "sensitivity.vectors": lambda patch: package_with(vector=replace(sound().vector, vectors=())),
    "proofs.parameters": lambda patch: package_with(Unproved("parameters.classic_block")),
    "proofs.blocks": lambda patch: package_with(Unproved("flops.running_block")),
    "proofs.activations": lambda patch: package_with(Unproved("korthikanti.mlp")),
}  # fmt: skip
FAULTS = {**CASE_FAULTS, **PACKAGE_FAULTS}
FORWARD_ROWS = ("flops.closure", "flops.recount", "axes.listed", "walk.forward_equals_the_walk")
# What else may notice the fault of a walk: the sums over the same total, and walks over the same ledger.
ALSO: dict[str, tuple[str, ...]] = {
    "walk.parameters_equal_the_walk": ("parameters.closure", "state.populations"),
    "walk.parameters_ignore_the_workload": (
        "parameters.closure", "state.populations", "walk.parameters_equal_the_walk", "state.moments",
    ),
    "walk.state_equals_the_walk": ("state.lifecycle",),
    "walk.forward_equals_the_walk": ("flops.closure",),
    "walk.training_is_six_n_d": ("flops.closure", "walk.backward_counts_gradients_needed"),
    "walk.backward_counts_gradients_needed": ("flops.gradients",),
    "walk.kv_heads_leave_pairwise_work": (*FORWARD_ROWS, "walk.logits_rows_scale_the_head"),
    "walk.logits_rows_scale_the_head": FORWARD_ROWS,
    "walk.cache_equals_the_walk": ("saved.closure", "kv.apart", "walk.kv_heads_leave_pairwise_work"),
    "walk.attention_moves_eight_payloads": ("traffic.closure",),
    "walk.one_pass_keeps_all_operands": ("traffic.closure",),
    "walk.owned_state_equals_the_walk": ("ownership.scopes",),
    "walk.gathered_groups_equal_the_walk": ("ownership.fsdp",),
    "walk.one_gradient_is_reduced": ("collectives.closure",),
}  # fmt: skip


def noticing(found: Any, over: str) -> set[str]:
    """The checks that find something wrong."""
    return {name for name, check in CHECKS.items() if check.over == over and any(items(check, found))}


def test_every_check_has_a_fault() -> None:
    assert set(FAULTS) == set(CHECKS)
    assert set(ALSO) <= {name for name in CHECKS if name.startswith("walk.")}


@pytest.mark.parametrize(
    "name",
    [
        "training",
        "prefill",
        "decode",
        "mesh",
        "prefill on data",
        "prefill on tensor",
        "prefill on context",
        "data",
        "tied",
    ],
)
def test_the_sound_subjects_pass(name: str) -> None:
    assert noticing(base(name), "case") == set()


def test_the_package_passes() -> None:
    assert noticing(sound(), "package") == set()


@pytest.mark.parametrize("name", CASE_FAULTS)
def test_a_fault_in_a_case_is_noticed_by_its_check_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = noticing(CASE_FAULTS[name](monkeypatch), "case")
    assert name in found and found <= {name, *ALSO.get(name, ())}


@pytest.mark.parametrize("name", PACKAGE_FAULTS)
def test_a_fault_in_the_package_is_noticed_by_its_check_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sound()
    assert noticing(PACKAGE_FAULTS[name](monkeypatch), "package") == {name}
