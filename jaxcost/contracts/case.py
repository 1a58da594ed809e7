"""A case: one architecture, one workload, one state policy, one execution, one convention, and their digest.

`build_case` is the single place where defaults are chosen; the command line, case files and the Python functions
`training`, `prefill` and `decode` all end here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pydantic import Field

from jaxcost.contracts.architecture import Architecture, Layer
from jaxcost.contracts.convention import RECTANGULAR, Convention
from jaxcost.contracts.errors import Problem, RejectedError
from jaxcost.contracts.execution import SAVEABLE_NAMES, Execution, mesh_axes
from jaxcost.contracts.liveness import Liveness
from jaxcost.contracts.record import Record
from jaxcost.contracts.state import StatePolicy, state_policy
from jaxcost.contracts.workload import Workload

NORM_SCOPES = {
    "attn_norm": "attention_norm",
    "mlp_norm": "mlp_norm",
    "attn_post_norm": "attention_post_norm",
    "mlp_post_norm": "mlp_post_norm",
}


def saveable_names(layer: Layer) -> tuple[str, ...]:
    """Return the names of `SAVEABLE_NAMES` that a layer makes."""
    attention = layer.attention
    absent = {
        "attn_norm": layer.attention_norm is None,
        "q_norm": attention.qk_norm is None,
        "k_norm": attention.qk_norm is None,
        "q_rotary": attention.rotary is None,
        "k_rotary": attention.rotary is None,
        "attn_residual": layer.residual == "parallel",
        "mlp_norm": layer.mlp_norm is None,
        "gate": layer.mlp.form != "gated",
    }
    return tuple(name for name in SAVEABLE_NAMES if not absent.get(name))


class Case(Record):
    """Everything a prediction depends on."""

    architecture: Architecture
    workload: Workload
    state: StatePolicy
    execution: Execution = Execution()
    convention: Convention = RECTANGULAR
    liveness: Liveness | None = None
    expected: dict[str, int] | None = Field(default=None, json_schema_extra={"outside_digest": True})

    def problems(self) -> Iterable[Problem]:
        yield from self._mesh_problems()
        work, arch = self.workload, self.architecture
        table = arch.learned_positions
        if table and work.visible_tokens + table.offset > table.rows:
            needed = work.visible_tokens + table.offset
            rule = (
                f"{work.visible_tokens} visible tokens need {needed} rows of learned positions; there are {table.rows}"
            )
            yield Problem("workload.new_tokens", work.new_tokens, rule, "use a shorter sequence")
        if (work.phase == "training") != (self.state.optimizer != "none"):
            rule = f"phase {work.phase} and optimizer {self.state.optimizer} do not go together"
            yield Problem(
                "state.optimizer", self.state.optimizer, rule, "an optimizer belongs to training, and only there"
            )
        yield from self._frozen_problems()
        yield from self._training_problems()

    def _training_problems(self) -> Iterable[Problem]:
        """Rules of what acts in training alone, or on several microbatches: else it changes nothing but the digest."""
        run, phase = self.execution, self.workload.phase
        default = Execution()
        if phase == "training":
            if self.workload.accumulate == 1 and run.gradient_sync != default.gradient_sync:
                rule = "of one microbatch the first is the last: it would change nothing but the digest"
                yield Problem("execution.gradient_sync", run.gradient_sync, rule, "leave it out, or give accumulate")
            return
        acts: tuple[tuple[str, str, object, bool], ...] = (
            ("remat", "nothing is recomputed", run.remat, run.remat != default.remat),
            ("gradient_sync", "there are no gradients", run.gradient_sync, run.gradient_sync != default.gradient_sync),
            ("fsdp.reshard", "no backward pass uses a weight again", run.fsdp.reshard, not run.fsdp.reshard),
            ("zero", "there is no optimizer state and no gradient to shard", run.zero, run.zero in (1, 2)),
        )
        for name, why, value, given in acts:
            if given:
                yield Problem(f"execution.{name}", value, f"it acts in training only: in {phase} {why}", "leave it out")

    def _mesh_problems(self) -> Iterable[Problem]:
        work, run, arch = self.workload, self.execution, self.architecture
        shards, fsdp = run.degree("data") * run.degree("fsdp"), run.degree("fsdp")
        micro = work.batch // work.accumulate
        if micro % shards:
            rule = f"data x fsdp = {shards} must divide the sequences of one microbatch ({micro})"
            yield Problem("workload.batch", work.batch, rule, "raise the batch or lower the degrees")
        if arch.hidden_size % fsdp:
            rule = f"fsdp shards matrices along the hidden axis and must divide hidden_size ({arch.hidden_size})"
            yield Problem("execution.mesh.fsdp", fsdp, rule, "use a divisor")
        if run.degree("expert") > 1:
            rule = "no layer of this architecture has experts"
            yield Problem("execution.mesh.expert", run.degree("expert"), rule, "leave the axis out")
        yield from self._row_problems()
        yield from self._tensor_problems()
        yield from self._pipeline_problems()
        yield from self._remat_problems()
        kept: set[str] = {item.role for item in self.state.objects}
        roles = kept & {"parameter", "gradient", "master"}
        roles |= {"optimizer"} if kept - {"parameter", "gradient", "gradient_copy", "master"} else set()
        for role in run.offload:
            if role not in roles or (work.phase != "training" and role != "parameter"):
                rule = f"the state of {work.phase}, {self.state.name} and {self.state.optimizer} has no such object"
                yield Problem("execution.offload", role, rule, "leave it out")

    def _row_problems(self) -> Iterable[Problem]:
        """Rules of the axes that split the rows of a sequence."""
        work, run = self.workload, self.execution
        context, rows = run.degree("context"), work.new_tokens
        if context > 1 and work.phase == "decode":
            rule = "decode has one new row, which a context axis cannot split"
            yield Problem("execution.mesh.context", context, rule, "leave the axis out")
        elif context > 1 and work.continues:
            rule = f"the {work.past_tokens} cached rows of a prompt are not split over a context axis"
            yield Problem("execution.mesh.context", context, rule, "leave the axis out")
        elif rows % context:
            rule = f"context must divide the rows of a sequence ({rows})"
            yield Problem("execution.mesh.context", context, rule, "use a divisor of seq")
        elif run.sequence_parallel and (rows // context) % run.degree("tensor"):
            rule = f"sequence parallelism splits {rows // context} rows over tensor ({run.degree('tensor')})"
            yield Problem("execution.sequence_parallel", True, rule, "use a tensor degree that divides them")
        if (context > 1 or run.sequence_parallel) and work.lengths is not None:
            rule = "ragged rows are not split over devices"
            yield Problem("workload.lengths", list(work.lengths[:4]), rule, "leave lengths out")

    def _tensor_problems(self) -> Iterable[Problem]:
        """Rules of the axis that splits heads, MLP width and vocabulary."""
        run, tensor = self.execution, self.execution.degree("tensor")
        path = "execution.mesh.tensor"
        for index, group in enumerate(self.architecture.groups):
            attention, mlp = group.layer.attention, group.layer.mlp
            for part, storage in (("attention", attention.storage), ("mlp", mlp.storage)):
                if storage == "fused" and tensor > 1:
                    rule = "the cut axis of fused storage would be split over ranks, which is a layout of its own"
                    remedy = "declare separate storage, or shard over data or fsdp"
                    yield Problem(f"architecture.groups.{index}.layer.{part}.storage", storage, rule, remedy)
            queries = self.query_heads(index)
            for name, extent in (("query_heads", queries), ("mlp.width", mlp.width)):
                if extent % tensor:
                    rule = f"tensor must divide {name} ({extent}) of group {index}"
                    remedy = "use a divisor" + (", or pad heads (--head-multiple)" if name == "query_heads" else "")
                    yield Problem(path, tensor, rule, remedy)
            if queries % attention.kv_heads:
                rule = (
                    f"{queries} padded query heads are no multiple of kv_heads ({attention.kv_heads}) of group {index}"
                )
                yield Problem("execution.head_multiple", run.head_multiple, rule, "use a multiple of kv_heads")
            elif attention.kv_heads % tensor and tensor % attention.kv_heads:
                rule = f"tensor must divide kv_heads ({attention.kv_heads}) of group {index}, or be a multiple of it"
                yield Problem(path, tensor, rule, "use a divisor, or a multiple, which replicates K/V heads")
        if self.vocabulary_rows % tensor:
            rule = f"tensor must divide the vocabulary rows ({self.vocabulary_rows})"
            yield Problem(path, tensor, rule, "pad with vocabulary_multiple (--vocabulary-multiple)")

    def _pipeline_problems(self) -> Iterable[Problem]:
        """Rules of stages: every layer in one, and ends that exist."""
        run, layers = self.execution, self.architecture.layer_count
        plan, ranks = run.pipeline, run.degree("pipeline")
        if ranks == 1:
            return
        stages = ranks * plan.virtual
        if plan.layers and (len(plan.layers) != stages or sum(plan.layers) != layers):
            rule = f"{stages} stages hold {layers} layers; {len(plan.layers)} entries hold {sum(plan.layers)}"
            yield Problem(
                "execution.pipeline.layers", list(plan.layers), rule, "give one entry a stage, all layers in all"
            )
        if not plan.layers and layers % stages:
            rule = f"{stages} stages do not divide {layers} layers"
            yield Problem("execution.pipeline.layers", [], rule, "give the layers of each stage (--pipeline-layers)")
        for name in ("embedding_stage", "head_stage"):
            if not -stages <= getattr(plan, name) < stages:
                yield Problem(
                    f"execution.pipeline.{name}", getattr(plan, name), f"there are {stages} stages", "use 0 to N-1"
                )
        micro = self.workload.accumulate
        if plan.schedule == "interleaved" and micro % ranks:
            rule = f"the interleaved schedule runs microbatches in groups of pipeline ({ranks})"
            yield Problem("workload.accumulate", micro, rule, "use a multiple (--accumulate)")
        if self.workload.phase != "training":
            rule = "stages are scheduled in training only"
            yield Problem("execution.mesh.pipeline", ranks, rule, "leave the axis out")

    def _remat_problems(self) -> Iterable[Problem]:
        """Rules of policies by name: a name that no layer has would save nothing."""
        known = {name for group in self.architecture.groups for name in saveable_names(group.layer)}
        if self.workload.attention != "materialised":
            known -= {"scores", "probabilities"}
        for name in self.execution.remat_names:
            if name not in known:
                rule = f"no layer of this architecture, with attention {self.workload.attention}, makes it"
                yield Problem("execution.remat_names", name, rule, f"use {', '.join(sorted(known))}")

    def query_heads(self, group: int) -> int:
        """Query heads of a group as executed: padded up to `head_multiple`."""
        heads = self.architecture.groups[group].layer.attention.query_heads
        return heads + (-heads) % self.execution.head_multiple

    def kv_replicas(self, group: int) -> int:
        """Ranks of the tensor axis that hold the same K/V head of a group."""
        return max(1, self.execution.degree("tensor") // self.architecture.groups[group].layer.attention.kv_heads)

    def _frozen_problems(self) -> Iterable[Problem]:
        known = self.frozen_names
        for name in self.state.frozen:
            if name not in known:
                yield Problem(
                    "state.frozen", name, "no component of this architecture", f"use one of {', '.join(sorted(known))}"
                )
        if known and set(self.state.frozen) >= {n for n in known if "/" not in n} and self.workload.phase == "training":
            yield Problem(
                "state.frozen", list(self.state.frozen), "nothing is left to train", "leave one component trainable"
            )

    @property
    def frozen_names(self) -> frozenset[str]:
        """Component scopes that can be frozen as a whole."""
        arch = self.architecture
        names = {"embed"}
        if arch.final_norm:
            names.add("final_norm")
        if not arch.tied:
            names.add("head")
        if arch.embedding_width:
            names |= {"embed/project_in", "head/project_out"}
        for index, group in enumerate(arch.groups):
            norms = {scope for scope, field in NORM_SCOPES.items() if getattr(group.layer, field)}
            names |= {f"group{index}"} | {f"group{index}/{part}" for part in {"attn", "mlp"} | norms}
        return frozenset(names)

    def is_frozen(self, scope: str) -> bool:
        """Return whether the parameters of a component scope are loaded but not trained."""
        return any(scope == name or scope.startswith(name + "/") for name in self.state.frozen)

    @property
    def vocabulary_rows(self) -> int:
        """Stored vocabulary rows: `vocabulary_size` padded up to `vocabulary_multiple`."""
        size, multiple = self.architecture.vocabulary_size, self.execution.vocabulary_multiple
        return size + (-size) % multiple


def _frozen_set(frozen: object) -> tuple[Any, ...]:
    """Return the frozen scopes each once and in order, so that equal cases have equal digests."""
    scopes = tuple(frozen) if isinstance(frozen, list | tuple) else (frozen,)
    return tuple(sorted(set(scopes))) if all(isinstance(scope, str) for scope in scopes) else scopes


OPTION_NAMES = (
    "phase", "batch", "seq", "past", "logits", "accumulate", "precision", "optimizer", "remat", "attention",
    "attention_block", "layers", "mesh", "zero", "sharding", "dropout", "frozen", "vocabulary_multiple", "pairs",
    "lengths", "remat_names", "fsdp_group", "reshard", "prefetch", "sequence_parallel", "context_method",
    "pipeline_schedule", "pipeline_layers", "pipeline_virtual", "embedding_stage", "head_stage", "gradient_sync",
    "offload", "head_multiple",
)  # fmt: skip
# option: the field it sets of the record `fsdp` or `pipeline` of an execution
_NESTED = {
    "fsdp_group": ("fsdp", "group"),
    "reshard": ("fsdp", "reshard"),
    "prefetch": ("fsdp", "prefetch"),
    "pipeline_schedule": ("pipeline", "schedule"),
    "pipeline_layers": ("pipeline", "layers"),
    "pipeline_virtual": ("pipeline", "virtual"),
    "embedding_stage": ("pipeline", "embedding_stage"),
    "head_stage": ("pipeline", "head_stage"),
}


def build_case(
    architecture: Architecture, options: Mapping[str, Any], liveness: object = None, expected: object = None
) -> Case:
    """Build a case from options named like the command line's; what is not given takes the documented default.

    Args:
        architecture: the graph.
        options: a mapping over `OPTION_NAMES`. `phase` and, except in decode, `seq` are needed; `batch` defaults to 1.
        liveness: plain data of a `[liveness]` table, or None.
        expected: plain data of an `[expected]` table (ledger path to integer), or None.

    Raises:
        RejectedError: with every problem of the options.
    """
    problems = [
        Problem(name, options[name], "not an option of a case", f"the options are {', '.join(OPTION_NAMES)}")
        for name in options
        if name not in OPTION_NAMES
    ]
    phase = options.get("phase")
    training = phase == "training"
    work: dict[str, Any] = {
        "phase": phase,
        "batch": options.get("batch", 1),
        "new_tokens": options.get("seq", 1 if phase == "decode" else None),
        "logits": options.get("logits", "all" if training else "final"),
        "lengths": options.get("lengths"),
    }
    for name in ("accumulate", "attention", "attention_block", "dropout"):
        if name in options:
            work[name] = options[name]
    if "past" in options:
        work["past_tokens"] = options["past"]
        if phase == "prefill" and options["past"] not in (0, None):
            rule = "a prefill starts from an empty cache; a part of a prompt over cached rows is counted by sensitivity"
            remedy = "write 0, use phase decode, or vary the field visible (jaxcost sensitivity --set visible=N)"
            problems.append(Problem("workload.past_tokens", work.pop("past_tokens"), rule, remedy))
    run = {
        name: options[name]
        for name in (
            "mesh", "zero", "remat", "remat_names", "layers", "sharding", "vocabulary_multiple", "head_multiple",
            "sequence_parallel", "context_method", "gradient_sync", "offload",
        )
        if name in options
    }  # fmt: skip
    for name, (part, field) in _NESTED.items():
        if name in options:
            run.setdefault(part, {})[field] = options[name]
    if work["new_tokens"] is None:
        who = f"phase {phase}" if phase else "every phase but decode"
        problems.append(Problem("seq", None, f"{who} needs the number of new tokens", "give seq (--seq N)"))
        work["new_tokens"] = 1
    if not training and phase is not None and options.get("optimizer", "adam") != "adam":
        rule = f"phase {phase} updates nothing"
        problems.append(Problem("optimizer", options["optimizer"], rule, "leave it out (--optimizer)"))
    if phase is None:
        problems.append(
            Problem("phase", None, "a case needs a phase", "give phase (--phase training, prefill or decode)")
        )
        work["phase"] = "prefill"
    if isinstance(run.get("mesh"), str):
        remedy = 'write {fsdp = 8} in a file, {"fsdp": 8} in Python; only --mesh takes text'
        problems.append(Problem("execution.mesh", run.pop("mesh"), "must be a table of axes and their sizes", remedy))
    if "mesh" in run:
        run["mesh"] = mesh_axes(run["mesh"])
    parts: dict[str, Any] = {}
    frozen = options.get("frozen", ())
    builders: dict[str, Callable[[], Any]] = {
        "workload": lambda: Workload.from_data(work, "workload"),
        "execution": lambda: Execution.from_data(run, "execution"),
        "convention": lambda: Convention.from_data(
            {"attention_pairs": options.get("pairs", "rectangular")}, "convention"
        ),
        "state": lambda: state_policy(
            options.get("precision", "mixed" if training else "bf16_inference"),
            options.get("optimizer", "adam"),
            training,
            _frozen_set(frozen),
        ),
        "liveness": lambda: None if liveness is None else Liveness.from_data(liveness, "liveness"),
    }
    for name, build in builders.items():
        try:
            parts[name] = build()
        except RejectedError as error:
            problems.extend(error.problems)
    if problems:
        raise RejectedError(problems)
    data = {
        "architecture": architecture.to_data(),
        **{n: p.to_data() if p else None for n, p in parts.items()},
        "expected": expected,
    }
    return Case.from_data(data)


def training(architecture: Architecture, *, batch: int = 1, seq: int, **options: Any) -> Case:
    """Return a training case: `batch` global sequences of `seq` tokens per step."""
    return build_case(architecture, {"phase": "training", "batch": batch, "seq": seq, **options})


def prefill(architecture: Architecture, *, batch: int = 1, seq: int, **options: Any) -> Case:
    """Return a prefill case: prompts of `seq` tokens into an empty cache."""
    return build_case(architecture, {"phase": "prefill", "batch": batch, "seq": seq, **options})


def decode(architecture: Architecture, *, batch: int = 1, past: int, **options: Any) -> Case:
    """Return a decode case: one new token per sequence against `past` cached tokens."""
    return build_case(architecture, {"phase": "decode", "batch": batch, "past": past, **options})
