"""What the compiler made of a program's products, by the instructions and equations that show it."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest

import jaxcost
from jaxcost.audits import jaxpr
from jaxcost.audits.evidence import Notes
from jaxcost.observation.pool import Pool
from tests.audits.jaxpr_programs import PROGRAMS, kernel_product

CUDA, TPU = pytest.mark.cuda, pytest.mark.tpu
H100, V5E = pytest.param("h100", marks=CUDA), pytest.param("tpu-v5e:1x1", marks=TPU)


@pytest.fixture(scope="module")
def audit():
    with Pool(size=1, allow=("jaxcost.audits",), timeout_seconds=600) as pool:
        made = {}

        def get(name, target="cpu"):
            if (name, target) not in made:
                function, arguments = PROGRAMS[name]
                made[name, target] = jaxcost.audit(function, *arguments, target=target, pool=pool).data
            return made[name, target]

        yield get


def reasons(data):
    """FLOPs by reason, once nothing is left unexplained."""
    found = {}
    for row in data["jaxpr"]["differences"]:
        assert row["unexplained"] == 0, row
        for reason in row["reasons"]:
            found[reason["kind"]] = found.get(reason["kind"], 0) + reason["flops"]
    assert data["jaxpr"]["flops"] + sum(found.values()) == data["flops"]["total"]
    return found


def test_checkpointing_that_saves_nothing(audit):
    """jax-ml/jax#19822: ten layers, the gradient of x alone: 2e10 forward and 2e10 backward."""
    kept, whole, layers = (audit(name) for name in ("kept", "whole function checkpointed", "each layer checkpointed"))
    assert [data["jaxpr"]["flops"] for data in (kept, whole, layers)] == [40 * 10**9, 60 * 10**9, 60 * 10**9]
    assert [data["flops"]["total"] for data in (kept, whole, layers)] == [40 * 10**9, 60 * 10**9, 42 * 10**9]
    assert reasons(kept) == reasons(whole) == {}
    assert reasons(layers) == {"replay_undone": -18 * 10**9}
    # Model FLOPs are those without the recomputation, hardware FLOPs those executed.
    by_phase = whole["flops"]["by_phase"]
    assert by_phase["replay"] == 20 * 10**9 and by_phase["forward"] + by_phase["backward"] == 40 * 10**9
    (finding,) = (f for f in layers["findings"] if f["kind"] == "replay_undone")
    assert finding["flops"] == 18 * 10**9 and "undid the recomputation" in finding["text"]
    assert not any(f["kind"] == "replay_undone" for f in whole["findings"])


@pytest.mark.cuda
def test_the_gpu_compiler_keeps_the_recomputation(audit):
    data = audit("each layer checkpointed", "h100")
    assert data["flops"]["total"] == 60 * 10**9 and reasons(data) == {}


@pytest.mark.parametrize(
    ("name", "target", "expected"),
    [
        ("the same in every trip", "cpu", {"hoisted": -5 * 2 * 128**3}),
        pytest.param("the same in every trip", "h100", {}, marks=CUDA),
        pytest.param("the same in every trip", "tpu-v5e:1x1", {"hoisted": -5 * 2 * 128**3}, marks=TPU),
        ("nobody reads it", "cpu", {"dead_code": -2 * 128**3}),
        ("asked for twice", "cpu", {"merged": -2 * 128**3}),
        pytest.param("asked for twice", "h100", {"merged": -2 * 128**3}, marks=CUDA),
        ("groups", "cpu", {"dense_groups": 7 * 2 * 64 * 128 * 256}),
        pytest.param("groups", "h100", {"dense_groups": 7 * 2 * 64 * 128 * 256}, marks=CUDA),
        pytest.param("groups", "tpu-v5e:1x1", {}, marks=TPU),
        ("a vector", "cpu", {}),
        pytest.param("a vector", "h100", {}, marks=CUDA),
        pytest.param("a vector", "tpu-v5e:1x1", {}, marks=TPU),
        ("a convolution", "cpu", {}),
    ],
)
def test_each_difference_has_its_instruction(audit, name, target, expected):
    assert reasons(audit(name, target)) == expected


@pytest.mark.parametrize(("target", "kind"), [pytest.param("h100", "padded", marks=CUDA),
                                              pytest.param("tpu-v5e:1x1", "rewritten", marks=TPU)])  # fmt: skip
def test_a_convolution_that_is_written_otherwise(audit, target, kind):
    data = audit("a convolution", target)
    found = reasons(data)
    assert list(found) == [kind] and found[kind] > 0
    (row,) = data["jaxpr"]["differences"]
    assert row["reasons"][0]["evidence"]


@pytest.mark.tpu
def test_a_kernel_by_its_own_program():
    """jax-ml/jax#29463: 512 x 512 x 512 in four tiles of 128 rows, with and without an estimate."""
    from jax.experimental import pallas as pl

    for cost in (None, pl.CostEstimate(flops=268_435_456, transcendentals=0, bytes_accessed=0)):
        _, arguments = PROGRAMS["a kernel"]
        data = jaxcost.audit(kernel_product(cost), *arguments, target="tpu-v5e:1x1").data
        assert data["jaxpr"]["flops"] == 268_435_456
        (kernel,) = data["jaxpr"]["kernels"]
        assert kernel["grid"] == [4] and kernel["flops"] == 268_435_456
        assert data["flops"]["total"] == (None if cost is None else 268_435_456)
        assert any(unknown["kind"] == "kernel" for unknown in data["unknowns"]) == (cost is None)


def test_one_more_flop_stays_unexplained(audit):
    """Nothing is explained by the difference itself."""
    from jaxcost.audits.evidence import gather
    from jaxcost.observation.sources import Program
    from jaxcost.observation.sources.functions import lower_function
    from tests.observation.hlo.building import dump

    function, arguments = PROGRAMS["asked for twice"]
    lowered, _ = lower_function(function, arguments, {}, platform="cpu", options={}, mesh=None)
    changed = copy.deepcopy(dict(lowered.jaxpr))
    changed["by_scope_phase"][0]["flops"] -= 1
    program = Program("function", "f", dump(function, *arguments)[0], "cpu", lowered=replace(lowered, jaxpr=changed))
    (row,) = jaxpr.section(gather(program), Notes())["differences"]
    assert row["unexplained"] == 1 and [r["kind"] for r in row["reasons"]] == ["merged"]
    changed["rows"] = [{**row, "repeats": False} for row in changed["rows"]]
    (row,) = jaxpr.section(gather(program), Notes())["differences"]
    assert row["reasons"] == [] and row["unexplained"] == row["difference"] == -2 * 128**3 + 1
