"""A serving plan as one document: memory, pages, latency, load, and what is left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jaxcost.catalog import Manifest, load
from jaxcost.contracts.errors import reject
from jaxcost.observation.targets import Target, parse_target
from jaxcost.planning.quantities import positive
from jaxcost.planning.serve.capacity import (
    Capacity,
    capacity,
    curve,
    expected_activation,
    lengths_to,
    printed,
    with_activation,
)
from jaxcost.planning.serve.inputs import Engine, Lifetime, Speculation, Workload
from jaxcost.planning.serve.latency import Model
from jaxcost.planning.serve.lifetime import compare, side
from jaxcost.planning.serve.load import Requests, goodput, interference, offered, pools, throughput, under_target
from jaxcost.planning.serve.omitted import ANSWERS, OMITTED
from jaxcost.planning.serve.pages import SOURCE
from jaxcost.planning.serve.speculative import one_layer, speculation

EVIDENCE = "analytical"


@dataclass(frozen=True)
class Asked:
    """Everything a plan is made from."""

    manifest: Manifest
    target: Target
    engine: Engine
    work: Workload
    wires: Mapping[str, Any]
    speculation: Speculation | None = None
    lifetime: Lifetime | None = None

    @property
    def replicas(self) -> int:
        """Replicas of the engine on the target's devices."""
        return self.target.device_count // (self.engine.tensor * self.engine.pipeline)


def filled(engine: Mapping[str, Any], target: Target) -> dict[str, Any]:
    """Return an engine's settings with its tensor degree: where none is given, all devices share one replica.

    Raises:
        RejectedError: the degrees do not divide the target's devices.
    """
    given, devices = dict(engine), target.device_count
    stages = given.get("pipeline", 1)
    if given.get("tensor") is None:
        given.pop("tensor", None)
        if isinstance(stages, int) and 0 < stages <= devices and devices % stages == 0:
            given["tensor"] = devices // stages
    tensor = given.get("tensor", 1)
    if isinstance(tensor, int) and isinstance(stages, int) and tensor * stages > 0 and devices % (tensor * stages):
        rule = f"a replica of {tensor} x {stages} devices does not divide the {devices} of {target.text}"
        raise reject("--tensor", tensor, rule, "choose degrees whose product divides the devices")
    return given


def target_of(text: object) -> Target:
    """Return the target of a text.

    Raises:
        RejectedError: the text is no target.
    """
    return parse_target(str(text), "--target")


def serve_plan(asked: Asked) -> dict[str, Any]:
    """Return the plan's document, without its head.

    Raises:
        RejectedError: an input is out of range, a degree divides nothing, a rate is unknown, or the load is too large.
    """
    architecture, engine, work = asked.manifest.architecture, asked.engine, asked.work
    found = capacity(architecture, engine, asked.target)
    model = Model(architecture, engine, asked.target, **asked.wires)
    request = None
    if work.prompt is not None and work.output is not None:
        request = Requests(model, found, work.prompt, work.output)
        if request.tokens > engine.max_model_len:
            rule = f"{request.tokens} tokens of a request exceed max_model_len"
            raise reject("--prompt", work.prompt, rule, "raise --max-model-len, or shorten requests")
    batch = work.batch or 1
    context = engine.max_model_len - 1 if request is None else request.middle
    data: dict[str, Any] = {
        "model": asked.manifest.architecture.name, "architecture_digest": architecture.digest,
        "target": {
            "text": asked.target.text, "family": asked.target.family, "devices": asked.target.device_count,
            "replicas": asked.replicas, "device": model.machine.device.name, "peak": model.machine.peak.label,
            "memory_bytes_per_second": float(model.machine.bytes_per_second),
        },
        "engine": engine.to_data(), "workload": work.to_data(), "formula": SOURCE,
        "memory": memory_data(found), "capacity": capacity_data(found),
        "expected": expected_data(asked, found),
        "latency": latency_data(model, found, request, batch, context),
        "load": None if request is None else load_data(asked, request),
        "speculation": None if asked.speculation is None else speculation_data(asked, model, batch, context),
        "lifetime": None if asked.lifetime is None else lifetime_data(asked, model),
        "curves": curves(asked, found, model, request, context),
        "omitted": list(OMITTED), "answers": [{"claim": claim, "answer": text} for claim, text in ANSWERS],
        "assumptions": assumptions(asked, found),
    }  # fmt: skip
    data["figures"] = figures(data)
    return data


def memory_data(found: Capacity) -> dict[str, Any]:
    """Return the claims on a device's memory, on the rank with the least left."""
    budget, rank = found.budget, found.budget.fullest
    weights = budget.weights[rank]
    return {
        "device_memory_bytes": budget.device_memory, "device_memory_source": budget.source,
        "usable_bytes": budget.usable, "rank": rank, "weight_bytes": weights.codes, "scale_bytes": weights.scales,
        "rotary_bytes": None if found.engine.rotary_rows is None else weights.rotary,
        "vocabulary_padding_bytes": weights.padding, "activation_bytes": budget.activation,
        "other_bytes": budget.other, "available_bytes": budget.available[rank],
        "weight_bytes_by_rank": [each.total for each in budget.weights],
        "available_bytes_by_rank": list(budget.available), "upper_limit": bool(found.unseen),
        "unseen": dict(found.unseen),
    }  # fmt: skip


def capacity_data(found: Capacity) -> dict[str, Any]:
    """Return the pool: blocks, tokens, concurrency, the longest request."""
    pool, most = found.pool, found.engine.max_model_len
    return {
        "page_bytes": pool.groups[0].page_bytes, "block_bytes": pool.block_bytes, "block_size": pool.block_size,
        "blocks": pool.blocks, "tokens": pool.tokens, "tokens_by_concurrency": pool.tokens_by_concurrency(most),
        "request_blocks": pool.request_blocks(most), "concurrency": float(pool.concurrency(most)),
        "printed": f"Maximum concurrency for {most:,} tokens per request: {printed(pool.concurrency(most))}",
        "starts": found.starts, "longest_request": pool.longest(most),
        "groups": [{"window": group.window, "layers": list(group.layers)} for group in pool.groups],
        "upper_limit": bool(found.unseen),
    }  # fmt: skip


def expected_data(asked: Asked, found: Capacity) -> dict[str, Any]:
    """Return the capacity under the predicted peak of a prefill: an expected value with its interval."""
    if asked.engine.activation_bytes is not None:
        return {"activation": None, "tokens": None, "reason": "the profiled peak of activations is given"}
    activation = expected_activation(asked.manifest.architecture, asked.engine, asked.target)
    if activation["expected"] is None:
        return {"activation": activation, "tokens": None, "reason": activation["reason"]}
    # the more activations take, the fewer tokens are left
    ends = {"lower": "upper", "expected": "expected", "upper": "lower"}
    pools_of = {name: with_activation(found, activation[end]).pool for name, end in ends.items()}
    most = asked.engine.max_model_len
    return {
        "activation": activation, "tokens": {name: pool.tokens for name, pool in pools_of.items()},
        "concurrency": {name: float(pool.concurrency(most)) for name, pool in pools_of.items()},
        "convention": "what XLA's program of a prefill of max_num_batched_tokens holds beside weights and cache; the "
        "engine profiles its own kernels, and memory outside of the allocator is not in it",
        "reason": "",
    }  # fmt: skip


def latency_data(model: Model, found: Capacity, request: Requests | None, batch: int, context: int) -> dict[str, Any]:
    """Return the bounds of a prompt and of an output token."""
    prompt = request.prompt if request is not None else min(found.engine.max_num_batched_tokens, context)
    chunk = found.engine.max_num_batched_tokens
    whole, chunked, step = model.prefill(prompt), model.prefill(prompt, chunk), model.decode(batch, context)
    return {
        "prefill": {"tokens": prompt, **whole.to_data()},
        "chunked": {"tokens": prompt, "chunk_tokens": chunk, "chunks": -(-prompt // chunk), **chunked.to_data()},
        "decode": {"batch": batch, "context": context, **step.to_data()},
        "decode_tokens_per_second": float(batch / step.full_overlap),
        "convention": "one pass of traffic an op; full overlap is a limit from below under these counts (fused ops "
        "move less), the sum of all resources is none from above",
    }  # fmt: skip


def load_data(asked: Asked, request: Requests) -> dict[str, Any]:
    """Return the batch under the target, goodput, interference, the offered load and the pools."""
    work = asked.work
    batch = under_target(request, positive(work.tpot, "--tpot")) if work.tpot is not None else None
    chosen = int(batch["batch"]) if batch is not None else request.memory_batch
    return {
        "request_tokens": request.tokens, "request_blocks": request.capacity.pool.request_blocks(request.tokens),
        "memory_batch": request.memory_batch, "memory_limit": request.memory_limit, "batch_under_target": batch,
        "goodput": goodput(request, work), "goodput_in_turns": goodput(request, work, mixed=False),
        "throughput": throughput(request, chosen) if chosen else None,
        "interference": interference(request, chosen) if chosen else None,
        "offered": offered(request, work, asked.replicas) if work.rate is not None else None,
        "pools": pools(request, work, asked.replicas) if work.link is not None else None,
        "reason": "" if chosen else "no batch meets the target and fits in memory",
    }  # fmt: skip


def speculation_data(asked: Asked, model: Model, batch: int, context: int) -> dict[str, Any]:
    """Return what speculation yields."""
    assert asked.speculation is not None
    if asked.speculation.next_n is not None:
        architecture = one_layer(asked.manifest.architecture)
    else:
        architecture = load(asked.speculation.draft or "").architecture
    plain = asked.engine.replaced(weight_dtype="bf16", weight_scales=None, pipeline=1, pipeline_layers=())
    return speculation(
        model, Model(architecture, plain, asked.target, **asked.wires), asked.speculation, batch, context
    )


def lifetime_data(asked: Asked, model: Model) -> dict[str, Any]:
    """Return the lifetime cost of this model against another one."""
    assert asked.lifetime is not None
    work, life = asked.work, asked.lifetime
    if work.prompt is None or work.output is None:
        raise reject("--against", life.against, "cost by volume needs a request", "give --prompt and --output")
    each = []
    for manifest, tokens in (
        (asked.manifest, life.train_tokens), (load(life.against), life.against_train_tokens),
    ):  # fmt: skip
        name = manifest.architecture.name
        amount = positive(tokens, "--train-tokens")
        each.append(side(name, manifest.architecture, amount, life.train_seq, work.prompt, work.output))
    peak = model.machine.peak
    found = compare(each[0], each[1], life, peak.per_second, peak.label, (work.prompt, work.output))
    assert isinstance(found, dict)
    return found


def curves(asked: Asked, found: Capacity, model: Model, request: Requests | None, context: int) -> dict[str, Any]:
    """Return what the page draws: concurrency against tokens, time per output token against batch, the memory limit."""
    by_length = curve(found, lengths_to(asked.engine.max_model_len))
    tokens = request.tokens if request is not None else asked.engine.max_model_len
    memory = found.pool.blocks // found.pool.request_blocks(tokens)
    most = max(1, min(2 * memory, 4096))
    batches = [1]
    while batches[-1] * 2 <= most:
        batches.append(2 * batches[-1])
    if memory and memory not in batches and memory <= 4096:
        batches.append(memory)
    steps = []
    for batch in sorted(batches):
        step = model.decode(batch, context)
        steps.append({
            "batch": batch, "full_overlap_seconds": float(step.full_overlap),
            "serialised_seconds": float(step.serialised), "bound": step.by,
            "tokens_per_second": float(batch / step.full_overlap), "fits": batch <= memory,
        })  # fmt: skip
    return {"concurrency": by_length, "tpot": steps, "memory_batch": memory, "context": context, "tokens": tokens}


def assumptions(asked: Asked, found: Capacity) -> list[str]:
    """Return what the plan takes for granted beyond its inputs."""
    engine = asked.engine
    listed = [
        f"the published formula of {SOURCE['repository']} at {str(SOURCE['commit'])[:12]}",
        "matrices are cut over tensor, vectors whole on every device; K/V heads fewer than ranks are held by several",
        f"the vocabulary is padded to a multiple of {engine.vocabulary_multiple}",
        "one kernel of attention that reads keys and values once; legal pairs",
        f"arithmetic at the {engine.arithmetic} peak",
    ]
    if len(found.pool.groups) > 1 or found.pool.groups[0].window:
        kept = "keep the window and the rows of a step" if found.pool.groups[0].window or engine.hybrid else ""
        listed.append(f"windowed layers {kept or 'keep every row'}; a step adds max_num_batched_tokens at the most")
    if engine.weight_dtype != "bf16":
        listed.append(f"matrices of the layers in {engine.weight_dtype}, scales {engine.weight_scales}, no zero points")
    if asked.target.family != "cuda":
        listed.append("the formula is that of the engine's GPU worker; on other devices it may reserve otherwise")
    if asked.replicas > 1:
        listed.append(f"{asked.replicas} replicas share the load evenly; memory and latency are one replica's")
    return listed


def figures(data: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the plan's main numbers, each with its contract."""
    memory, pages, latency = data["memory"], data["capacity"], data["latency"]
    limit = "limit from above: " + ", ".join(memory["unseen"]) + " not subtracted" if memory["unseen"] else "as given"
    bound = "full overlap, a limit from below"
    rows: list[tuple[str, Any, str, str, str]] = [
        ("weights", memory["weight_bytes"], "bytes", "device of the fullest rank", "stored codes, padding counted"),
        ("available", memory["available_bytes"], "bytes", "device of the fullest rank", limit),
        ("blocks", pages["blocks"], "blocks", "replica", f"available // page // layers of a group; {limit}"),
        ("tokens", pages["tokens"], "tokens", "replica", f"as the engine prints them; {limit}"),
        ("concurrency", pages["concurrency"], "requests", "replica", f"requests of max_model_len; {limit}"),
        ("time to first token", latency["chunked"]["full_overlap_seconds"], "s", "one prompt alone", bound),
        ("time per output token", latency["decode"]["full_overlap_seconds"], "s", "decode step", bound),
    ]
    return [
        {"name": name, "value": value, "unit": unit, "scope": scope, "convention": text, "evidence": EVIDENCE}
        for name, value, unit, scope, text in rows
    ]
