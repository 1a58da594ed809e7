"""Mistakes in reasoning from a cost model (0x0DB): one number taken for the whole, each met by what it leaves out."""

from __future__ import annotations

from typing import Any

from jaxcost.contracts.case import Case, build_case
from jaxcost.planning.expected import expected_fit
from jaxcost.planning.limits import within
from jaxcost.planning.machine import machine
from jaxcost.planning.roofline import points, total
from jaxcost.prediction import ledgers
from jaxcost.prediction.program import program
from jaxcost.reconciliation.rows import Report
from jaxcost.verify import recount
from jaxcost.verify.failures.common import (
    Failure,
    against,
    bundle,
    compare,
    counter,
    judged,
    reconciled,
    shifted,
    swapped,
)
from jaxcost.verify.failures.flops import rescaled
from jaxcost.verify.failures.guards import Guard
from jaxcost.verify.failures.subjects import decode, prefill, released, with_attention
from jaxcost.verify.holding import variant

COUNTERS = "reconciliation of counters"
TARGET, FRACTION = "h100", "0.75"
PAGES = "pages that an engine holds, its block tables left out"
TOKENS = "arguments of one call, as a checkpoint and an engine list them"


def alone(what: str) -> Guard:
    """Return the removal of all that stands beside one total of the arguments when a peak is predicted."""

    def without(original: Any) -> Any:
        def peak(prediction: Any, family: str) -> dict[str, Any]:
            held = prediction.value(what)
            return {**original(prediction, family), "lower": held, "expected": held, "upper": held}

        return peak

    return Guard("jaxcost.planning.expected:predicted_peak", without)


def fits_whole(case: Case, part: str) -> str:
    """Say whether a step fits a device on which one part of it does."""
    prediction = ledgers.predict(case)
    verdict = expected_fit(prediction, TARGET, (FRACTION,))
    if not within(prediction.value(part), verdict["limits"][FRACTION]):
        return f"without room for {part}"
    return {True: "fits", False: "does not fit", None: "not told"}[verdict["fits"][FRACTION]]


def _untimed(original: Any) -> Any:
    """Return roofline points without their traffic: arithmetic alone takes time."""

    def point(scope: str, phase: str, flops: int, size: int, machine: Any) -> Any:
        return original(scope, phase, flops, 0, machine)

    return point


def _step(rows: int, attention: str = "materialised") -> Any:
    """A training step of four sequences on one device, as one point of its roofline."""
    case = build_case(released(), {"phase": "training", "batch": 4, "seq": rows, "attention": attention})
    return total(points(program(case), machine(TARGET, case)))


def _fewer(less: Any, more: Any) -> str:
    """Say which of two steps takes longer at full overlap, the first of fewer FLOPs."""
    if less.flops >= more.flops:
        return "not the fewer FLOPs"
    return "faster" if less.overlapped_seconds < more.overlapped_seconds else "slower"


def _served(batch: int, past: int) -> Case:
    return build_case(released(), {"phase": "decode", "batch": batch, "past": past})


def _four_bits(case: Case) -> Case:
    """The case with its parameters as four-bit codes; the cache and all that is computed stay as they were."""
    objects = tuple(item.replaced(dtype="int4") for item in case.state.objects if item.role == "parameter")
    return case.replaced(state=case.state.replaced(parameter_dtype="int4", objects=objects))


def _quantised(believed: int | None = None) -> Report:
    """Arguments of a decode step with four-bit weights, as a walk adds them up, against what is believed."""
    case = _four_bits(decode())
    # Codes packed two a byte; the two-byte cache; one int32 token a sequence, and the position they write to.
    seen = sum(-(-t.scalars // 2) for t in recount.tensors(case, padded=True)) + recount.cache_bytes(case) + 4 * 2 + 4
    right = shifted("device", "argument_bytes", lambda _, n: n if believed is None else believed)
    return compare(case, bundle(case, [counter("device.argument_bytes", seen, "bytes", TOKENS)]), right)


def _engine(*reasons: tuple[int, str]) -> Report:
    """What an engine holds for the toy's two sequences of 8 visible rows: one page of 16 rows each."""
    case = decode()
    held = 2 * recount.cache_bytes(case)
    return compare(case, bundle(case, [counter("kv_cache.bytes", held, "bytes", PAGES, *reasons)]))


def _quartered(case: Case) -> int:
    return int(ledgers.predict(case).value("device.argument_bytes")) // 4


def _linear(case: Case) -> Any:
    """Pairwise work that grows with the rows, as if each query met one key."""
    return rescaled("scores", "values", over=case.workload.visible_tokens)(case)


def _all_heads(case: Case) -> Case:
    return variant(case, with_attention(case.architecture, kv_heads=4))


def failures() -> list[Failure]:
    """Return the six mistakes, with what each leaves out."""
    unfilled = recount.cache_bytes(decode())
    return [
        judged(
            "0x0DB/1",
            "the weights fit, so inference fits",
            "the cache and the buffers of a step have no room",
            "predicted peak against the device's memory",
            sound=lambda: fits_whole(_served(1, 1023), "parameters.bytes"),
            faulty=lambda: fits_whole(_served(256, 32767), "parameters.bytes"),
            passes="fits",
            wanted="does not fit",
            guard=alone("parameters.bytes"),
        ),
        judged(
            "0x0DB/2",
            "fewer FLOPs are taken for a shorter step",
            "scores that cross the memory boundary take longer than the work a blockwise kernel repeats",
            "roofline of the whole step",
            sound=lambda: _fewer(_step(2048), _step(4096)),
            faulty=lambda: _fewer(_step(4096), _step(4096, "blockwise")),
            passes="faster",
            wanted="slower",
            guard=Guard("jaxcost.planning.roofline:point", _untimed),
        ),
        reconciled(
            "0x0DB/3",
            "four-bit weights are said to quarter the memory of a step",
            "the cache, tokens and whatever is not quantised keep their type",
            COUNTERS,
            sound=_quantised,
            faulty=lambda: _quantised(_quartered(decode())),
        ),
        against(
            "0x0DB/4",
            "a blockwise kernel is said to make attention linear",
            "pairwise work grows with the rows instead of their square",
            "forward_equals_the_walk",
            lambda: prefill(attention="blockwise", attention_block=2),
            _linear,
        ),
        against(
            "0x0DB/5",
            "grouped K/V heads are taken for a matter of quality alone: the cache",
            "the cache is that of as many K/V as query heads",
            "cache_equals_the_walk",
            decode,
            swapped(_all_heads),
        ),
        against(
            "0x0DB/5b",
            "grouped K/V heads are taken for a matter of quality alone: the weights",
            "the projections are those of as many K/V as query heads",
            "parameters_equal_the_walk",
            prefill,
            swapped(_all_heads),
        ),
        against(
            "0x0DB/5c",
            "grouped K/V heads are taken for a matter of quality alone: what a step reads",
            "the K/V payload is that of as many K/V as query heads",
            "attention_moves_eight_payloads",
            decode,
            swapped(_all_heads),
        ),
        reconciled(
            "0x0DB/6",
            "a formula for the cache is taken for a serving model",
            "half-filled pages, block tables and shared prefixes have no row",
            COUNTERS,
            sound=lambda: _engine((unfilled, "rows of the last page of each sequence that hold no token")),
            faulty=_engine,
        ),
    ]
