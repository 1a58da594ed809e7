"""Faults in counting activations (table 0x04J): what is saved, when it lives, whose memory it is."""

from __future__ import annotations

from typing import Any

from jaxcost.contracts.case import Case
from jaxcost.contracts.liveness import Liveness
from jaxcost.prediction import ledgers
from jaxcost.reconciliation.rows import Report
from jaxcost.verify.failures.common import (
    Failure,
    against,
    bundle,
    compare,
    counter,
    reconciled,
    rejected,
    shifted,
    swapped,
    with_totals,
)
from jaxcost.verify.failures.guards import VISIBILITY
from jaxcost.verify.failures.subjects import EVENTS, prefill, toy, train
from jaxcost.verify.holding import variant
from jaxcost.verify.strategies import altered

COUNTERS = "reconciliation of counters"
SAVED = "saved_activations_equal_the_list"
# Category maxima of EVENTS: 448 bytes of tensors and 128 of workspace, at different events; together 448 at most.
PEAK, SUM, MAXIMA = 448, 576, 448 + 128
PAYLOAD = "tensor payloads that are live; no allocator, no device"


def _live() -> Case:
    return prefill().replaced(liveness=Liveness.from_data(EVENTS))


def _believed(peak: int) -> Report:
    """A prediction of `peak` bytes against events replayed by hand."""
    case, seen = _live(), counter("activations.peak_bytes", PEAK, "bytes", PAYLOAD)

    def predict(asked: Case) -> Any:
        return with_totals(ledgers.predict(asked), "activations", peak_bytes=peak)

    return compare(case, bundle(case, counters=[seen]), predict)


def _observed(value: int, *reasons: tuple[int, str]) -> Report:
    """A peak of `value` bytes as some instrument saw it."""
    case = _live()
    return compare(case, bundle(case, counters=[counter("activations.peak_bytes", value, "bytes", PAYLOAD, *reasons)]))


def _invisible() -> Any:
    seen = counter("activations.peak_bytes", PEAK, "bytes", PAYLOAD)
    return bundle(_live(), counters=[{key: value for key, value in seen.items() if key != "visibility"}])


def _stream(case: Case) -> int:
    """Bytes of one [b, s, d] tensor in two-byte elements, of one microbatch."""
    return 2 * case.workload.batch * case.workload.new_tokens * case.architecture.hidden_size


def _pairs(case: Case) -> int:
    """Bytes of one [b, h, s, t] tensor in two-byte elements."""
    return 2 * case.workload.batch * 4 * case.workload.new_tokens**2


def _classic(case: Case, _: int) -> int:
    """34 b s h + 5 b a s^2 a layer: multi-head attention, GELU of width 4 h, byte masks (arXiv:2205.05198)."""
    return 2 * (34 * _stream(case) // 2 + 5 * _pairs(case) // 2)


def _dropped() -> Any:
    rates = toy().dropout.replaced(embedding=0.1, attention=0.1, residual=0.1)
    return train(altered(toy(), dropout=rates), dropout=True, remat="block")


def _less_replay(case: Case) -> Any:
    """The replay of whole layers answered for that of attention alone."""
    return variant(case, remat="block") if case.execution.remat == "attention" else case


def failures() -> list[Failure]:
    """Return the rows of table 0x04J."""
    return [
        reconciled(
            "0x04J/1",
            "every tensor that was ever made is summed",
            "lifetimes are ignored, the peak is too high",
            COUNTERS,
            sound=lambda: _believed(PEAK),
            faulty=lambda: _believed(SUM),
        ),
        against(
            "0x04J/2",
            "the shared operand of q, k and v is counted at each of its uses",
            "one storage is counted three times",
            SAVED,
            train,
            shifted("activations", "saved_bytes", lambda case, n: n + 2 * 2 * _stream(case)),
        ),
        against(
            "0x04J/3",
            "every output of the forward pass is called an activation",
            "scores, which no backward formula needs, are saved too",
            SAVED,
            train,
            shifted("activations", "saved_bytes", lambda case, n: n + 2 * _pairs(case)),
        ),
        against(
            "0x04J/4",
            "34 b s h + 5 b a s^2 is taken for the memory of a Llama layer",
            "a coefficient is attached to another graph",
            SAVED,
            train,
            shifted("activations", "saved_bytes", _classic),
        ),
        against(
            "0x04J/5",
            "probabilities are divided by the group size because K/V heads are fewer",
            "query heads own the quadratic state",
            SAVED,
            train,
            shifted("activations", "saved_bytes", lambda case, n: n - 2 * _pairs(case) // 2),
        ),
        reconciled(
            "0x04J/6",
            "what hooks on saved tensors list is read as the peak",
            "temporaries, gradients and workspace are left out",
            COUNTERS,
            sound=lambda: _observed(PEAK),
            faulty=lambda: _observed(PEAK - 256),  # scores and workspace die before backward
        ),
        reconciled(
            "0x04J/7",
            "the maxima of tensors and of workspace are added",
            "they stand at different events",
            COUNTERS,
            sound=lambda: _believed(PEAK),
            faulty=lambda: _believed(MAXIMA),
        ),
        reconciled(
            "0x04J/8",
            "reserved bytes are equated with allocated ones",
            "a caching allocator keeps segments that no tensor uses",
            COUNTERS,
            sound=lambda: _observed(PEAK + 64, (64, "segments reserved and not in use")),
            faulty=lambda: _observed(PEAK + 64),
        ),
        rejected(
            "0x04J/9",
            "a snapshot of one allocator is equated with the use of the device",
            "nobody says which allocations the instrument could see",
            "validation of the observation",
            sound=lambda: bundle(_live(), counters=[counter("activations.peak_bytes", PEAK, "bytes", PAYLOAD)]),
            faulty=_invisible,
            guard=VISIBILITY,
        ),
        against(
            "0x04J/10",
            "a replay of dropout has no key to draw its masks from",
            "the replay differs from the forward pass",
            "inputs_equal_the_walk",
            _dropped,
            swapped(lambda case: variant(case, dropout=None)),
        ),
        against(
            "0x04J/11",
            "replay of the pairwise products is called replay of whole layers",
            "another region and other work",
            "replay_grows_with_the_region",
            train,
            swapped(_less_replay),
        ),
        against(
            "0x04J/12",
            "replay is left out and only memory reported",
            "the work that pays for the memory is hidden",
            "replay_grows_with_the_region",
            train,
            shifted("flops", "recompute", lambda case, n: 0),
        ),
        against(
            "0x04J/13",
            "global activations are divided by the tensor degree",
            "liveness is mixed with ownership",
            SAVED,
            lambda: train(mesh={"tensor": 2}),
            shifted("activations", "saved_bytes", lambda case, n: n // case.execution.degree("tensor")),
        ),
    ]
