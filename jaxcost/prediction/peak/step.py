"""The arrays of a scanned CUDA training step, in bytes on the worst device, and the entries that moments share."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from jaxcost.contracts.dtypes import payload_bytes
from jaxcost.prediction.ownership import arguments, results
from jaxcost.prediction.peak import arrays
from jaxcost.prediction.peak.arrays import Weight
from jaxcost.prediction.peak.moments import Held, Span
from jaxcost.prediction.peak.policy import Policy, Rule
from jaxcost.prediction.program import Primitive, Program
from jaxcost.prediction.replay import walk


@dataclass(frozen=True)
class Step:
    """One step under one policy. Sizes are of one microbatch on the worst device."""

    program: Program
    policy: Policy

    def held(self, kind: str, name: str, rule: str, unit: int, scope: str = "") -> Held:
        """Return an entry of `unit` bytes times the alternatives of a rule."""
        return Held(kind, name, scope, Span.of(self.policy.rule(rule), unit), rule)

    def size(self, axes: str, dtype: str) -> int:
        """Return the bytes of an array with named axes of the layers."""
        return int(payload_bytes(arrays.points(self.program, axes, 0), dtype))

    @cached_property
    def compute(self) -> str:
        return self.program.case.state.compute_dtype

    @cached_property
    def stored(self) -> str:
        return self.program.case.state.parameter_dtype

    @cached_property
    def score_dtype(self) -> str:
        return self.program.case.state.score_dtype

    @cached_property
    def casts(self) -> bool:
        """Whether weights are cast where they are used."""
        return self.compute != self.stored

    @cached_property
    def gradient(self) -> str:
        found = self.program.case.state.object("gradient")
        return found.dtype if found else self.stored

    @cached_property
    def fsdp(self) -> int:
        return self.program.case.execution.degree("fsdp")

    @cached_property
    def tensor(self) -> int:
        return self.program.case.execution.degree("tensor")

    @cached_property
    def devices(self) -> int:
        return self.program.case.execution.device_count

    @cached_property
    def single(self) -> bool:
        return self.devices == 1

    @cached_property
    def blockwise(self) -> bool:
        return self.program.case.workload.attention == "blockwise"

    @cached_property
    def replays(self) -> bool:
        """Whether the backward pass computes the feed-forward products again."""
        return self.program.case.execution.remat in ("block", "nothing_saveable")

    @cached_property
    def stream(self) -> int:
        return self.size("b s d", self.compute)

    @cached_property
    def stream_fp32(self) -> int:
        return self.size("b s d", "fp32")

    @cached_property
    def wide(self) -> int:
        return self.size("b s f", self.compute)

    @cached_property
    def queries(self) -> int:
        return self.size("b s h e", self.compute)

    @cached_property
    def queries_fp32(self) -> int:
        return self.size("b s h e", "fp32")

    @cached_property
    def projections(self) -> int:
        """Queries, keys and values together."""
        return self.queries + 2 * self.size("b s k e", self.compute)

    @cached_property
    def keys_fp32(self) -> int:
        return self.size("b s k e", "fp32")

    @cached_property
    def stored_scores(self) -> str:
        """The rule of how many scores and gradients the backward pass holds in the score type."""
        group = self.program.device_sizes.axis("g", 0)
        odd = group & (group - 1) != 0
        return "backward-scores-stored" + ("-odd" if odd and not self.replays else "")

    def scores(self, dtype: str) -> int:
        """One array over all pairs of the layer's queries and keys."""
        return self.size("b k g s t", dtype)

    def _block(self, dtype: str) -> int:
        work = self.program.case.workload
        pairs = work.block_for(work.new_tokens) * work.block_for(work.visible_tokens)
        return int(payload_bytes(arrays.points(self.program, "b h", 0) * pairs, dtype))

    @cached_property
    def block_fp32(self) -> int:
        return self._block("fp32")

    @cached_property
    def block_stored(self) -> int:
        return self._block(self.score_dtype)

    @cached_property
    def logits(self) -> int:
        return arrays.bytes_of(self.program, "head/out")

    @cached_property
    def head(self) -> Weight:
        """The matrix that the head multiplies by; with a tied head, the token table."""
        owner = self.program.tensors["head/weight"].storage
        return next(weight for weight in arrays.weights(self.program) if weight.name == owner)

    @cached_property
    def tied(self) -> bool:
        return self.head.scope != "head"

    @cached_property
    def head_gradient(self) -> int:
        """The head's gradient before it is reduced, in fp32."""
        return self.head.used_bytes("fp32")

    @cached_property
    def head_product(self) -> int:
        """The head's gradient as its product makes it: in fp32 where it is scattered over fsdp, else as computed."""
        return self.head.used_bytes("fp32" if self.fsdp > 1 else self.compute)

    @cached_property
    def layers(self) -> tuple[Weight, ...]:
        return tuple(weight for weight in arrays.weights(self.program) if weight.group is not None)

    @cached_property
    def mlp_weight(self) -> int:
        """One gathered matrix of the feed-forward part."""
        return max((w.used_bytes(self.compute) for w in self.layers if "/mlp/" in w.name), default=0)

    @cached_property
    def gradient_stacks(self) -> int:
        return sum(payload_bytes(w.stack_elements, self.gradient) for w in self.layers if w.trainable)

    # entries

    def resident(self) -> list[Held]:
        """Arguments, which donated results take over; the loss; sums of gradients over microbatches."""
        outputs = sum(item.per_device for item in results(self.program, ()) if item.role == "output")
        found = [*arrays.state_entries(self.program), Held("input_output", "loss", "loss", Span.exact(outputs))]
        found.append(self.held("workspace", "what no rule names", "small", self.wide + self.mlp_weight))
        if self.program.case.workload.accumulate > 1:
            size = arrays.total(self.program, lambda weight: weight.trainable, self.gradient)
            found.append(self.held("gradient", "sums over microbatches", "accumulators", size))
            table = self.head.stored_bytes(self.gradient)
            found.append(self.held("gradient", "token table", "accumulated-table", table, "embed/tokens"))
        return found

    def saved(self) -> list[Held]:
        """What the layers leave for the backward pass, as stacks over the layers.

        With recomputation these are the tensors of the walk. Without, what autodiff keeps is more: the fp32 interior of
        norms instead of their input, the factors of the activation, and the weights as they were cast.
        """
        found = []
        plain = self.program.case.execution.remat == "none"
        norms = {op.inputs[0] for op in self.program.ops if isinstance(op, Primitive) and op.kind.endswith("_norm")}
        for item in walk(self.program).saved:
            if item.region != "block":
                continue
            tensor = self.program.tensors[item.name]
            size = arrays.bytes_of(self.program, tensor) * item.copies
            leaf = item.name.removeprefix(f"group{tensor.group}/")
            if plain and item.name in norms:
                size = arrays.bytes_of(self.program, tensor, "fp32") * item.copies
                found.append(self.held("saved", f"{item.name} in fp32", "none-norms", size, tensor.scope))
            elif plain and leaf.startswith("mlp/activation"):
                form = self.program.case.architecture.groups[tensor.group or 0].layer.mlp.form
                found.append(self.held("saved", "activation and its factors", f"none-{form}", size, tensor.scope))
            elif plain and leaf == "attn/values/out":
                rule = "none-context" if self.blockwise else "none-context-materialised"
                found.append(self.held("saved", item.name, rule, size, tensor.scope))
            elif plain and leaf == "attn/softmax/out":
                inside = arrays.bytes_of(self.program, tensor, "fp32") * item.copies
                found.append(Held("saved", item.name, tensor.scope, Span.exact(size)))
                found.append(self.held("saved", "probabilities in fp32", "none-scores", inside, tensor.scope))
            else:
                found.append(Held("saved", item.name, tensor.scope, Span.exact(size)))
        if plain and self.fsdp == 1 and (self.casts or self.policy.family == "cuda"):
            size = sum(payload_bytes(w.stack_elements, self.compute) for w in self.layers if not w.vector)
            found.append(self.held("saved", "weights, cast", "none-weights", size))
        return found

    def scores_copy(self) -> list[Held]:
        """Return the copy in another order of what is saved of the scores, made between the loops."""
        if self.blockwise or self.program.case.execution.remat != "none":
            return []
        layers = int(self.program.sizes.repeats[0])
        return [self.held("saved", "probabilities, copied", "none-scores-copy", self.scores("fp32") * layers)]

    def transposed(self) -> list[Held]:
        """Stacks whose fsdp shard lies along the last axis, copied in another order for the loops."""
        if self.fsdp == 1:
            return []
        size = sum(payload_bytes(w.stack_elements, w.dtype) for w in self.layers if w.minor)
        return [self.held("gathered_weight", "stacks in another order", "transposed-stacks", size)]

    @cached_property
    def early(self) -> bool:
        """Whether zeroed gradient stacks exist at the loss already."""
        plain = self.program.case.execution.remat == "none"
        return not self.single or (self.casts and not plain and self.gradient_stacks > self.logits)

    @cached_property
    def pressed(self) -> bool:
        """Whether what must be held exceeds what the scheduler may use, so that it makes nothing before its time."""
        limit = int(self.policy.rule("scheduler-limit").value)
        held = sum(item.bytes.expected for item in (*self.resident(), *self.saved(), *self.scores_copy()))
        return held + self.logits > limit

    def early_gradients(self, rule: str) -> list[Held]:
        """Return the gradient stacks that are zeroed before the backward loop, as a rule says of a moment."""
        found = self.policy.rule(rule)
        whole = self.gradient_stacks
        expected = whole * int(found.value) if self.early else 0
        if not self.single and self.casts and self.pressed:
            expected = 0
        span = Span(min(whole * found.low, expected), expected, max(whole * found.high, expected))
        return [Held("gradient", "stacks of the layers", "group0", span, rule)]

    def embedding_gradient(self) -> list[Held]:
        """Return the zeroed gradient of a token table of its own, which the lookup's backward pass adds into."""
        if self.tied or self.late:
            return []
        table = next(w for w in arrays.weights(self.program) if w.name == "embed/tokens/weight")
        rule = "table-gradient-single" if self.single else "table-gradient"
        return [self.held("gradient", "token table", rule, table.stored_bytes(self.gradient), "embed/tokens")]

    def gradients(self) -> list[Held]:
        return [Held("gradient", "stacks of the layers", "group0", Span.exact(self.gradient_stacks))]

    def cast_head(self, moment: str) -> list[Held]:
        if not (self.single and self.casts and self.early):
            return []
        size = self.head.used_bytes(self.compute)
        return [self.held("gathered_weight", "head, cast", f"{moment}-head-cast", size, "head")]

    def unordered_head(self) -> list[Held]:
        if not self.casts:
            return []
        size = self.head.used_bytes(self.compute) + self.head.used_bytes(self.gradient)
        return [self.held("gradient", "head, as multiplied and cast", "single-head-copies", size, "head")]

    @cached_property
    def beyond_limit(self) -> bool:
        """Whether the arguments alone exceed what the scheduler may use, so that it saves memory at every step."""
        limit = int(self.policy.rule("scheduler-limit").value)
        return not self.single and sum(item.per_device for item in arguments(self.program)) > limit

    @cached_property
    def late(self) -> bool:
        """Whether the head's weight gradient is expected after the backward loop."""
        return bool(self.lateness.value)

    @cached_property
    def lateness(self) -> Rule:
        """The rule that says when the head's weight gradient is made."""
        if self.single:
            name = "single-none" if self.program.case.execution.remat == "none" else "single"
        elif self.program.case.workload.accumulate > 1:
            name = "accumulated"
        elif self.beyond_limit:
            name = "beyond-limit"
        elif self.stored != "fp32":
            name = "uncast"
        elif self.tied:
            name = "tied-fsdp" if self.fsdp > 1 else "tied"
            if self.fsdp == 1 and self.devices > self.tensor > 1:
                name = "tied-both"
        else:
            name = "many" if self.devices > int(self.policy.rule("node-devices").value) else "node"
        return self.policy.rule(f"head-gradient-late-{name}")

    def if_late(self, late: int, early: int = 0) -> Span:
        """Return one of two sizes, by when the head's weight gradient is made."""
        sizes = [late if choice else early for choice in self.lateness.alternatives]
        return Span(min(sizes), late if self.late else early, max(sizes))

    def kept_head(self) -> list[Held]:
        """What of the head is in use throughout the backward loop: its gradient, or the logits and what made them."""
        if self.single:
            if not self.tied and not self.early:
                return [self.held("logits", "head", "single-head-kept", self.logits + self.stream, "head")]
            kept = self.if_late(self.logits + self.stream, self.head.stored_bytes(self.gradient))
            return [Held("logits" if self.late else "gradient", "head", "head", kept, self.lateness.id)]
        early, late = self.head.used_bytes(self.gradient), self.logits + self.stream
        if self.fsdp > 1:
            early = self.head_gradient
        span = self.if_late(late, early)
        carried = self.held("workspace", "stream gradient", "carried-stream", self.stream)
        return [carried, Held("logits" if self.late else "gradient", "head", "head", span, self.lateness.id)]

    def pending(self, rule: str) -> list[Held]:
        """Wide activations and weight gradients of the feed-forward part, kept while attention runs backward."""
        if self.single:
            return [self.held("gradient", "weights of the layer", f"{rule}-weights-single", self.mlp_weight)]
        own = "" if self.devices > self.tensor else "-unreduced"
        if self.blockwise and self.program.case.execution.remat == "none":
            own = "-none"
        found = [self.held("workspace", "feed-forward", f"{rule}-wide{own}", self.wide)]
        if self.fsdp > 1:
            found.append(self.held("gradient", "weights of the layer, unreduced", f"{rule}-weights", self.mlp_weight))
        return found
