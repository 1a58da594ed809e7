"""Moments of a scanned training step on TPU.

The compiler casts all layers' weights before the loops, where they are stored in another type, and keeps the casts to
the end of the backward loop. What follows the last layer takes two forms. Where the gather of the head is long (fsdp of
8 and more) it becomes a windowed product: the loss holds the logits in fp32 beside their gradient in the compute type,
and the head's gradient is added up in two shards. Elsewhere the gradient of the logits stays inside the products that
need it, and the head's gradient stands beside the logits. A tied table's gradient waits for that of the lookup; its
product may be put off until after the backward loop, and the logits are kept as long. Arguments are counted with the
padding of their tiles.
"""

from __future__ import annotations

from functools import cached_property

from jaxcost.contracts.dtypes import payload_bytes
from jaxcost.prediction.peak import arrays
from jaxcost.prediction.peak.arrays import OPTIMIZER_ROLES
from jaxcost.prediction.peak.moments import Held, Moment, Span, Unpredicted
from jaxcost.prediction.peak.policy import Policy
from jaxcost.prediction.peak.step import Step
from jaxcost.prediction.peak.tiles import LANES, stored_shape, tile_padded_bytes, tiled_arguments
from jaxcost.prediction.program import Program
from jaxcost.prediction.state import population

REMATS = ("none", "attention", "dots_with_no_batch_dims_saveable", "block", "nothing_saveable")
PAGE_BYTES = 4096


def assumptions(program: Program, policy: Policy) -> tuple[str, ...]:
    """Return what a prediction rests on besides the declared arrays."""
    return (
        f"compiler {policy.compiler}; XLA's own rematerialisation off",
        "the program's text is that of the reference network; another text holds other arrays",
        "arguments are padded to tiles; fragmentation and on-chip memory are left out",
    )


def moments(program: Program, policy: Policy) -> tuple[Moment, ...] | Unpredicted:
    """Return the moments of a training step that can be its fullest."""
    reason = outside(program)
    if reason:
        return Unpredicted(reason)
    step = TpuStep(program, policy)
    head = (_loss(step),) if step.windowed else (_head_gradient(step), _after(step))
    return (_forward(step), *head, *_backward(step))


def outside(program: Program) -> str:
    """Return why the policy does not cover a training case, empty where it does."""
    case, run = program.case, program.case.execution
    if run.layers == "unrolled":
        return "no development case on TPU writes its layers out"
    if run.remat not in REMATS:
        return f"no development case recomputes by {run.remat}"
    if case.state.frozen:
        return "no development case freezes parameters"
    if case.workload.dropout:
        return "no development case draws dropout masks"
    if case.workload.accumulate > 1:
        return "no development case on TPU accumulates"
    if len(case.architecture.groups) != 1:
        return "no development case has several groups of layers"
    return ""


class TpuStep(Step):
    """The arrays of a training step on TPU."""

    def resident(self) -> list[Held]:
        """Arguments with their tiles, which donated results take over, and what is too small to name."""
        found = []
        for item in tiled_arguments(self.program):
            kind = "input_output"
            if item.role in ("parameter", "master"):
                kind = "parameter"
            elif item.role in OPTIMIZER_ROLES:
                kind = "optimizer"
            found.append(Held(kind, item.object, "", Span.exact(item.padded)))
        found.append(self.held("workspace", "small buffers", "small-buffers", PAGE_BYTES))
        return found

    def tiled(self, dtype: str, *, vectors: bool, only: str = "") -> int:
        """Return the bytes of all layers' stored arrays in another type, tiles included."""
        found = 0
        for entry in population(self.program, "loaded"):
            weight = entry.name.endswith("/weight")
            if entry.scope.startswith("group") and (weight or vectors) and only in entry.name:
                found += entry.copies * tile_padded_bytes(stored_shape(self.program, entry), dtype)
        return found

    @cached_property
    def gradient_stacks(self) -> int:
        return self.tiled(self.gradient, vectors=True)

    @cached_property
    def plain(self) -> bool:
        return self.program.case.execution.remat == "none"

    @cached_property
    def windowed(self) -> bool:
        """Whether the gather of a weight is long enough to become a windowed product, and not too long for it."""
        names = ("degree", "degree-tensor", "rows")
        alone, beside, fewest = (int(self.policy.rule(f"windowed-{name}").value) for name in names)
        rows = arrays.points(self.program, "b s") * self.fsdp
        long = self.fsdp >= alone or min(self.fsdp, self.tensor) >= beside
        data = self.program.case.execution.degree("data")
        return long and self.fsdp < self.longest and rows >= fewest and data == 1

    @cached_property
    def longest(self) -> int:
        """The fsdp degree from which a gather is made by a sum over all devices."""
        return int(self.policy.rule("summed-degree").value)

    @cached_property
    def single_batch(self) -> bool:
        """Whether scores have one batch axis: one sequence or one K/V head on the device."""
        return 1 in (arrays.points(self.program, "b"), arrays.points(self.program, "k", 0))

    def cast_stacks(self) -> list[Held]:
        """Weights of all layers cast before the loops, or those of q, k and v copied into another layout."""
        if self.casts:
            size = self.tiled(self.compute, vectors=False)
            return [self.held("gathered_weight", "weights of all layers, cast", "hoisted-casts", size, "group0")]
        if arrays.points(self.program, "e", 0) % LANES:
            return []
        size = sum(self.tiled(self.compute, vectors=False, only=f"{name}_proj/") for name in "qkv")
        rule = "relaid-projections" if self.replays else "relaid-projections-saved"
        return [self.held("gathered_weight", "q, k and v in another layout", rule, size, "group0")]

    def kept(self, *, forward: bool = False) -> list[Held]:
        """What is held from the forward loop to the end of the backward loop."""
        found = [*self.resident(), *self.saved()]
        # Without recomputation and fsdp the casts are themselves saved, so those hoisted end with the forward loop.
        if forward or not (self.plain and self.casts and self.fsdp == 1):
            found += self.cast_stacks()
        return found

    @cached_property
    def half_logits(self) -> int:
        """The gradient of the logits, in the compute type."""
        wide = payload_bytes(1, self.program.case.state.logits_dtype)
        return self.logits * payload_bytes(1, self.compute) // wide

    @cached_property
    def head_used(self) -> int:
        return self.head.used_bytes(self.compute)

    def shards(self, rule: str) -> Held:
        """The head's gradient in fp32, cut over fsdp, as often as a rule says."""
        return self.held("gradient", "head, shards", rule, self.head.stored_bytes("fp32"), "head")

    def relaid_table(self) -> list[Held]:
        """Copies of a tied table's shard, its moments or gradient with the hidden axis last, where that axis does not
        fill tiles and the arguments therefore lie the other way.
        """
        width = self.program.sizes.axis("d") // self.fsdp
        if not self.tied or self.fsdp == 1 or width % LANES == 0:
            return []
        rows = self.head.stored // width
        size = rows * -(-width // LANES) * LANES * payload_bytes(1, self.stored)
        data = self.program.case.execution.degree("data") > 1
        name = "relaid-table-data" if data else "relaid-table-replayed" if self.replays else "relaid-table"
        return [self.held("optimizer", "table's shard in another layout", name, size, "embed/tokens")]

    @cached_property
    def late_rule(self) -> str:
        """The rule that says when the head's gradient is made."""
        if self.fsdp >= self.longest:
            return "head-late-summed"
        if not self.tied:
            return self._late_untied()
        if self.windowed:
            return "head-late-windowed"
        if self.fsdp > 1:
            return "head-late-fsdp-tensor" if self._crossed else "head-late-fsdp"
        if self.plain:
            return "head-late-none"
        data = self.program.case.execution.degree("data") > 1 and (self.tensor == 1 or self.blockwise)
        return "head-late-data-cast" if data and self.casts else "head-late"

    def _late_untied(self) -> str:
        if self.windowed and self.plain and self.tensor > 1:
            return "head-late-untied-none"
        data = self.devices > 1 and self.fsdp * self.tensor == 1
        return "head-late-untied-data" if data and not self.casts else "head-late-untied"

    @cached_property
    def _crossed(self) -> bool:
        """Whether a whole gather crosses tensor products and nothing else: fsdp of 4 and more beside tensor alone."""
        return self.fsdp >= 4 and self.tensor > 1 and self.program.case.execution.degree("data") == 1

    def by_time(self, early: int, late: int) -> Span:
        """Return one of two sizes, by when the head's gradient is made."""
        rule = self.policy.rule(self.late_rule)
        sizes = [late if choice else early for choice in rule.alternatives]
        return Span(min(sizes), late if rule.value else early, max(sizes))


def _forward(step: TpuStep) -> Moment:
    held = step.kept(forward=True)
    if step.blockwise:
        held.append(step.held("attention", "mask of all blocks", "forward-mask", step.scores("bool")))
        held.append(step.held("workspace", "feed-forward", "forward-wide", step.wide))
        held.append(step.held("workspace", "streams", "forward-streams", step.stream))
    else:
        name = "forward-scores-single" if step.single_batch else "forward-scores"
        held.append(step.held("attention", "scores", name, step.scores(step.score_dtype)))
    return Moment("forward loop", "forward", tuple(held))


def _loss(step: TpuStep) -> Moment:
    held = [
        *step.kept(),
        Held("logits", "head/out", "head", Span.exact(step.logits)),
        step.held("logits", "gradient of the logits", "loss-gradient", step.half_logits, "loss"),
        step.held("gathered_weight", "head, gathered", "loss-head", step.head_used, "head"),
        step.shards(_loss_shards(step)),
        step.held("workspace", "streams", "loss-streams", step.stream),
    ]
    return Moment("loss", "loss", tuple(held))


def _loss_shards(step: TpuStep) -> str:
    if step.plain:
        return "loss-shards-none"
    return "loss-shards" if step.casts or step.replays else "loss-shards-uncast"


def _head_gradient(step: TpuStep) -> Moment:
    """The logits, beside them the head's gradient as the product leaves it and as it is reduced."""
    product = step.head.used_bytes("fp32" if step.devices > 1 or step.casts else step.compute)
    tied = "" if not step.tied else "-tied" if step.casts else "-tied-uncast"
    copies = step.policy.rule(f"head-copies{tied}")
    size = step.head_used if step.fsdp > 1 or (step.tied and step.devices > 1 and not step.casts) else 0
    held = [
        *step.kept(),
        Held("logits", "head/out", "head", Span.exact(step.logits)),
        Held("gradient", "head, unreduced", "head", step.by_time(product, 0), step.late_rule),
        Held("gathered_weight", "head, gathered, reduced", "head", Span.of(copies, size), copies.id),
        step.held("workspace", "streams", "loss-streams", step.stream),
        *step.relaid_table(),
    ]
    if step.fsdp == 1 and step.tensor == 1 and step.devices > 1 and not step.tied:
        held.append(step.held("gradient", "stacks of the layers", "early-gradients", step.gradient_stacks, "group0"))
    return Moment("head gradient", "loss", tuple(held))


def _after(step: TpuStep) -> Moment:
    """After the loops, where the head's gradient was put off till then."""
    product = step.head.used_bytes("fp32")
    reduced = step.head.stored_bytes(step.gradient) if step.fsdp > 1 else step.head.used_bytes(step.gradient)
    late = step.logits + product + reduced
    held = [*step.resident(), *step.gradients(), Held("logits", "head", "head", step.by_time(0, late), step.late_rule)]
    return Moment("after the loops", "after", tuple(held))


def _head_kept(step: TpuStep) -> list[Held]:
    """What of the head is held through the backward loop."""
    if step.windowed:
        kept = Held("logits", "gradient of the logits", "loss", step.by_time(0, step.half_logits), step.late_rule)
        return [kept, step.shards("backward-shards")]
    early = shard = 0
    if step.tied:
        saved = not step.replays and not step.plain
        data = step.program.case.execution.degree("data") > 1
        shard, whole = step.head.stored_bytes(step.gradient), step.head.used_bytes(step.gradient)
        early = shard if step.fsdp > 1 and (not step.casts or data or saved) else whole
    span = step.by_time(early, step.logits)
    span = Span(min(span.lower, shard), span.expected, span.upper)
    kind = "logits" if step.policy.yes(step.late_rule) else "gradient"
    return [Held(kind, "head, or its logits", "head", span, step.late_rule), *step.relaid_table()]


def _backward(step: TpuStep) -> list[Moment]:
    base = [*step.kept(), *step.gradients(), *_head_kept(step)]
    own = "-replayed" if step.replays else "-none" if step.plain else "-saved"
    if not step.blockwise:
        batch = "-single" if step.single_batch else "-gathered" if step.fsdp > 1 and step.fsdp < step.devices else ""
        batch = "" if step.plain and not step.single_batch else batch
        split = step.replays and step.tensor > 1
        held = [
            step.held("attention", "scores", f"backward-scores{batch}{own}", step.scores(step.score_dtype)),
            step.held("workspace", "feed-forward", f"scores-wide{own}", step.wide),
            step.held("workspace", "streams", f"scores-streams{own}{'-tensor' if split else ''}", step.stream),
        ]
        return [Moment("backward loop, attention", "backward", (*base, *held)), _wide(step, base, own)]
    blocks = [
        step.held("workspace", "feed-forward", f"blocks-wide{own}", step.wide),
        step.held("workspace", "streams", f"blocks-streams{own}", step.stream),
        step.held("workspace", "queries", f"blocks-queries{own}", step.queries),
        step.held("attention", "blocks in fp32", "blocks-fp32", step.block_fp32),
    ]
    return [_wide(step, base, own), Moment("backward loop, attention", "backward", (*base, *blocks))]


def _wide(step: TpuStep, base: list[Held], own: str) -> Moment:
    held = [
        step.held("workspace", "feed-forward", f"backward-wide{own}", step.wide),
        step.held("workspace", "streams", f"backward-streams{own}", step.stream),
        step.held("workspace", "queries", f"backward-queries{own}", step.queries),
    ]
    if step.fsdp > 1:
        name = "backward-weights"
        held.append(step.held("gathered_weight", "weights, gathered, unreduced", name, step.mlp_weight))
    else:
        held.append(step.held("gradient", "weights of the layer, unreduced", "backward-products", step.mlp_weight))
    return Moment("backward loop, feed-forward", "backward", (*base, *held))
