"""Moments of a training step on CUDA.

A scanned step can be fullest in the last layer of the forward loop; when the head is gathered; at the loss, where the
head's products meet the logits; in a layer of the backward loop, in its feed-forward or its attention part; and after
the loops. Every moment holds the step's arguments; the saved tensors are those of the walk over what backward needs;
what else is held, and how often, is a rule of the policy.
"""

from __future__ import annotations

from jaxcost.prediction.peak import unrolled
from jaxcost.prediction.peak.moments import Held, Moment, Span, Unpredicted
from jaxcost.prediction.peak.policy import Policy
from jaxcost.prediction.peak.step import Step
from jaxcost.prediction.program import Program

REMATS = ("none", "attention", "dots_with_no_batch_dims_saveable", "block", "nothing_saveable")


def assumptions(program: Program, policy: Policy) -> tuple[str, ...]:
    """Return what a prediction rests on besides the declared arrays."""
    return (
        f"compiler {policy.compiler}; XLA's own rematerialisation off",
        "the program's text is that of the reference network; another text holds other arrays",
        "fragmentation is left out: it is what must be allocated less what is live",
    )


def moments(program: Program, policy: Policy) -> list[Moment] | Unpredicted:
    """Return the moments of a training step."""
    case = program.case
    run, arch = case.execution, case.architecture
    if run.remat not in REMATS:
        return Unpredicted(f"no development case recomputes by {run.remat}")
    if case.state.frozen:
        return Unpredicted("no development case freezes parameters")
    if case.workload.dropout:
        return Unpredicted("no development case draws dropout masks")
    if len(arch.groups) != 1:
        return Unpredicted("no development case has several groups of layers")
    step = Step(program, policy)
    if run.layers == "unrolled":
        if run.fsdp.reshard is False:
            return Unpredicted("no development case keeps gathered weights")
        if run.degree("tensor") > 1 and step.replays:
            return Unpredicted("unrolled layers, recomputed over tensor, held up to half more than any rule names")
        return unrolled.moments(step)
    return [
        _forward(step),
        *_loss(step),
        *_backward(step),
        _after(step),
    ]


def _forward(step: Step) -> Moment:
    """The last layer of the forward loop, its saved tensors of all layers in place."""
    held = [*step.resident(), *step.saved(), *step.transposed()]
    held += step.early_gradients("forward-gradients-single" if step.single else "forward-gradients")
    held += step.cast_head("forward")
    held.append(step.held("workspace", "layer input and norm", "forward-stream", step.stream))
    if step.blockwise:
        held.append(step.held("attention", "mask of all blocks", "forward-mask", step.scores("bool")))
        held.append(step.held("workspace", "gate and up", "forward-wide", step.wide))
        if step.casts or step.fsdp > 1:
            held.append(step.held("gathered_weight", "weights of the layer", "forward-weights", step.mlp_weight))
    else:
        held.append(step.held("attention", "scores and mask in fp32", "forward-scores-fp32", step.scores("fp32")))
        held.append(step.held("attention", "probabilities", "forward-scores-stored", step.scores(step.score_dtype)))
        held.append(step.held("attention", "mask", "forward-mask", step.scores("bool")))
        if step.single and step.casts:
            held.append(step.held("gathered_weight", "weights cast", "forward-weights-single", step.mlp_weight))
    return Moment("forward loop", "forward", tuple(held))


def _loss(step: Step) -> list[Moment]:
    """The head's gather, then its products with the logits: for the input's gradient, and for the weight's."""
    base = [*step.resident(), *step.saved(), *step.transposed()]
    logits = Held("logits", "head/out", "head", Span.exact(step.logits))
    stream = step.held("workspace", "final norm and its gradient", "loss-stream", step.stream)
    reduced = []
    if step.tensor > 1:
        reduced.append(step.held("workspace", "input gradient to be reduced", "loss-reduced", step.stream_fp32))
    used = Span.exact(step.head.used_bytes(step.compute))
    found = []
    if step.scores_copy():
        held = [*base, *step.scores_copy(), stream]
        if step.pressed:
            logits_then = step.if_late(step.logits)
            held.append(Held("logits", "head/out", "head", logits_then, step.lateness.id))
        else:
            held.append(step.held("logits", "head/out", "none-copy-logits", step.logits, "head"))
        if not step.single:
            held += step.early_gradients("none-copy-gradients")
            rule = "none-copy-head-pressed" if step.pressed else "none-copy-head"
            held.append(step.held("gathered_weight", "head", rule, step.head.used_bytes(step.compute)))
        rule = "none-copy-mask" if step.devices > step.tensor else "none-copy-mask-tensor"
        held.append(step.held("attention", "mask", rule, step.scores("bool")))
        found.append(Moment("scores copied", "loss", tuple(held)))
    if step.fsdp > 1 and step.casts:
        gathered = (
            Held("gathered_weight", "head, gathered as stored", "head", Span.exact(step.head.used_bytes(step.stored))),
            Held("gathered_weight", "head, cast", "head", used),
        )
        early = step.early_gradients("gather-gradients")
        found.append(Moment("head gather", "loss", (*base, *early, *gathered, stream)))
    if step.single:
        early = step.early_gradients("loss-gradients-single")
        held = [*base, *early, *step.embedding_gradient(), logits, stream]
        name = "head, cast" if step.casts else "head, weight gradient"
        kind = "gathered_weight" if step.casts else "gradient"
        held.append(step.held(kind, name, "single-head", step.head.used_bytes(step.compute), "head"))
        if not step.early:
            held += step.unordered_head()
        return [*found, Moment("loss", "loss", tuple(held))]
    early = step.early_gradients("loss-gradients" if step.casts else "loss-gradients-uncast")
    held = [*base, *early, *step.embedding_gradient(), logits, stream, *reduced]
    if step.casts or step.fsdp > 1:
        held.append(Held("gathered_weight", "head, as multiplied", "head", used))
    if step.casts and step.fsdp == 1:
        size = step.head.used_bytes(step.compute) + step.head.used_bytes(step.gradient)
        held.append(step.held("gradient", "head, as multiplied and cast", "head-copies", size, "head"))
    found.append(Moment("loss, input gradient", "loss", tuple(held)))
    kept = Held("logits", "head/out", "head", step.if_late(step.logits), step.lateness.id)
    held = [*base, *step.gradients(), *step.embedding_gradient(), kept, *reduced]
    held.append(step.held("workspace", "final norm, its gradient, stream gradient", "start-stream", step.stream))
    found.append(Moment("loss, before the backward loop", "loss", tuple(held)))
    share = step.if_late(0, step.head_product)
    early = step.early_gradients("product-gradients")
    product = [*base, *early, *step.embedding_gradient(), logits, stream, *reduced]
    product.append(Held("gradient", "head, unreduced", "head", share, step.lateness.id))
    found.append(Moment("loss, weight gradient", "loss", tuple(product)))
    return found


def _backward(step: Step) -> list[Moment]:
    """A layer of the backward loop: all gradient stacks, and the working set of one layer."""
    base = [*step.resident(), *step.saved(), *step.transposed(), *step.gradients(), *step.kept_head()]
    if not step.single:
        base += step.embedding_gradient()
    if not step.blockwise:
        scores = [
            step.held("attention", "score gradients in fp32", "backward-scores-fp32", step.scores("fp32")),
            step.held("attention", "scores and gradients", step.stored_scores, step.scores(step.score_dtype)),
            step.held("workspace", "stream", "backward-materialised-stream", step.stream),
            step.held("workspace", "queries", "backward-materialised-heads", step.queries),
        ]
        scores += step.pending("backward-materialised")
        return [Moment("backward loop, attention", "backward", (*base, *scores))]
    wide = [
        step.held("workspace", "feed-forward", "backward-wide" if step.replays else "backward-wide-saved", step.wide),
        step.held(
            "workspace", "stream", "backward-stream-tensor" if step.tensor > 1 else "backward-stream", step.stream
        ),
    ]
    if step.program.case.execution.remat != "none":  # else queries and output are saved
        wide += [
            step.held("workspace", "queries and output", "backward-heads", step.queries),
            step.held("workspace", "query gradients", "backward-heads-fp32", step.queries_fp32),
            step.held("workspace", "key gradients", "backward-keys-fp32", step.keys_fp32),
        ]
    if step.fsdp > 1 or step.casts:
        wide.append(step.held("gathered_weight", "weights, gathered or cast", "backward-weights", step.mlp_weight))
    blocks = [
        step.held("attention", "block in fp32", "block-fp32", step.block_fp32),
        step.held("attention", "block as multiplied", "block-stored", step.block_stored),
        step.held("workspace", "query gradients", "block-heads-fp32", step.queries_fp32),
        step.held("workspace", "queries, output, gradient", "block-heads", step.queries),
        step.held("workspace", "key gradients", "block-keys-fp32", step.keys_fp32),
        step.held("workspace", "stream", "block-stream", step.stream),
    ]
    blocks += step.pending("block")
    if step.program.case.architecture.groups[0].layer.attention.qk_norm:
        blocks.append(step.held("workspace", "projections before their norms", "block-norm-inputs", step.projections))
    return [
        Moment("backward loop, feed-forward", "backward", (*base, *wide)),
        Moment("backward loop, attention", "backward", (*base, *blocks)),
    ]


def _after(step: Step) -> Moment:
    """After the loops: every gradient, and the head's product where the scheduler leaves it till then."""
    held = [*step.resident(), *step.gradients(), *step.embedding_gradient()]
    if step.single:
        kept = Held("gradient", "head", "head", Span.exact(step.head.stored_bytes(step.gradient)))
        logits = Held("logits", "head/out", "head", step.if_late(step.logits), step.lateness.id)
        return Moment("after the loops", "after", (*held, kept, logits))
    held.append(Held("logits", "head/out", "head", step.if_late(step.logits), step.lateness.id))
    if not step.beyond_limit:
        held.append(Held("gradient", "head, unreduced", "head", Span.exact(step.head_gradient)))
    if step.tied and not step.casts:
        size = step.head.stored_bytes(step.gradient)
        held.append(step.held("gradient", "token table", "after-table", size, "embed/tokens"))
    held.append(step.held("workspace", "final norm and stream gradient", "after-stream", step.stream))
    return Moment("after the loops", "after", tuple(held))
