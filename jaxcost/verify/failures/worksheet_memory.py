"""A resource plan that is wrong about memory or work (the closing worksheet): terms divided, left out or counted twice.

The rows of the list are numbered as they stand in it; those about rates and about runs have modules of their own.
"""

from __future__ import annotations

from typing import Any

from jaxcost.catalog import from_huggingface
from jaxcost.contracts.case import Case, build_case
from jaxcost.prediction import ledgers
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
    rejected,
    shifted,
    tensor_entries,
)
from jaxcost.verify.failures.flops import multiplied, six_nd
from jaxcost.verify.failures.guards import UNITS
from jaxcost.verify.failures.ownership import role_bytes, steady_state, with_changes
from jaxcost.verify.failures.reasoning import alone, fits_whole
from jaxcost.verify.failures.subjects import decode, prefill, released, train

COUNTERS = "reconciliation of counters"
GIB = 2**30


def _experts(count: int) -> Report:
    """Stored tensors of a layer whose MLP stands `count` times, against a prediction of the one that a token uses."""
    case = prefill()
    entries = tensor_entries(case)
    copies = [
        {**entry, "name": name, "alias": name}
        for expert in range(1, count)
        for entry in entries
        if "/mlp/" in entry["name"]
        for name in [f"{entry['name']}/expert{expert}"]
    ]
    return compare(case, bundle(case, tensors=[*entries, *copies]))


def _config(**experts: int) -> Any:
    """A released config of a dense family, with what else stands in the file."""
    return from_huggingface(
        {
            "model_type": "llama", "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 4,
            "num_key_value_heads": 2, "intermediate_size": 12, "vocab_size": 16, "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0, "max_position_embeddings": 64, "tie_word_embeddings": True, "hidden_act": "silu",
            "attention_bias": False, "mlp_bias": False, **experts,
        }
    )  # fmt: skip


def _cached(value: int, unit: str) -> Report:
    """A counter of the toy's cache, at a context whose keys and values take one GiB."""
    case = decode(batch=1, past=2**25 - 1)
    assert recount.cache_bytes(case) == GIB
    return compare(case, bundle(case, [counter("kv_cache.bytes", value, unit, "payload of keys and values")]))


def _trained(batch: int, rows: int) -> Case:
    return build_case(released(), {"phase": "training", "batch": batch, "seq": rows})


def failures() -> list[Failure]:
    """Return the rows of the worksheet that are about memory and work."""
    return [
        reconciled(
            "worksheet/3",
            "the matrices that one token uses are taken for all that is stored",
            "experts that are not active have no room",
            "reconciliation of stored tensors",
            sound=lambda: _experts(1),
            faulty=lambda: _experts(4),
        ),
        rejected(
            "worksheet/3b",
            "a config with experts is read as the dense model of its other keys",
            "total and active parameters come out alike",
            "import of a released config",
            sound=_config,
            faulty=lambda: _config(num_local_experts=8, num_experts_per_tok=2),
            guard="jaxcost.catalog.huggingface:_check_unread",
        ),
        against(
            "worksheet/6",
            "6 P T is taken for exact at long context",
            "pairwise work that exceeds the projections is missing",
            "training_is_six_n_d",
            lambda: train(batch=1, seq=64),
            six_nd(False, multiplied),
        ),
        against(
            "worksheet/7",
            "replay is charged twice",
            "the replayed region counts as executed work and again as a penalty on it",
            "replay_grows_with_the_region",
            train,
            shifted("flops", "recompute", lambda case, n: 2 * n),
        ),
        against(
            "worksheet/8",
            "every memory term is divided by the number of devices",
            "vectors that are replicated lose a half",
            "owned_state_equals_the_walk",
            lambda: train(mesh={"fsdp": 2}),
            role_bytes(lambda case, role, n: ledgers.predict(case).ledgers["state"].totals["by_role"][role] // 2),
        ),
        against(
            "worksheet/9",
            "gathered weights are left out of a sharded step",
            "arrays that stand whole for a while have no room",
            "gathered_groups_equal_the_walk",
            lambda: train(mesh={"fsdp": 2}),
            with_changes(steady_state),
        ),
        judged(
            "worksheet/9b",
            "the buffers of a step are left out: what is stored between steps fits, so training fits",
            "saved activations and workspace have no room",
            "predicted peak against the device's memory",
            sound=lambda: fits_whole(_trained(1, 512), "device.argument_bytes"),
            faulty=lambda: fits_whole(_trained(64, 4096), "device.argument_bytes"),
            passes="fits",
            wanted="does not fit",
            guard=alone("device.argument_bytes"),
        ),
        reconciled(
            "worksheet/10",
            "GiB are compared with bytes",
            "a number of one unit stands where another is predicted",
            COUNTERS,
            sound=lambda: _cached(GIB, "bytes"),
            faulty=lambda: _cached(GIB, "GiB"),
            guard=UNITS,
        ),
        reconciled(
            "worksheet/10b",
            "one GiB is written out as 10^9 bytes",
            "7% are missing, and the residual says so",
            COUNTERS,
            sound=lambda: _cached(GIB, "bytes"),
            faulty=lambda: _cached(10**9, "bytes"),
        ),
    ]
