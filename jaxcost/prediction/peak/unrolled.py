"""Moments of a training step on CUDA whose layers are written out.

There are no stacks: a layer's saved tensors go as its backward pass uses them, and its gradients come. Either the first
layer of the backward pass is the fullest, all saved tensors in place, or the end, where the head's weight gradient is
made. The saved tensors are those of the walk, also without recomputation.
"""

from __future__ import annotations

from jaxcost.contracts.dtypes import payload_bytes
from jaxcost.prediction.peak import arrays
from jaxcost.prediction.peak.moments import Held, Moment, Span
from jaxcost.prediction.peak.step import Step
from jaxcost.prediction.replay import walk


def moments(step: Step) -> list[Moment]:
    """Return the moments of a step with unrolled layers."""
    base = [*step.resident(), *_saved(step), *_zeros(step)]
    logits = Held("logits", "head/out", "head", Span.exact(step.logits))
    used = Held("gathered_weight", "head, as multiplied", "head", Span.exact(step.head.used_bytes(step.compute)))
    stream = step.held("workspace", "final norm and its gradient", "loss-stream", step.stream)
    loss = [*base, logits, used, stream]
    if step.tensor > 1:
        loss.append(step.held("workspace", "input gradient to be reduced", "loss-reduced", step.stream_fp32))
    kept = step.held("logits", "head/out", _logits_rule(step), step.logits, "head")
    return [
        Moment("loss, input gradient", "loss", tuple(loss)),
        Moment("first layer backward", "backward", (*base, kept, *_working(step))),
        Moment("last layer backward", "backward", tuple(_end(step))),
    ]


def _saved(step: Step) -> list[Held]:
    """What the layers leave for the backward pass."""
    found = []
    for item in walk(step.program).saved:
        if item.region == "block":
            tensor = step.program.tensors[item.name]
            size = arrays.bytes_of(step.program, tensor) * item.copies
            found.append(Held("saved", item.name, tensor.scope, Span.exact(size)))
            if item.name.split("#")[0].endswith("attn/softmax/out"):
                inside = arrays.bytes_of(step.program, tensor, "fp32") * item.copies
                found.append(step.held("saved", "scores in fp32", "unrolled-scores", inside, tensor.scope))
    return found


def _zeros(step: Step) -> list[Held]:
    """Outputs of the blockwise kernel's loops, zeroed for all layers at once."""
    if not step.blockwise:
        return []
    layers = int(step.program.sizes.repeats[0])
    return [step.held("workspace", "outputs of the blockwise loops", "unrolled-zeros", step.queries_fp32 * layers)]


def _logits_rule(step: Step) -> str:
    """Return the rule that says whether the logits are in use throughout the backward pass."""
    return "unrolled-logits" if step.single or step.fsdp > 1 else "unrolled-logits-data"


def _working(step: Step) -> list[Held]:
    """The working set of one layer."""
    if step.blockwise:
        return [
            step.held("workspace", "feed-forward", "unrolled-wide", step.wide),
            step.held("attention", "block in fp32", "block-fp32", step.block_fp32),
            step.held("attention", "block as multiplied", "block-stored", step.block_stored),
            step.held("workspace", "queries, output, gradient", "block-heads", step.queries),
        ]
    return [
        step.held("workspace", "feed-forward", "unrolled-wide-materialised", step.wide),
        step.held("attention", "score gradients in fp32", "backward-scores-fp32", step.scores("fp32")),
        step.held("attention", "scores and gradients", "unrolled-scores-stored", step.scores(step.score_dtype)),
    ]


def _end(step: Step) -> list[Held]:
    """The last layer's backward pass and the head's weight gradient."""
    layers = int(step.program.sizes.repeats[0])
    kept = step.policy.rule("unrolled-kept")
    held = [*step.resident(), *_zeros(step)]
    for item in _saved(step):
        span = Span(item.bytes.lower * kept.low, item.bytes.expected * int(kept.value), item.bytes.upper * kept.high)
        held.append(Held(item.kind, item.object, item.scope, span, kept.id))
    if step.blockwise:
        held.append(step.held("saved", "attention output", "unrolled-output", step.queries * layers))
    held.append(step.held("workspace", "feed-forward", "unrolled-wide", step.wide))
    stacks = sum(weight.stack_elements for weight in step.layers if weight.trainable)
    unreduced = not step.single and step.fsdp == 1
    rule = "unrolled-gradients-data" if unreduced and step.devices > step.tensor else "unrolled-gradients"
    held.append(step.held("gradient", "weights of the layers", rule, payload_bytes(stacks, step.compute)))
    if step.single:
        return held
    held.append(step.held("logits", "head/out", _logits_rule(step), step.logits, "head"))
    held.append(Held("gradient", "head, unreduced", "head", Span.exact(step.head_product)))
    return held
