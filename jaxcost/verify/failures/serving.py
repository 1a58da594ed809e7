"""Faults in a serving plan: a fit read off the weights, a capacity without what it leaves out, one rate for all."""

from __future__ import annotations

from typing import Any

from jaxcost.contracts.errors import RejectedError
from jaxcost.observation.targets import parse_target
from jaxcost.planning.serve import speculative
from jaxcost.planning.serve.capacity import capacity
from jaxcost.planning.serve.inputs import Engine, Lifetime, Workload
from jaxcost.planning.serve.latency import Model
from jaxcost.planning.serve.load import Requests, offered
from jaxcost.planning.serve.pages import KeptLayer, groups_of, pool
from jaxcost.verify.failures.common import Failure, judged, rejected
from jaxcost.verify.failures.guards import Guard, emptied
from jaxcost.verify.failures.subjects import released, toy

SERVE = "jaxcost.planning.serve"
PAGE = 2 * 16 * 2 * 64 * 2  # 16 tokens of two heads of 64 in two bytes, keys and values


def _true(original: Any) -> Any:
    """Return a property that holds of everything."""
    return property(lambda _: True)


def _starts(longest: int) -> str:
    """Say whether the engine starts on a device a little larger than the weights."""
    settings = Engine(
        max_model_len=longest, gpu_memory_utilization=1.0, device_memory_bytes=1_050_000_000, activation_bytes=0,
        other_bytes=0, rotary_rows=longest,
    )  # fmt: skip
    found = capacity(released(), settings, parse_target("h100", "target"))
    assert found.budget.weights[0].total < found.budget.usable
    return "starts" if found.starts else "does not start"


def _claimed(**given: Any) -> str:
    """Say what a number of tokens is called."""
    found = capacity(released(), Engine(**given), parse_target("h100", "target"))
    return "an upper limit" if found.unseen else "a capacity"


def _pool(requests: int) -> str:
    """Say whether a pool of windowed and full layers holds so many requests of 4096 tokens."""
    layers = [KeptLayer(PAGE, window) for _ in range(4) for window in (512, 0)]
    found = pool(groups_of(layers), [4 * PAGE * 1024], 16, 512)
    return "held" if requests <= found.concurrency(4096) else "does not fit"


def _offered(rate: float) -> Any:
    model = Model(released(), Engine(), parse_target("h100", "target"))
    requests = Requests(model, capacity(released(), model.engine, model.target), 512, 64)
    return offered(requests, Workload(prompt=512, output=64, rate=rate), 1)


def _life(**changes: Any) -> Any:
    sound = {
        "against": "llama-3.1-70b", "train_tokens": 15e12, "against_train_tokens": 1e12, "train_utilization": 0.4,
        "prefill_utilization": 0.4, "decode_utilization": 0.02,
    }  # fmt: skip
    return Lifetime.from_data({**sound, **changes}, "lifetime")


def _vocabularies(drafter: Any) -> None:
    problems = speculative.other_vocabulary(released(), drafter, "draft")
    if problems:
        raise RejectedError(problems)


def failures() -> list[Failure]:
    """Return the rows about serving."""
    measured = {"activation_bytes": 10**9, "other_bytes": 10**9, "rotary_rows": 32768}
    return [
        judged(
            "0x0DB/1b",
            "the weights fit, so a replica is said to serve its longest request",
            "no page is left for the request",
            "whether one request of the longest length fits",
            sound=lambda: _starts(4096),
            faulty=lambda: _starts(32768),
            passes="starts",
            wanted="does not start",
            guard=Guard(f"{SERVE}.capacity:Capacity.starts", _true),
        ),
        judged(
            "0x0DB/6b",
            "pages over a model without profiled activations are taken for what a server holds",
            "what the engine measures at its start is counted as nothing",
            "what is not given",
            sound=lambda: _claimed(**measured),
            faulty=_claimed,
            passes="a capacity",
            wanted="an upper limit",
            guard=Guard(f"{SERVE}.capacity:UNSEEN", emptied),
        ),
        judged(
            "0x09G/10b",
            "the bytes of a cache with windows are divided as if its layers shared one table of pages",
            "more requests are admitted than the groups hold",
            "groups of layers by the published formula",
            sound=lambda: _pool(3),
            faulty=lambda: _pool(4),
            passes="held",
            wanted="does not fit",
            guard=Guard(f"{SERVE}.pages:Pool.request_blocks", lambda _: lambda self, tokens: tokens // 16),
        ),
        rejected(
            "caveat/70",
            "one utilisation stands for training, prefill and decode",
            "decode is costed as if arithmetic bound it",
            "utilisations by phase",
            sound=_life,
            faulty=lambda: _life(utilization=0.4),
            guard=f"{SERVE}.inputs:one_utilisation",
        ),
        rejected(
            "caveat/71",
            "requests arrive faster than a replica's bound serves them",
            "a queue without a stable average is given a number in flight",
            "Little's law",
            sound=lambda: _offered(1.0),
            faulty=lambda: _offered(1e6),
            guard="jaxcost.planning.queue:_overload",
        ),
        rejected(
            "caveat/72",
            "a draft model with another vocabulary proposes the tokens",
            "accepted tokens are not the model's",
            "the two vocabularies",
            sound=lambda: _vocabularies(released()),
            faulty=lambda: _vocabularies(toy()),
            guard=f"{SERVE}.speculative:other_vocabulary",
        ),
        rejected(
            "caveat/73",
            "weights are quantised and their scales left out",
            "codes are counted, what turns them into numbers is not",
            "settings that go together",
            sound=lambda: Engine.from_data({"weight_dtype": "int8", "weight_scales": "channel"}),
            faulty=lambda: Engine.from_data({"weight_dtype": "int8"}),
            guard=f"{SERVE}.inputs:Engine.problems",
        ),
        rejected(
            "caveat/74",
            "a lifetime is priced without a date and a boundary",
            "nobody can say what the number paid for",
            "parts of a price",
            sound=lambda: _life(price=3.0, currency="USD", price_date="2026-03-01", price_includes="accelerators"),
            faulty=lambda: _life(price=3.0, currency="USD"),
            guard=f"{SERVE}.inputs:Lifetime.problems",
        ),
    ]
