"""The live peak: what bounds it, what opens it, what stands below it without deciding, and when XLA recomputes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from jaxcost.prediction.rematerialisation import RULES, limit_bytes, onset
from jaxcost.reconciliation.rows import Interval
from tests.reconciliation.recorded import named, report

CUDA = named("llama-3.1-8b_training_h100-8_", fsdp=8)
CPU = named("llama-3.1-8b_training_cpu-8_")


def memory(change: Callable[[dict[str, Any]], object]) -> Callable[[dict[str, Any]], object]:
    return lambda document: change(document["memory"])


def test_the_peak_of_a_recorded_step_is_bounded_and_its_classes_are_named() -> None:
    made = report(CUDA)
    row = made.row("live_peak_bytes")
    assert row is not None and isinstance(row.prediction, Interval)
    assert row.status == "bounded"
    assert str(row.prediction.maximum_width) == "2/5"
    below = {r.counter.partition(".")[2]: r for r in made.rows if r.counter.startswith("live_peak_bytes.")}
    assert sum(r.observation or 0 for r in below.values()) == row.observation
    assert {name for name, r in below.items() if r.status == "exact"} >= {"parameter", "saved"}
    assert {r.phase for r in made.rows if r.counter == "moment_bytes"} >= {"forward", "backward"}


@pytest.mark.parametrize("beyond", ["lower", "upper"])
def test_one_byte_outside_opens_the_row_and_the_report(beyond: str) -> None:
    row = report(CUDA).row("live_peak_bytes")
    assert row is not None and isinstance(row.prediction, Interval)
    for value, status in ((getattr(row.prediction, beyond), "bounded"), (None, "open")):
        seen = value if value is not None else getattr(row.prediction, beyond) + (1 if beyond == "upper" else -1)
        made = report(CUDA, memory(lambda m, seen=seen: m.update(live_peak_bytes=seen)))  # type: ignore[misc]
        changed = made.row("live_peak_bytes")
        assert changed is not None and changed.status == status
        assert (made.status == "open") == (status == "open")


def test_a_class_that_differs_is_said_and_decides_nothing() -> None:
    def move(m: dict[str, Any]) -> None:
        m["by_class_at_peak"]["saved"] -= 1
        m["by_class_at_peak"]["workspace"] += 1

    made, before = report(CUDA, memory(move)), report(CUDA)
    row = made.row("live_peak_bytes.saved")
    assert row is not None and (row.verdict, row.status, row.residual) == ("differs", "unmeasured", -1)
    assert made.status == before.status
    total = made.row("live_peak_bytes")
    assert total is not None and total.status == "bounded"


def test_required_live_and_fragmentation_stand_apart() -> None:
    made = report(CUDA)
    values = {name: made.row(name) for name in ("required_bytes", "live_peak_bytes", "fragmentation_bytes")}
    required, live, gaps = (row.observation if row else None for row in values.values())
    assert required is not None and live is not None and gaps is not None
    assert required == live + gaps
    for name in ("required_bytes", "fragmentation_bytes"):
        row = values[name]
        assert row is not None and row.status == "unmeasured" and "packed" in row.reason


def test_where_no_policy_holds_the_row_is_unmeasured_with_its_reason() -> None:
    made = report(CPU)
    row = made.row("live_peak_bytes")
    assert row is not None and row.status == "unmeasured" and row.prediction is None and row.reason
    assert not [r for r in made.rows if r.counter.startswith("live_peak_bytes.")]
    assert made.row("xla_rematerialisation.onset") is None  # nothing recomputes on the CPU


def second(instructions: int) -> Callable[[dict[str, Any]], object]:
    def change(document: dict[str, Any]) -> None:
        document["rematerialisation"]["second_compile"] = {
            "status": "compiled", "refusal": None, "remat_instructions": instructions, "excess_flops": 7,
            "required_bytes": 10**12, "names": [],
        }  # fmt: skip

    return change


@pytest.mark.parametrize(("instructions", "status"), [(0, "exact"), (3, "open")])
def test_onset_predicted_against_a_second_compile(instructions: int, status: str) -> None:
    """The recorded step is far below the limit: that XLA would recompute it is a miss, not a footnote."""
    made = report(CUDA, second(instructions))
    row = made.row("xla_rematerialisation.onset")
    assert row is not None and (row.prediction, row.observation, row.status) == (0, int(instructions > 0), status)
    (finding,) = [f for f in made.findings if f.kind == "xla rematerialisation"]
    assert ("in silence" in finding.text) == (instructions > 0)
    assert "still above the device's" in finding.text


def test_without_a_second_compile_onset_is_no_verdict_on_the_report() -> None:
    row = report(CUDA).row("xla_rematerialisation.onset")
    assert row is not None and (row.observation, row.verdict) == (None, "no second compile")


def test_the_limit_by_hand() -> None:
    """An H100 of 84,942,979,072 bytes, 4,194,222,084 of arguments, all results but a loss and a table of 37 donated.

    The compiler printed 64,766,244,141, its limit with the results of 4,194,091,320 added.
    """
    limit = limit_bytes(RULES["cuda"], 84_942_979_072, 4_194_222_084, 4_194_091_320, 4_194_091_012)
    assert limit == 64_766_244_141 - 4_194_091_320


@pytest.mark.parametrize(
    ("lower", "upper", "starts"), [(861, 900, True), (860, 900, None), (300, 480, False), (300, 481, None)]
)
def test_onset_is_uncertain_between_the_planned_and_what_may_be_believed(
    lower: int, upper: int, starts: bool | None
) -> None:
    """80% of 1,125 is 900, less 100 of arguments 800, 95% of it 760; the pass may believe twice what is planned."""
    found = onset("cuda", 1125, arguments=100, results=0, aliased=0, lower=lower, upper=upper)
    assert found is not None and (found.limit_bytes, found.starts) == (760, starts)
    assert onset("tpu", 1125, arguments=100, results=0, aliased=0, lower=lower, upper=upper) is None
