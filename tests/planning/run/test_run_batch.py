"""The batch is the product of its own factors: what else is multiplied in, or left out, is refused with its cause."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from jaxcost.contracts.errors import RejectedError
from jaxcost.planning.run.batch import batch_problems, replicas
from tests.planning.run.plans import scenario

MESH = {"pipeline": 2, "data": 4, "fsdp": 8, "tensor": 4}
FACTORS: dict[str, Any] = {"batch_tokens": None, "micro_batch": 1, "seq": 8192, "accumulate": 16, "mesh": MESH}
RIGHT = 8192 * 16 * 32


def test_data_and_fsdp_are_replicas_and_no_other_axis_is() -> None:
    for sizes in product((1, 2, 3), repeat=6):
        mesh = dict(zip(("pipeline", "data", "fsdp", "context", "tensor", "expert"), sizes, strict=True))
        assert replicas(mesh, None) == mesh["data"] * mesh["fsdp"]
    assert replicas(None, 7) == 7 and replicas(None, None) is None


def test_the_product_of_the_factors() -> None:
    assert scenario(**FACTORS).known("step_positions") == RIGHT
    assert scenario(**{**FACTORS, "batch_tokens": RIGHT}).known("step_positions") == RIGHT


@pytest.mark.parametrize(
    ("times", "cause"),
    [
        (4, "ranks of tensor share"),
        (2, "ranks of pipeline share"),
        (8, "pipeline x tensor"),
        ((1, 16), "without the accumulation"),
        (3, "= 4194304"),
    ],
)
def test_a_wrong_batch_is_refused_with_its_cause(times: Any, cause: str) -> None:
    up, down = times if isinstance(times, tuple) else (times, 1)
    with pytest.raises(RejectedError, match=cause):
        scenario(**{**FACTORS, "batch_tokens": RIGHT * up // down})


def test_replicas_that_the_mesh_does_not_have() -> None:
    with pytest.raises(RejectedError, match="32 replicas .* ranks of tensor"):
        scenario(**{**FACTORS, "data_parallel": 128})
    with pytest.raises(RejectedError, match="no whole number of groups"):
        scenario(batch_tokens=None, micro_batch=1, seq=8192, accumulate=16, data_parallel=96)


def test_a_check_that_refuses_everything_would_be_seen() -> None:
    assert batch_problems("", 256, MESH, None, {"micro_batch": 1, "seq": 8192, "accumulate": 16}, RIGHT) == []
    assert batch_problems("", 256, None, None, {"micro_batch": None, "seq": None, "accumulate": 1}, 5) == []


def test_a_batch_that_lacks_its_accumulation_is_told_which() -> None:
    with pytest.raises(RejectedError, match="accumulation over 4 microbatches is missing.*or give accumulate 4"):
        scenario(batch_tokens=4 * 8192 * 64, micro_batch=1, seq=8192, accumulate=1, data_parallel=64)
    with pytest.raises(RejectedError, match="over 6 microbatches is missing.*or give accumulate 6"):
        scenario(batch_tokens=6 * 8192 * 64, micro_batch=1, seq=8192, accumulate=2, data_parallel=64)
