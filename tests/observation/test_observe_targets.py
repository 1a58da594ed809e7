"""The largest programs of the first models, for devices that are not here. Expected numbers are closed forms."""

from __future__ import annotations

import pytest

from jaxcost.catalog.manifest import load_architecture
from jaxcost.contracts.case import training
from jaxcost.observation.observe import observe
from jaxcost.observation.record import read_record, records

COMPILED_FLOPS = 522_800_599_138_304  # 4 forward passes less the replayed down projections, which nobody reads


def llama():
    return training(load_architecture("llama-3.1-8b"), batch=16, seq=4096, remat="block", mesh={"fsdp": 8})


@pytest.mark.cuda
@pytest.mark.slow
def test_llama_on_eight_h100(tmp_path):
    seen = observe(llama(), "h100:8", record=tmp_path)
    assert seen.status == "observed", seen.reason
    assert seen.flops == COMPILED_FLOPS
    assert 8 * seen.flops == seen.data["jaxpr"]["flops"]
    assert seen.memory["argument_bytes"] == seen.data["state"]["device_bytes"] == 12_048_220_164
    assert seen.data["compiler"]["memory_analysis"]["peak_memory_in_bytes"]["verdict"] == "exact"
    assert seen.data["hlo"]["unattributed"] == []
    (path,) = records(tmp_path)
    assert path.with_suffix(".hlo.xz").stat().st_size < 100_000
    assert read_record(path).flops == COMPILED_FLOPS


@pytest.mark.tpu
@pytest.mark.slow
def test_llama_exceeds_eight_v5e():
    seen = observe(llama(), "tpu-v5e:2x4")
    assert seen.status == "refused"
    assert "RESOURCE_EXHAUSTED" in seen.reason
    # The dump of the refused compile still holds the program.
    assert seen.flops == COMPILED_FLOPS
    section = seen.data["rematerialisation"]
    assert section["needed"]
    assert section["required_bytes"] > section["device_memory_bytes"]
    # The message rounds to hundredths of a GiB.
    assert abs(section["refusal"]["required_bytes"] - section["required_bytes"]) < 2**30 // 50
    second = section["second_compile"]
    assert second["status"] == "refused"
    assert second["remat_instructions"] > 0
    assert second["excess_flops"] == second["flops"] - COMPILED_FLOPS > 0
    assert sum(row["flops"] for row in second["excess_by_scope_phase"]) == second["excess_flops"]
