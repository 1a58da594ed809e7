"""Checks on the package itself: its witnesses apart, its reconciliation, its recorded evidence, its pages.

What they look at is read once, by `Package`; each part can be replaced, which is how a fault is planted.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator, Mapping
from fractions import Fraction
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_args

from jaxcost.contracts.case import Case
from jaxcost.contracts.errors import RejectedError
from jaxcost.contracts.observation import REQUIRED_FIELDS, EvidenceClass, Observation
from jaxcost.data import room
from jaxcost.prediction.ledgers import Prediction, predict
from jaxcost.prediction.sizes import AXIS_FIELDS, sizes_of
from jaxcost.reconciliation.rows import STATUSES, Report
from jaxcost.verify.failures import run_failures
from jaxcost.verify.failures.common import FailureResult, bundle, compare, counter, tensor_entries
from jaxcost.verify.failures.subjects import prefill, train
from jaxcost.verify.gates.common import Items, equal, holds
from jaxcost.verify.gates.rows import unknowns
from jaxcost.verify.properties import PROPERTIES

WITNESSES = {
    "prediction": ("jax", "reference", "observation"),
    "observation": ("prediction",),
    "reference": ("prediction",),
}
RECORDS = (
    "toy-tied_training_cpu-1_62ac7e0b",
    "toy-tied_training_h100-1_62ac7e0b",
    "toy-tied_training_tpu-v5e-1x1_62ac7e0b",
)
POLICIES = ("masterless_bf16", "fp32_autocast_adam", "bf16_master_adam", "a16_six_object")


class Package:
    """What the checks over the package look at. Set an attribute to look at something else."""

    @cached_property
    def failures(self) -> tuple[FailureResult, ...]:
        """The failure rows, executed."""
        return tuple(run_failures())

    @cached_property
    def imports(self) -> dict[str, set[str]]:
        """Room to what its modules import: rooms of this package, and packages outside."""
        return {name: set(_imported(name)) for name in WITNESSES}

    @cached_property
    def reports(self) -> tuple[Report, ...]:
        """The small recorded programs, reconciled."""
        from jaxcost.observation.record import read_record
        from jaxcost.reconciliation.report import reconcile

        found = []
        for name in RECORDS:
            seen = read_record(room("hlo_dumps") / f"{name}.json")
            found.append(reconcile(predict(Case.from_data(seen.data["case"])), seen))
        return tuple(found)

    @cached_property
    def documents(self) -> dict[str, Any]:
        """JSON documents as the commands print them, made of recorded programs: name to document."""
        from jaxcost.observation.observed import Observed
        from jaxcost.observation.record import read_record
        from jaxcost.observation.targets import parse_target
        from jaxcost.planning.compare import Planned, Spec, put_together
        from jaxcost.planning.expected import expected_fit
        from jaxcost.planning.limits import FRACTIONS
        from jaxcost.verify.command import VerifyResult

        found: dict[str, Any] = {"verify": VerifyResult(self.reports).to_dict()}
        planned: list[Planned] = []
        seen: list[Observed | None] = []
        for name in RECORDS:
            record = read_record(room("hlo_dumps") / f"{name}.json")
            case = Case.from_data(record.data["case"])
            target = parse_target(record.target)
            fit = expected_fit(predict(case), record.target)
            found[f"estimate --target {record.target}"] = fit
            for label, there in (("seen", record), ("predicted", None)):
                planned.append(Planned(Spec(label=f"{label} {record.target}"), case, target))
                seen.append(there)
        found["compare"] = put_together(planned, seen, FRACTIONS, None).to_dict()
        return found

    @cached_property
    def pages(self) -> dict[Path, str]:
        """The pages of a checkout, path to text; none where the package is installed without them."""
        root = room("models").parent
        pages = [*root.glob("*.md"), *root.glob("docs/*.md")] if (root / "docs").is_dir() else []
        return {page: page.read_text(encoding="utf-8") for page in pages}

    @cached_property
    def registry(self) -> Mapping[str, Any]:
        """The published contracts."""
        from jaxcost.papers.registry import registry

        return registry()

    @cached_property
    def reproductions(self) -> dict[str, Any]:
        """What came of each contract's tables."""
        from jaxcost.papers.reproduce import reproduce

        return {name: reproduce(contract, prove=False) for name, contract in self.registry.items()}

    @cached_property
    def sensitivity(self) -> Any:
        """The default surface of the case."""
        return self.vary()

    @cached_property
    def vector(self) -> Any:
        """A vector of two fields."""
        return self.vary(vectors=[{"batch": 2, "logits": "all"}])

    def vary(self, **wanted: Any) -> Any:
        """Return the sensitivity of the case to single fields and vectors."""
        from jaxcost.planning.sensitivity import vary

        return vary(self.case(), formulas=False, **wanted)

    def comparison(self, data: Mapping[str, Any]) -> Any:
        """Return the record that opens a comparison of papers."""
        from jaxcost.papers.contract import NumericComparison

        return NumericComparison.from_data(dict(data))

    @cached_property
    def _derivations(self) -> Any:
        from jaxcost.verify.proofs.kinds import Derivations

        return Derivations()

    def proved(self, name: str) -> str:
        """Return the status of one proof."""
        from jaxcost.verify.proofs import PROOFS, prove

        return str(prove(next(proof for proof in PROOFS if proof.name == name), self._derivations).status)

    def case(self) -> Case:
        """Return the case that bundles are made for."""
        return prefill()

    def predict(self, case: Case) -> Prediction:
        """Return the prediction of a case."""
        return predict(case)

    def observation(self, **claims: Any) -> Observation:
        """Return a bundle with the tensors of a plain walk."""
        return bundle(self.case(), tensors=True, **claims)

    def compare(self, observation: Observation) -> Report:
        """Return the report of the case against a bundle."""
        return compare(self.case(), observation)


def _imported(name: str) -> Iterator[str]:
    spec = find_spec(f"jaxcost.{name}")
    assert spec is not None and spec.submodule_search_locations is not None
    for folder in spec.submodule_search_locations:
        for path in Path(folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                if isinstance(node, ast.ImportFrom) and node.module:
                    names = [node.module]
                for found in names:
                    parts = found.split(".")
                    yield parts[1] if parts[0] == "jaxcost" and len(parts) > 1 else parts[0]


@holds("witnesses.apart", "the prediction imports no network and no observation, these import no prediction", "package")
def _apart(package: Package) -> Items:
    for name, forbidden in WITNESSES.items():
        for other in forbidden:
            yield f"{name} imports {other}" if other in package.imports[name] else ""


@holds(
    "failures.complete", "every failure row has a fault, a symptom, a check and a status, and none is missed", "package"
)
def _failures(package: Package) -> Items:
    for row in package.failures:
        said = bool(row.fault and row.symptom and row.check)
        closed = row.status == "caught" or (row.status == "not reached" and bool(row.reason))
        yield "" if said and closed else f"{row.id}: {row.status} {row.reason}"


@holds("statuses.known", "every compared row has one of the statuses, and an unmeasured one says why", "package")
def _statuses(package: Package) -> Items:
    for report in package.reports:
        for row in report.rows:
            right = row.status in STATUSES and (row.status != "unmeasured" or bool(row.reason) or bool(row.verdict))
            yield "" if right else f"{report.target} {row.key}: {row.status} without a reason"


@holds(
    "schema.compared",
    "a tensor of other axes, type, kind, trainability or storage stays open, whatever the sums",
    "package",
)
def _schema(package: Package) -> Items:
    entries = tensor_entries(package.case())
    sound = package.compare(bundle(package.case(), tensors=entries))
    yield "" if sound.status == "exact" else f"the sound bundle is {sound.status}"
    target = next(index for index, entry in enumerate(entries) if len(entry["shape"]) == 2)
    rows, columns = entries[target]["shape"]
    changes: dict[str, Any] = {
        "shape": [rows * 2, columns // 2], "dtype": "fp16", "kind": "buffer",
        "trainable": not entries[target]["trainable"], "alias": entries[target + 1]["name"],
    }  # fmt: skip
    for name, value in changes.items():
        faulty = copy.deepcopy(entries)
        faulty[target][name] = value
        status = package.compare(bundle(package.case(), tensors=faulty)).status
        yield "" if status == "open" else f"another {name} is {status}"


@holds("residuals.close", "a residual closes through signed rows that sum to it, and stays open otherwise", "package")
def _residuals(package: Package) -> Items:
    case = package.case()
    value = package.predict(case).value("traffic.attention_bytes")
    wanted = {
        (0, None): "exact",
        (128, None): "open",
        (128, 128): "explained",
        (128, 64): "open",
        (-128, -128): "explained",
    }
    for (residual, explained), status in wanted.items():
        given = [] if explained is None else [(explained, "sectors")]
        seen = counter("traffic.attention_bytes", value + residual, "bytes", "made up", *given)
        report = package.compare(bundle(case, [seen]))
        row = report.row("traffic.attention_bytes")
        found = row.status if row else "missing"
        yield "" if found == status else f"a residual of {residual}, {explained} explained, is {found}, not {status}"


@holds("residuals.leave_both_sides", "reconciliation changes neither the prediction nor what was seen", "package")
def _unchanged(package: Package) -> Items:
    case = package.case()
    seen = counter("flops.forward", 1, "FLOPs", "made up")
    observed = bundle(case, [seen])
    before = package.predict(case).to_dict()
    row = package.compare(observed).row("flops.forward")
    yield equal("the prediction after a comparison", package.predict(case).to_dict() == before, True)
    yield equal("the observed value in the report", row.observation if row else None, 1)
    want = before["ledgers"]["flops"]["totals"]["forward"]
    yield equal("the predicted value in the report", row.prediction if row else None, want)


@holds(
    "counters.visible",
    "a counter without words on what its instrument sees is refused; the words stay with the report",
    "package",
)
def _visibility(package: Package) -> Items:
    case = package.case()
    blind = counter("flops.forward", 1, "FLOPs", "")
    for missing in (blind, {name: value for name, value in blind.items() if name != "visibility"}):
        yield (
            "" if is_refused(lambda missing=missing: bundle(case, [missing])) else "a counter without visibility passes"
        )
    report = package.compare(bundle(case, [counter("flops.forward", 1, "FLOPs", "only this")]))
    said = dict(report.environment.get("visibility", {}))
    yield equal("the visibility in the report", said.get("flops.forward"), "only this")


@holds(
    "evidence.claims", "a bundle that claims a class of evidence carries that class's proof, or is refused", "package"
)
def _claims(package: Package) -> Items:
    sound: dict[str, Any] = {
        "hardware": "a device", "framework": "a framework", "artefacts": ["raw.json"], "source_url": "https://example.org",
        "target": "cpu:1", "versions": {"jax": "0"}, "flags": {}, "module_digest": "0" * 64,
    }  # fmt: skip
    for name in get_args(EvidenceClass):
        needed = REQUIRED_FIELDS.get(name, ())
        for lacking in needed:
            claims = {field: sound[field] for field in needed if field != lacking}
            refused = is_refused(lambda name=name, claims=claims: package.observation(evidence_class=name, **claims))
            yield "" if refused else f"{name} passes without {lacking}"
        if needed:
            whole = {field: sound[field] for field in needed}
            refused = is_refused(lambda name=name, whole=whole: package.observation(evidence_class=name, **whole))
            yield f"{name} is refused with its proof" if refused else ""
    yield (
        ""
        if is_refused(lambda: package.observation(evidence_class="analytical"))
        else "a prediction passes as observed"
    )


@holds(
    "evidence.unmeasured",
    "without an observation, or of an unknown prediction, a row is unmeasured and not zero",
    "package",
)
def _unmeasured(package: Package) -> Items:
    case = package.case()
    unknown = package.compare(bundle(case, [counter("activations.peak_bytes", 448, "bytes", "made up")]))
    yield equal("a counter of an unknown prediction", unknown.status, "unmeasured")
    nothing = package.compare(bundle(case))
    yield equal("an empty bundle", nothing.status, "unmeasured")
    declared = package.compare(package.observation(evidence_class="unmeasured"))
    yield equal("a bundle that declares itself unmeasured", declared.status, "unmeasured")


def is_refused(build: Any) -> bool:
    """Return whether building something is refused as an input."""
    try:
        build()
    except RejectedError:
        return True
    return False


@holds(
    "recorded.parameters",
    "parameters of a network that was built and recorded are those predicted, to the last one",
    "package",
)
def _recorded_parameters(package: Package) -> Items:
    for report in package.reports:
        for name in ("unique", "named", "trainable", "bytes"):
            row = report.row(f"parameters.{name}")
            yield "" if row and row.status == "exact" else f"{report.target}: parameters.{name} is not exact"


@holds("recorded.state", "state of a train state that was built and recorded agrees role by role", "package")
def _recorded_state(package: Package) -> Items:
    for report in package.reports:
        rows = [row for row in report.rows if row.counter.startswith("state.")]
        yield "" if len(rows) > 3 else f"{report.target}: {len(rows)} roles"
        for row in rows:
            crosses = row.counter != "state.gradient"  # a gradient is gone when the step returns
            right = row.status == "exact" if crosses else row.status == "unmeasured" and bool(row.reason)
            yield "" if right else f"{report.target} {row.key}: {row.status}"


@holds(
    "recorded.memory",
    "what must be allocated, what is live and the gaps between are three rows of a compiled program",
    "package",
)
def _recorded_memory(package: Package) -> Items:
    for report in package.reports:
        rows = [report.row(name) for name in ("required_bytes", "live_peak_bytes", "fragmentation_bytes")]
        yield "" if all(rows) else f"{report.target}: one of the three is missing"
        required, live, gaps = (row.observation if row else None for row in rows)
        if required is not None and live is not None:
            yield equal(f"{report.target}: gaps", gaps, required - live)


@holds("documents.nulls", "in every document a null has its reason beside it", "package")
def _documents(package: Package) -> Items:
    for name, document in package.documents.items():
        yield from unknowns(_without_records(document), name)


def _without_records(value: Any) -> Any:
    """Return a document without the declared records, whose nulls are declared absences."""
    if isinstance(value, Mapping):
        return {key: _without_records(item) for key, item in value.items() if key not in ("case", "base")}
    return [_without_records(item) for item in value] if isinstance(value, list | tuple) else value


@holds(
    "commands.fail",
    "a broken input is refused before anything is counted, and an open row makes the exit code 1",
    "package",
)
def _commands(package: Package) -> Items:
    from jaxcost.verify.command import VerifyResult

    no_case: Any = "no case"
    yield "" if is_refused(lambda: package.predict(no_case)) else "what is no case is predicted"
    yield "" if is_refused(lambda: train(mesh={"fsdp": 3})) else "a degree that does not divide passes"
    value = package.predict(package.case()).value("flops.forward")
    for seen, code in ((value, 0), (value + 1, 1)):
        report = package.compare(bundle(package.case(), [counter("flops.forward", seen, "FLOPs", "made up")]))
        yield equal(f"the exit code at a residual of {seen - value}", VerifyResult((report,)).exit_code, code)


@holds(
    "digest.covers",
    "the digest changes with every field that changes the graph or a number, and with no other",
    "package",
)
def _digest(package: Package) -> Items:
    for case in (package.case(), train()):
        try:
            PROPERTIES["digest_covers_the_fields"].check(case)
        except AssertionError as error:
            yield str(error)
        else:
            yield ""


@holds("axes.declared", "every axis follows the fields of the case that are named for it, and no other", "package")
def _axes(package: Package) -> Items:
    base = package.case()
    before = _extents(base)
    for path, changed in _changed(base):
        after = _extents(changed)
        moved = {axis for axis in before if before[axis] != after[axis]}
        named = {axis for axis, fields in AXIS_FIELDS.items() if path in fields}
        yield (
            f"{path} moves {sorted(moved)}, and is named for {sorted(named)}" if not moved or not moved <= named else ""
        )


def _extents(case: Case) -> dict[str, Any]:
    sizes = sizes_of(case)
    return {**sizes.values, **sizes.groups[0]}


def _changed(case: Case) -> Iterator[tuple[str, Case]]:
    """Yield (field, the case with that field alone changed); records as they are, without their rules."""

    def put(record: Any, path: list[str], change: Any) -> Any:
        name = path[0]
        new = change(getattr(record, name)) if len(path) == 1 else put(getattr(record, name), path[1:], change)
        return record.model_copy(update={name: new})

    def layered(path: list[str], change: Any) -> Case:
        groups = tuple(
            group.model_copy(update={"layer": put(group.layer, path, change)}) for group in case.architecture.groups
        )
        return case.model_copy(update={"architecture": case.architecture.model_copy(update={"groups": groups})})

    for path in ("workload.batch", "workload.new_tokens", "workload.past_tokens", "architecture.hidden_size"):
        yield path, put(case, path.split("."), lambda value: value + 4)
    yield "architecture.vocabulary_size", put(case, ["architecture", "vocabulary_size"], lambda value: value + 4)
    yield "workload.logits", put(case, ["workload", "logits"], lambda value: 3)
    yield "execution.vocabulary_multiple", put(case, ["execution", "vocabulary_multiple"], lambda value: 7)
    yield "execution.head_multiple", put(case, ["execution", "head_multiple"], lambda value: 6)
    yield "architecture.embedding_width", put(case, ["architecture", "embedding_width"], lambda value: 4)
    yield "attention.head_dim", layered(["attention", "head_dim"], lambda value: value + 2)
    yield "attention.query_heads", layered(["attention", "query_heads"], lambda value: 2 * value)
    yield "attention.kv_heads", layered(["attention", "kv_heads"], lambda value: 2 * value)
    yield "mlp.width", layered(["mlp", "width"], lambda value: value + 2)


@holds(
    "policies.sums", "each published state policy is the sum of its own objects, and no two list the same", "package"
)
def _policies(package: Package) -> Items:
    from jaxcost.contracts.dtypes import BITS

    schemas = []
    for name in POLICIES:
        case = train(precision=name)
        totals = package.predict(case).ledgers["state"].totals
        objects = case.state.objects
        each = sum(Fraction(BITS[item.dtype] * item.copies, 8) for item in objects)
        yield equal(f"{name}, bytes a parameter", totals["bytes_per_parameter"], each)
        schemas.append(tuple(sorted((item.role, item.dtype) for item in objects)))
    yield equal("schemas", len(set(schemas)), len(POLICIES))
