"""Prefill and decode on NVIDIA: what is held in the layers, at the head and at the lookup.

Arguments and results have memory of their own throughout. On top of them come copies of the cache and of weights in
another layout, made once before the loop over layers; then the working set of the fullest layer. A copy that ends
before a result begins may lie in that result's memory, and one made after a donated argument's last use in that
argument's; `_Copies` says which of them find such room.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from jaxcost.contracts.dtypes import payload_bytes
from jaxcost.prediction.ownership import arguments, results
from jaxcost.prediction.peak.arrays import Weight, bytes_of, points, state_entries, weights
from jaxcost.prediction.peak.moments import Held, Moment, Span, Unpredicted
from jaxcost.prediction.peak.policy import Policy
from jaxcost.prediction.program import Program

MERGED_BELOW_BYTES = 64 * 2**20  # xla_gpu_dot_merger_threshold_mb, a documented default of the compiler
POINTER_BYTES = 8
PAGE_BYTES = 4096
FP32_BYTES = 4


def assumptions(program: Program, policy: Policy) -> tuple[str, ...]:
    """Return what a prediction rests on beside its rules."""
    return (
        f"rules of {policy.name}, read from {policy.read_from}",
        "XLA's own rematerialisation is off, and no library workspace is planned ahead of time",
    )


def outside(program: Program) -> str:
    """Return why the serving policies do not cover a case, empty where they do."""
    case, run = program.case, program.case.execution
    state = case.state
    if state.parameter_dtype != state.compute_dtype:
        return f"no development case serves {state.parameter_dtype} weights in {state.compute_dtype}"
    if state.kv_dtype != state.compute_dtype:
        return f"no development case keeps a {state.kv_dtype} cache beside {state.compute_dtype} activations"
    if not run.donate and case.workload.phase == "decode":
        return "no development case decodes without donating its cache"
    for group in program.case.architecture.groups:
        if group.layer.attention.storage == "fused" or group.layer.mlp.storage == "fused":
            return "no development case has fused projections"
        if group.layer.residual == "parallel":
            return f"no development case has a {group.layer.residual} residual"
    return ""


def moments(program: Program, policy: Policy) -> tuple[Moment, ...] | Unpredicted:
    """Return the moments of a serving step that can be its fullest."""
    reason = outside(program)
    if reason:
        return Unpredicted(reason)
    if program.case.workload.phase == "prefill":
        return _prefill(program, policy)
    return _decode(program, policy)


def border(program: Program) -> list[Held]:
    """Return what crosses the step's border: arguments, results that no argument gives room, and their table."""
    phase = program.case.workload.phase
    found = list(state_entries(program))
    leaves = 0
    for item in results(program, arguments(program)):
        stacked = program.case.execution.layers == "scan"
        leaves += 1 if stacked or item.role != "output" else program.tensors[item.object].repeat
        cache = item.object.rsplit("/", 1)[-1] in ("keys", "values")
        if cache and phase == "decode":
            continue  # donated: it lies in its argument
        kind = "cache" if cache else "logits" if item.object == "head/out" else "input_output"
        found.append(Held(kind, item.object, item.scope, Span.exact(item.per_device)))
    found.append(Held("input_output", "table of results", "", Span.exact(POINTER_BYTES * leaves)))
    return found


@dataclass(frozen=True)
class Layer:
    """Sizes of one layer of a group on the worst device, in bytes where not said otherwise."""

    group: int
    layers: int
    batch: int
    kv_heads: int
    grouped: bool  # several query heads share one K/V head
    rows: int  # tokens of the step
    stream: int  # [b, s, d]
    inner: int  # one [b, s, f]
    inner_count: int  # projections into the MLP
    queries: int  # [b, s, h, e]
    keys: int  # [b, s, k, e] of the new rows
    pairs: int  # one array of scores
    side: int  # keys, or values, of the cache, one layer
    mlp: int  # the largest matrix of the MLP, as used
    mlp_shard: int  # as stored
    output: int  # o_proj, as used
    biased: bool
    merged: bool  # q, k and v come out of one product
    wide_merged: bool  # so do the projections into the MLP

    @property
    def products(self) -> int:
        """What is kept of q, k and v until K and V are stored: the merged product, or k and v."""
        return self.queries + 2 * self.keys if self.merged else 2 * self.keys


def layers_of(program: Program) -> tuple[Layer, ...]:
    """Return the sizes of one layer of each group."""
    found = []
    compute = program.case.state.compute_dtype
    for index, group in enumerate(program.case.architecture.groups):
        own = {w.scope.split("/", 1)[1]: w for w in weights(program) if w.group == index and not w.vector}
        mlp = [w for name, w in own.items() if name.startswith("mlp/")]
        largest = max(mlp, key=lambda w: w.used)
        k_proj = own["attn/k_proj"]
        rows = points(program, "b s")
        stream = payload_bytes(points(program, "b s d"), compute)
        keys = payload_bytes(points(program, "b s k e", index), compute)
        attention = group.layer.attention
        wide = payload_bytes(points(program, "b s f", index), compute)
        found.append(
            Layer(
                group=index,
                layers=group.repeat,
                batch=points(program, "b"),
                kv_heads=points(program, "k", index),
                grouped=points(program, "g", index) > 1,
                rows=rows,
                stream=stream,
                inner=wide,
                inner_count=len(mlp) - 1,
                queries=payload_bytes(points(program, "b s h e", index), compute),
                keys=keys,
                pairs=bytes_of(program, f"group{index}/attn/scores/out")
                if f"group{index}/attn/scores/out" in program.tensors
                else 0,
                side=bytes_of(program, f"group{index}/attn/keys"),
                mlp=largest.used_bytes(compute),
                mlp_shard=largest.stored_bytes(compute),
                output=own["attn/o_proj"].used_bytes(compute),
                biased=bool(attention.value_bias),
                merged=stream + k_proj.used_bytes(compute) + keys <= MERGED_BELOW_BYTES,
                wide_merged=stream + largest.used_bytes(compute) + wide <= MERGED_BELOW_BYTES,
            )
        )
    return tuple(found)


class _Copies:
    """Copies made before the layers and kept through them.

    `entries` have memory of their own; `rooms` are the sizes of the arguments and results that stay free for the
    working set, the largest first.
    """

    def __init__(self, program: Program, policy: Policy, layers: tuple[Layer, ...]) -> None:
        self.program, self.policy = program, policy
        self.entries: list[Held] = []
        scanned = program.case.execution.layers == "scan"
        rooms: list[int] = []
        for layer in layers:
            rooms += self._cache(layer, scanned)
        self.rooms = sorted(rooms, reverse=True)
        self._weights(self.rooms, scanned)

    def _cache(self, layer: Layer, scanned: bool) -> list[int]:
        """Enter the copies of one group's cache, and return the sizes of the rooms that stay empty."""
        work = self.program.case.workload
        half, scope = layer.side * layer.layers, f"group{layer.group}/attn"
        # One block of keys is scored as written-out attention scores them.
        whole = work.phase == "decode" and work.block_for(work.visible_tokens) >= work.visible_tokens
        decode, written_out = work.phase == "decode", work.attention == "materialised" or whole
        if not scanned and not decode:
            return []
        relaid = layer.kv_heads > 1 and (written_out or layer.batch == 1)
        run = self.program.case.execution
        if decode and work.batch == 1 and run.degree("tensor") > 1 and run.degree("fsdp") == 1:
            return []  # the query weights are copied instead
        if decode and not layer.grouped:
            rule = self.policy.rule("decode-relaid-ungrouped")
            self.entries.append(Held("cache", "keys and values in another layout", scope, Span.of(rule, half), rule.id))
            return []
        if not relaid:
            if decode and written_out and layer.batch > 1:
                rule = self.policy.rule("values-relaid-one-head")
                self.entries.append(Held("cache", "values in another layout", scope, Span.of(rule, half), rule.id))
                return [half]
            return []
        if not decode:
            rule = self.policy.rule("prefill-stack-relaid")
            self.entries.append(Held("cache", "keys in another layout", scope, Span.of(rule, half), rule.id))
            return [half]
        if self._returns_keys_first(half, layer.batch):
            rule = self.policy.rule("decode-relaid-keys-first")
        else:
            rule = self.policy.rule("decode-relaid")
        self.entries.append(Held("cache", "keys and values in another layout", scope, Span.of(rule, half), rule.id))
        return [half] * int(rule.value)

    def _returns_keys_first(self, half: int, batch: int) -> bool:
        """Whether the scheduler of a mesh is expected to copy keys back before values: always where no collective
        overlaps, else where copying both (a read and a write) moves at least as much as the head's product.
        """
        run = self.program.case.execution
        if run.device_count == 1:
            return False
        if run.degree("tensor") * run.degree("fsdp") == 1:
            return True
        return batch > 1 and 4 * half >= _used(self.program, head_of(self.program))

    def guests(self, layer: Layer) -> frozenset[str]:
        """Return which of a prefill layer's buffers lie in a free result: the largest first, beside it those that it
        does not meet. `stream` meets all others, `pairs` meet neither `inner` nor `weight`.
        """
        sizes = {"pairs": layer.pairs, "inner": layer.inner, "weight": layer.mlp, "stream": layer.stream}
        found: set[str] = set()
        for room in self.rooms:
            here: set[str] = set()
            for name in sorted(sizes, key=lambda item: -sizes[item]):
                fits = 0 < sizes[name] <= room and name not in found
                if fits and (not here or (name != "stream" and "stream" not in here and "pairs" in here | {name})):
                    here.add(name)
            found |= here
        return frozenset(found)

    def _weights(self, rooms: list[int], scanned: bool) -> None:
        """Enter the shards that lie along a weight's last axis, transposed for the gather; the largest that fit go
        into rooms.
        """
        run = self.program.case.execution
        if run.degree("fsdp") == 1:
            return
        rule = self.policy.rule("hoisted-transposes")
        stacks = [(w.stack_elements, w) for w in weights(self.program) if w.minor and self._transposed(w, scanned)]
        for count, weight in sorted(stacks, key=lambda item: -item[0]):
            size = payload_bytes(count, weight.dtype)
            room = next((i for i, free in enumerate(rooms) if size <= free), None)
            if room is not None and weight.group is not None:
                rooms.pop(room)
                continue
            name = f"{weight.name}, transposed"
            self.entries.append(Held("gathered_weight", name, weight.scope, Span.of(rule, size), rule.id))

    def _transposed(self, weight: Weight, scanned: bool) -> bool:
        if weight.group is not None:
            return scanned
        # A table is gathered only where it is the head too; written out, prefill transposes it when it comes to that.
        early = scanned or self.program.case.workload.phase == "decode"
        return early and weight.scope == "embed/tokens" and self.program.case.architecture.tied

    @property
    def head(self) -> list[Held]:
        """Those still held at the head: weights of layers are done with by then."""
        return [item for item in self.entries if not item.scope.startswith("group") or item.kind == "cache"]


def _times(span: Span, unit: int) -> Span:
    return Span(span.lower * unit, span.expected * unit, span.upper * unit)


def _small(program: Program, policy: Policy) -> Iterable[Held]:
    """Buffers too small to name one by one, and the angles of the rotary embedding (sines and cosines, fp32)."""
    rule = policy.rule("small-buffers")
    yield Held("workspace", "small buffers", "", Span.of(rule, PAGE_BYTES), rule.id)
    if any(group.layer.attention.rotary for group in program.case.architecture.groups):
        angles = 2 * FP32_BYTES * points(program, "s") * max(points(program, "e", i) // 2 for i in _groups(program))
        yield Held("workspace", "rotary angles", "", Span.exact(angles))


def _groups(program: Program) -> range:
    return range(len(program.case.architecture.groups))


def _prefill(program: Program, policy: Policy) -> tuple[Moment, ...]:
    run, work = program.case.execution, program.case.workload
    layers = layers_of(program)
    copies, common = _Copies(program, policy, layers), [*border(program), *_small(program, policy)]
    always = [*common, *copies.entries]
    written = run.layers == "unrolled"
    if written:
        always += list(_unrolled(program, policy, layers))
    found = []
    for layer in layers:
        scope, guests = f"group{layer.group}", copies.guests(layer)
        if work.attention == "materialised":
            rule, turned = policy.rule("prefill-scores"), policy.rule("prefill-turned-keys")
            pairs = _times(_without(Span.of(rule, 1), "pairs" in guests), layer.pairs)
            held = [
                _streams(policy, layer, _at_scores(layer, written), guests),
                Held("workspace", "keys after rotation", f"{scope}/attn", Span.of(turned, layer.keys), turned.id),
                Held("attention", "scores and probabilities", f"{scope}/attn", pairs, rule.id),
                *_fetched(program, policy, layer, "prefill-fetched-at-scores"),
            ]
            if not written:
                made = policy.rule("prefill-products")
                span = Span.of(made, layer.products)
                held.append(Held("workspace", "q, k and v", f"{scope}/attn", span, made.id))
            if run.degree("fsdp") > 1:
                held.append(Held("gathered_weight", "o_proj, gathered", scope, Span.exact(layer.output)))
            found.append(Moment(f"{scope}/attn/softmax", "forward", (*always, *held)))
        beside = "prefill-stream-beside-mlp" if run.degree("tensor") > 1 else "prefill-stream-in-place"
        stream = _streams(policy, layer, "unrolled-streams-at-mlp" if written else beside, guests)
        kept = policy.rule("prefill-values-kept")
        values = Held(
            "workspace", "q, k and v", f"{scope}/attn", Span.of(kept, 0 if layer.biased else layer.products), kept.id
        )
        gate = ("gate", 1, _at_gate(program, layer))
        if layer.wide_merged:
            gate = ("gate", layer.inner_count, "prefill-weights-at-merged")
        for name, count, rule_id in (gate, ("up", layer.inner_count, "prefill-weights-at-up")):
            width = _times(_without(Span.exact(count), "inner" in guests), layer.inner)
            inner = Held("workspace", "MLP width", f"{scope}/mlp", width)
            fetched = _fetched(program, policy, layer, rule_id, int("weight" in guests))
            own = () if written else (values,)
            found.append(Moment(f"{scope}/mlp/{name}", "forward", (*always, stream, *own, inner, *fetched)))
        if run.degree("fsdp") > 1 and not written:
            output = Held("gathered_weight", "o_proj, gathered", scope, Span.exact(layer.output))
            fetched = _fetched(program, policy, layer, _at_gate(program, layer), int("weight" in guests))
            found.append(Moment(f"{scope}/attn/o_proj", "forward", (*always, stream, values, output, *fetched)))
    streams = [_streams(policy, layers[-1], "prefill-streams-at-head", frozenset())]
    found.append(head_moment(program, policy, [*common, *copies.head, *streams]))
    return tuple(found)


def _at_gate(program: Program, layer: Layer) -> str:
    """Name the rule for weights fetched by the first product of the MLP: more where few rows hide their transfer."""
    few = 4 * layer.rows <= program.sizes.axis("d") and program.case.execution.degree("fsdp") > 1
    return "prefill-weights-at-gate-few" if few else "prefill-weights-at-gate"


def _at_scores(layer: Layer, written: bool) -> str:
    """Name the rule for the streams held beside the scores: the norm too where v is not yet computed from it."""
    if written:
        return "unrolled-streams-at-scores"
    return "prefill-streams-at-scores" if layer.merged else "prefill-streams-at-scores-unmerged"


def _without(span: Span, one: bool) -> Span:
    """Return a number of buffers, less the one that lies in a result's memory."""
    return Span(*(max(0, count - one) for count in span))


def _streams(policy: Policy, layer: Layer, rule_id: str, guests: frozenset[str]) -> Held:
    rule = policy.rule(rule_id)
    count = _without(Span.of(rule, 1), "stream" in guests)
    return Held("workspace", "streams", f"group{layer.group}", _times(count, layer.stream), rule.id)


def _unrolled(program: Program, policy: Policy, layers: tuple[Layer, ...]) -> Iterable[Held]:
    """What layers that are written out keep to the end: products of q, k, v, and results of blockwise attention."""
    for layer in layers:
        scope = f"group{layer.group}/attn"
        if program.case.workload.attention == "blockwise":
            run = program.case.execution
            meshed = "-meshed" if run.degree("tensor") * run.degree("fsdp") > 1 else ""
            rule = policy.rule(f"unrolled-blockwise-results{meshed}")
            yield Held(
                "attention", "results of all layers", scope, Span.of(rule, layer.queries * layer.layers), rule.id
            )
        run = program.case.execution
        alone = run.degree("tensor") * run.degree("fsdp") == 1
        stored = program.case.workload.attention == "blockwise" and (layer.biased or alone)
        rule = policy.rule("unrolled-products-stored" if stored else "unrolled-products-kept")
        span = Span.of(rule, layer.products * layer.layers)
        yield Held("workspace", "q, k and v of all layers", scope, span, rule.id)


def _fetched(program: Program, policy: Policy, layer: Layer, rule_id: str, guests: int = 0) -> Iterable[Held]:
    """Weights of one layer cut out of their stack, and under fsdp gathered."""
    run, scope = program.case.execution, f"group{layer.group}/mlp"
    sharded = run.degree("fsdp") > 1
    if run.layers == "unrolled" and not sharded:
        return
    rule = policy.rule(rule_id + ("-fsdp" if sharded else ""))
    size = _times(Span(*(max(0, count - guests) for count in Span.of(rule, 1))), layer.mlp)
    if sharded:
        yield Held("gathered_weight", "weights, gathered", scope, size, rule.id)
        shards = policy.rule("fetched-shards")
        if run.layers == "scan":
            yield Held("workspace", "shards cut out", scope, Span.of(shards, layer.mlp_shard), shards.id)
        return
    yield Held("workspace", "weights cut out of their stack", scope, size, rule.id)


def head_of(program: Program) -> Weight:
    """Return the matrix of the head: the token table where it is tied."""
    own = [w for w in weights(program) if w.scope in ("head", "embed/tokens") and not w.vector]
    return next((w for w in own if w.scope == "head"), own[0])


def head_moment(program: Program, policy: Policy, held: list[Held]) -> Moment:
    """The moment of the head: under fsdp its matrix is gathered whole."""
    if program.case.execution.degree("fsdp") > 1:
        rule, size = policy.rule("head-gathered"), _used(program, head_of(program))
        held = [*held, Held("gathered_weight", "head, gathered", "head", Span.of(rule, size), rule.id)]
    return Moment("head", "forward", tuple(held))


def _used(program: Program, weight: Weight) -> int:
    return weight.used_bytes(program.case.state.compute_dtype)


def _decode(program: Program, policy: Policy) -> tuple[Moment, ...]:
    run, work = program.case.execution, program.case.workload
    layers = layers_of(program)
    copies, common = _Copies(program, policy, layers), [*border(program), *_small(program, policy)]
    always = [*common, *copies.entries]
    found: list[Moment] = []
    single: list[Held] = []
    for layer in layers:
        scope = f"group{layer.group}"
        held = list(always)
        if work.attention == "blockwise":
            rule = policy.rule("decode-blocks")
            split = layer.batch > 1 and work.block_for(work.visible_tokens) < work.visible_tokens
            if split:
                held.append(Held("cache", "blocks of one layer", f"{scope}/attn", Span.of(rule, layer.side), rule.id))
        elif run.layers == "scan":
            alone = "" if run.device_count == 1 else "-meshed"
            rule = policy.rule(f"decode-layer-cut{alone}")
            held.append(Held("cache", "one layer cut out", f"{scope}/attn", Span.of(rule, layer.side), rule.id))
        if run.layers == "unrolled" and run.degree("fsdp") > 1:
            rule = policy.rule("unrolled-decode-gathers-all")
            every = sum(w.layers * _used(program, w) for w in weights(program) if not w.vector and w.group is not None)
            head = _used(program, head_of(program))
            held.append(Held("gathered_weight", "all weights, gathered", "", Span.of(rule, every + head), rule.id))
        elif run.layers == "scan":
            alone = "-alone" if run.device_count == 1 else ""
            free = sum(layer.mlp <= room for room in copies.rooms)
            held += _fetched(program, policy, layer, f"decode-weights{alone}", free)
            held += _projections(program, policy, layer)
        relaid = list(_single_row_weights(program, policy, layer))
        single += relaid
        found.append(Moment(f"{scope}/mlp", "forward", (*held, *relaid)))
    if run.degree("tensor") > 1 and work.batch == 1:
        table = next(w for w in weights(program) if w.scope == "embed/tokens" and not w.vector)
        rule = policy.rule("lookup-of-one-gathers")
        size = _used(program, table) * run.degree("tensor")
        entry = Held("gathered_weight", "whole table", "embed/tokens", Span.of(rule, size), rule.id)
        found.append(Moment("embed", "forward", (*common, *single, entry)))
    found.append(head_moment(program, policy, [*common, *copies.head]))
    return tuple(found)


def _projections(program: Program, policy: Policy, layer: Layer) -> Iterable[Held]:
    """Under fsdp, the gathered projections of attention beside the matrices of the MLP."""
    run, scope = program.case.execution, f"group{layer.group}/attn"
    if run.degree("fsdp") == 1:
        return
    rule = policy.rule("decode-projections" + ("-tensor" if run.degree("tensor") > 1 else ""))
    size = sum(_used(program, w) for w in weights(program) if not w.vector and w.scope.startswith(scope))
    yield Held("gathered_weight", "projections, gathered", scope, Span.of(rule, size), rule.id)


def _single_row_weights(program: Program, policy: Policy, layer: Layer) -> Iterable[Held]:
    """Projection weights copied into the layout that a product with a single row wants, all layers at once."""
    run, scope = program.case.execution, f"group{layer.group}/attn"
    if layer.batch > 1 or layer.kv_heads == 1 or run.layers != "scan" or run.degree("fsdp") > 1:
        return
    wanted: list[tuple[str, tuple[str, ...]]] = [("decode-batch-one-weights", ("k_proj", "v_proj"))]
    if run.degree("tensor") > 1 and program.case.workload.batch == 1:
        wanted.append(("decode-batch-one-queries", ("q_proj",)))
    for rule_id, names in wanted:
        rule = policy.rule(rule_id)
        own = [w for w in weights(program) if not w.vector and w.scope in [f"{scope}/{name}" for name in names]]
        amount = sum(w.layers * _used(program, w) for w in own)
        name = ", ".join(names) + " in another layout"
        yield Held("gathered_weight", name, scope, Span.of(rule, amount), rule.id)
