"""Prefill and decode on TPU.

What fits on the chip is kept there, so beside arguments and results little is held: one array of scores, the cache in
another layout in decode, gathered weights and the gathered head under fsdp. Arguments and results are counted with the
padding of their tiles.
"""

from __future__ import annotations

from jaxcost.contracts.dtypes import payload_bytes
from jaxcost.prediction.ownership import arguments, results
from jaxcost.prediction.peak import serving
from jaxcost.prediction.peak.arrays import points
from jaxcost.prediction.peak.moments import Held, Moment, Span, Unpredicted
from jaxcost.prediction.peak.policy import Policy
from jaxcost.prediction.peak.tiles import LANES, SUBLANES, local_shape, tile_padded_bytes, tiled_arguments
from jaxcost.prediction.program import Program

PAGE_BYTES = 4096
SCORE_LIMIT_BYTES = 4 * 2**30  # the largest fp32 scores that a development case held


def assumptions(program: Program, policy: Policy) -> tuple[str, ...]:
    """Return what a prediction rests on beside its rules."""
    return (
        f"rules of {policy.name}, read from {policy.read_from}",
        "arguments and results are padded to tiles; fragmentation and on-chip memory are left out",
    )


def moments(program: Program, policy: Policy) -> tuple[Moment, ...] | Unpredicted:
    """Return the moments of a serving step that can be its fullest."""
    reason = outside(program)
    if reason:
        return Unpredicted(reason)
    common, layers = _border(program, policy), serving.layers_of(program)
    decode = program.case.workload.phase == "decode"
    copies = [entry for layer in layers for entry in _copies(program, policy, layer)] if decode else []
    found = []
    for layer in layers:
        own = _decode(program, policy, layer) if decode else _scores(program, policy, layer)
        found.append(Moment(f"group{layer.group}/attn", "forward", (*common, *copies, *own)))
        if not decode:
            found.append(Moment(f"group{layer.group}/mlp", "forward", (*common, *_mlp(program, policy, layer))))
    held = list(common)
    if decode and program.case.execution.degree("fsdp") > 1:
        kept = "decode-head-cache" + ("-tied" if program.case.architecture.tied else "")
        held += [entry for layer in layers for entry in _copies(program, policy, layer, kept)]
    held += _uneven_head(program, policy)
    found.append(serving.head_moment(program, policy, held))
    return tuple(found)


def _uneven_head(program: Program, policy: Policy) -> list[Held]:
    """Return what gathers the head where its shards do not fill the rows of a tile: shards padded, side by side."""
    shards = program.case.execution.degree("fsdp")
    width = program.sizes.axis("d") // shards
    if shards == 1 or width % SUBLANES == 0:
        return []
    rule, head = policy.rule("head-gathered-uneven"), serving.head_of(program)
    padded = -(-width // SUBLANES) * SUBLANES * shards
    size = head.used_bytes(program.case.state.compute_dtype) // program.sizes.axis("d") * padded
    return [Held("gathered_weight", "head, padded shards", "head", Span.of(rule, size), rule.id)]


def outside(program: Program) -> str:
    """Return why the policy does not cover a serving case, empty where it does."""
    if program.case.execution.layers == "unrolled":
        return "no development case on TPU writes its layers out"
    work = program.case.workload
    if work.phase == "prefill" and work.attention == "materialised":
        heads = max(points(program, "b h s t", index) for index in range(len(program.case.architecture.groups)))
        if payload_bytes(heads, "fp32") > SCORE_LIMIT_BYTES:
            return "no development case holds scores of more than 4 GiB"
    return serving.outside(program)


def _border(program: Program, policy: Policy) -> list[Held]:
    """Return arguments, and results that no argument gives room, with their tiles."""
    found = []
    for item in tiled_arguments(program):
        kind = "parameter" if item.role == "parameter" else "input_output"
        if item.object.rsplit("/", 1)[-1].startswith("past_"):
            kind = "cache"
        found.append(Held(kind, item.object, "", Span.exact(item.padded)))
    for result in results(program, arguments(program)):
        cache = result.object.rsplit("/", 1)[-1] in ("keys", "values")
        if cache and program.case.workload.phase == "decode":
            continue
        tensor = program.tensors[result.object]
        size = tile_padded_bytes(local_shape(program, tensor), tensor.dtype)
        found.append(Held("cache" if cache else "logits", result.object, result.scope, Span.exact(size)))
    rule = policy.rule("small-buffers")
    found.append(Held("workspace", "small buffers", "", Span.of(rule, PAGE_BYTES), rule.id))
    return found


def _copies(program: Program, policy: Policy, layer: serving.Layer, rule_id: str = "decode-relaid") -> list[Held]:
    """Return the copies of a group's keys and values with the head width last, padded to lanes."""
    written_out = program.case.workload.attention == "materialised"
    if not written_out and (layer.batch > 1 or program.case.execution.degree("fsdp") == 1):
        return []
    if written_out and layer.batch == 1 and program.case.execution.degree("fsdp") == 1:
        return []
    if layer.batch == 1 and rule_id == "decode-relaid":
        rule_id = "decode-relaid-one" if written_out else "decode-relaid-blocks"
    width = points(program, "e", layer.group)
    size = layer.side // width * (-(-width // LANES) * LANES) * layer.layers
    rule = policy.rule(rule_id)
    return [Held("cache", "keys and values in another layout", f"group{layer.group}", Span.of(rule, size), rule.id)]


def _decode(program: Program, policy: Policy, layer: serving.Layer) -> list[Held]:
    if program.case.execution.degree("fsdp") == 1:
        return []
    matrices, projection = policy.rule("decode-weights"), policy.rule("decode-projections")
    scope = f"group{layer.group}"
    return [
        Held("gathered_weight", "weights, gathered", scope, Span.of(matrices, layer.mlp), matrices.id),
        Held("gathered_weight", "projections, gathered", scope, Span.of(projection, layer.output), projection.id),
    ]


def _scores(program: Program, policy: Policy, layer: serving.Layer) -> list[Held]:
    scope = f"group{layer.group}/attn"
    stream = policy.rule("prefill-streams-at-scores")
    found = [Held("workspace", "streams", scope, Span.of(stream, layer.stream), stream.id)]
    if program.case.execution.degree("fsdp") > 1:
        shards = policy.rule("prefill-shards")
        size = Span.of(shards, layer.mlp_shard)
        found.append(Held("workspace", "shards cut out", scope, size, shards.id))
    if program.case.workload.attention == "materialised":
        mask = policy.rule("prefill-mask")
        pairs = points(program, "s t")
        found.append(Held("attention", "mask", scope, Span.of(mask, pairs), mask.id))
        single = 1 in (layer.batch, layer.kv_heads)
        rule = policy.rule("prefill-scores-single" if single else "prefill-scores")
        found.append(Held("attention", "scores", scope, Span.of(rule, layer.pairs), rule.id))
    return found


def _mlp(program: Program, policy: Policy, layer: serving.Layer) -> list[Held]:
    scope = f"group{layer.group}/mlp"
    stream, wide = policy.rule("prefill-streams-at-mlp"), policy.rule("prefill-wide")
    return [
        Held("workspace", "streams", scope, Span.of(stream, layer.stream), stream.id),
        Held("workspace", "MLP width", scope, Span.of(wide, layer.inner), wide.id),
    ]
