"""What a serving plan is asked: the engine's settings under the names vLLM gives them, the workload, the targets.

A setting that is not given and has no default is unknown, not zero: the plan says which of its answers become limits.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import Field

from jaxcost.contracts.dtypes import BITS
from jaxcost.contracts.errors import Problem
from jaxcost.contracts.record import Name, Record

Tokens = Annotated[int, Field(gt=0, le=2**31)]
Degree = Annotated[int, Field(gt=0, le=2**20)]
Bytes = Annotated[int, Field(ge=0, le=2**60)]
Positive = Annotated[float, Field(gt=0, le=1e30)]
Share = Annotated[float, Field(gt=0, le=1)]

# stored type of a K/V scalar, and the scale bytes of one (token, head, side)
KV_TYPES: dict[str, tuple[str, int]] = {
    "bf16": ("bf16", 0), "fp16": ("fp16", 0), "fp8": ("fp8_e4m3", 0), "fp8_e4m3": ("fp8_e4m3", 0),
    "fp8_e5m2": ("fp8_e5m2", 0), "int8_per_token_head": ("int8", 4), "fp8_per_token_head": ("fp8_e4m3", 4),
}  # fmt: skip
WEIGHT_TYPES = {"bf16": "bf16", "fp8": "fp8_e4m3", "int8": "int8", "int4": "int4"}


class Engine(Record):
    """One replica of the engine: degrees, memory settings, page settings.

    `activation_bytes` is the profiled peak of activations of one device, `other_bytes` what lives outside of the
    framework's allocator there (communication buffers, contexts, captured graphs). `rotary_rows` are the positions of
    the rotary table that the engine keeps beside the weights. `hybrid` keeps windowed layers in page groups of their
    own; without it they keep every row.
    """

    tensor: Degree = 1
    pipeline: Degree = 1
    pipeline_layers: tuple[Degree, ...] = ()
    max_model_len: Tokens = 8192
    gpu_memory_utilization: Share = 0.9
    block_size: Annotated[int, Field(gt=0, le=65536)] = 16
    kv_cache_dtype: Literal[
        "auto", "bf16", "fp16", "fp8", "fp8_e4m3", "fp8_e5m2", "int8_per_token_head", "fp8_per_token_head"
    ] = "auto"
    weight_dtype: Literal["bf16", "fp8", "int8", "int4"] = "bf16"
    weight_scales: Name | None = None
    arithmetic: Literal["bf16", "fp8", "int8"] = "bf16"
    max_num_batched_tokens: Tokens = 8192
    max_num_seqs: Tokens | None = None
    activation_bytes: Bytes | None = None
    other_bytes: Bytes | None = None
    rotary_rows: Tokens | None = None
    device_memory_bytes: Annotated[int, Field(gt=0, le=2**60)] | None = None
    vocabulary_multiple: Degree = 64
    hybrid: bool = True

    def problems(self) -> Iterable[Problem]:
        if (self.weight_dtype != "bf16") != (self.weight_scales is not None):
            rule = f"weights in {self.weight_dtype} and scales {self.weight_scales or 'none'} do not go together"
            remedy = "quantised weights name their scales (tensor, channel or group:N); bf16 weights have none"
            yield Problem("weight_scales", self.weight_scales, rule, remedy)
        if self.weight_scales is not None and parse_scales(self.weight_scales) is None:
            rule = "not tensor, channel or group:N, with an element type behind it where it is not fp32"
            yield Problem("weight_scales", self.weight_scales, rule, "write for example channel, or group:128:fp16")
        if self.pipeline_layers and len(self.pipeline_layers) != self.pipeline:
            rule = f"{len(self.pipeline_layers)} entries for {self.pipeline} stages"
            yield Problem("pipeline_layers", list(self.pipeline_layers), rule, "give one entry a stage")

    @property
    def kv(self) -> tuple[str, int]:
        """The stored type of a K/V scalar, and the scale bytes of one (token, head, side)."""
        return KV_TYPES["bf16" if self.kv_cache_dtype == "auto" else self.kv_cache_dtype]


class Workload(Record):
    """Requests of one shape, all alike: prompt and output tokens, requests a second, and the two latency targets."""

    prompt: Tokens | None = None
    output: Tokens | None = None
    rate: Positive | None = None
    ttft: Positive | None = None
    tpot: Positive | None = None
    batch: Tokens | None = None
    link: Literal["inside", "between"] | None = None

    def problems(self) -> Iterable[Problem]:
        if (self.prompt is None) != (self.output is None):
            yield Problem("output", self.output, "a request has a prompt and an output", "give both or neither")
        for name in ("rate", "ttft", "tpot", "link"):
            if getattr(self, name) is not None and self.prompt is None:
                rule = "it is about requests, and no request is described"
                yield Problem(name, getattr(self, name), rule, "give --prompt and --output")


class Speculation(Record):
    """Draft tokens a verification, the chance that each is accepted, and who drafts: a model, or heads of this one."""

    tokens: Annotated[int, Field(gt=0, le=64)]
    acceptance: Annotated[float, Field(ge=0, le=1)]
    draft: Name | None = None
    next_n: Annotated[int, Field(ge=2, le=65)] | None = None

    def problems(self) -> Iterable[Problem]:
        if (self.draft is None) == (self.next_n is None):
            rule = "either a draft model or multi-token heads write the draft"
            yield Problem("draft", self.draft, rule, "give --draft MODEL, or --next-n N")
        if self.next_n is not None and self.tokens != self.next_n - 1:
            rule = f"{self.next_n} tokens a step are one of the model and {self.next_n - 1} of its heads"
            yield Problem("tokens", self.tokens, rule, f"write {self.next_n - 1}, or leave --speculate out")


class Lifetime(Record):
    """A model trained for some tokens against another one, and the utilisation that each phase reaches."""

    against: Name
    train_tokens: Positive
    against_train_tokens: Positive
    train_seq: Tokens = 4096
    train_utilization: Share | None = None
    prefill_utilization: Share | None = None
    decode_utilization: Share | None = None
    utilization: float | None = None
    volume: Positive | None = None
    price: Positive | None = None
    currency: Name | None = None
    price_date: Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}$")] | None = None
    price_includes: Name | None = None

    def problems(self) -> Iterable[Problem]:
        yield from one_utilisation(self.utilization)
        for name in ("train_utilization", "prefill_utilization", "decode_utilization"):
            if getattr(self, name) is None:
                rule = "unknown: training, prefill and decode are bound by different resources"
                yield Problem(name, None, rule, "state a measured share of the peak for this phase")
        parts = {name: getattr(self, name) for name in ("price", "currency", "price_date", "price_includes")}
        if any(value is not None for value in parts.values()):
            for name, value in parts.items():
                if value is None:
                    rule = "a price has a currency, a date and a boundary of what it includes"
                    yield Problem(name, None, rule, "give all four, or none")


def one_utilisation(value: float | None) -> tuple[Problem, ...]:
    """Return the problem of one utilisation that is meant for every phase."""
    if value is None:
        return ()
    rule = "one utilisation for training, prefill and decode: decode is bound by memory, the others mostly are not"
    return (Problem("utilization", value, rule, "state one for each phase"),)


def parse_scales(text: str) -> tuple[int | None, str] | None:
    """Return (group length along the input axis, element type) of a text; 0 for channel, None for tensor."""
    grain, _, rest = text.partition(":")
    length, dtype = None if grain == "tensor" else 0, rest or "fp32"
    if grain == "group":
        digits, _, given = rest.partition(":")
        if not digits.isascii() or not digits.isdigit() or not 0 < int(digits[:9]) <= 65536 or len(digits) > 5:
            return None
        length, dtype = int(digits), given or "fp32"
    elif grain not in ("tensor", "channel"):
        return None
    return (length, dtype) if dtype in BITS and dtype in ("fp32", "fp16", "bf16", "fp8_e4m3") else None
