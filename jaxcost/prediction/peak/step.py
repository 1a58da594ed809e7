"""The arrays of a scanned CUDA training step, in bytes on the worst device, and the entries that moments share."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from jaxcost.contracts.dtypes import payload_bytes
from jaxcost.prediction.ownership import arguments, results
from jaxcost.prediction.peak import arrays
from jaxcost.prediction.peak.arrays import Weight
from jaxcost.prediction.peak.moments import Held, Span
from jaxcost.prediction.peak.policy import Policy
from jaxcost.prediction.program import Program
from jaxcost.prediction.replay import walk

POINTER_BYTES = 8


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
    def keys_fp32(self) -> int:
        return self.size("b s k e", "fp32")

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
    def query_weight(self) -> int:
        return max((w.used_bytes(self.compute) for w in self.layers if "/attn/" in w.name), default=0)

    @cached_property
    def gradient_stacks(self) -> int:
        return sum(payload_bytes(w.stack_elements, self.gradient) for w in self.layers if w.trainable)

    # entries

    def resident(self) -> list[Held]:
        """Arguments, which donated results take over; the loss; the table of pointers to the results."""
        leaves = 0
        for item in arguments(self.program):
            if item.role != "input":
                leaves += 1
        outputs = sum(item.per_device for item in results(self.program, ()) if item.role == "output")
        return [*arrays.state_entries(self.program), Held("input_output", "loss", "loss", Span.exact(outputs))]

    def saved(self) -> list[Held]:
        """What the backward pass is left by the layers, as stacks over the layers."""
        found = []
        for item in walk(self.program).saved:
            if item.region == "block":
                size = arrays.bytes_of(self.program, item.name) * item.copies
                tensor = self.program.tensors[item.name]
                found.append(Held("saved", item.name, tensor.scope, Span.exact(size)))
        return found

    def transposed(self) -> list[Held]:
        """Stacks whose fsdp shard lies along the last axis, copied in another order for the loops."""
        if self.fsdp == 1:
            return []
        size = sum(payload_bytes(w.stack_elements, w.dtype) for w in self.layers if w.minor)
        return [self.held("gathered_weight", "stacks in another order", "transposed-stacks", size)]

    @cached_property
    def early(self) -> bool:
        """Whether zeroed gradient stacks exist at the loss already."""
        return not self.single or self.gradient_stacks > self.logits

    def early_gradients(self, rule: str) -> list[Held]:
        """Return the gradient stacks that are zeroed before the backward loop, as a rule says of a moment."""
        found = self.policy.rule(rule)
        whole = self.gradient_stacks
        expected = whole * int(found.value) if self.early else 0
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
        if self.single:
            return False
        if self.beyond_limit:
            return True
        if self.stored != "fp32":
            return self.policy.yes("head-gradient-late-bf16")
        if self.tied:
            return self.fsdp > 1 and self.policy.yes("head-gradient-late-tied")
        return self.devices > 8 and self.policy.yes("head-gradient-late")

    def kept_head(self) -> list[Held]:
        """What of the head is in use throughout the backward loop: its gradient, or the logits and what made them."""
        if self.single:
            kept = self.head.stored_bytes(self.gradient)
            return [self.held("gradient", "head", "single-head-gradient", kept, "head")]
        early, late = self.head.used_bytes(self.gradient), self.logits + self.stream
        if self.fsdp > 1:
            early = self.head_gradient
        expected = late if self.late else early
        span = Span(min(early, late), expected, max(early, late))
        carried = self.held("workspace", "stream gradient", "carried-stream", self.stream)
        return [carried, Held("logits" if self.late else "gradient", "head", "head", span, "head-gradient-late")]

    def pending(self, rule: str) -> list[Held]:
        """Wide activations and weight gradients of the feed-forward part, kept while attention runs backward."""
        if self.single:
            return [self.held("gradient", "weights of the layer", f"{rule}-weights-single", self.mlp_weight)]
        found = [self.held("workspace", "feed-forward", f"{rule}-wide", self.wide)]
        if self.fsdp > 1:
            found.append(self.held("gradient", "weights of the layer, unreduced", f"{rule}-weights", self.mlp_weight))
        return found
