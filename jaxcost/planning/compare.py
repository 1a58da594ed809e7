"""`compare`: sharding specs side by side, each predicted and compiled, and what changed between them.

A column is one spec (a mesh, and options that differ from the base case) on one target. Its two witnesses stay apart:
what the ledgers say of the case, and what the target's compiler made of it; the error is between them and changes
neither. Whether a column fits is asked of both: required bytes of the compiled program, live peak of the prediction,
against the device's memory times a stated fraction.

    manifest = load("llama-3.1-8b")
    base = {"phase": "training", "batch": 16, "seq": 4096, "remat": "block"}
    found = compare(manifest, base, [Spec({"data": 8}), Spec({"fsdp": 8})], ["h100:8"])
    found.columns[1].fits(Fraction(3, 4)), found.differences, found.advice
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from jaxcost.catalog import Manifest
from jaxcost.contracts.case import Case, build_case
from jaxcost.contracts.errors import Problem, RejectedError, UnavailableError, reject
from jaxcost.observation.kernels import require_kernel
from jaxcost.observation.observe import Wish, observe_many, target_for
from jaxcost.observation.observed import Observed
from jaxcost.observation.pool import DEFAULT_MEMORY_BYTES, DEFAULT_TIMEOUT_SECONDS, Pool, Progress
from jaxcost.observation.targets import Target, require
from jaxcost.planning.advice import advice
from jaxcost.planning.column import Column, make_column
from jaxcost.planning.difference import Difference, differences
from jaxcost.planning.limits import FRACTIONS, fill_target, fraction_labels
from jaxcost.prediction.ledgers import predict


@dataclass(frozen=True)
class Spec:
    """One way to run the step: a mesh (axis to size, in order; empty for one device) and options of a case that differ
    from the base. `label` stands for both where something else is varied.
    """

    mesh: Mapping[str, int] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    label: str = ""

    @property
    def name(self) -> str:
        """`fsdp=4,tensor=2` and, behind it, the options it sets; or the label."""
        if self.label:
            return self.label
        mesh = ",".join(f"{axis}={size}" for axis, size in self.mesh.items()) or "one device"
        return " ".join([mesh, *(f"{name.replace('_', '-')}={_shown(value)}" for name, value in self.options.items())])


@dataclass(frozen=True)
class Planned:
    """A column before it is compiled."""

    spec: Spec
    case: Case
    target: Target


@dataclass(frozen=True)
class Comparison:
    """All columns, in the order of specs and, for each, of targets."""

    columns: tuple[Column, ...]
    fractions: tuple[str, ...]
    differences: tuple[Difference, ...] = ()
    advice: tuple[Mapping[str, Any], ...] = ()
    faulty: bool = field(default=False, repr=False)

    @property
    def exit_code(self) -> int:
        """1 where a column is refused, came to nothing, does not fit at the largest fraction, or has a compared row
        that is open; 4 for a bug; else 0. What is not measured does not change it.
        """
        if self.faulty:
            return 4
        largest = max(self.fractions, key=Fraction)
        return int(any(column.infeasible(largest) or column.open_rows for column in self.columns))

    def to_dict(self) -> dict[str, Any]:
        """Return the body of the document `jaxcost.compare.v1`."""
        first = self.columns[0].case
        return {
            "case": {"digest": first.digest, **first.to_data()},
            "fractions": list(self.fractions),
            "columns": [column.to_dict() for column in self.columns],
            "differences": [item.to_dict() for item in self.differences],
            "advice": [dict(item) for item in self.advice],
            "exit_code": self.exit_code,
        }


def compare(
    manifest: Manifest,
    options: Mapping[str, Any],
    specs: Sequence[Spec],
    targets: Sequence[str] = (),
    fractions: Sequence[str | float] = FRACTIONS,
    *,
    compiling: bool = True,
    base: str | None = None,
    workers: int = 2,
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
    progress: Callable[[str], None] = lambda message: None,
) -> Comparison:
    """Predict and compile a step under several specs on several targets.

    Args:
        manifest, options: the model and the options of the base case, named as in `build_case`, without `mesh`.
        specs: at least one.
        targets: target texts; one without a shape (`h100`) takes as many devices as each mesh. None: the CPU.
        fractions: shares of the device's memory that a program may fill.
        compiling: False gives the predictions alone.
        base: name of the column that the others are compared with; None: the first one on the same target.
        workers, timeout_seconds, memory_bytes: of the compiles.
        progress: takes one line per finished compile.

    Raises:
        RejectedError: with the problems of all specs together.
        UnavailableError: a target's compiler is not installed.

    A compile that dies (time, memory) is a column with its reason; a spec that the reference program does not execute
    is predicted and unmeasured.
    """
    labels = fraction_labels(fractions)
    planned = plan(manifest, options, specs, targets)
    seen: Sequence[Observed | None] = [None] * len(planned)
    if compiling:
        for item in planned:
            require(item.target)
            require_kernel(item.case, item.target)
        seen = compile_planned(planned, workers, timeout_seconds, memory_bytes, progress)
    return put_together(planned, seen, labels, base)


def plan(
    manifest: Manifest, options: Mapping[str, Any], specs: Sequence[Spec], targets: Sequence[str] = ()
) -> list[Planned]:
    """Return the columns that specs and targets make, each checked.

    Raises:
        RejectedError: with the problems of all of them together; equal columns are a problem.
    """
    if not specs:
        raise reject("--mesh", None, "there is nothing to compare", "give --mesh at least once")
    problems: list[Problem] = []
    planned: list[Planned] = []
    liveness = manifest.liveness.to_data() if manifest.liveness else None
    for spec in specs:
        try:
            mesh = [{"name": name, "size": size} for name, size in spec.mesh.items()]
            case = build_case(manifest.architecture, {**options, **spec.options, "mesh": mesh}, liveness)
            for text in targets or ("cpu",):
                planned.append(Planned(spec, case, _target(case, text)))
        except RejectedError as error:
            problems += _named(spec.name, [problem.to_dict() for problem in error.problems])
    seen: dict[tuple[str, str], str] = {}
    for item in planned:
        key = (item.case.digest, item.target.text)
        if key in seen:
            rule = f"the same case on the same target as {seen[key]}"
            problems.append(Problem(item.spec.name, item.target.text, rule, "leave one of the two out"))
        seen.setdefault(key, item.spec.name)
    if problems:
        raise RejectedError(problems)
    return planned


def put_together(
    planned: Sequence[Planned],
    seen: Sequence[Observed | None],
    fractions: tuple[str, ...],
    base: str | None = None,
) -> Comparison:
    """Return the comparison of columns whose compiles are done; None stands for one that was not compiled.

    Raises:
        RejectedError: `base` is no column.
    """
    columns = tuple(
        make_column(
            item.spec.name, dict(item.spec.options), item.case, item.target, predict(item.case), found, fractions
        )
        for item, found in zip(planned, seen, strict=True)
    )
    names = list(dict.fromkeys(column.name for column in columns))
    if base is not None and base not in names:
        raise reject("--base", base, "no column has this name", f"the columns are {'; '.join(names)}")
    failures = {(item.data.get("failure") or {}).get("kind") for item in seen if item is not None}
    return Comparison(
        columns,
        fractions,
        tuple(differences(columns, base)),
        tuple(advice(columns, fractions)),
        faulty=bool(failures & {"raised", "not_started"}),
    )


def _target(case: Case, text: str) -> Target:
    return target_for(case, fill_target(text, case.execution.device_count))


def compile_planned(
    planned: Sequence[Planned],
    workers: int = 2,
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
    progress: Callable[[str], None] = lambda message: None,
) -> list[Observed]:
    """Compile all columns, in order; those that take longest start first, so that the workers end together.

    Raises:
        RejectedError: a case is refused for another reason than that the reference program does not execute it.
        UnavailableError: a compiler is not installed.
    """
    order = sorted(range(len(planned)), key=lambda index: -_weight(planned[index]))
    done = 0

    def report(event: Progress) -> None:
        nonlocal done
        if event.result is not None:
            done += 1
            item = planned[order[event.index]]
            progress(f"[{done}/{len(planned)}] {item.spec.name} on {item.target.text}")

    with Pool(
        min(workers, len(planned)), timeout_seconds=timeout_seconds, memory_bytes=memory_bytes, on_progress=report
    ) as pool:
        found = observe_many([Wish(planned[i].case, planned[i].target.text) for i in order], pool=pool)
    seen: dict[int, Observed] = dict(zip(order, found, strict=True))
    problems: list[Problem] = []
    for index, item in zip(order, found, strict=True):
        failure = item.data.get("failure") or {}
        details = failure.get("details") or {}
        if failure.get("kind") == "unavailable":
            raise UnavailableError(details["what"], item.reason, details["remedy"])
        if failure.get("kind") == "rejected" and not details.get("not_executed"):
            problems += _named(planned[index].spec.name, failure["problems"])
    if problems:
        raise RejectedError(problems)
    return [seen[index] for index in range(len(planned))]


def _named(name: str, problems: Iterable[Mapping[str, Any]]) -> list[Problem]:
    """Return problems of one spec, each with the spec's name before its path."""
    return [Problem(f"{name}: {p['path']}", p["value"], p["rule"], p["remedy"]) for p in problems]


def _weight(item: Planned) -> int:
    """Return an order of compile times: TPU before CUDA before CPU, two compiles (the device exceeded) before one."""
    family = {"tpu": 8, "cuda": 2}.get(item.target.family, 1)
    memory = item.target.device_memory_bytes
    arguments = predict(item.case).value("device.argument_bytes")
    return family * (2 if memory is not None and arguments > memory else 1)


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "+".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
