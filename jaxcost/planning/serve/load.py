"""Requests against a replica: the batch a latency target allows, how many requests a second, how many in flight.

Requests are alike: N prompt tokens, M output tokens. With t(B) the bound of a decode step of B sequences at the middle
of their outputs and p that of one prompt, B requests take M decode steps and B prompts. Two idealisations of a replica
that does both:

    taking turns   a prompt runs alone:            M t(B) + B p seconds
    mixed          prompts ride on decode steps:   each resource adds up over both, weights cross memory once, and the
                   longest resource decides

R = B over these seconds is requests a second, the seconds over M the time per output token, in which decode waits for
the prompts that arrive meanwhile. Mixing is the limit from above on R. Chunked prefill goes from the first towards the
second; its chunk bounds the longest pause. Requests in flight follow from Little's law (Little 1961, Operations
Research 9(3)), which is refused an overload.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from jaxcost.contracts.dtypes import payload_bytes
from jaxcost.contracts.errors import reject
from jaxcost.planning.quantities import number, positive
from jaxcost.planning.queue import Flow, Stay, in_flight
from jaxcost.planning.serve.capacity import Capacity
from jaxcost.planning.serve.inputs import Workload
from jaxcost.planning.serve.latency import MOST_SEQUENCES, Bound, Model, largest


@dataclass(frozen=True)
class Requests:
    """A workload on a replica."""

    model: Model
    capacity: Capacity
    prompt: int
    output: int

    @property
    def tokens(self) -> int:
        """Tokens of a finished request."""
        return self.prompt + self.output

    @property
    def middle(self) -> int:
        """Cached tokens halfway through the output: a decode step's work is affine in them, so this is the mean."""
        return self.prompt + self.output // 2

    @property
    def memory_batch(self) -> int:
        """Requests that fit with all their tokens at once; none is ever evicted up to this number."""
        found = self.capacity.pool.blocks // self.capacity.pool.request_blocks(self.tokens)
        most = self.capacity.engine.max_num_seqs
        return int(min(found, most) if most is not None else min(found, MOST_SEQUENCES))

    @property
    def memory_limit(self) -> str:
        """What sets that number: the pages, the declared number of sequences, or where the search ends."""
        most = self.capacity.engine.max_num_seqs
        pages = self.capacity.pool.blocks // self.capacity.pool.request_blocks(self.tokens)
        if most is not None and most < pages:
            return "max_num_seqs"
        return "memory" if pages <= MOST_SEQUENCES else f"nothing up to {MOST_SEQUENCES:,}"

    def decode(self, batch: int) -> Bound:
        """Return the bound of a decode step at the middle of the outputs."""
        return self.model.decode(batch, self.middle)

    def prefill(self) -> Bound:
        """Return the bound of one prompt, in chunks of max_num_batched_tokens."""
        return self.model.prefill(self.prompt, self.capacity.engine.max_num_batched_tokens)

    def seconds(self, batch: int, mixed: bool = True) -> Fraction:
        """Return the time in which `batch` requests are served: all their output tokens and all their prompts."""
        step, prompt, times = self.decode(batch), self.prefill(), self.output
        if not mixed:
            return times * step.full_overlap + batch * prompt.full_overlap
        shared = Fraction(prompt.weight_bytes) / self.model.machine.bytes_per_second
        memory = times * step.memory + batch * (prompt.memory - shared)
        return max(times * step.compute + batch * prompt.compute, memory, times * step.sent + batch * prompt.sent)

    def rate(self, batch: int, mixed: bool = True) -> Fraction:
        """Return the requests a second of a replica that decodes `batch` at a time and computes their prompts."""
        return batch / self.seconds(batch, mixed)

    def tpot(self, batch: int, mixed: bool = True) -> Fraction:
        """Return the seconds per output token with the prompts' share."""
        return self.seconds(batch, mixed) / self.output


def limited(batch: int, by_target: int, by_memory: int, memory: str) -> dict[str, Any]:
    """Return a batch and which of the two limits it."""
    by = "latency target" if by_target < by_memory else memory
    return {"batch": batch, "by_target": by_target, "by_memory": by_memory, "limit": by if batch else f"none: {by}"}


def under_target(requests: Requests, tpot: Fraction, prompts: str = "elsewhere") -> dict[str, Any]:
    """Return the largest batch whose bound meets a time per output token and whose cache fits.

    `prompts` are computed `elsewhere`, `mixed` with decode steps, or in `turns` with them.
    """
    memory = requests.memory_batch

    def seconds(batch: int) -> Fraction:
        if prompts == "elsewhere":
            return requests.decode(batch).full_overlap
        return requests.tpot(batch, prompts == "mixed")

    allowed = largest(lambda batch: seconds(batch) <= tpot, max(1, memory)) if memory else 0
    if memory and allowed == memory:  # how far the target alone would go, as far as is asked
        allowed = largest(lambda batch: seconds(batch) <= tpot, min(4 * memory, MOST_SEQUENCES))
    elif not memory:
        allowed = largest(lambda batch: seconds(batch) <= tpot, 1024)
    return limited(min(allowed, memory), allowed, memory, requests.memory_limit)


def interference(requests: Requests, batch: int) -> dict[str, Any]:
    """Return a decode step alone, and one that carries a chunk of a prompt: weights cross memory once for both."""
    engine = requests.capacity.engine
    chunk = min(engine.max_num_batched_tokens, requests.prompt)
    alone, prompt = requests.decode(batch), requests.model.prefill(chunk)
    rate = requests.model.machine.bytes_per_second
    memory = alone.memory + prompt.memory - Fraction(min(alone.weight_bytes, prompt.weight_bytes)) / rate
    mixed = max(alone.compute + prompt.compute, memory, alone.sent + prompt.sent)
    return {
        "batch": batch, "chunk_tokens": chunk, "chunks": -(-requests.prompt // chunk),
        "alone_seconds": float(alone.full_overlap), "mixed_seconds": float(mixed),
        "slowdown": float(mixed / alone.full_overlap),
        "convention": "full overlap; the step that carries a chunk reads the weights once",
    }  # fmt: skip


def throughput(requests: Requests, batch: int) -> dict[str, Any]:
    """Return what a batch yields: tokens a second with and without the prompts, and the latency of both."""
    alone = requests.decode(batch).full_overlap
    return {
        "batch": batch, "tpot_seconds": float(requests.tpot(batch)), "tpot_alone_seconds": float(alone),
        "tpot_in_turns_seconds": float(requests.tpot(batch, mixed=False)),
        "requests_per_second": float(requests.rate(batch)),
        "output_tokens_per_second": float(requests.output * requests.rate(batch)),
        "decode_tokens_per_second": float(batch / alone), "ttft_seconds": float(requests.prefill().full_overlap),
    }  # fmt: skip


def unbounded(requests: Requests) -> dict[str, Any]:
    """Return the batch that memory alone limits, where no time per output token is asked for."""
    memory = requests.memory_batch
    return limited(memory, memory, memory, requests.memory_limit)


def goodput(requests: Requests, work: Workload, mixed: bool = True) -> dict[str, Any]:
    """Return the most requests a second that meet both targets; nothing waits in it."""
    first = requests.prefill().full_overlap
    meets = work.ttft is None or first <= positive(work.ttft, "--ttft")
    if work.tpot is None:
        found = unbounded(requests)
    else:
        found = under_target(requests, positive(work.tpot, "--tpot"), "mixed" if mixed else "turns")
    batch = int(found["batch"]) if meets else 0
    rate = requests.rate(batch, mixed) if batch else Fraction(0)
    kind = "prompts mixed into decode steps, a limit from above" if mixed else "prompts and decode steps taking turns"
    return {
        **found, "batch": batch, "ttft_seconds": float(first), "meets_ttft": meets,
        "requests_per_second": float(rate), "output_tokens_per_second": float(rate * requests.output),
        "limit": found["limit"] if meets else "none: the time to the first token",
        "convention": f"requests all alike, no waiting, every step at full overlap; {kind}",
    }  # fmt: skip


def offered(requests: Requests, work: Workload, replicas: int) -> dict[str, Any]:
    """Return requests in flight on each replica at an offered rate, by Little's law.

    Raises:
        RejectedError: more arrives than the replicas' bound sustains, so there is no stable average.
    """
    most = requests.memory_batch
    if not most:
        raise reject("--rate", work.rate, "not one request of this length fits", "shorten requests, or add memory")
    each = positive(work.rate, "--rate") / replicas
    capacity = requests.rate(most)
    batch = 1
    if each <= capacity:
        batch = 1 + largest(lambda b: requests.rate(b) < each, most) if requests.rate(1) < each else 1
    stay = requests.prefill().full_overlap + requests.output * requests.tpot(min(batch, most))
    flow = Flow(min(each, capacity), "request", offered_per_s=each, capacity_per_s=capacity)
    found = in_flight(flow, Stay(stay, "request"))
    return {
        "requests_per_second": float(each), "capacity_requests_per_second": float(capacity), "replicas": replicas,
        "load": float(each / capacity), "batch": batch, "residence_seconds": float(found.seconds),
        "in_flight": float(found.items),
        "convention": "Little's law on bounds: prompt and output at full overlap and no waiting, so in flight at the "
        "least",
    }  # fmt: skip


def pools(requests: Requests, work: Workload, replicas: int) -> dict[str, Any]:
    """Return prefill and decode on devices of their own: their ratio, the K/V that moves, and whether it pays.

    A prompt's K/V crosses the named link once; each device of a prefill replica sends what it holds.

    Raises:
        RejectedError: the link's rate is unknown.
    """
    wire = requests.model.machine.inside if work.link == "inside" else requests.model.machine.between
    found, engine = requests.capacity, requests.capacity.engine
    # pages of the prompt that a decode replica needs, on the device that holds most of them
    sent = sum(
        max(group.layers) * group.page_bytes
        * -(-(min(requests.prompt, group.window) if group.window else requests.prompt) // engine.block_size)
        for group in found.pool.groups
    )  # fmt: skip
    seconds = wire.seconds(sent)
    if seconds is None:
        raise reject("--link", work.link, wire.source, "declare the rate (--inside-gbs, --between-gbs)")
    first = requests.prefill().full_overlap
    if work.tpot is None:
        alone = unbounded(requests)
    else:
        alone = under_target(requests, positive(work.tpot, "--tpot"))
    mixed, turns = (goodput(requests, work, kind)["requests_per_second"] for kind in (True, False))
    data: dict[str, Any] = {
        "link": wire.to_data(), "transfer_bytes_per_device": sent, "transfer_seconds": float(seconds),
        "global_kv_bytes": global_kv_bytes(requests), "ttft_seconds": float(first + seconds), "decode_batch": alone,
        "mixed_requests_per_second": mixed, "turns_requests_per_second": turns,
        "convention": "replicas of equal size in both pools; the transfer is not overlapped with the prompt",
    }  # fmt: skip
    batch = int(alone["batch"])
    if not batch:
        return {**data, "ratio": None, "requests_per_second": 0.0, "pays": "no", "pools": None,
                "reason": REASONS["nothing"]}  # fmt: skip
    per_output = requests.output * requests.decode(batch).full_overlap / batch
    apart = 1 / (first + per_output)
    late = work.ttft is not None and first + seconds > positive(work.ttft, "--ttft")
    rate = Fraction(0) if late else apart
    data |= {
        "prefill_seconds_per_request": float(first), "decode_seconds_per_request": float(per_output),
        "ratio": float(first / per_output), "requests_per_second": float(rate),
        "pays": verdict(rate, mixed, turns), "pools": integers(replicas, first, per_output),
    }  # fmt: skip
    data["reason"] = REASONS["late" if late else data["pays"]]
    return data


REASONS = {
    "late": "the transfer takes the first token beyond its target",
    "yes": "apart, decode keeps a larger batch within its target than even perfectly mixed steps do",
    "against turns": "apart is ahead of prompts and decode steps taking turns, and behind perfectly mixed steps",
    "no": "by these bounds a replica that does both serves as many: the work is the same, and nothing else is saved",
    "nothing": "no batch decodes within the target and the memory",
}


def verdict(apart: Fraction, mixed: float, turns: float) -> str:
    """Return whether pools of their own pay, by requests a second of a replica's devices: yes, against turns, or no."""
    if apart > number(mixed, "mixed"):
        return "yes"
    return "against turns" if apart > number(turns, "turns") else "no"


def integers(replicas: int, first: Fraction, per_output: Fraction) -> dict[str, Any] | None:
    """Return the split of whole replicas that serves most, None where there is one replica alone."""
    if replicas < 2:
        return None
    rate, prefill = max((min(n / first, (replicas - n) / per_output), n) for n in range(1, replicas))
    return {"prefill": prefill, "decode": replicas - prefill, "requests_per_second": float(rate)}


def global_kv_bytes(requests: Requests) -> int:
    """Return the keys and values of one prompt, every head once and every row, without pages."""
    dtype, total = requests.capacity.engine.kv[0], 0
    for group in requests.model.architecture.groups:
        attention = group.layer.attention
        rows = [min(requests.prompt, group.window(layer) or requests.prompt) for layer in range(group.repeat)]
        total += payload_bytes(2 * sum(rows) * attention.kv_heads * attention.head_dim, dtype)
    return total
