"""What a checkpoint holds, how long it takes to write at least, and what its pause costs in both conventions.

A pause of C once in every elapsed cycle of I costs C / I; a pause of C after every I of useful work costs C / (I + C).
The transfer over the store's bandwidth is a lower bound of a pause that waits for it.
"""

from __future__ import annotations

import math
from typing import Any

from jaxcost.planning.run.budget import DAY
from jaxcost.planning.run.sheet import Unknown, figure

OMITTED = "manifests, metadata, temporary duplicates, headers of the format"
BOUND = "bytes over aggregate bandwidth: a lower bound of the save and of a pause that waits for it"


@figure("checkpoint", "bytes", convention="every stored parameter in the compute type", omitted=OMITTED)
def weights_bytes(parameters: Any, weight_bytes: Any) -> Any:
    """Weights alone."""
    return parameters * weight_bytes


@figure("checkpoint", "bytes", convention="what a checkpoint of the state policy holds: no gradients", omitted=OMITTED)
def resume_bytes(
    parameters: Any, resume_bytes_per_parameter: Any = None, scalar_bytes: Any = 0, ledger_resume_bytes: Any = None
) -> Any:
    """State that a restart needs."""
    if ledger_resume_bytes is not None:
        return ledger_resume_bytes
    if resume_bytes_per_parameter is None:
        return Unknown("the state policy depends on the shapes of the matrices: it needs a MODEL")
    return parameters * resume_bytes_per_parameter + scalar_bytes


@figure(
    "checkpoint",
    "bytes",
    convention="every object of the state policy in the first step, gradients included",
    omitted="activations, gathered weights, buffers",
)
def full_state_bytes(
    parameters: Any, state_bytes_per_parameter: Any = None, scalar_bytes: Any = 0, ledger_state_bytes: Any = None
) -> Any:
    """All training state of the whole model, one copy."""
    if ledger_state_bytes is not None:
        return ledger_state_bytes
    if state_bytes_per_parameter is None:
        return Unknown("the state policy depends on the shapes of the matrices: it needs a MODEL")
    return parameters * state_bytes_per_parameter + scalar_bytes


@figure("checkpoint", "bytes", convention="as `checkpoint` says: weights, resume or full", omitted=OMITTED)
def checkpoint_bytes(
    checkpoint: Any, weights_bytes: Any, resume_bytes: Any = None, full_state_bytes: Any = None
) -> Any:
    """One checkpoint of the plan."""
    found = {"weights": weights_bytes, "resume": resume_bytes, "full": full_state_bytes}[checkpoint]
    return found if found is not None else Unknown("the state policy depends on the shapes of the matrices")


@figure("checkpoint", "s", convention=BOUND, omitted="consistency, synchronisation, metadata, filesystem")
def transfer_seconds(checkpoint_bytes: Any, checkpoint_bandwidth: Any) -> Any:
    """Time to move one checkpoint."""
    return checkpoint_bytes / (checkpoint_bandwidth * 10**9)


@figure("checkpoint", "bytes", convention="checkpoints kept x stored copies", omitted=OMITTED)
def retained_bytes(checkpoint_bytes: Any, kept: Any, copies: Any) -> Any:
    """Storage that the checkpoints keep occupied."""
    return checkpoint_bytes * kept * copies


@figure("checkpoint", "ratio", convention="the interval is elapsed time, pause included: C / I")
def pause_fraction_elapsed(checkpoint_pause: Any, checkpoint_interval: Any) -> Any:
    """Pause over time, if the interval counts elapsed time."""
    return checkpoint_pause / checkpoint_interval


@figure("checkpoint", "ratio", convention="the interval is useful time between pauses: C / (I + C)")
def pause_fraction_useful(checkpoint_pause: Any, checkpoint_interval: Any) -> Any:
    """Pause over time, if the interval counts useful time."""
    return checkpoint_pause / (checkpoint_interval + checkpoint_pause)


@figure("checkpoint", "s", convention="useful time between two pauses, by the plan's own interval convention")
def useful_interval_seconds(checkpoint_interval: Any, checkpoint_pause: Any, interval_counts: Any) -> Any:
    """Work between two checkpoints."""
    return checkpoint_interval - checkpoint_pause if interval_counts == "elapsed" else checkpoint_interval


@figure("checkpoint", "checkpoints", convention="of healthy work, rounded up; none repeated after a failure")
def checkpoints_written(healthy_days: Any, useful_interval_seconds: Any) -> Any:
    """Checkpoints of the run."""
    return math.ceil(healthy_days * DAY / useful_interval_seconds)
