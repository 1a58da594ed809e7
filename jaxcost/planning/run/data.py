"""The path that feeds the run: stored bytes, the average rate, the burst of one step, batches in flight.

A small average does not make a fast loader: a step's batch has to be there when the step begins.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

from jaxcost.planning.queue import Flow, Stay, in_flight
from jaxcost.planning.run.budget import DAY
from jaxcost.planning.run.sheet import Unknown, figure

OMITTED = "metadata, small objects, parsing, decompression, shuffling, repeated passes, contention"


@figure(
    "data", "bytes", convention="token ids as stored, each read once", omitted="raw text, other versions, manifests"
)
def dataset_bytes(each_processed_tokens: Any, token_bytes: Any) -> Any:
    """Token ids of the run."""
    return sum(each_processed_tokens) * token_bytes


@figure(
    "data",
    "bytes/s",
    convention="stored bytes over the days of reading: healthy days, or those declared",
    omitted=OMITTED,
)
def read_bytes_per_s(dataset_bytes: Any, read_days: Any = None, healthy_days: Any = None) -> Any:
    """Average rate of reading."""
    days = read_days if read_days is not None else healthy_days
    return Unknown("not given: read_days") if days is None else dataset_bytes / (days * DAY)


@figure("data", "bytes", scope="step", staged=True, convention="positions of a step x stored bytes of a token id")
def step_bytes(step_positions: Any, token_bytes: Any) -> Any:
    """Token ids of one step."""
    return step_positions * token_bytes


@figure("data", "sequences/s", scope="stage", staged=True, convention="healthy steps", omitted=OMITTED)
def sequences_per_s(step_positions: Any, seq: Any, step_seconds: Any) -> Any:
    """Sequences to be found and assembled."""
    return step_positions / seq / step_seconds


@figure(
    "data",
    "bytes/s",
    scope="stage",
    staged=True,
    omitted=OMITTED,
    convention="a step's token ids within one loader latency: what the path carries when nothing is fetched ahead",
)
def burst_bytes_per_s(step_bytes: Any, loader_seconds: Any) -> Any:
    """Rate while one batch is delivered."""
    return step_bytes / loader_seconds


@figure(
    "data",
    "batches",
    scope="stage",
    staged=True,
    convention="Little's law: steps a second x seconds of one batch in the path, rounded up",
    omitted="variation of the latency: a tail needs more",
)
def batches_in_flight(step_seconds: Any, loader_seconds: Any) -> Any:
    """Batches to keep in flight so that no step waits on average."""
    flow, stay = Flow(1 / Fraction(step_seconds), "batch"), Stay(loader_seconds, "batch")
    return math.ceil(in_flight(flow, stay).items)
