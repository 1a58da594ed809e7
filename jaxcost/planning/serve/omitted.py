"""What a serving plan leaves out: shown with every plan, because a fit and a formula are neither a service."""

from __future__ import annotations

OMITTED = (
    "fragmentation: pages are whole, and half-filled last pages hold no other request's tokens",
    "prefix sharing, eviction, preemption and recomputation of requests",
    "captured graphs, library workspaces and allocator reserve, unless --other-bytes holds them",
    "the scheduler: order of requests, batching delay, padding to captured sizes",
    "sampling, tokenizer, detokenizer, stop conditions, grammar",
    "network, load balancer, retries, authentication, streaming to clients",
    "launches, dependencies between kernels, and kernels that reach less than the rates",
    "uneven lengths, bursts and waiting: requests are alike and evenly spaced",
    "adapters, encoders and other inputs beside tokens",
    "quality: of quantised weights, of a quantised cache, of a draft",
)
ANSWERS = (
    (
        "the weights fit, so inference fits",
        "weights are one of four claims on memory: profiled activations, memory outside of the allocator and pages of "
        "every request in flight stand beside them; what is left after them decides",
    ),
    (
        "a cache formula is a serving model",
        "it counts pages; of latency, waiting, sharing, eviction and failure it says nothing, so the list of what is "
        "left out stands with it",
    ),
)
