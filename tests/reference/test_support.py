"""Ownership that the ledgers predict and this network does not run is refused by name, and told from a broken case."""

from __future__ import annotations

import pytest

from jaxcost.contracts.errors import NotExecutedError
from jaxcost.reference.support import require_supported
from tests.reference.small import ARCHITECTURES, architecture, layer, make_case

MIXED = architecture([(1, layer(4, 2, 24)), (1, layer(4, 4, 24))], [])
REFUSED = {
    "execution.mesh": {"mesh": {"pipeline": 3, "tensor": 2}, "accumulate": 2},
    "execution.pipeline": {"mesh": {"pipeline": 3}, "accumulate": 2, "pipeline_schedule": "1f1b"},
    "execution.layers": {"mesh": {"pipeline": 3}, "accumulate": 2, "layers": "unrolled"},
    "execution.remat": {"mesh": {"pipeline": 3}, "accumulate": 2, "remat": "attention"},
    "workload.dropout": {"mesh": {"pipeline": 3}, "accumulate": 2, "dropout": True},
    "state.frozen": {"mesh": {"pipeline": 3}, "accumulate": 2, "frozen": ["embed"]},
    "execution.gradient_sync": {"mesh": {"data": 2}, "accumulate": 2, "gradient_sync": "last_microbatch"},
    "execution.offload": {"offload": ["optimizer"]},
    "execution.head_multiple": {"head_multiple": 6},
    "execution.fsdp.group": {"mesh": {"fsdp": 2}, "fsdp_group": "block"},
    "execution.fsdp.prefetch": {"mesh": {"fsdp": 2}, "prefetch": 1},
    "execution.zero": {"mesh": {"data": 2}, "zero": 1},
}


@pytest.mark.parametrize("path", REFUSED)
def test_what_is_only_predicted_is_refused_by_name(path):
    case = make_case(ARCHITECTURES["llama"], batch=4, seq=8, **REFUSED[path])
    with pytest.raises(NotExecutedError, match=path):
        require_supported(case)


def test_one_mesh_has_one_number_of_replicas():
    with pytest.raises(NotExecutedError, match="one mesh has one such number"):
        require_supported(make_case(MIXED, batch=4, seq=8, mesh={"tensor": 4}))
    require_supported(make_case(MIXED, batch=4, seq=8, mesh={"tensor": 2}))


@pytest.mark.parametrize(
    "options",
    [
        {"mesh": {"fsdp": 2}, "reshard": False},
        {"mesh": {"tensor": 4}},
        {"mesh": {"pipeline": 3, "data": 2}, "accumulate": 2, "remat": "block"},
        {"mesh": {"context": 2, "tensor": 2}, "sequence_parallel": True},
        {"remat": "save_only_these_names", "remat_names": ["q_proj"]},
    ],
    ids=str,
)
def test_what_is_executed_is_not(options):
    require_supported(make_case(ARCHITECTURES["llama"], batch=4, seq=8, **options))
