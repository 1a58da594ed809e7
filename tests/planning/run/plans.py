"""The scenario that the plans of these tests start from."""

from __future__ import annotations

from typing import Any

from jaxcost.planning.run import RunPlan, plan_run, read_inputs

# 256 H100 for 90 days at 40% with a quarter kept back, a model of 30e9 parameters: assigned numbers, no measured run.
SCENARIO: dict[str, Any] = {
    "devices": 256, "device": "h100", "peak": 989, "days": 90, "mfu": "0.40", "reserve": "0.25",
    "parameters": 30_000_000_000, "tokens": "3.28e12", "batch_tokens": 4_000_000, "checkpoint": "full",
    "checkpoint_bandwidth": 20, "checkpoint_pause": 60, "checkpoint_interval": 1800, "read_days": 67,
    "price": {"value": 6, "low": 3, "high": 10, "date": "2026-10"}, "currency": "units", "job_mtbf_hours": 6,
    "restart_seconds": 600, "case": {"precision": "bf16_master_adam"},
}  # fmt: skip
# A catalogue model with a mesh, so that its ledgers answer for memory and transfers.
MODEL: dict[str, Any] = {
    "devices": 32, "device": "h100", "days": 30, "mfu": "0.40", "reserve": "0.25", "model": "llama-3.2-1b",
    "seq": 4096, "micro_batch": 2, "accumulate": 4, "mesh": {"data": 2, "fsdp": 4, "tensor": 4},
    "case": {"remat": "block"},
}  # fmt: skip


def scenario(**changes: Any) -> RunPlan:
    """The scenario with some fields changed; None takes one away."""
    return _plan({**SCENARIO, **changes})


def with_model(**changes: Any) -> RunPlan:
    """The plan of a catalogue model with some fields changed."""
    return _plan({**MODEL, **changes})


def _plan(data: dict[str, Any]) -> RunPlan:
    return plan_run(read_inputs({name: value for name, value in data.items() if value is not None}))
