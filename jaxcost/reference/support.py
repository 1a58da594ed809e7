"""What this network executes. Anything else a case declares is refused by name, never run as if it were not there.

The fields of each architecture record that the network reads are listed here. A field that is not listed, because the
contracts learned it first, is refused as soon as a manifest uses it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from jaxcost.contracts import architecture as declared
from jaxcost.contracts.case import Case
from jaxcost.contracts.errors import NotExecutedError, Problem, RejectedError
from jaxcost.contracts.execution import Execution
from jaxcost.contracts.kernels import KERNEL_FAMILIES, kernel_problems
from jaxcost.contracts.record import Record
from jaxcost.reference.layers import JAX_DTYPES

READ: dict[type[Record], frozenset[str]] = {
    declared.Architecture: frozenset(
        "name family huggingface_id source notes hidden_size vocabulary_size groups final_norm tied dropout absent "
        "learned_positions sinusoidal_positions embedding_width embedding_norm embedding_scale logit_softcap".split()
    ),
    declared.LayerGroup: frozenset(["repeat", "layer", "windows"]),
    declared.Layer: frozenset(
        "residual attention mlp attention_norm mlp_norm attention_post_norm mlp_post_norm".split()
    ),
    declared.Attention: frozenset(
        "query_heads kv_heads head_dim query_bias key_bias value_bias output_bias rotary decoupled_width qk_norm alibi "
        "scale score_softcap storage".split()
    ),
    declared.QkNorm: frozenset(["over", "norm"]),
    declared.Mlp: frozenset(["form", "width", "activation", "bias", "storage"]),
    declared.Norm: frozenset(["kind", "epsilon", "scale", "bias", "unit_offset"]),
    declared.Rotary: frozenset(["theta", "dimensions", "scaling", "interleaved"]),
    declared.RotaryScaling: frozenset(
        "kind factor low_frequency_factor high_frequency_factor original_positions".split()
    ),
    declared.LearnedPositions: frozenset(["rows", "offset"]),
    declared.Dropout: frozenset(["embedding", "attention", "residual"]),
}
_REMEDY = "use the ledgers alone (estimate), or a manifest without it"


def require_known_architecture(case: Case) -> None:
    """Raise RejectedError with every part of the architecture this network does not have."""
    _refuse(_architecture_problems(case), ())


def require_supported(case: Case) -> None:
    """Raise NotExecutedError with everything of the case this network does not execute, or RejectedError where the
    case asks a kernel for what it cannot do.
    """
    _refuse([*_architecture_problems(case), *_step_problems(case)], kernel_problems(case))


def _refuse(problems: Iterable[Problem], broken: Iterable[Problem]) -> None:
    found, wrong = tuple(problems), tuple(broken)
    if wrong:
        raise RejectedError((*wrong, *found))
    if found:
        raise NotExecutedError(found)


def _architecture_problems(case: Case) -> Iterator[Problem]:
    yield from _unread(case.architecture, "architecture")


def _step_problems(case: Case) -> Iterator[Problem]:
    work = case.workload
    if work.lengths is not None:
        rule = "this network runs full rectangles; ragged lengths are counted by the ledgers only"
        yield Problem("workload.lengths", list(work.lengths[:4]), rule, "leave lengths out")
    if work.phase == "prefill" and work.continues:
        rule = "this network prefills into an empty cache; rows over cached ones are counted by the ledgers only"
        yield Problem("workload.past_tokens", work.past_tokens, rule, "use phase decode, or leave past rows out")
    if case.execution.zero:
        rule = "ZeRO stages are counted by the ledgers but not executed by this network"
        yield Problem("execution.zero", case.execution.zero, rule, "use an fsdp axis, or zero = 0")
    yield from _unexecuted(case)
    for name in ("parameter_dtype", "compute_dtype", "score_dtype", "logits_dtype", "kv_dtype"):
        dtype = getattr(case.state, name)
        if dtype not in JAX_DTYPES:
            yield Problem(f"state.{name}", dtype, "this network does not compute in it", "use bf16, fp16 or fp32")


def _unexecuted(case: Case) -> Iterator[Problem]:
    """Ownership that the ledgers predict and this network does not execute."""
    default, run = Execution(), case.execution
    yield from _stages(case)
    yield from _split_rows(case)
    for name in ("group", "prefetch"):
        value = getattr(run.fsdp, name)
        if value != getattr(default.fsdp, name):
            rule = "this network gathers each matrix where it is used"
            yield Problem(f"execution.fsdp.{name}", value, rule, _REMEDY)
    for name in (
        "pipeline", "gradient_sync", "offload", "head_multiple",
    ):  # fmt: skip
        value = getattr(run, name)
        if value != getattr(default, name):
            shown = value.to_data() if isinstance(value, Record) else value
            yield Problem(f"execution.{name}", shown, "this network does not execute it", _REMEDY)
    if "context" in run.remat_names and case.workload.attention in KERNEL_FAMILIES:
        rule = "the library's kernel keeps sums of its own, so that saving what it returns saves nothing"
        yield Problem("execution.remat_names", "context", rule, "leave it out, or use blockwise")
    copies = {case.kv_replicas(index) for index in range(len(case.architecture.groups))}
    if len(copies) > 1:
        rule = f"groups of layers hold each K/V head on {sorted(copies)} ranks, and one mesh has one such number"
        yield Problem("execution.mesh.tensor", run.degree("tensor"), rule, _REMEDY)


def _stages(case: Case) -> Iterator[Problem]:
    """Pipelines other than GPipe over even stages of one scanned group, alone or beside data."""
    run, work, ranks = case.execution, case.workload, case.execution.degree("pipeline")
    if ranks == 1:
        return
    repeats, rates = [group.repeat for group in case.architecture.groups], case.architecture.dropout
    drops = work.dropout and any((rates.embedding, rates.attention, rates.residual))
    beside = sorted(name for name in run.mesh_sizes if name not in ("pipeline", "data") and run.degree(name) > 1)
    met = (
        (work.phase == "training", "workload.phase", work.phase, "stages are executed in training"),
        (not beside, "execution.mesh", ", ".join(beside), "stages are executed with no other axis than data"),
        (len(repeats) == 1, "architecture.groups", repeats, "stages are executed of one group of layers"),
        (not repeats[0] % ranks, "execution.mesh.pipeline", ranks, f"{repeats[0]} layers do not split evenly over it"),
        (run.layers == "scan", "execution.layers", run.layers, "stages are executed of stacked layers"),
        (run.sharding == "explicit", "execution.sharding", run.sharding, "what a rank holds and runs is pinned"),
        (run.remat in ("none", "block"), "execution.remat", run.remat, "stages are executed with remat none or block"),
        (work.attention not in KERNEL_FAMILIES, "workload.attention", work.attention, "kernels do not run in stages"),
        (not drops, "workload.dropout", work.dropout, "random numbers are not drawn in stages"),
        (not case.state.frozen, "state.frozen", list(case.state.frozen), "all parameters of stages are trained"),
    )  # fmt: skip
    for holds, path, value, rule in met:
        if not holds:
            yield Problem(path, value, rule, _REMEDY)


def _split_rows(case: Case) -> Iterator[Problem]:
    """Forms of a context axis and of sequence parallelism that are not written down here."""
    run, work = case.execution, case.workload
    context = run.degree("context")
    if run.sharding == "auto" and (context > 1 or run.sequence_parallel):
        rule = "which rows a rank has is pinned; left to the partitioner it would not be this program"
        yield Problem("execution.sharding", "auto", rule, "use explicit")
    if context > 1 and work.attention in KERNEL_FAMILIES:
        rule = "the library's kernel masks from the first row of the sequence on, and a rank starts inside it"
        yield Problem("workload.attention", work.attention, rule, "use blockwise or materialised")
    biased = any(group.layer.attention.alibi for group in case.architecture.groups)
    if context > 1 and run.degree("tensor") > 1 and biased:
        rule = "linear biases follow the number of a head, and a rank does not know the first of its heads"
        yield Problem("execution.mesh.tensor", run.degree("tensor"), rule, "leave one of context and tensor out")
    if run.context_method == "ring" and work.attention != "blockwise":
        rule = "a ring adds up blocks with a running softmax"
        yield Problem("workload.attention", work.attention, rule, "use blockwise")
    if run.context_method == "ring" and work.phase != "training":
        rule = "a prefill hands on a cache that every rank holds whole, so it gathers the rows"
        yield Problem("execution.context_method", "ring", rule, "use all_gather")


def _unread(record: Record, path: str) -> Iterator[Problem]:
    read = READ.get(type(record), frozenset())
    for name, field in type(record).model_fields.items():
        value = getattr(record, name)
        if name not in read:
            if value != field.default:
                shown = value if isinstance(value, str | int | float) else type(value).__name__
                yield Problem(f"{path}.{name}", shown, "this network does not execute it", _REMEDY)
            continue
        for index, item in enumerate(value if isinstance(value, tuple) else ()):
            if isinstance(item, Record):
                yield from _unread(item, f"{path}.{name}.{index}")
        if isinstance(value, Record):
            yield from _unread(value, f"{path}.{name}")
