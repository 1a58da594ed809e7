"""A serving plan as text: what fits, what bounds a token, what a load asks for, and what is left out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console

from jaxcost.report.console import console, table
from jaxcost.report.numbers import about, exact
from jaxcost.report.rooflines import seconds_text
from jaxcost.report.tables import line

ENGINE_SHOWN = (
    "tensor", "pipeline", "max_model_len", "gpu_memory_utilization", "block_size", "kv_cache_dtype", "weight_dtype",
    "weight_scales", "arithmetic", "max_num_batched_tokens", "max_num_seqs", "vocabulary_multiple",
)  # fmt: skip


def show_serve_plan(data: Mapping[str, Any]) -> None:
    """Print a document `jaxcost.plan_serve.v1`."""
    out = console()
    line(out, title(data), style="bold")
    line(out, "  ".join(f"{name} {value}" for name, value in engine_values(data)))
    _rows(out, "memory of one device", ("", "bytes", "about", ""), memory_rows(data), right=("bytes", "about"))
    _rows(out, "K/V cache of one replica", ("", "value", ""), capacity_rows(data), right=("value",))
    _rows(out, "bounds", ("", "full overlap", "serialised", "bound by", ""), latency_rows(data),
          right=("full overlap", "serialised"))  # fmt: skip
    for heading, rows in (
        ("load", load_rows(data)), ("pools", pool_rows(data)), ("speculation", speculation_rows(data)),
        ("lifetime", lifetime_rows(data)),
    ):  # fmt: skip
        listed = list(rows)
        if listed:
            _rows(out, heading, ("", "value", ""), listed, right=("value",))
    line(out, verdict(data), style="bold")
    for text in limits(data):
        line(out, text)
    for heading, texts in (("assumptions", data["assumptions"]), ("left out", data["omitted"])):
        line(out, f"{heading}:", style="bold")
        for text in texts:
            line(out, f"- {text}")
    for item in data["answers"]:
        line(out, f'"{item["claim"]}": {item["answer"]}')


def _rows(out: Console, heading: str, columns: tuple[str, ...], rows: Any, right: tuple[str, ...]) -> None:
    made = table(*columns, title=heading, right=right)
    for cells in rows:
        made.add_row(*cells)
    out.print(made)


def title(data: Mapping[str, Any]) -> str:
    """Return what the plan is of."""
    target = data["target"]
    replicas = f", {target['replicas']} replicas" if target["replicas"] > 1 else ""
    return f"{data['model']} on {target['text']} ({target['device']}){replicas}: serving plan"


def engine_values(data: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the engine's settings as (option, value)."""
    found = [(name.replace("_", "-"), data["engine"][name]) for name in ENGINE_SHOWN]
    return [(name, str(value)) for name, value in found if value is not None]


def memory_rows(data: Mapping[str, Any]) -> Iterator[tuple[str, str, str, str]]:
    """Yield the claims on a device's memory: name, bytes, about, note."""
    memory = data["memory"]
    share = data["engine"]["gpu_memory_utilization"]
    rows: list[tuple[str, Any, str]] = [
        ("device memory", memory["device_memory_bytes"], memory["device_memory_source"]),
        (f"usable, x {share:g}", memory["usable_bytes"], ""),
        ("weights", memory["weight_bytes"], f"{exact(memory['vocabulary_padding_bytes'])} of them vocabulary padding"),
    ]
    if memory["scale_bytes"]:
        rows.append(("scales", memory["scale_bytes"], "of quantised matrices"))
    rows += [
        ("rotary table", memory["rotary_bytes"], ""),
        ("activations, profiled", memory["activation_bytes"], ""),
        ("outside of the allocator", memory["other_bytes"], ""),
    ]
    for name, value, note in rows:
        told = "not given: not subtracted" if value is None else note
        yield name, exact(value), about(value, "bytes") if value is not None else "", told
    limit = "upper limit" if memory["upper_limit"] else ""
    ranks = len(memory["available_bytes_by_rank"])
    where = f"rank {memory['rank']} of {ranks}, which has the least" if ranks > 1 else ""
    left = memory["available_bytes"]
    yield "left for pages", exact(left), about(left, "bytes"), ", ".join(text for text in (limit, where) if text)


def capacity_rows(data: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield what the pool holds: name, value, note."""
    pages, engine = data["capacity"], data["engine"]
    limit = "upper limit" if pages["upper_limit"] else ""
    groups = pages["groups"]
    told = "; ".join(f"{sum(g['layers'])} layers, {_window(g['window'])}" for g in groups)
    yield "bytes of a page", exact(pages["page_bytes"]), "one layer, keys and values, on one device"
    yield "groups of layers", exact(len(groups)), told
    yield "blocks", exact(pages["blocks"]), limit
    yield "tokens", exact(pages["tokens"]), limit
    if pages["tokens_by_concurrency"] != pages["tokens"]:
        yield "tokens, as later versions print", exact(pages["tokens_by_concurrency"]), "concurrency x longest request"
    longest = f"requests of {engine['max_model_len']:,} tokens, {exact(pages['request_blocks'])} blocks each"
    yield "concurrency", f"{pages['concurrency']:,.2f}x", longest
    if not pages["starts"]:
        yield "longest request that fits", exact(pages["longest_request"]), "the engine does not start"
    expected = data["expected"]
    if expected["tokens"] is not None:
        values = expected["tokens"]
        note = f"{exact(values['lower'])} .. {exact(values['upper'])}, under a predicted prefill peak"
        yield "tokens, expected", exact(values["expected"]), note
    elif expected["activation"] is not None:
        yield "tokens, expected", "unknown", expected["reason"]


def _window(window: int) -> str:
    return f"window {window:,}" if window else "full attention"


def latency_rows(data: Mapping[str, Any]) -> Iterator[tuple[str, str, str, str, str]]:
    """Yield the bounds of prefill and decode."""
    found = data["latency"]
    shown = [("time to first token", found["prefill"], f"prompt of {found['prefill']['tokens']:,} tokens")]
    if found["chunked"]["chunks"] > 1:
        told = f"{found['chunked']['chunks']} chunks of {found['chunked']['chunk_tokens']:,}"
        shown.append(("the same, chunked", found["chunked"], told))
    step = found["decode"]
    rate = f"batch {step['batch']:,}, {step['context']:,} cached; {found['decode_tokens_per_second']:,.5g} tokens/s"
    shown.append(("time per output token", step, rate))
    for name, item, note in shown:
        times = (seconds_text(item["full_overlap_seconds"]), seconds_text(item["serialised_seconds"]))
        yield name, *times, item["bound"], note


def load_rows(data: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield what the load asks for, nothing where none is described."""
    load = data["load"]
    if load is None:
        return
    yield "requests that fit", exact(load["memory_batch"]), f"{load['request_tokens']:,} tokens each, all at once"
    batch = load["batch_under_target"]
    if batch is not None:
        yield "largest decode batch", exact(batch["batch"]), f"limited by: {batch['limit']}"
    made = load["throughput"]
    if made is not None:
        note = f"batch {made['batch']:,}, prompts mixed in; decode alone {made['decode_tokens_per_second']:,.5g}"
        yield "output tokens/s", f"{made['output_tokens_per_second']:,.5g}", note
    for name, told in (("goodput", "mixed, a limit from above"), ("goodput_in_turns", "taking turns")):
        good = load[name]
        note = f"requests/s and replica; batch {good['batch']:,}, {told}; limited by: {good['limit']}"
        yield "goodput", f"{good['requests_per_second']:,.5g}", note
    mixed = load["interference"]
    if mixed is not None:
        times = f"{seconds_text(mixed['alone_seconds'])} alone, {seconds_text(mixed['mixed_seconds'])} with a chunk"
        note = f"{times} of {mixed['chunk_tokens']:,} tokens; batch {mixed['batch']:,}"
        yield "interference", f"{mixed['slowdown']:.3g}x", note
    offered = load["offered"]
    if offered is not None:
        note = f"{offered['requests_per_second']:,.5g} requests/s, {seconds_text(offered['residence_seconds'])} each"
        yield "in flight, Little's law", f"{offered['in_flight']:,.5g}", f"{note}; load {100 * offered['load']:.3g}%"


def pool_rows(data: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield what pools of their own bring, nothing where none are asked for."""
    pools = data["load"]["pools"] if data["load"] is not None else None
    if pools is None:
        return
    sent = f"{exact(pools['transfer_bytes_per_device'])} bytes a device over {pools['link']['name']}"
    yield "K/V transfer", seconds_text(pools["transfer_seconds"]), sent
    yield "time to first token", seconds_text(pools["ttft_seconds"]), "with the transfer"
    ratio = "unknown" if pools["ratio"] is None else f"{pools['ratio']:.4g}"
    whole = pools["pools"]
    split = "" if whole is None else f"{whole['prefill']} + {whole['decode']} of the target's replicas"
    yield "prefill per decode device", ratio, split
    rates = f"apart {pools['requests_per_second']:,.5g}, mixed {pools['mixed_requests_per_second']:,.5g}"
    told = f"{rates}, in turns {pools['turns_requests_per_second']:,.5g} requests/s and replica: {pools['reason']}"
    yield "pays", pools["pays"], told


def speculation_rows(data: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield what speculation yields, nothing where it is not asked for."""
    spec = data["speculation"]
    if spec is None:
        return
    drafted = f"{spec['drafted']} drafted by {spec['draft']}, each accepted with {spec['acceptance']:g}"
    yield "tokens a verification", f"{spec['expected_tokens']:.6g}", f"{drafted} ({spec['expected_tokens_exact']})"
    parts = f"draft {seconds_text(spec['draft_seconds'])}, verification {seconds_text(spec['verify_seconds'])}"
    yield "time per output token", seconds_text(spec["tpot_seconds"]), f"{parts}; batch {spec['batch']:,}"
    yield "speed-up", f"{spec['speedup']:.4g}x", "pays" if spec["pays"] else "does not pay"
    yield "draft weights", exact(spec["draft_weight_bytes"]), f"bytes a device; {spec['memory']}"
    even = spec["break_even_acceptance"]
    yield "break-even acceptance", "none" if even is None else f"{even:.4g}", spec.get("break_even_reason", "")


def lifetime_rows(data: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield the lifetime comparison, nothing where none is asked for."""
    life = data["lifetime"]
    if life is None:
        return
    for key in ("model", "against"):
        side = life[key]
        note = f"{side['train_device_hours']:,.6g} device-hours of training"
        yield side["name"], f"{1e6 * side['device_seconds_per_token']:,.4g} us/token", note
    used = ", ".join(f"{name} {value:g}" for name, value in life["utilizations"].items())
    if life["crossover_tokens"] is None:
        yield "crossover", "none", life["reason"]
    else:
        cheaper = life[life["cheaper_beyond"]]["name"]
        yield "crossover", f"{life['crossover_tokens']:.4g} tokens", f"beyond it {cheaper} costs less; {used}"
    hours = life.get("device_hours_at_volume")
    if hours:
        told = ", ".join(f"{life[key]['name']} {hours[key]:,.6g}" for key in ("model", "against"))
        yield "device-hours", f"{life['volume_tokens']:.4g} tokens", told
    cost = life.get("cost_at_volume")
    if cost:
        told = ", ".join(f"{life[key]['name']} {cost[key]:,.6g} {cost['currency']}" for key in ("model", "against"))
        yield "cost", "", f"{told}; price of {cost['price_date']}, which includes {cost['includes']}"
    yield "quality", "assumed", life["quality"]


def verdict(data: Mapping[str, Any]) -> str:
    """Return the answer in a line."""
    pages, engine = data["capacity"], data["engine"]
    if not pages["starts"]:
        return (
            f"does not start: a request of {engine['max_model_len']:,} tokens needs {pages['request_blocks']:,} blocks "
            f"and there are {pages['blocks']:,}; the longest that fits has {pages['longest_request']:,} tokens"
        )
    limit = "at most " if pages["upper_limit"] else ""
    return f"holds {limit}{pages['tokens']:,} tokens. {pages['printed']}"


def limits(data: Mapping[str, Any]) -> list[str]:
    """Return why the capacity is an upper limit, nothing where it is not."""
    unseen = data["memory"]["unseen"]
    if not unseen:
        return []
    return [f"upper limit, because not given and so not subtracted: {'; '.join(unseen.values())}"]
