"""One run of `jaxcost verify`: which cases, on which targets, and what the run is worth.

Cases come from the models named, a case file, a suite, recorded evidence or a supplied bundle; each is predicted here,
observed in the worker pool, and reconciled. Targets the user named must be there; those of a suite may be missing, and
are then shown.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from jaxcost.contracts.case import Case, build_case
from jaxcost.contracts.errors import Problem, RejectedError, UnavailableError, reject
from jaxcost.contracts.observation import Observation
from jaxcost.observation.kernels import kernel_availability, require_kernel
from jaxcost.observation.observe import Wish, observe_many, target_for
from jaxcost.observation.observed import Observed
from jaxcost.observation.pool import Pool, Progress, Reply, Request
from jaxcost.observation.targets import Unavailable, availability, parse_target, require
from jaxcost.prediction.ledgers import predict
from jaxcost.reconciliation.report import not_executed, reconcile
from jaxcost.reconciliation.rows import STATUSES, Report, Status, worst
from jaxcost.reconciliation.supplied import load_bundle, reconcile_supplied
from jaxcost.verify.request import VerifyRequest
from jaxcost.verify.suites import ClaimResult, Gap, PlannedCase, Suite, check_claims, covers, load_claims, load_suite

DEFAULT_SUITE = "default"
Seen = Observed | Observation | None
NO_TARGET = "none"


@dataclass(frozen=True)
class Job:
    """One case to be compared on one target; `none` is a case without an observation."""

    name: str
    case: Case
    target: str


@dataclass(frozen=True)
class VerifyResult:
    """What a run found. `unavailable` are targets of a suite that cannot be compiled for here."""

    reports: tuple[Report, ...] = ()
    unavailable: tuple[Mapping[str, str], ...] = ()
    claims: tuple[ClaimResult, ...] = ()
    failures: tuple[Mapping[str, Any], ...] = ()
    fuzz: Mapping[str, Any] | None = None
    explain: tuple[Mapping[str, Any], ...] = ()
    seconds: float = 0.0
    calibration_seconds: float | None = None
    strict: bool = field(default=False, repr=False)
    faulty: bool = field(default=False, repr=False)
    gaps: tuple[Gap, ...] = field(default=(), repr=False)

    @property
    def status(self) -> Status:
        """The worst status of the reports."""
        return worst(report.status for report in self.reports)

    @property
    def exit_code(self) -> int:
        """0 when nothing compared is open but what a known gap admits; 1 otherwise, and with `strict` for what is
        unmeasured too; 4 for a bug.
        """
        if self.faulty:
            return 4
        wanted: Status = "bounded" if self.strict else "unmeasured"
        limit = STATUSES.index(wanted)
        bad = any(STATUSES.index(self._counted(report)) < limit for report in self.reports)
        bad |= any(claim.failed for claim in self.claims)
        bad |= any(row["status"] == "missed" for row in self.failures)
        bad |= self.fuzz is not None and self.fuzz["status"] != "passed"
        bad |= self.strict and bool(self.unavailable)
        return int(bad)

    def _counted(self, report: Report) -> Status:
        """The status of a report without the open rows that known gaps admit."""
        rows = [row for row in report.rows if not row.verdict]
        kept = [row for row in rows if row.status != "open" or not any(covers(gap, report, row) for gap in self.gaps)]
        return report.status if len(kept) == len(rows) else worst(row.status for row in kept)

    def to_dict(self) -> dict[str, Any]:
        """Return the body of the document `jaxcost.verify.v1`."""
        data: dict[str, Any] = {
            "status": self.status,
            "reports": [report.to_dict() for report in self.reports],
            "unavailable": [dict(item) for item in self.unavailable],
            "claims": [claim.to_dict() for claim in self.claims],
            "seconds": round(self.seconds, 1),
            "calibration_seconds": self.calibration_seconds,
        }
        if self.calibration_seconds is None:
            data["calibration_reason"] = "nothing was compiled in this run"
        if self.failures:
            data["failures"] = [dict(row) for row in self.failures]
        if self.fuzz is not None:
            data["fuzz"] = dict(self.fuzz)
        if self.explain:
            data["explain"] = [dict(item) for item in self.explain]
        return data


def verify(request: VerifyRequest) -> VerifyResult:
    """Run what a request asks for.

    Raises:
        RejectedError: an input breaks its contract.
        UnavailableError: a target named by the user has no compiler here, or a named file does not exist.
    """
    started = time.monotonic()
    if request.failures:
        from jaxcost.verify.failures import run_failures

        return VerifyResult(failures=tuple(row.to_dict() for row in run_failures()), seconds=time.monotonic() - started)
    if request.fuzz is not None:
        return _fuzzed(request, started)
    if request.replay is not None:
        reports, replayed = _replayed(request.replay, request.progress)
        gaps = _recorded_gaps(request.replay, reports)
        claims = tuple(check_claims((), gaps, reports, ()))
        seconds = time.monotonic() - started
        return _finished(request, VerifyResult(reports=reports, claims=claims, seconds=seconds, gaps=gaps), replayed)
    if request.observation is not None:
        report, bundle = _supplied(request, request.observation)
        return _finished(request, VerifyResult(reports=(report,), seconds=time.monotonic() - started), (bundle,))
    jobs, suite = _jobs(request)
    from_suite = suite is not None
    jobs, unavailable = _available(jobs, named=bool(request.targets) or not from_suite)
    reports, seen, calibration, faulty = _compared(jobs, request)
    claims = ()
    gaps = ()
    if suite is not None:
        held, gaps = load_claims() if request.suite in (None, DEFAULT_SUITE) else (suite.claims, suite.gaps)
        if not request.targets:  # of a selection, what is left out is no reason to fail
            families = {str(report.environment.get("family")) for report in reports}
            claims = tuple(check_claims(held, gaps, reports, families))
    seconds = time.monotonic() - started
    return _finished(
        request,
        VerifyResult(
            reports,
            tuple(unavailable),
            claims,
            seconds=seconds,
            calibration_seconds=calibration,
            faulty=faulty,
            gaps=gaps,
        ),
        seen,
    )


def _finished(request: VerifyRequest, result: VerifyResult, seen: Sequence[Seen]) -> VerifyResult:
    """Walk through the row asked for; `seen` is what each report was compared with."""
    explained: tuple[Mapping[str, Any], ...] = ()
    if request.explain is not None:
        from jaxcost.verify.explain import explain_row

        both = zip(result.reports, seen, strict=True)
        explained = tuple(
            explain_row(report, request.explain, by) for report, by in both if report.row(request.explain)
        )
        if not explained:
            raise _no_row(request.explain, {row.key for report in result.reports for row in report.rows})
    return VerifyResult(
        result.reports, result.unavailable, result.claims, result.failures, result.fuzz, explained, result.seconds,
        result.calibration_seconds, request.strict, result.faulty, result.gaps,
    )  # fmt: skip


def _no_row(key: str, known: set[str]) -> RejectedError:
    """Return the refusal of a row that no report has, with the rows it may have meant."""
    from difflib import get_close_matches

    near = get_close_matches(key, sorted(known), n=5, cutoff=0.5)
    near += [name for name in sorted(known) if key and key in name and name not in near][: 5 - len(near)]
    counters = sorted({name.split(":")[0] for name in known})
    remedy = f"near it are {', '.join(near)}" if near else f"rows are counter[:scope][:phase] of {', '.join(counters)}"
    return reject("--explain", key, "no report has this row", remedy)


def _jobs(request: VerifyRequest) -> tuple[list[Job], Suite | None]:
    """Return the cases to compare, and the suite that chose them, if one did."""
    from jaxcost.catalog import load, load_case_file

    if not request.models and request.case_file is None:
        if request.case_options:
            named = ", ".join(sorted(request.case_options))
            raise reject(
                "MODEL", None, f"case options ({named}) without a model", "name a model: jaxcost verify MODEL ..."
            )
        suite = load_suite(request.suite or DEFAULT_SUITE)
        return _suite_jobs(suite.cases, request.targets), suite
    if request.suite is not None:
        raise reject("--suite", request.suite, "a suite names its own models", "leave MODEL and --case out, or --suite")
    options: dict[str, Any] = {}
    manifests = [load(model) for model in request.models]
    if request.case_file is not None:
        file = load_case_file(request.case_file)
        options |= file.options
        if file.manifest is not None and not manifests:
            manifests = [file.manifest]
    options |= request.case_options
    if not manifests:
        raise reject("MODEL", None, "the case file names no model", "name one on the command line or in the file")
    jobs = []
    for manifest in manifests:
        case = build_case(manifest.architecture, options, _data(manifest.liveness), manifest.expected)
        for target in request.targets or ("cpu",):
            jobs.append(Job(f"{manifest.architecture.name} {case.workload.phase}", case, target))
    return jobs, None


def cases_of(request: VerifyRequest) -> list[tuple[str, Case]]:
    """Return the cases that models, a case file and options name, with what they are called.

    Raises:
        RejectedError: they name none, or one breaks its contract.
    """
    return [(job.name, job.case) for job in _jobs(request)[0]]


def _suite_jobs(planned: Sequence[PlannedCase], targets: Sequence[str]) -> list[Job]:
    """Return the jobs of a suite; targets named by the user select among the suite's, by chip."""
    from jaxcost.catalog import load

    chips = {parse_target(text).chip for text in targets}
    jobs = []
    for item in planned:
        manifest = load(item.model)
        case = build_case(manifest.architecture, item.options, _data(manifest.liveness), manifest.expected)
        wanted = [text for text in item.targets if not chips or parse_target(text).chip in chips]
        jobs += [Job(item.name, case, text) for text in wanted]
        if not item.targets and not chips:
            jobs.append(Job(item.name, case, NO_TARGET))
    if not jobs:
        raise reject(
            "--target", list(targets), "the suite has no case for these targets", "name a model and its options"
        )
    return jobs


def _data(record: Any) -> Any:
    return record.to_data() if record is not None else None


def _available(jobs: list[Job], named: bool) -> tuple[list[Job], list[Mapping[str, str]]]:
    """Drop the jobs whose compiler is missing; where the user named the target, refuse instead."""
    missing: dict[str, Mapping[str, str]] = {}
    kept = []
    for job in jobs:
        if job.target == NO_TARGET:
            kept.append(job)
            continue
        target = target_for(job.case, job.target)
        if named:
            require(target)
            require_kernel(job.case, target)
        state = kernel_availability(job.case) or availability(target)
        if isinstance(state, Unavailable):
            missing[target.family] = {"family": target.family, "reason": state.reason, "remedy": state.remedy}
        else:
            kept.append(job)
    return kept, list(missing.values())


def _compared(
    jobs: Sequence[Job], request: VerifyRequest
) -> tuple[tuple[Report, ...], tuple[Seen, ...], float | None, bool]:
    """Predict, observe and reconcile; the last value says whether a worker raised, which is a bug of this package.

    A case that the reference network does not execute is predicted, and its report says so.

    Raises:
        RejectedError: a case and its target do not fit together.
    """
    compiled = [job for job in jobs if job.target != NO_TARGET]
    seen: dict[int, Observed] = {}
    calibration: float | None = None
    if compiled:
        with Pool(size=min(2, len(compiled)), on_progress=_reporter(len(compiled), request.progress)) as pool:
            wishes = [Wish(job.case, job.target, record=request.record) for job in compiled]
            order = sorted(range(len(wishes)), key=lambda index: -_weight(compiled[index]))
            results = observe_many([wishes[index] for index in order], pool=pool)
            seen = {id(compiled[index]): result for index, result in zip(order, results, strict=True)}
            calibration = _calibrate(pool)
    failed = {index: item.data.get("failure") or {} for index, item in seen.items()}
    refused = {
        index: tuple(Problem(**problem) for problem in failure["problems"])
        for index, failure in failed.items()
        if failure.get("kind") == "rejected"
    }
    for index, problems in refused.items():
        if not failed[index].get("details", {}).get("not_executed"):
            raise RejectedError(problems)
    kinds = {index: failure.get("kind") for index, failure in failed.items()}
    reports = []
    for job in jobs:
        prediction = predict(job.case)
        if id(job) in refused:
            report = not_executed(prediction, job.target, refused[id(job)])
        else:
            report = reconcile(prediction, seen.get(id(job)))
        reports.append(Report(report.case, report.target, report.environment, report.rows, report.findings, job.name))
    observations = tuple(seen.get(id(job)) for job in jobs)
    return tuple(reports), observations, calibration, any(kind in ("raised", "not_started") for kind in kinds.values())


def _weight(job: Job) -> int:
    """Return an order of compile times: long ones start first, so that two workers end together."""
    family = {"tpu": 8, "cuda": 2}.get(target_for(job.case, job.target).family, 1)
    return (
        family * (4 if job.case.workload.phase == "training" else 1) * (1 + (job.case.architecture.hidden_size > 512))
    )


def _calibrate(pool: Pool) -> float | None:
    """Compile one small fixed program, so that seconds on one machine can be read on another."""
    reply = pool.call(Request("jaxcost.observation.tasks:calibrate", {}, kind="cpu", label="calibration"))
    return round(float(reply.value["compile_seconds"]), 2) if isinstance(reply, Reply) else None


def _reporter(total: int, progress: Callable[[str], None]) -> Callable[[Progress], None]:
    done = 0

    def report(event: Progress) -> None:
        nonlocal done
        if event.result is not None and event.request.label != "calibration":
            done += 1
            progress(f"[{done}/{total}] {event.request.label}")

    return report


def _supplied(request: VerifyRequest, path: Path) -> tuple[Report, Observation]:
    jobs, suite = _jobs(request)
    if suite is not None or len(jobs) != 1:
        raise reject("--observation", str(path), "a bundle belongs to one case", "name one model and its case options")
    bundle = load_bundle(path)
    report = reconcile_supplied(predict(jobs[0].case), bundle)
    return Report(report.case, report.target, report.environment, report.rows, report.findings, jobs[0].name), bundle


def _recorded_gaps(path: Path, reports: Sequence[Report]) -> tuple[Gap, ...]:
    """Return the known gaps of the package's own records that a replay reads; other folders have none."""
    from jaxcost.data import room

    if path.resolve() != room("hlo_dumps").resolve():
        return ()
    names = [report.name for report in reports]
    return tuple(gap for gap in load_suite("records").gaps if any(fnmatchcase(name, gap.report) for name in names))


def _replayed(path: Path, progress: Callable[[str], None]) -> tuple[tuple[Report, ...], tuple[Observed, ...]]:
    from jaxcost.observation.record import read_record, records

    paths = records(path) if path.is_dir() else [path]
    if not paths:
        raise UnavailableError(
            str(path), "the folder holds no recorded evidence", "make some with jaxcost verify --record DIR"
        )
    reports, observations = [], []
    for index, item in enumerate(paths):
        seen = read_record(item)
        observations.append(seen)
        report = reconcile(predict(Case.from_data(seen.data["case"])), seen)
        reports.append(Report(report.case, report.target, report.environment, report.rows, report.findings, item.name))
        progress(f"[{index + 1}/{len(paths)}] {item.name}")
    return tuple(reports), tuple(observations)


def _fuzzed(request: VerifyRequest, started: float) -> VerifyResult:
    from jaxcost.verify.fuzz import fuzz

    targets = request.targets or ("cpu:1",)
    if request.models or request.case_file or request.case_options:
        raise reject(
            "--fuzz", request.fuzz, "random cases have their own models and options", "leave MODEL and case options out"
        )
    if len(targets) != 1:
        raise reject("--target", list(targets), "one target at a time is fuzzed", "give one --target")
    target = parse_target(targets[0])
    require(target)
    if target.device_count != 1:
        raise reject("--target", target.text, "random cases run on one device", "use for example cpu:1")
    assert request.fuzz is not None
    with Pool(size=2) as pool:
        result = fuzz(request.fuzz, request.seed, target.text, pool, request.progress)
        calibration = _calibrate(pool)
    seconds = time.monotonic() - started
    return VerifyResult(fuzz=result.to_dict(), seconds=seconds, calibration_seconds=calibration, strict=request.strict)
